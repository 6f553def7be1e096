"""Dimensions of networks from Hugging Face configurations."""
