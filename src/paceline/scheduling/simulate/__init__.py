"""Simulation of jobs on a shared cluster."""
