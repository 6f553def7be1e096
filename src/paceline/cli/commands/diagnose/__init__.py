"""``paceline diagnose``: why a run is slower than predicted, or faster."""

from paceline.cli.commands.diagnose.command import add

__all__ = ["add"]
