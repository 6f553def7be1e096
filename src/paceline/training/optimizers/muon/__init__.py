"""Muon: orthogonalized momentum for hidden matrices and AdamW for the rest, shared out among ranks."""

from paceline.training.optimizers.muon.muon import Muon

__all__ = ["Muon"]
