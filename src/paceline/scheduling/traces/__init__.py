"""Traces of jobs, read from the columns of published files or generated as their authors did."""
