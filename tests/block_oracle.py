"""int8, int4, sign and topk once more, an element at a time in plain Python, from docs/wire-format.md, not from the code."""

from __future__ import annotations

import json
import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

import oracle
from paceline.codecs import container, native
from paceline.codecs.codec import Codec

BACKENDS = ["reference", *(["native"] if native.available() else [])]
KINDS = ("normal", "laplace", "sparse", "constant", "negative", "zeros", "denormal", "huge", "mixed", "ties")
F = np.float32


def gradient(kind: str, count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    normal = rng.standard_normal(count)
    made = {
        "normal": normal,
        "laplace": rng.laplace(size=count),
        "sparse": np.where(rng.random(count) < 0.9, -0.0, normal),
        "constant": np.full(count, 0.3),
        "negative": np.full(count, -1e-3),
        "zeros": np.where(rng.random(count) < 0.5, -0.0, 0.0),
        "denormal": normal * 1e-41,
        "huge": np.clip(normal * 1e38, -3.4e38, 3.4e38),
        "mixed": normal * 10.0 ** rng.uniform(-44, 37, count),
        "ties": rng.integers(-2, 3, count) * 0.25,
    }[kind]
    return made.astype(np.float32)


def golden(codec: str) -> list[dict[str, Any]]:
    path = Path(__file__).parent / "codecs" / "golden" / f"{codec}.json"
    return [item | {"x": golden_input(item["input"])} for item in json.loads(path.read_text())]


def golden_input(given: str | dict[str, Any]) -> np.ndarray:
    """fp32 bits as words of 8 hex digits, or {"zeros": count, "at": {index: bits}}."""
    if isinstance(given, str):
        return np.array([int(word, 16) for word in given.split()], np.uint32).view(np.float32)
    x = np.zeros(given["zeros"], np.uint32)
    for index, word in given["at"].items():
        x[int(index)] = int(word, 16)
    return x.view(np.float32)


def lifted(block: np.ndarray) -> tuple[np.ndarray, int]:
    small = np.abs(block).max() < F(2.0**-64)
    return (block * F(2.0**64), 64) if small else (block, 0)


def blocks(x: np.ndarray, block: int) -> list[np.ndarray]:
    return [x[first : first + block] for first in range(0, x.size, block)]


def integer_body(x: np.ndarray, levels: int, block: int, seed: int, step: int, rank: int, start: int) -> bytes:
    scales, codes = b"", []
    for part in blocks(x, block):
        scales += struct.pack("<f", np.abs(part).max())
        values, _ = lifted(part)
        peak, top = np.abs(values).max(), F(levels * 2**24)
        rate = F(0) if peak == 0 else top / peak
        if peak and peak * rate < top:
            rate = np.nextafter(rate, F(np.inf))
        for value in values:
            u = oracle.draw(seed, step, rank, start + len(codes))
            q = (int(min(abs(value) * rate, top)) + u) // 2**24
            codes.append(-q if np.signbit(value) else q)
    if levels == 127:
        return scales + struct.pack(f"<{len(codes)}b", *codes)
    codes += [0] * (len(codes) % 2)
    return scales + bytes(low & 15 | (high & 15) << 4 for low, high in zip(codes[::2], codes[1::2], strict=True))


def sign_body(x: np.ndarray, block: int) -> bytes:
    scales = b""
    for part in blocks(x, block):
        values, lift = lifted(part)
        exponent = int(np.abs(values).max().view(np.uint32)) >> 23
        unit = 150 - max(exponent, 23)
        total = sum(int(Fraction(float(abs(v))) * Fraction(2) ** unit) for v in values)
        scales += struct.pack("<f", F(total / part.size * 2.0 ** -(unit + lift)))
    bits = sum(1 << k for k, v in enumerate(x) if np.signbit(v))
    return scales + bits.to_bytes(-(-x.size // 8), "little")


def topk_body(x: np.ndarray, parts: int, value_bits: int, chunk: int = 0) -> bytes:
    n, chosen, of_chunks = x.size, [], []
    for first in range(0, n, chunk or max(n, 1)):
        part = x[first : first + (chunk or n)]
        order = np.argsort(-np.abs(part), kind="stable")
        of_chunks.append(sorted((first + order[: -(-part.size * parts // 10**6)]).tolist()))
        chosen += of_chunks[-1]
    k = len(chosen)
    sizes = {low: -(-(n if low == 0 else k + ((n - 1) >> low if n else 0)) // 64) * 8 + k * low // 8 for low in (0, 8, 16)}
    low = min(sizes, key=lambda w: (sizes[w], w))
    marks = sum(1 << (i if low == 0 else j + (i >> low)) for j, i in enumerate(chosen))
    body = marks.to_bytes(sizes[low] - k * low // 8, "little")
    if value_bits == 2:
        body += two_bits([x[of].astype(np.float32) for of in of_chunks])
    for i in chosen if value_bits > 2 else ():
        body += struct.pack("<f", x[i]) if value_bits == 32 else bf16(x[i])
    for i in chosen:
        body += (i & (1 << low) - 1).to_bytes(low // 8, "little")
    return body


def two_bits(chunks: list[np.ndarray]) -> bytes:
    """Two means of magnitudes of each chunk, below its mean and of the others; then two bits a value: upper mean, sign."""
    levels, codes = b"", 0
    values = [value for chunk in chunks for value in chunk]
    for chunk in chunks:
        lift = 2.0**64 if np.abs(chunk).max() < 2.0**-64 else 1.0
        field = max(int(np.float32(np.abs(chunk).max() * lift).view(np.uint32)) >> 23, 23)
        whole = [int(float(abs(v)) * lift * 2.0 ** (150 - field)) for v in chunk]  # exact in fp64, then cut off
        above = [w * len(whole) >= sum(whole) for w in whole]
        for kind in (False, True):
            of = [w for w, high in zip(whole, above, strict=True) if high is kind]
            mean = sum(of) / max(len(of), 1) * 2.0 ** (field - 150) / lift
            levels += bf16(np.float32(mean))
        done = len(levels) // 4 - 1
        at = sum(len(before) for before in chunks[:done])
        for j, high in enumerate(above):
            codes |= (int(high) | int(np.signbit(values[at + j])) << 1) << 2 * (at + j)
    return levels + codes.to_bytes(-(-len(values) // 4), "little")


def bf16(value: np.float32) -> bytes:
    """Of the two neighbours the nearer, of equally near ones the even; the largest finite one instead of infinity."""
    word = int(value.view(np.uint32))
    low, cut = word >> 16, word & 0xFFFF
    up = cut > 0x8000 or (cut == 0x8000 and low & 1)
    return struct.pack("<H", low + (up and low & 0x7FFF != 0x7F7F))


def sealed(codec: Codec, count: int, body: bytes) -> np.ndarray:
    """A payload with this body and a correct header and checksum: only the kernel can find fault with it."""
    data = np.frombuffer(body, np.uint8)
    head = container.header_bytes(container.Header(codec.code, count, codec.parameters()))
    payload = np.concatenate([np.zeros(32, np.uint8), data])
    container.write_header(payload, head, container.checksum(head, data))
    return payload
