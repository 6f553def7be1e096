"""Training runs: ``train`` checks a ``TrainingRun``, ``launcher`` starts the ``worker`` processes, ``loop`` trains, and
``checkpoints`` keep the state.
"""
