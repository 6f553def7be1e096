"""What ``bench.measure`` refuses before it allocates anything."""

from __future__ import annotations

import pytest

from paceline.codecs import bench
from paceline.errors import UserError


@pytest.mark.parametrize("elements", [2_500_000_000_000_000, 2**62])
def test_a_size_beyond_the_machine_is_named(elements: int) -> None:
    with pytest.raises(UserError, match=r"does not fit: .* this machine has .*B; give at most .*B"):
        bench.measure(elements, ["int8"])


def test_what_just_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "memory_bytes", lambda: 4 * bench.COPIES * 1000 - 1)
    with pytest.raises(UserError, match="give at most 4"):
        bench.measure(1000, ["fp32"], repetitions=1)
    monkeypatch.setattr(bench, "memory_bytes", lambda: 4 * bench.COPIES * 1000)
    assert bench.measure(1000, ["fp32"], repetitions=1)
