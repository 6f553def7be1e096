"""Prediction of a training step: its time, its bottlenecks and its memory, before the hardware is available."""

from paceline.calibration.calibration import Calibration, Line
from paceline.calibration.observation import Observation
from paceline.prediction.answer.result import Assumption, Prediction
from paceline.prediction.correction.corrected_predictor import CorrectedPredictor, fit
from paceline.prediction.correction.correction import Correction
from paceline.prediction.predictor import ORDINARY, Predictor, StepPredictor, predict

__all__ = [
    "ORDINARY",
    "Assumption",
    "Calibration",
    "CorrectedPredictor",
    "Correction",
    "Line",
    "Observation",
    "Prediction",
    "Predictor",
    "StepPredictor",
    "fit",
    "predict",
]
