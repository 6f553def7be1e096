"""How long one training step takes, what it waits for and what memory it needs, before the hardware is there."""

from paceline.calibration.calibration import Calibration, Line
from paceline.calibration.observation import Observation
from paceline.prediction.correction import Correction, fit
from paceline.prediction.predict import Prediction, predict

__all__ = ["Calibration", "Correction", "Line", "Observation", "Prediction", "fit", "predict"]
