"""Named networks as plain modules, for ``train --model NAME`` and for the layer tables.

This package needs torch. The layer tables are in ``paceline.workload`` and do not.
"""

from paceline.models.registry import REGISTRY, Entry, InputSpec, build, model

__all__ = ["REGISTRY", "Entry", "InputSpec", "build", "model"]
