from paceline.prediction.calibration import Calibration, Line

__all__ = ["Calibration", "Line"]
