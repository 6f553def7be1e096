"""Simulation of many jobs on a cluster."""
