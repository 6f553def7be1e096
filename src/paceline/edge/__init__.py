"""Stages from a trained network to a smaller one on a target: training, removal, export, measurement."""
