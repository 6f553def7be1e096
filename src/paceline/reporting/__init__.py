"""What a reader sees: console tables, the HTML report, Chrome traces, predicted against measured."""

from __future__ import annotations

from paceline.reporting.html import render_report, write_report
from paceline.reporting.rundir import RunDir, RunDirContents, run_label
from paceline.reporting.table import comparison_table, prediction_text, record_text, render
from paceline.reporting.trace import chrome_trace, read_chrome_trace

__all__ = [
    "RunDir",
    "RunDirContents",
    "chrome_trace",
    "comparison_table",
    "prediction_text",
    "read_chrome_trace",
    "record_text",
    "render",
    "render_report",
    "run_label",
    "write_report",
]
