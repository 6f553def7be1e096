"""Format amounts of a federation's currency."""

from __future__ import annotations


def amount(value: float, sign: bool = False) -> str:
    """Format an amount: an integer from 100 on, else three digits. ``sign`` writes a plus before positive amounts."""
    plus = "+" if sign else ""
    text = f"{value:{plus},.0f}" if abs(value) >= 99.95 else f"{value:{plus}.3g}"
    return "0" if text in ("+0", "-0") else text


def priced(value: float, currency: str) -> str:
    """Format an amount with its currency: ``$1,200`` or ``1,200 job-hours``."""
    text = amount(value)
    if len(currency) > 1:
        return f"{text} {currency}"
    return f"-{currency}{text[1:]}" if text.startswith("-") else f"{currency}{text}"


__all__ = ["amount", "priced"]
