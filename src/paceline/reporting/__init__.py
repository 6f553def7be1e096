"""What a reader sees: console tables, the HTML report, predicted against measured."""

from __future__ import annotations

from paceline.reporting.report_page import render_report, write_report
from paceline.reporting.table import comparison_table, learning_text, prediction_text, record_text, render

__all__ = [
    "comparison_table",
    "learning_text",
    "prediction_text",
    "record_text",
    "render",
    "render_report",
    "write_report",
]
