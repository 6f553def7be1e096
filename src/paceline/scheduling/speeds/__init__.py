"""Speed of jobs: measured, fitted, predicted, corrected."""
