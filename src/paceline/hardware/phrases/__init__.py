"""Machines and links in people's words: tokens, the vocabulary, and the grammar of a cluster."""
