"""Networks that classify, detect or generate images."""
