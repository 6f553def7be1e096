"""Optimizers for large batches: LARS and LAMB in their published variants, whole or sharded, bound only by memory bandwidth."""

from paceline.training.optimizers.exclusion import RULES
from paceline.training.optimizers.lamb import LAMB
from paceline.training.optimizers.lars import LARS
from paceline.training.optimizers.published_variants import LAMB_VARIANTS, LARS_VARIANTS, trust_ratio

__all__ = ["LAMB", "LAMB_VARIANTS", "LARS", "LARS_VARIANTS", "RULES", "trust_ratio"]
