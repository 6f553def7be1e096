"""From a trained network to a smaller one on a target: training stages, removal, export, measurement."""
