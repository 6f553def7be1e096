"""Prices of devices and hours."""
