"""Training data: digits of scikit-learn, the MNIST files, CIFAR-10, or a user's function."""

from __future__ import annotations

import gzip
import importlib.util
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
from paceline.training.runs.training_run import DIRECTORIES
from paceline.workload import call_factory

_DIGESTED_BYTES = 64 << 20  # of samples: a tenth of a second
_KINDS = ("digits", *(f"{kind}:DIR" for kind in DIRECTORIES), "module:function")


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
    """Load a dataset: ``digits``, ``mnist:DIR``, ``fashion-mnist:DIR``, ``cifar10:DIR`` or ``module:function``.

    Raises:
        UserError: an unknown name, a directory without the files, a function that returns something else.
    """
    kind, colon, rest = spec.partition(":")
    if spec == "digits":
        return _digits()
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


def _digits() -> Dataset:
    """Load scikit-learn's 1,797 digits of 8x8, each pixel enlarged to three by three, in 28x28 images; every fifth is held out.

    Source: Alpaydin, Kaynak 1998, Optical Recognition of Handwritten Digits, UCI (test part).
    """
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")
    # Its file alone: importing scikit-learn would take each worker a second.
    raw = np.loadtxt(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz", np.float32, delimiter=",")
    images = np.kron(raw[:, :-1].reshape(-1, 8, 8) / 16, np.ones((1, 3, 3), np.float32))
    x = torch.from_numpy(np.pad(images, ((0, 0), (2, 2), (2, 2)))[:, None])
    y = torch.from_numpy(raw[:, -1].astype(np.int64))
    order = torch.from_numpy(np.random.default_rng(1998).permutation(len(y)))
    held = len(y) // 5
    return Dataset("digits", x[order[held:]], y[order[held:]], x[order[:held]], y[order[:held]])


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
