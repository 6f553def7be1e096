"""Output for readers: console tables, the HTML report, and comparisons of predictions with measurements."""

from __future__ import annotations

from paceline.reporting.pages.report_page import render_report, write_report
from paceline.reporting.text.table import comparison, prediction_screen, render, training_screen

__all__ = [
    "comparison",
    "prediction_screen",
    "render",
    "render_report",
    "training_screen",
    "write_report",
]
