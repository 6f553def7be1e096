"""Frameworks of training by name, with what each takes by default."""

from paceline.strategy.frameworks.framework import (
    ALIASES,
    FRAMEWORKS,
    LEVELS,
    ORDINARY,
    TUNED,
    Framework,
    SoftwareLevel,
    framework_of,
)

__all__ = ["ALIASES", "FRAMEWORKS", "LEVELS", "ORDINARY", "TUNED", "Framework", "SoftwareLevel", "framework_of"]
