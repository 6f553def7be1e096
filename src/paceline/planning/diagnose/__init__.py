"""Diagnosis of a slow run: the measured step against the predicted one, and the causes that would explain the gap."""
