import pytest

from paceline.errors import UserError
from paceline.strategy import Strategy
from paceline.strategy.frameworks.loss import LOSSES


def test_a_loss_is_of_networks_that_no_devices_divide() -> None:
    for name in LOSSES:
        assert Strategy.of(world_size=2, global_batch_size=2, loss=name).loss == name
        with pytest.raises(UserError, match=f"a loss {name} and layers divided"):
            Strategy.of(world_size=2, global_batch_size=2, tensor=2, loss=name)
