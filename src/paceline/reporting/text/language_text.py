"""Screen of a slimmed language model."""

from __future__ import annotations

from paceline.language_record import LESS, WHOLE, LanguageMeasurement, LanguageRecord
from paceline.reporting.text.screen import GAP, Pair, Paragraph, Screen, Table
from paceline.units import format_bytes, format_count, format_seconds

KINDS = {(False, False): "", (True, False): "smaller", (False, True): "fewer bits", (True, True): "both"}
"""Words for an answer by whether it is smaller, and whether it has fewer bits."""


def language_screen(record: LanguageRecord) -> Screen:
    """Return the screen: which of smaller, fewer bits or both meets the budget at the least loss."""
    answer = answer_text(record)
    return Screen(
        title=f"{record.model} slimmed to {record.budget}",
        answer=(
            Paragraph(f"{answer}."),
            GAP,
            Table(
                ("", "token", "speed", f"{record.prompt} tokens", "file", "perplexity", "budget"),
                [_row(record, each) for each in record.rows],
                frozenset({0, 6}),
            ),
            GAP,
            Pair("loss", _losses(record)),
            Pair("smaller", _smaller(record)),
            *(Pair(each.name, _less_removed(record, each)) for each in record.rows if each.name == LESS),
            Pair("token", _timed(record)),
            Pair("trained", _trained(record)),
            *(Paragraph(note) for note in record.notes),
        ),
        brief=f"{record.model}: {answer}",
        why=tuple(Pair(name, str(value)) for name, value in record.environment.items()),
        why_holds="the machine",
    )


def answer_text(record: LanguageRecord) -> str:
    """Return the answer without its last full stop: fewer bits alone first, then the row of the least loss."""
    best, alone = record.best, record.fewer_bits
    if best is None:
        return f"Nothing measured meets {record.budget}"
    if record.random:
        meets = ", ".join(_name(each) for each in record.rows if each.meets)
        return f"{record.budget} is met by {meets}; with random weights, which loses least is unknown"
    kind = KINDS[best.parameters < record.whole.parameters, best.bits < record.whole.bits] or "the whole model"
    least = f"{record.budget} at the least loss: {kind} {_figures(record, best)}"
    if alone is None:
        return least
    if alone == best:
        return f"{least}. Nothing is removed: only beyond this budget is a smaller model needed"
    return f"Fewer bits alone meet {record.budget}: {_figures(record, alone)}. {least}"


def _figures(record: LanguageRecord, row: LanguageMeasurement) -> str:
    """Return the name of a row, its speed, and its perplexity against the whole model after as much training."""
    loss, faster = record.loss(row), record.whole.decode_s / row.decode_s
    if loss is None:
        change = 100 * (row.perplexity / record.whole.perplexity - 1)
        unknown = "but the whole model did not learn the text, so its loss is unknown"
        return f"({_name(row)}), {faster:.2f}x per token, perplexity {change:+.1f} %, {unknown}"
    learned = " against the whole model trained on as many tokens" * (row.name != WHOLE and bool(record.trained["tokens"]))
    return f"({_name(row)}), {faster:.2f}x per token, perplexity {100 * loss:+.1f} %{learned}"


def _name(row: LanguageMeasurement) -> str:
    return f"{row.name}, {row.weights}"


def _row(record: LanguageRecord, row: LanguageMeasurement) -> tuple[str, ...]:
    return (
        _name(row),
        format_seconds(row.decode_s),
        f"{record.whole.decode_s / row.decode_s:.2f}x",
        format_seconds(row.prefill_s),
        format_bytes(row.file_bytes),
        f"{row.perplexity:.2f}",
        "meets it" if row.meets else "over it",
    )


def _losses(record: LanguageRecord) -> str:
    """Return the loss of each row but the whole model's, against the whole model after as much training."""
    first = record.whole
    losses = {_name(each): record.loss(each) for each in record.rows if each is not first}
    known = [f"{name} {100 * loss:+.1f} %" for name, loss in losses.items() if loss is not None]
    trained = " after as many tokens, where they learned the text" * bool(record.trained["tokens"])
    return f"{'; '.join(known)}: perplexity against the whole model{trained}" if known else ""


def _smaller(record: LanguageRecord) -> str:
    """Describe what stays: layers, heads and rows."""
    small = min(record.rows, key=lambda each: each.parameters)
    layers = f"{len(record.layers)} of {record.whole_layers} layers"
    kept, before = (sum(pair[place] for pair in record.widths.values()) for place in (1, 0))
    widths = f"{kept} of {before} heads and rows in them" if before else "all widths"
    return f"{layers}, {widths}, {format_count(small.parameters)} of {format_count(record.whole.parameters)} parameters"


def _less_removed(record: LanguageRecord, row: LanguageMeasurement) -> str:
    count = f"{format_count(row.parameters)} of {format_count(record.whole.parameters)} parameters"
    return f"{count}, as many as the budget leaves in {row.weights}"


def _timed(record: LanguageRecord) -> str:
    on = "" if record.target == "onnxruntime" else f" on {record.target}"
    return f"after {record.context} tokens{on}, {record.threads} thread{'s' * (record.threads > 1)}, in turns"


def _trained(record: LanguageRecord) -> str:
    tokens, share = record.trained["tokens"], record.trained["distill"]
    where = "on the text that candidates are chosen by, which is not the table's"
    if not tokens:
        return f"no; perplexity {record.before:.4g} without, {where}"
    taught = f"{format_count(tokens)} tokens of the text, {share:.0%} by the whole model's distribution"
    return f"{taught}; perplexity {record.before:.4g} before, {where}"
