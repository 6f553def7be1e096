"""Speeds of jobs: measured, fitted, predicted and corrected."""
