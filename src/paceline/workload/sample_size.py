"""Size of one sample as users state it: images, clips, texts, and what of a pipeline was computed before."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from paceline.errors import UserError, unknown

CACHED, CACHED_TEXT, CACHED_LATENTS = "cached", "cached-text", "cached-latents"
TRAIN_TEXT, FROZEN_VISION = "train-text", "frozen-vision"
WORDS = {
    CACHED: "latents and embeddings were computed before: no encoder is on the device",
    CACHED_TEXT: "embeddings of the texts were computed before",
    CACHED_LATENTS: "latents of the images were computed before",
    TRAIN_TEXT: "CLIP text encoders are trained too",
    FROZEN_VISION: "the tower of images is frozen",
}
"""Words of ``--input``, with their meaning."""
EXAMPLE = "write 512px, 1024x1024 or 81x480x832 (frames x height x width), image:1024x1024, images:2, tokens:512; words: " + (
    ", ".join(WORDS)
)
_SIDE = re.compile(r"([1-9][0-9]*)(?:px|p)")
_SIZES = re.compile(r"[1-9][0-9]*(?:x[1-9][0-9]*){1,3}")
_CHANNELS = (1, 3)


@dataclass(frozen=True, slots=True)
class SampleSize:
    """Size of one sample; 0 means the model's usual one.

    Attributes:
        height, width: pixels of an image or of a frame.
        frames: frames of a clip.
        images: images of a sample with text.
        tokens: tokens of its text, without those of images.
        words: keys of ``WORDS``.
    """

    height: int = 0
    width: int = 0
    frames: int = 0
    images: int = 0
    tokens: int = 0
    words: frozenset[str] = frozenset()

    @property
    def pixels(self) -> str:
        """The size of an image or clip as a user types it; empty for the usual one."""
        if not self.height:
            return ""
        return "x".join(str(value) for value in (self.frames, self.height, self.width) if value)


def parse_sample(text: str) -> SampleSize:
    """Parse ``512px,cached`` or ``image:1024x1024,tokens:512``.

    Raises:
        UserError: any other text, or a part that is given twice.
    """
    result, given = SampleSize(), set()
    for part in (piece.strip() for piece in text.lower().split(",")):
        kind, value = _kind(part, text)
        if kind in given and kind != "word":
            raise UserError(f"input {text!r} gives {kind} twice", EXAMPLE)
        given.add(kind)
        if kind == "word":
            result = replace(result, words=result.words | {value})
        elif kind == "size":
            result = _sized(result, value, text)
        else:
            images, tokens = (int(value) if kind == own else getattr(result, own) for own in ("images", "tokens"))
            result = replace(result, images=images, tokens=tokens)
    return result


def _kind(part: str, text: str) -> tuple[str, str]:
    """Return the kind of a part (``size``, ``tokens``, ``images`` or ``word``), and its value."""
    name, colon, value = part.partition(":")
    if not colon:
        if _SIDE.fullmatch(part) or _SIZES.fullmatch(part):
            return "size", part
        if part not in WORDS:
            raise unknown("word of --input", part, tuple(WORDS), EXAMPLE)
        return "word", part
    if name in ("image", "video", "size") and (_SIDE.fullmatch(value) or _SIZES.fullmatch(value)):
        return "size", value
    if name in ("tokens", "images") and value.isdecimal() and int(value):
        return name, value
    raise UserError(f"input {text!r}", EXAMPLE)


def _sized(sample: SampleSize, value: str, text: str) -> SampleSize:
    """Return the sample with a size: ``512px``, height x width, or three numbers, of which the first is channels or frames."""
    if side := _SIDE.fullmatch(value):
        return replace(sample, height=int(side[1]), width=int(side[1]))
    sizes = [int(number) for number in value.split("x")]
    if len(sizes) == 4 and sizes[0] in _CHANNELS:
        sizes = sizes[1:]
    if len(sizes) == 3 and sizes[0] in _CHANNELS:
        sizes = sizes[1:]
    if len(sizes) > 3:
        raise UserError(f"input {text!r}", EXAMPLE)
    frames = sizes[0] if len(sizes) == 3 else 0
    return replace(sample, frames=frames, height=sizes[-2], width=sizes[-1])
