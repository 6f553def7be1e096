"""Long comparisons of the ternary engines' Verilog with the reference codec, in Verilator's model with random stalls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paceline.array_types import F32
from paceline.codecs import counter
from paceline.codecs.reference import bit_planes
from paceline.nic.bodies import draw_words, header, ternary_decoded, ternary_encoded, ternary_summed, word
from paceline.nic.tally import EngineTally, Verified, Wanted
from paceline.nic.verify import Progress, golden_items, golden_words
from paceline.nic.verilated import TernaryModel

_BATCH = 64  # frames that follow one another through a model
_STARTS = (0, 5, (1 << 32) - 50, (7 << 32) - 3, 1 << 40)  # of draws; at the second half of these the key's word changes
_MOST = 64  # workers of a sum


@dataclass(frozen=True)
class _Case:
    """Frame, its registers, its expected output, and whether an error is expected (then only the body's length is compared)."""

    content: bytes
    registers: Sequence[int]
    wanted: bytes
    name: str
    refused: bool = False
    second: bytes = b""


@dataclass
class _TernaryTally(EngineTally):
    model: TernaryModel

    def compare(self, engine: str, cases: Sequence[_Case]) -> bool:
        """Run cases through one engine. Return whether all agree."""
        frames, seconds = [case.content for case in cases], [case.second for case in cases]
        registers, room = [case.registers for case in cases], sum(len(case.wanted) for case in cases) + 4096
        run = self.run(
            lambda seed: self.model.run(engine, frames, registers, seconds=seconds, room=room, seed=seed), cases[0].name
        )
        name = engine.replace("_", " ")
        wanted = [Wanted(f"{name}, {case.name}", case.wanted, case.refused, int(case.registers[0])) for case in cases]
        return run is not None and self.agree(run, wanted)


def verify_ternary(
    values: int = 10**6, seed: int = 5, model: TernaryModel | None = None, progress: Progress | None = None
) -> Verified:
    """Verify encoder and decoder with random values in frames of 0 to 2,100.

    Raises:
        UserError: Verilator or a compiler is missing.
    """
    tally, rng, done = _TernaryTally(seed, model or TernaryModel()), np.random.default_rng(seed), 0
    while done < values:
        encodings, decodings = [], []
        for _ in range(_BATCH):
            count = min(int(rng.choice([rng.integers(0, 41), rng.integers(0, 400), rng.integers(900, 2101)])), values - done)
            encoding, decoding = _frame(rng, count, f"value {done} on")
            encodings.append(encoding)
            decodings += [decoding] if decoding is not None else []
            done += count
        if not (tally.compare("ternary_encoder", encodings) and tally.compare("ternary_decoder", decodings)):
            break
        if progress is not None:
            progress(done, values)
    return tally.result("ternary random values", done)


def verify_ternary_sums(
    values: int = 10**6, seed: int = 6, model: TernaryModel | None = None, progress: Progress | None = None
) -> Verified:
    """Verify the adder with random pairs of sums of 1 to 63 workers: total up to 64, one pair in eight unmarked.

    Raises:
        UserError: Verilator or a compiler is missing.
    """
    tally, rng, done = _TernaryTally(seed, model or TernaryModel()), np.random.default_rng(seed), 0
    while done < values:
        cases = []
        for _ in range(_BATCH):
            count = min(int(rng.choice([rng.integers(0, 200), rng.integers(900, 2101)])), values - done)
            cases.append(_pair(rng, count, f"element {done} on", marked=bool(rng.integers(8))))
            done += count
        if not tally.compare("ternary_adder", cases):
            break
        if progress is not None:
            progress(done, values)
    return tally.result("ternary sums", done)


def verify_ternary_golden(
    directory: Path | None = None, model: TernaryModel | None = None, progress: Progress | None = None
) -> Verified:
    """Verify golden vectors of ``ternary`` (``tests/codecs/golden`` of a checkout, or a given directory) in both directions.

    Raises:
        UserError: no golden vectors there; Verilator or a compiler is missing.
    """
    tally = _TernaryTally(7, model or TernaryModel())
    items, encodings, decodings = golden_items("ternary", directory), [], []
    for item in items:
        payload, values, head = bytes.fromhex(item["payload"]), golden_words(item["input"]), header(2)
        scale, draws = np.frombuffer(payload, "<f4", 1, 16)[0], item["draws"]
        key = counter.key(draws.get("seed", 0), draws.get("step", 0), draws.get("rank", 0))
        plain, packed, back = values.tobytes(), payload[32:], golden_words(item["decoded"]).tobytes()
        encodings.append(_Case(head + plain, (2, *draw_words(scale, key, 0)), head + packed, item["name"]))
        decodings.append(_Case(head + packed, (2, word(scale), values.size), head + back, item["name"]))
    if tally.compare("ternary_encoder", encodings):
        tally.compare("ternary_decoder", decodings)
    if progress is not None:
        progress(len(items), len(items))
    return tally.result("ternary golden vectors", len(items))


def verify_ternary_damage(
    frames: int = 4000, seed: int = 8, model: TernaryModel | None = None, progress: Progress | None = None
) -> Verified:
    """Verify that decoder and adder report damaged bodies as specified, keep the length, and process the next frame.

    Raises:
        UserError: Verilator or a compiler is missing.
    """
    tally, rng, done = _TernaryTally(seed, model or TernaryModel()), np.random.default_rng(seed), 0
    while done < frames:
        number = min(_BATCH, frames - done)
        bodies = [_damaged_frame(rng) for _ in range(number // 2)]
        pairs = [_pair(rng, int(rng.integers(1, 400)), "damaged pair", damaged=True) for _ in range(number - number // 2)]
        if not (tally.compare("ternary_decoder", bodies) and tally.compare("ternary_adder", pairs)):
            break
        done += number
        if progress is not None:
            progress(done, frames)
    return tally.result("ternary damaged frames", done)


def _frame(rng: np.random.Generator, count: int, name: str) -> tuple[_Case, _Case | None]:
    """Return a frame for the encoder, and the decoder's expected output; None after a word that is not finite."""
    beats, marked = int(rng.integers(1, 16)), bool(rng.integers(8))
    scale = np.float32(rng.choice([2.0 ** rng.uniform(-103, 127), rng.uniform(0.5, 2)]))
    key, start = counter.key(int(rng.integers(1 << 62)), int(rng.integers(1 << 30))), int(rng.choice(_STARTS))
    head, x = header(beats, marked, bool(rng.integers(2))), _values(rng, count, scale)
    registers = (beats, *draw_words(scale, key, start))
    name = f"{name}, {count} of scale {scale}, start {start}, marked {marked}"
    if not marked:
        content = head + x.tobytes() + rng.bytes(int(rng.integers(0, 32)))
        return _Case(content, registers, content, name), _Case(content, (beats, word(scale), count), content, name)
    body = ternary_encoded(x, scale, key, start)
    if count and not rng.integers(16):
        x[rng.integers(count)] = rng.choice([np.inf, -np.inf, np.nan])
        return _Case(head + x.tobytes(), registers, head + body, name + ", not finite", refused=True), None
    back = _Case(head + body, (beats, word(scale), count), head + ternary_decoded(body, count, scale), name)
    return _Case(head + x.tobytes(), registers, head + body, name), back


def _values(rng: np.random.Generator, count: int, scale: np.float32) -> F32:
    """Draw values of all sizes: some beyond the scaler, subnormal numbers, zeros of both signs."""
    x = rng.uniform(-1.2, 1.2, count) * float(scale) * 2.0 ** -rng.integers(0, 27, count)
    x = np.where(rng.random(count) < 0.1, rng.integers(0, 1 << 23, count) * 2.0**-149, x)
    values: F32 = np.where(rng.random(count) < 0.05, -0.0, np.clip(x, -3e38, 3e38)).astype(np.float32)
    return values


def _pair(rng: np.random.Generator, count: int, name: str, marked: bool = True, damaged: bool = False) -> _Case:
    """Return two bodies for the adder and their sum; if ``damaged``, at most one body is damaged."""
    beats = int(rng.integers(1, 16))
    first = int(rng.choice([1, int(rng.integers(1, _MOST))]))
    workers = (first, int(rng.choice([1, int(rng.integers(1, _MOST - first + 1))])))
    ternary = tuple(n == 1 and bool(rng.integers(2)) for n in workers)
    sums = [rng.integers(-n, n + 1, count) for n in workers]
    bodies = [ternary_summed(*one) for one in zip(sums, workers, ternary, strict=True)]
    registers = (beats, count, *workers, *ternary)
    heads = [header(beats, kind, bool(rng.integers(2))) for kind in (marked, bool(rng.integers(2)))]
    name = f"{name}, {count} of {workers} workers, ternary {ternary}, marked {marked}"
    if not marked:
        return _Case(heads[0] + bodies[0], registers, heads[0] + bodies[0], name)
    wanted = heads[0] + ternary_summed(sums[0] + sums[1], sum(workers))
    refused = False
    if damaged:
        which = int(rng.integers(2))
        codes = bodies[which]
        bodies[which], kind = _damage(rng, codes)
        width = 2 if ternary[which] else (2 * workers[which]).bit_length()
        refused = not _legal(bodies[which], count, width, None if ternary[which] else 2 * workers[which])
        if not refused:  # legal codes, other ones
            sums[which] = _sums(bodies[which], count, width, None if ternary[which] else workers[which])
            wanted = heads[0] + ternary_summed(sums[0] + sums[1], sum(workers))
        name += f", damage {kind} to body {which + 1}"
    return _Case(heads[0] + bodies[0], registers, wanted, name, refused, heads[1] + bodies[1])


def _damaged_frame(rng: np.random.Generator) -> _Case:
    """Return a damaged frame for the decoder."""
    beats, count, scale = int(rng.integers(1, 4)), int(rng.integers(1, 400)), np.float32(rng.uniform(0.5, 2))
    body, kind = _damage(rng, ternary_summed(rng.integers(-1, 2, count), 1, True))
    head, refused = header(beats), not _legal(body, count, 2, None)
    back = bytes(4 * count) if refused else ternary_decoded(body, count, scale)
    return _Case(head + body, (beats, word(scale), count), head + back, f"damage {kind} to {count} values", refused)


def _damage(rng: np.random.Generator, body: bytes) -> tuple[bytes, str]:
    """Return a body with a flipped bit, a missing end, surplus bytes or other bytes, or unchanged, and the damage's name."""
    damaged, kind = bytearray(body), str(rng.choice(["none", "bit", "short", "long", "bytes"]))
    at = int(rng.integers(len(body)))
    if kind == "bit":
        damaged[at] ^= 1 << int(rng.integers(8))
    elif kind == "short":
        del damaged[at:]
    elif kind == "long":
        damaged += rng.bytes(int(rng.integers(1, 80)))
    elif kind == "bytes":
        damaged[at : at + 4] = rng.bytes(len(damaged[at : at + 4]))
    return bytes(damaged), kind


def _legal(body: bytes, count: int, width: int, largest: int | None) -> bool:
    """True if an encoder writes such a body: codes up to the largest; for a ternary (``workers`` None) all but (0, 1)."""
    if len(body) != bit_planes.packed_bytes(count, width):
        return False
    codes = bit_planes.unpack(np.frombuffer(body, np.uint8), count, width)
    return not bool((codes == 2).any() if largest is None else (codes > largest).any())


def _sums(body: bytes, count: int, width: int, workers: int | None) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the sums that a legal body holds; workers None: a ternary."""
    codes = bit_planes.unpack(np.frombuffer(body, np.uint8), count, width).astype(np.int64)
    return np.where(codes == 3, -1, codes) if workers is None else codes - workers
