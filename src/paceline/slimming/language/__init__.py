"""Language models: checkpoints and texts, importance from activations, distillation."""
