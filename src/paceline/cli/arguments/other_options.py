"""Advice for options that another command or another tool takes."""

from __future__ import annotations

from collections.abc import Mapping

_BATCH = ("--batch", "--batch-size", "--global-batch-size")
_AMOUNT = ("--tokens", "--samples", "--epochs", "--data", "--target")
_LIMITS = ("--by", "--deadline", "--budget", "--goal")
_PLANNED = ("--emit", "--why-not", "--max-loss")
_LOCAL = (
    *("--sync-every", "--fragments", "--sync-delay", "--mixing", "--outer-lr", "--outer-momentum"),
    *("--round-deadline", "--max-age", "--local-recipe"),
)
_UNRANKED = "the samples that local steps need are unknown, so no plan ranks them; paceline predict and whatif take it"
_ASK = {
    **dict.fromkeys(_LOCAL, _UNRANKED),
    **dict.fromkeys(_BATCH, "write --global-batch B"),
    **dict.fromkeys(_PLANNED, "ask chooses it; paceline plan takes it"),
    **dict.fromkeys(("--device", "--devices"), "write --on '8 A100'"),
    "--nodes": "write --on '2x8 A100, 100Gb/s'",
    "--deadline": "write --by 3d",
    "--goal": "write --by 3d or --budget 500",
}
_PLAN = {
    **dict.fromkeys(_LOCAL, _UNRANKED),
    **dict.fromkeys(_BATCH, "write --global-batch B"),
    "--by": "write --goal deadline=6h",
    "--deadline": "write --goal deadline=6h",
    "--budget": "write --goal budget=500",
}
_STEP = {
    **dict.fromkeys(_BATCH, "write --global-batch B"),
    **dict.fromkeys((*_AMOUNT, *_LIMITS), "this is about one step; paceline ask and paceline plan are about a training"),
}
_OF: Mapping[str, Mapping[str, str]] = {
    "ask": _ASK,
    "plan": _PLAN,
    **dict.fromkeys(("predict", "whatif", "explain", "diagnose"), _STEP),
}


def instead_of(option: str, command: str) -> str:
    """Return the replacement for ``option`` (``--by``) in ``command`` (``plan``); empty if unknown.

    The caller has checked that the command does not take the option.
    """
    return _OF.get(command, {}).get(option, "")
