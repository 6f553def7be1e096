"""Readers of dimensions of networks from Hugging Face configurations."""
