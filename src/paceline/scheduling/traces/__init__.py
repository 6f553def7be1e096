"""Traces: files of jobs, each form told by its columns."""
