"""Low-rank adapters and the frozen weights next to them: LoRA, DoRA, QLoRA."""
