"""Speed of jobs: measured, fitted, predicted and corrected."""
