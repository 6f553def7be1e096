"""Record of slimming a language model, as plain data: whole and smaller, in each form of the weights, and the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from paceline.errors import UserError, shorten, shown

VERSION = 1
EQUAL, FREE = "equal", "free"
WIDTHS: Mapping[str, str] = {
    EQUAL: "all layers keep equally many heads, rows and experts, so that transformers opens the smaller model",
    FREE: "each layer has its own",
}
"""Widths of a decoder's layers, with what they mean. Decoders of Hugging Face have the first by default."""
WHOLE, TRAINED_WHOLE, SMALLER, LESS = "whole", "trained whole", "smaller", "less removed"
"""Models that are measured. The second is the whole model after as many tokens as the smaller one, the yardstick of its loss.
From the last one goes only what a form of its weights leaves of the budget."""


@dataclass(frozen=True, slots=True)
class LanguageMeasurement:
    """A decoder with its cache on a runtime.

    Attributes:
        name: ``WHOLE``, ``TRAINED_WHOLE``, ``SMALLER`` or ``LESS``.
        weights: form of the weights. ``bits``: those of a weight of a product.
        decode_s: median seconds of a token. ``decode_low_s``, ``decode_high_s``: quartiles. ``prefill_s``: median of a prompt.
        perplexity: on the held-out text, by the file itself. ``parameters``: weights. ``file_bytes``: bytes of the file.
        meets: whether it meets the budget.
    """

    name: str
    weights: str
    bits: int
    decode_s: float
    decode_low_s: float
    decode_high_s: float
    prefill_s: float
    perplexity: float
    parameters: int
    file_bytes: int
    meets: bool


@dataclass(frozen=True)
class LanguageRecord:
    """Slimming of a language model.

    Attributes:
        model: its folder's name; ``budget``: as asked for; ``goal``: in seconds or bytes.
        context: tokens in the cache of a decoded token. ``prompt``: tokens of the prefill. ``threads``: those of the runtime.
        rows: measurements in turns; the first is the whole model in fp32.
        layers: layers that stay, of ``whole_layers``. ``widths``: structures that stay of each other layer's, by name.
        importance: name of the importance that was chosen. ``before``: perplexity before training on the part that decides.
        predicted: cost of the smaller model by the tables, in the budget's unit.
        trained: tokens that the smaller model saw, the whole model's share in its loss, processor seconds, further settings.
        random: the weights were random, so that perplexities say nothing.
        opens: whether transformers opens the smaller model. ``target``: runtime of the files and the measurements.
    """

    model: str
    budget: str
    goal: float
    context: int
    prompt: int
    threads: int
    rows: tuple[LanguageMeasurement, ...]
    layers: tuple[int, ...]
    whole_layers: int
    widths: Mapping[str, tuple[int, int]]
    importance: str
    before: float
    predicted: float
    trained: Mapping[str, float]
    random: bool
    opens: bool = False
    target: str = "onnxruntime"
    notes: tuple[str, ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def whole(self) -> LanguageMeasurement:
        """The whole model in fp32."""
        return self.rows[0]

    def loss(self, row: LanguageMeasurement) -> float | None:
        """Return the perplexity of a row over that of the whole model in fp32 after as much training, less 1.

        A training that made the whole model worse does not count: then it is compared as it is.

        Returns:
            None if the row learned the text and the whole model did not, or if the weights are random.
        """
        learned = row.name != WHOLE and bool(self.trained["tokens"])
        yardstick = next((each for each in self.rows if each.name == TRAINED_WHOLE), None) if learned else self.whole
        if yardstick is None or self.random:
            return None
        return row.perplexity / min(yardstick.perplexity, self.whole.perplexity) - 1

    @property
    def fewer_bits(self) -> LanguageMeasurement | None:
        """Row of the whole model that meets the budget in fewer bits at the least perplexity; None if there is none."""
        fewer = (each for each in self.rows if each.meets and each.name == WHOLE and each.bits < self.whole.bits)
        return min(fewer, key=lambda each: each.perplexity, default=None)

    @property
    def best(self) -> LanguageMeasurement | None:
        """Row that meets the budget at the least loss; None if no row does. Rows without a loss come last, by perplexity."""
        meeting = [(self.loss(each), each) for each in self.rows if each.meets]
        least = min(meeting, key=lambda pair: (pair[0] is None, pair[0] or 0.0, pair[1].perplexity), default=None)
        return least[1] if least else None

    def to_json(self) -> dict[str, Any]:
        """Convert to plain data, with the answer as the number of its row."""
        best = None if self.best is None else self.rows.index(self.best)
        return {"version": VERSION, **asdict(self), "best": best}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LanguageRecord:
        """Read the data of ``to_json``. Raises UserError for other data."""
        try:
            values = {name: value for name, value in data.items() if name not in ("version", "best")}
            if data["version"] != VERSION:
                raise UserError(f"a record of version {shown(data['version'])}", f"this release reads version {VERSION}")
            values["rows"] = tuple(LanguageMeasurement(**each) for each in values["rows"])
            values["widths"] = {name: (int(before), int(left)) for name, (before, left) in values["widths"].items()}
            values |= {name: tuple(values[name]) for name in ("layers", "notes")}
            return cls(**values)
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise UserError(f"this is no record of a language model: {shorten(f'{type(error).__name__}: {error}')}") from error
