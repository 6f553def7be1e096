"""Exchange of a model that FSDP2 has sharded."""
