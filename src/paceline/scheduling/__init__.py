"""Scheduling of many jobs on one cluster."""
