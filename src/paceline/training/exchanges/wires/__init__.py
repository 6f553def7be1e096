"""Wires between ranks: collectives on process groups or within one process, the lab's switch, message buffers, the meter."""
