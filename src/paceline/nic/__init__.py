"""Compression inside the network card: the engine, its checks, and the card in the lab."""
