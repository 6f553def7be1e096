"""Readers of traces: files of jobs, recognized by their columns."""
