"""Command line: one file per command, and the groups of arguments that commands share."""

from paceline.cli.command_line import build_parser, main

__all__ = ["build_parser", "main"]
