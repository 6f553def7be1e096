"""Training with PyTorch, in four packages. Each imports only those before it.

- ``exchanges``: gradients between ranks: codecs on wires, error feedback, sums by ring, owners or nodes.
- ``attach``: an exchange for a model of your own script: ``attach``, ``attach_local``, their options and hooks.
- ``optimizers``: LARS, LAMB and the 1-bit optimizers, as plain ``torch.optim.Optimizer``.
- ``runs``: the trainer behind ``paceline train``: launcher, workers, loops, checkpoints.
"""
