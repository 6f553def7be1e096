"""CIFAR-10 from pictures: a tree, the same in an archive, the cache, and what is told when it is not there."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from paceline.errors import UserError
from paceline.training.runs import cifar
from paceline.training.runs.data import load

CLASSES = ("cat", "airplane", "ship")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Four training and two test pictures a class, each of one grey."""
    root = tmp_path / "pictures"
    for part, count in (("train", 4), ("test", 2)):
        for label, kind in enumerate(CLASSES):
            (root / part / kind).mkdir(parents=True)
            for number in range(count):
                grey = np.full((32, 32, 3), 40 * label + 10 * number, np.uint8)
                grey[0] = 255  # the rim, which the crop leaves out
                Image.fromarray(grey).save(root / part / kind / f"{number:04}.png")
    return root


def test_a_tree(tree: Path) -> None:
    data = load(f"cifar10:{tree}")
    assert data.train_x.shape == (12, 3, 24, 24) and data.test_x.shape == (6, 3, 24, 24)
    assert data.train_y.tolist() == [0] * 4 + [1] * 4 + [2] * 4, "classes in alphabetical order"
    assert data.train_x.mean((0, 2, 3)).abs().max() < 1e-5
    torch.testing.assert_close(data.train_x.std((0, 2, 3)), torch.ones(3))
    greys = torch.tensor([40.0 * label + 10 * n for label in (1, 0, 2) for n in range(4)])  # airplane, cat, ship
    expected = (greys - greys.mean()) / greys.repeat_interleave(576).std()
    torch.testing.assert_close(data.train_x[:, 0, 0, 0], expected)
    torch.testing.assert_close(data.test_x[:, 2, 23, 23], expected[[0, 1, 4, 5, 8, 9]])


def test_an_archive_is_the_same_and_is_read_once(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = tmp_path / "packed"
    packed.mkdir()
    with tarfile.open(packed / "cifar.tar.xz", "w:xz") as archive:
        for part in ("train", "test"):
            archive.add(tree / part, part)
    first = load(f"cifar10:{packed}")
    for name in ("train_x", "train_y", "test_x", "test_y"):
        assert torch.equal(getattr(first, name), getattr(load(f"cifar10:{tree}"), name))
    monkeypatch.setattr(cifar, "_from_archive", None)
    assert torch.equal(load(f"cifar10:{packed}").train_x, first.train_x)


def test_what_is_not_there_is_told(tmp_path: Path, tree: Path) -> None:
    with pytest.raises(UserError, match="needs a directory"):
        load("cifar10:")
    with pytest.raises(UserError, match="no CIFAR-10 in"):
        load(f"cifar10:{tmp_path / 'cache'}")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "x.tar.xz").write_bytes(b"no archive")
    with pytest.raises(UserError, match="cannot be read"):
        load(f"cifar10:{tmp_path / 'bad'}")
    (tree / "train" / "cat" / "0001.png").write_bytes(b"no picture")
    with pytest.raises(UserError, match=r"0001\.png .* cannot be read"):
        load(f"cifar10:{tree}")


def test_pictures_of_another_size_are_told(tree: Path) -> None:
    Image.new("RGB", (40, 32)).save(tree / "test" / "ship" / "0000.png")
    with pytest.raises(UserError, match="is 40x32"):
        load(f"cifar10:{tree}")
