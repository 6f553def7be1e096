"""Training runs: ``train`` checks, ``launcher`` starts ``worker`` processes, ``loop`` trains, ``checkpoints`` keeps state."""
