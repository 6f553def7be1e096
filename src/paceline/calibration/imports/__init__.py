"""Readers of step times from profiler traces, logs and exports of trackers. Each file becomes a row of a table of jobs."""
