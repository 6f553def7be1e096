"""Predictions compared with published measurements to which no constant was fitted."""

from paceline.validation.case import Info
from paceline.validation.sets import NAMES
from paceline.validation.validate import Validation, validate

__all__ = ["NAMES", "Info", "Validation", "validate"]
