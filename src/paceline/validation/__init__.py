"""Predictions against published measurements: what the error is on data that no constant was fitted to."""

from paceline.validation.case import Info
from paceline.validation.sets import NAMES
from paceline.validation.validate import Validation, validate

__all__ = ["NAMES", "Info", "Validation", "validate"]
