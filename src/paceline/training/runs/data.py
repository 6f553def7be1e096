"""Training data: digits of scikit-learn, the MNIST files, CIFAR-10, or a user's function."""

from __future__ import annotations

import gzip
import importlib.util
import re
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.errors import UserError, unknown
from paceline.training.attach.consistency import checksum
from paceline.training.runs import cifar
from paceline.training.runs.training_run import DIRECTORIES, SHAPED
from paceline.workload import call_factory

_DIGESTED_BYTES = 64 << 20  # of samples: a tenth of a second
_KINDS = ("digits", f"{SHAPED}:CxHxW", *(f"{kind}:DIR" for kind in DIRECTORIES), "module:function")
LEAST_SIDE, LARGEST_SIDE, MOST_CHANNELS = 8, 64, 4
"""Shapes of ``digits:CxHxW``: each side in pixels, and channels. Larger images would only enlarge eight pixels further."""
_SHAPE = re.compile(r"(\d+)x(\d+)x(\d+)")


@dataclass(frozen=True)
class Dataset:
    """Samples (float32 or int64, first axis the sample) and class indices (int64), for training and held out."""

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor

    def digest(self) -> str:
        """Return sizes and a checksum of all labels and of evenly spread samples, up to ``_DIGESTED_BYTES`` of them."""
        sizes = " ".join("x".join(map(str, x.shape)) for x in (self.train_x, self.test_x))
        return f"{sizes}, {checksum([self.train_y, self.test_y, _spread(self.train_x), _spread(self.test_x)]):016x}"


def _spread(samples: Tensor) -> Tensor:
    """Return evenly spread samples, at most ``_DIGESTED_BYTES`` but at least one."""
    return samples[:: max(1, -(-samples.nbytes // _DIGESTED_BYTES))]


def load(spec: str) -> Dataset:
    """Load a dataset: ``digits``, ``digits:CxHxW``, ``mnist:DIR``, ``fashion-mnist:DIR``, ``cifar10:DIR`` or
    ``module:function``.

    Raises:
        UserError: an unknown name, a shape that the digits lack, a directory without the files, a function that returns
            something else.
    """
    kind, colon, rest = spec.partition(":")
    if spec == "digits":
        return _digits()
    if kind == SHAPED:
        return _digits(spec, *_image_shape(spec, rest))
    if kind in ("mnist", "fashion-mnist"):
        if not rest:
            raise UserError(f"data {spec} needs a directory", f"write it as {kind}:DIR, with the four idx .gz files in DIR")
        return _idx(kind, Path(rest))
    if kind == "cifar10":
        if not rest:
            raise UserError(f"data {spec} needs a directory", "write it as cifar10:DIR, with train/ and test/ or a .tar.xz")
        return Dataset(kind, *cifar.load(Path(rest)))
    if not colon:
        raise unknown("data", spec, _KINDS)
    return _from_user(spec, call_factory(spec))


def _image_shape(spec: str, text: str) -> tuple[int, int, int]:
    """Parse ``3x32x32``. Raises UserError for a shape that the digits lack."""
    match = _SHAPE.fullmatch(text)
    channels, height, width = map(int, match.groups()) if match else (0, 0, 0)
    if not 1 <= channels <= MOST_CHANNELS or not LEAST_SIDE <= min(height, width) <= max(height, width) <= LARGEST_SIDE:
        sides = f"sides of {LEAST_SIDE} to {LARGEST_SIDE}"
        raise UserError(f"data {spec}", f"write it as {SHAPED}:3x32x32, with 1 to {MOST_CHANNELS} equal channels and {sides}")
    return channels, height, width


def _digits(name: str = "digits", channels: int = 1, height: int = 28, width: int = 28) -> Dataset:
    """Load scikit-learn's 1,797 digits of 8x8, enlarged and centred in images of a shape; every fifth is held out.

    Each pixel becomes a square, as large as fits with a margin of a seventh: three by three in 28x28.

    Source: Alpaydin, Kaynak 1998, Optical Recognition of Handwritten Digits, UCI (test part).
    """
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")
    # Its file alone: importing scikit-learn would take each worker a second.
    raw = np.loadtxt(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz", np.float32, delimiter=",")
    factor = max(1, min(height, width) * 6 // 7 // 8)
    images = np.kron(raw[:, :-1].reshape(-1, 8, 8) / 16, np.ones((1, factor, factor), np.float32))
    top, left = height - 8 * factor, width - 8 * factor
    padded = np.pad(images, ((0, 0), (top // 2, top - top // 2), (left // 2, left - left // 2)))
    x = torch.from_numpy(padded[:, None]).repeat(1, channels, 1, 1)
    y = torch.from_numpy(raw[:, -1].astype(np.int64))
    order = torch.from_numpy(np.random.default_rng(1998).permutation(len(y)))
    held = len(y) // 5
    return Dataset(name, x[order[held:]], y[order[held:]], x[order[:held]], y[order[:held]])


def _idx(kind: str, directory: Path) -> Dataset:
    """Load the original files of MNIST and Fashion-MNIST, with pixels scaled to 0 to 1."""

    def read(part: str, what: str, dims: int) -> Tensor:
        path = directory / f"{part}-{what}-idx{dims}-ubyte.gz"
        if not path.is_file():
            raise UserError(f"no {path.name} in {directory}", f"give the directory that holds the four {kind} .gz files")
        try:
            raw = gzip.decompress(path.read_bytes())
            shape = struct.unpack(f">{dims}I", raw[4 : 4 + 4 * dims])
            values = np.frombuffer(raw, np.uint8, offset=4 + 4 * dims).reshape(shape)
        except (OSError, EOFError, zlib.error, struct.error, ValueError) as error:
            raise UserError(f"{path} cannot be read: {error}", "fetch the file again") from error
        return torch.from_numpy(values.copy())

    def images(part: str) -> Tensor:
        return read(part, "images", 3)[:, None].to(torch.float32) / 255

    def labels(part: str) -> Tensor:
        return read(part, "labels", 1).to(torch.int64)

    def pair(part: str) -> tuple[Tensor, Tensor]:
        x, y = images(part), labels(part)
        if len(x) != len(y):
            raise UserError(f"{directory} has {len(x)} images and {len(y)} labels in {part}", "fetch the files again")
        return x, y

    return Dataset(kind, *pair("train"), *pair("t10k"))


def _from_user(spec: str, value: Any) -> Dataset:
    expected = "return four tensors: train_x, train_y, test_x, test_y, with y of int64 class indices"
    if not (isinstance(value, tuple | list) and len(value) == 4 and all(isinstance(v, Tensor) for v in value)):
        raise UserError(f"{spec} returned {type(value).__name__}", expected)
    train_x, train_y, test_x, test_y = value
    if len(train_x) != len(train_y) or len(test_x) != len(test_y) or len(test_x) == 0:
        raise UserError(f"{spec}: {len(train_x)}/{len(train_y)} and {len(test_x)}/{len(test_y)} samples and labels", expected)
    if train_y.dtype != torch.int64 or test_y.dtype != torch.int64:
        raise UserError(f"{spec}: labels of {train_y.dtype} and {test_y.dtype}", expected)
    return Dataset(spec, train_x, train_y, test_x, test_y)
