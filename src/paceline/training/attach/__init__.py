"""Attachment of an exchange to a model in a user's own script, without the trainer.

Start with ``attach`` (DDP and FSDP2) or ``attach_local`` (local steps). ``attach_options`` has the options of both, and
``attach_arguments`` turns keywords into an exchange and options. ``hooks`` run during the backward pass, ``local`` between
steps, ``shards`` for the units of FSDP2. ``auto`` chooses a compression, ``consistency`` and ``liveness`` watch the ranks.
"""
