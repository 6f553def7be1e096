"""CIFAR-10 (Krizhevsky 2009) from a tree of image files, as 24x24 crops for TernGrad's CIFAR network.

The tree is ``train/<class>/<number>.jpg`` and ``test/<class>/<number>.jpg``, as files or in one ``.tar``, ``.tar.xz`` or
``.tar.gz``. JPEG copies are lossy, which must be stated next to results. Decoded ones are in the user's cache directory.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.errors import UserError

SIDE, CROP = 32, 24
_PARTS = ("train", "test")
_PICTURES = (".jpg", ".jpeg", ".png")


def load(directory: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Load training images and labels, then test images and labels.

    Images are float32 (n, 3, 24, 24), the middle of each picture; every channel has mean 0 and deviation 1 over the training
    images. Labels are int64: the classes in alphabetical order.

    Raises:
        UserError: neither such a tree nor such an archive in the directory, or pictures that cannot be read.
    """
    arrays = pictures(directory)
    edge = (SIDE - CROP) // 2
    middle = slice(edge, edge + CROP)
    train, test = (torch.from_numpy(arrays[f"{part}_x"][:, :, middle, middle]).float() for part in _PARTS)
    mean, deviation = train.mean((0, 2, 3), keepdim=True), train.std((0, 2, 3), keepdim=True).clamp_min(1e-6)
    labels = [torch.from_numpy(arrays[f"{part}_y"].astype(np.int64)) for part in _PARTS]
    return train.sub_(mean).div_(deviation), labels[0], test.sub_(mean).div_(deviation), labels[1]


def pictures(directory: Path) -> dict[str, NDArray[np.uint8]]:
    """Load whole images ``train_x`` and ``test_x`` (n, 3, 32, 32) and class numbers ``train_y`` and ``test_y`` (n,).

    They are read from the cache if possible. Errors as ``load``.
    """
    archives = sorted(p for p in directory.glob("*.tar*") if p.is_file())
    tree = all((directory / part).is_dir() for part in _PARTS)
    if not tree and not archives:
        raise UserError(f"no CIFAR-10 in {directory}", "give the directory that holds train/ and test/, or a .tar.xz of both")
    source = directory if tree else archives[0]
    stamp = f"{source.resolve()} {source.stat().st_size} {source.stat().st_mtime_ns}"
    cached = cache_directory() / f"cifar10-{hashlib.sha256(stamp.encode()).hexdigest()[:16]}.npz"
    if cached.is_file():
        with suppress(OSError, ValueError, KeyError), np.load(cached) as kept:
            return {name: kept[name] for name in ("train_x", "train_y", "test_x", "test_y")}
    arrays = _decode(_from_tree(directory) if tree else _from_archive(source), source)
    with suppress(OSError):  # a cache that cannot be written only costs time
        cached.parent.mkdir(parents=True, exist_ok=True)
        fresh = cached.with_suffix(f".{os.getpid()}.npz")
        np.savez(fresh, **arrays)  # type: ignore[arg-type]
        fresh.replace(cached)
    return arrays


def cache_directory() -> Path:
    """Return ``$XDG_CACHE_HOME/paceline``, by default ``~/.cache/paceline``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline"


def _from_tree(directory: Path) -> Iterator[tuple[str, bytes]]:
    for part in _PARTS:
        for path in sorted((directory / part).rglob("*")):
            if path.is_file():
                yield path.relative_to(directory).as_posix(), path.read_bytes()


def _from_archive(path: Path) -> Iterator[tuple[str, bytes]]:
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isfile() else None
                if file is not None:
                    yield member.name.removeprefix("./"), file.read()
    except (OSError, EOFError, tarfile.TarError) as error:
        raise UserError(f"{path} cannot be read: {error}", "fetch the file again") from error


def _decode(files: Iterator[tuple[str, bytes]], source: Path) -> dict[str, NDArray[np.uint8]]:
    from PIL import Image, UnidentifiedImageError

    images: dict[str, list[tuple[str, str, NDArray[np.uint8]]]] = {part: [] for part in _PARTS}
    for name, raw in files:
        part, _, rest = name.partition("/")
        kind, _, number = rest.partition("/")
        if part not in images or not number.lower().endswith(_PICTURES):
            continue
        try:
            pixels = np.asarray(Image.open(io.BytesIO(raw)).convert("RGB"), np.uint8)
        except (UnidentifiedImageError, OSError) as error:
            raise UserError(f"{name} in {source} cannot be read: {error}", "fetch the files again") from error
        if pixels.shape != (SIDE, SIDE, 3):
            raise UserError(f"{name} in {source} is {pixels.shape[1]}x{pixels.shape[0]}", f"pictures are {SIDE}x{SIDE}")
        images[part].append((kind, number, pixels))
    classes = sorted({kind for kind, _, _ in images["train"]})
    if not classes or {kind for kind, _, _ in images["test"]} != set(classes):
        raise UserError(f"{source} holds no pictures as train/<class>/<number>.jpg and test/ of the same classes")
    arrays: dict[str, NDArray[np.uint8]] = {}
    for part, found in images.items():
        found.sort(key=lambda p: p[:2])
        arrays[f"{part}_x"] = np.ascontiguousarray(np.stack([p[2] for p in found]).transpose(0, 3, 1, 2))
        arrays[f"{part}_y"] = np.array([classes.index(p[0]) for p in found], np.uint8)
    return arrays
