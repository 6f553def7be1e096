"""Where samples come from, and what is said when they do not."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from paceline.errors import UserError
from paceline.prediction import Line
from paceline.training.runs.calibrate import fit_line
from paceline.training.runs.data import Dataset, load


def write_idx(folder: Path, images: int = 20, labels: int = 20, held: int = 7) -> None:
    rng = np.random.default_rng(0)
    for part, n, m in (("train", images, labels), ("t10k", held, held)):
        x = struct.pack(">4I", 0x803, n, 28, 28) + rng.integers(0, 256, n * 784, np.uint8).tobytes()
        y = struct.pack(">2I", 0x801, m) + rng.integers(0, 10, m, np.uint8).tobytes()
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(x))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(y))


@pytest.mark.parametrize("kind", ["mnist", "fashion-mnist"])
def test_idx_files_are_read(tmp_path, kind):
    write_idx(tmp_path)
    data = load(f"{kind}:{tmp_path}")
    assert data.name == kind and data.train_x.shape == (20, 1, 28, 28) and data.test_x.shape == (7, 1, 28, 28)
    assert data.train_x.dtype == torch.float32 and data.train_y.dtype == torch.int64
    assert float(data.train_x.min()) >= 0 and 0.9 < float(data.train_x.max()) <= 1


def test_a_missing_directory_or_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"no train-images-idx3-ubyte\.gz in .*nowhere; give the directory"):
        load(f"mnist:{tmp_path}/nowhere")
    write_idx(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(UserError, match="no t10k-labels"):
        load(f"mnist:{tmp_path}")
    with pytest.raises(UserError, match="mnist:DIR"):
        load("mnist:")


def test_a_truncated_or_damaged_file_is_named(tmp_path):
    write_idx(tmp_path)
    file = tmp_path / "train-images-idx3-ubyte.gz"
    whole = file.read_bytes()
    plain = gzip.decompress(whole)
    damaged = bytearray(whole)
    damaged[200:260] = bytes(60)
    for content in (b"", whole[:500], bytes(damaged), b"plain text", gzip.compress(plain[:-9]), gzip.compress(plain[:6])):
        file.write_bytes(content)
        with pytest.raises(UserError, match=r"train-images.*cannot be read"):
            load(f"mnist:{tmp_path}")


def test_as_many_labels_as_images(tmp_path):
    write_idx(tmp_path, images=20, labels=19)
    with pytest.raises(UserError, match="20 images and 19 labels"):
        load(f"mnist:{tmp_path}")


def test_digits_are_those_of_scikit_learn():
    data = load("digits")
    assert data.train_x.shape == (1438, 1, 28, 28) and data.test_x.shape == (359, 1, 28, 28)
    assert torch.equal(load("digits").train_x, data.train_x)
    assert torch.bincount(torch.cat([data.train_y, data.test_y])).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert float(data.train_x.max()) == 1 and not data.train_x[:, :, :2].any()
    theirs = load_digits()
    held = np.random.default_rng(1998).permutation(1797)[:359]
    assert np.array_equal(16 * data.test_x[:, 0, 2:26:3, 2:26:3].numpy(), theirs.images[held])
    assert np.array_equal(data.test_y.numpy(), theirs.target[held])


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("user_module:three", "returned tuple; return four tensors"),
        ("user_module:not_a_network", "returned str; return four tensors"),
        ("user_module:float_labels", "labels of torch.float32"),
        ("user_module:unequal", "239/240"),
        ("user_module:sample", "did you mean samples"),
        ("digts", "did you mean digits"),
    ],
)
def test_what_a_function_must_return_is_said(spec, said):
    with pytest.raises(UserError) as error:
        load(spec)
    assert said in str(error.value)


def test_a_function_of_the_users_is_taken():
    assert load("user_module:samples").train_x.shape == (240, 29)


sizes = st.floats(1, 1e9)
costs = st.floats(1e-9, 10)


@given(costs, st.floats(1e-12, 1e-3), st.lists(sizes, min_size=2, max_size=6, unique=True))
def test_points_on_a_line_give_it_back(fixed, per_unit, at):
    line = fit_line([(x, fixed + per_unit * x) for x in at])
    assert line.fixed_s >= 0 and line.per_unit_s >= 0
    if max(at) > 2 * min(at):
        for x in at:
            assert line(x) == pytest.approx(fixed + per_unit * x, rel=1e-3)


@given(st.lists(st.tuples(sizes, costs), max_size=8))
def test_a_fitted_line_never_costs_less_than_nothing(points):
    line = fit_line(points)
    assert line.fixed_s >= 0 and line.per_unit_s >= 0 and np.isfinite([line.fixed_s, line.per_unit_s]).all()


def test_lines_of_no_and_of_one_size():
    assert fit_line([]) == Line(0, 0)
    assert fit_line([(5, 1.0), (5, 3.0)]) == Line(2, 0)


def test_a_digest_sees_labels_samples_and_sizes() -> None:
    def made(**changed: torch.Tensor) -> str:
        x, y = torch.arange(12.0).view(6, 2), torch.arange(6)
        return Dataset("made up", **{"train_x": x, "train_y": y, "test_x": x[:2], "test_y": y[:2], **changed}).digest()

    other = torch.arange(12.0).view(6, 2)
    other[4, 1] = -1
    changed = [
        {"train_x": other},
        {"train_y": torch.zeros(6, dtype=torch.int64)},
        {"train_x": other[:5]},
        {"test_y": torch.ones(2)},
    ]
    assert len({made(), *(made(**change) for change in changed)}) == 1 + len(changed) and made() == made()
