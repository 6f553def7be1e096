"""Forecast of the start of each job that waits in a live queue."""
