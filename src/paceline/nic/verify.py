"""Long comparisons of the engines' Verilog with the C++ codec, in Verilator's model with random stalls on both sides."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline import codecs
from paceline.array_types import F32
from paceline.errors import UserError
from paceline.nic.bodies import BLOCK, codec, decoded, encoded, header
from paceline.nic.tally import EngineTally, Verified, Wanted
from paceline.nic.verilated import EngineRegisters, InceptionnModel

Progress = Callable[[int, int], None]
"""Callback with the number done and the total, in values, patterns, vectors or frames."""
_BATCH = 64  # frames that follow one another through a model


@dataclass
class _Frame:
    """Frame, its expected compressed form, and the expected restored frame."""

    content: bytes
    settings: EngineRegisters
    compressed: bytes
    restored: bytes
    case: str
    refused: bool = False  # the decompressor must signal an error, and only the length of its output counts


@dataclass
class _InceptionnTally(EngineTally):
    model: InceptionnModel

    def compare(self, frames: list[_Frame], directions: tuple[bool, ...] = (False, True)) -> bool:
        """Run values through the compressor, and the codec's output through the decompressor. Return whether all agree."""
        return all(self._compare(frames, decompress) for decompress in directions)

    def _compare(self, frames: list[_Frame], decompress: bool) -> bool:
        sent = [frame.compressed if decompress else frame.content for frame in frames]
        settings = [frame.settings for frame in frames]
        run = self.run(lambda seed: self.model.run(sent, settings, decompress=decompress, seed=seed), frames[0].case)
        name = "decompressor" if decompress else "compressor"
        wanted = [
            Wanted(
                f"{name}, {frame.case}",
                frame.restored if decompress else frame.compressed,
                decompress and frame.refused,
            )
            for frame in frames
        ]
        return run is not None and self.agree(run, wanted)


def verify_random(
    values: int = 10**6, seed: int = 1, model: InceptionnModel | None = None, progress: Progress | None = None
) -> Verified:
    """Verify random values in frames of 0 to 2,100: both formats, every bound, one frame in eight unmarked, IPv4 and IPv6.

    Raises:
        UserError: Verilator or a compiler is missing.
    """
    tally, rng, done = _InceptionnTally(seed, model or InceptionnModel()), np.random.default_rng(seed), 0
    while done < values:
        frames = []
        for _ in range(_BATCH):
            count = min(int(rng.choice([rng.integers(0, 41), rng.integers(0, 400), rng.integers(900, 2101)])), values - done)
            scaled = bool(rng.integers(2))
            settings = EngineRegisters(int(rng.integers(1, 16)), int(rng.integers(1, 15 if scaled else 16)), scaled, count)
            marked, ipv6 = bool(rng.integers(8)), bool(rng.integers(2))
            tail = b"" if marked else rng.bytes(int(rng.integers(0, 32)))  # what is not marked has any length
            frames.append(
                _frame(_random_values(rng, count, scaled), settings, marked, ipv6, f"value {done} on, {settings}", tail)
            )
            done += count
        if not tally.compare(frames):
            break
        if progress is not None:
            progress(done, values)
    return tally.result("random values", done)


def verify_tag_patterns(seed: int = 2, model: InceptionnModel | None = None, progress: Progress | None = None) -> Verified:
    """Verify each of the 4^8 vectors of eight tags, or of the 3^8 for ``inceptionn-scaled``, which never writes tag 11.

    Values are drawn for their tags; the vectors are then counted in the output of the codec.

    Raises:
        UserError: Verilator or a compiler is missing.
    """
    tally, rng, seen = _InceptionnTally(seed, model or InceptionnModel()), np.random.default_rng(seed), 0
    total = 4**8 + 3**8
    for scaled in (False, True):
        found: set[int] = set()
        base = 3 if scaled else 4
        patterns = rng.permutation(base**8)
        per_frame = BLOCK // 8 - 1
        frames: list[_Frame] = []
        for at in range(0, patterns.size, per_frame):
            rows = patterns[at : at + per_frame]
            tags = (rows[:, None] // base ** np.arange(8)) % base
            values = _values_of_tags(rng, tags, scaled)
            settings = EngineRegisters(2, 10, scaled, values.size)
            frames.append(_frame(values, settings, True, False, f"patterns {at} on, scaled {scaled}"))
            found.update(_vectors(frames[-1].compressed[64 + 2 * scaled :], values.size // 8))
            if len(frames) == _BATCH or at + per_frame >= patterns.size:
                if not tally.compare(frames):
                    return tally.result("tag patterns", seen + len(found))
                frames = []
                if progress is not None:
                    progress(min(seen + at + per_frame, total), total)
        wanted = {int((row // base ** np.arange(8) % base) @ 4 ** np.arange(8)) for row in patterns}
        if not wanted <= found:
            tally.difference = f"{len(wanted - found)} tag vectors did not occur, scaled {scaled}"
            break
        seen += len(wanted)
    return tally.result("tag patterns", seen)


def verify_golden(
    directory: Path | None = None, model: InceptionnModel | None = None, progress: Progress | None = None
) -> Verified:
    """Verify the golden vectors of both codecs (``tests/codecs/golden`` of a checkout, or the given directory).

    Raises:
        UserError: no golden vectors there; Verilator or a compiler is missing.
    """
    tally, frames = _InceptionnTally(3, model or InceptionnModel()), list(golden_frames(directory))
    tally.compare([_Frame(*frame) for frame in frames])
    if progress is not None:
        progress(len(frames), len(frames))
    return tally.result("golden vectors", len(frames))


def golden_frames(directory: Path | None = None) -> Iterator[tuple[bytes, EngineRegisters, bytes, bytes, str]]:
    """Yield frame, registers, compressed frame, restored frame and name of every golden vector.

    Raises:
        UserError: a directory without golden vectors.
    """
    for name in ("inceptionn", "inceptionn-scaled"):
        for item in golden_items(name, directory):
            values, back = golden_words(item["input"]), golden_words(item["decoded"])
            k = round(-np.log2(item["options"].get("bound", codec_bound(name))))
            scaled = name == "inceptionn-scaled"
            body = _of_a_frame(bytes.fromhex(item["payload"])[32:][4 if values.size else 0 :], values.size, scaled)
            settings, head = EngineRegisters(2, int(k), scaled, values.size), header(2)
            yield head + values.tobytes(), settings, head + body, head + back.tobytes(), f"{name}: {item['name']}"


def golden_items(name: str, directory: Path | None = None) -> list[dict[str, Any]]:
    """Return the golden vectors of a codec. Raises UserError: the directory has none."""
    path = (directory or Path(__file__).parents[3] / "tests" / "codecs" / "golden") / f"{name}.json"
    if not path.is_file():
        raise UserError(f"no golden vectors: {path} is missing", "run it in a checkout of Paceline, or name their directory")
    items: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return items


def golden_words(words: list[str]) -> F32:
    """Return the fp32 values of a golden vector in hexadecimal digits."""
    return np.array([int(word, 16) for word in words], "<u4").view("<f4")


def _of_a_frame(body: bytes, count: int, scaled: bool) -> bytes:
    """Convert a payload's body to that of a frame, without directory. In the scaled format exponents precede their bursts."""
    if not scaled:
        return body
    blocks = -(-count // BLOCK)
    bursts, parts = body[2 * blocks :], []
    for block in range(blocks):
        exponent = body[2 * block : 2 * block + 2]
        groups = 0 if exponent == b"\0\x80" else -(-min(BLOCK, count - block * BLOCK) // 8)
        length = sum(_burst_bytes(vector) for vector in _vectors(bursts, groups))
        parts.append(exponent + bursts[:length])
        bursts = bursts[length:]
    return b"".join(parts)


def codec_bound(name: str) -> float:
    """Return the default bound of a codec."""
    bound: float = codecs.get(name).bound  # type: ignore[attr-defined]
    return bound


def verify_damage(
    frames: int = 4000, seed: int = 4, model: InceptionnModel | None = None, progress: Progress | None = None
) -> Verified:
    """Verify damaged bodies: the decompressor signals an error exactly if the codec refuses, keeps the length, and continues
    with the next frame.

    Raises:
        UserError: Verilator or a compiler is missing.
    """
    tally, rng, done = _InceptionnTally(seed, model or InceptionnModel()), np.random.default_rng(seed), 0
    while done < frames:
        batch = [damaged_frame(rng) for _ in range(min(_BATCH, frames - done))]
        if not tally.compare([_Frame(b"", *one) for one in batch], (True,)):
            break
        done += len(batch)
        if progress is not None:
            progress(done, frames)
    return tally.result("damaged frames", done)


def damaged_frame(rng: np.random.Generator) -> tuple[EngineRegisters, bytes, bytes, str, bool]:
    """Return registers, a damaged frame of up to 400 values, its expected output, a name, and whether the codec refuses it."""
    scaled = bool(rng.integers(2))
    count, k = int(rng.choice([rng.integers(1, 41), rng.integers(1, 400)])), int(rng.integers(1, 15 if scaled else 16))
    body = bytearray(encoded(_random_values(rng, count, scaled), k, scaled))
    kind = int(rng.integers(6 if scaled else 5))
    if kind == 5:
        body[:2] = int(rng.integers(-150, -130)).to_bytes(2, "little", signed=True)  # what rounds below fp32's last place
    elif kind == 0:
        body[rng.integers(len(body))] ^= 1 << int(rng.integers(8))
    elif kind == 1:
        del body[rng.integers(len(body)) :]
    elif kind == 2:
        body += rng.bytes(int(rng.integers(1, 80)))
    elif kind == 3:
        at = int(rng.integers(len(body)))
        body[at : at + 4] = rng.bytes(len(body[at : at + 4]))
    else:
        body = bytearray(rng.bytes(int(rng.integers(1, 300))))
    head = header(1)
    back = restored_by_codec(bytes(body), count, k, scaled)
    content = bytes(4 * count) if back is None else back.tobytes()
    name = f"damage {kind} to {count} values, k {k}, scaled {scaled}, body {bytes(body[:40]).hex()}"
    return EngineRegisters(1, k, scaled, count), head + bytes(body), head + content, name, back is None


def restored_by_codec(body: bytes, count: int, k: int, scaled: bool) -> F32 | None:
    """Decode a frame's body of up to 1,024 values with the reference codec; None if it refuses."""
    entry = len(body) - 2 * scaled
    if entry < 0:
        return None
    kind: Any = codec(k, scaled)
    whole = np.frombuffer(np.array([entry], "<u4").tobytes() + body, np.uint8)
    try:
        values: F32 = kind.decode_body(whole, count)
    except (codecs.PayloadError, IndexError):
        return None
    return values


def _frame(values: F32, settings: EngineRegisters, marked: bool, ipv6: bool, case: str, tail: bytes = b"") -> _Frame:
    head = header(settings.head, marked, ipv6)
    plain = head + values.tobytes() + tail
    if not marked:
        return _Frame(plain, settings, plain, plain, case + ", unmarked")
    back = head + decoded(values, settings.k, settings.scaled).tobytes()
    return _Frame(plain, settings, head + encoded(values, settings.k, settings.scaled), back, case)


def _random_values(rng: np.random.Generator, count: int, scaled: bool) -> F32:
    """Draw values: random bits, magnitudes over many powers of two, normal numbers, numbers near a power of two, and zeros."""
    kind = int(rng.integers(5))
    bits = rng.integers(0, 1 << 32, count, np.uint32)
    if kind == 1:
        bits = (rng.standard_normal(count) * np.exp2(rng.uniform(-20, 3, count))).astype(np.float32).view(np.uint32)
    elif kind == 2:
        bits = (rng.standard_normal(count) * np.exp2(rng.uniform(-140, 120))).astype(np.float32).view(np.uint32)
    elif kind == 3:
        exponents = rng.integers(127 - 17, 130, count, np.uint32)
        bits = (bits & np.uint32(1 << 31)) | ((exponents << np.uint32(23)) + rng.integers(-2, 3, count).astype(np.uint32))
    elif kind == 4:
        bits = bits & np.uint32(0x807FFFFF)  # subnormal
    bits = np.where(rng.random(count) < rng.choice([0.0, 0.3, 1.0], p=[0.6, 0.35, 0.05]), bits & np.uint32(1 << 31), bits)
    if scaled:  # no form for infinity and NaN
        bits = np.where(bits >> np.uint32(23) & np.uint32(255) == 255, bits & np.uint32(0xBFFFFFFF), bits)
    values: F32 = bits.astype(np.uint32).view(np.float32)
    return values


def _values_of_tags(rng: np.random.Generator, tags: Any, scaled: bool) -> F32:
    """Draw values with these tags at k = 10. In front of a scaled block, eight values fix its scale at 1."""
    # Magnitudes from .. to of tags 00, 01, 10, 11; those of the scaled format are q up to 127, and more.
    low, high = ((1e-9, 2e-3, 0.13), (4e-4, 0.12, 0.99)) if scaled else ((1e-9, 1e-3, 0.0313, 1.0), (9e-4, 0.0312, 0.99, 1e9))
    smallest, largest = np.array(low)[tags], np.array(high)[tags]
    magnitudes = smallest * (largest / smallest) ** rng.random(tags.shape)
    signs = rng.choice([-1.0, 1.0], tags.shape)
    values = (magnitudes * signs).astype(np.float32).reshape(-1)
    return np.concatenate([np.full(8, 0.75, np.float32), values]) if scaled else values


def _vectors(body: bytes, count: int) -> Iterator[int]:
    """Return the tag vectors of the bursts of a body."""
    at = 0
    for _ in range(count):
        vector = int.from_bytes(body[at : at + 2], "little")
        yield vector
        at += _burst_bytes(vector)


def _burst_bytes(vector: int) -> int:
    """Return the bytes of a burst with this tag vector, including the vector."""
    return 2 + sum((0, 1, 2, 4)[vector >> 2 * lane & 3] for lane in range(8))
