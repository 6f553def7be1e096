"""Changes of a job that let it start sooner are simulated, and only those that help are shown."""

from __future__ import annotations

import pytest

from paceline.scheduling.starts.forecast import Forecaster, ForecastOptions
from paceline.scheduling.starts.sooner import sooner, speed_ratio
from queues import nodes, queue, runs, waits

OPTIONS = ForecastOptions(futures=16, arrivals=False)


def test_a_shorter_limit_helps_where_it_fits_before_a_reservation_and_nothing_is_said_where_nothing_helps() -> None:
    jobs = (runs("r", 6, 10.0, 4 * 3600.0), waits("big", 8, 3600.0, 90.0), waits("mine", 2, 36000.0, 50.0, command="x"))
    from paceline.scheduling.starts.lengths import from_range

    forecaster = Forecaster(queue(*jobs), OPTIONS, predicted={"mine": from_range(500.0, 600.0, 700.0)})
    mine = forecaster.forecast().of("mine")
    found = sooner(forecaster, mine)
    assert found[0].change == "limit 0:15:00" and found[0].forecast.start() == 0.0 < mine.start()
    free = Forecaster(queue(waits("w", 4, 3600.0)), OPTIONS)
    assert sooner(free, free.forecast().jobs[0]) == ()


def test_fewer_devices_help_only_if_the_end_is_no_later() -> None:
    forecaster = Forecaster(queue(runs("r", 4, 10.0, 36000.0), waits("w", 8, 600.0, 90.0)), OPTIONS)
    assert "4 devices, limit 20 min" in [each.change for each in sooner(forecaster, forecaster.forecast().jobs[0])]
    short = Forecaster(queue(runs("r", 4, 10.0, 600.0), waits("w", 8, 36000.0, 90.0)), OPTIONS)
    assert not [each for each in sooner(short, short.forecast().jobs[0]) if each.change.startswith("4 devices")]


def test_types_are_compared_by_peak_rates() -> None:
    assert speed_ratio("H100 SXM", "A100 SXM 80GB") == pytest.approx(3.17, rel=0.01)
    assert speed_ratio("unheard of", "A100 SXM 80GB") is None
    assert nodes(8).total == 8
