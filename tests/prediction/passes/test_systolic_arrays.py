"""Products on systolic arrays against shares worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.prediction.passes.operation_table import ATTENTION, MATMUL, MEMORY, operation_table
from paceline.prediction.passes.systolic_arrays import padded_share, product_results, systolic_efficiency, turned_elements
from paceline.workload.table import Workload


@pytest.mark.parametrize(
    ("m", "n", "k", "share"),
    [
        (512, 256, 384, 1.0),
        (512, 512, 64, 0.5),  # depth of a head of 64: half of the rows of the array
        (512, 64, 512, 1.0),  # the other operand is held: 512 columns, 64 rows pass
        (32, 512, 128, 0.5),  # 32 rows take as long as 64
        (129, 129, 129, 129**2 / 256**2),
        (0, 0, 0, 1.0),
    ],
)
def test_systolic_arrays_are_padded(m, n, k, share):
    sizes = [np.array([float(x)]) for x in (m, n, k)]
    assert padded_share(*sizes, 128.0)[0] == pytest.approx(share)
    swapped = [sizes[1], sizes[0], sizes[2]]
    assert padded_share(*swapped, 128.0) == padded_share(*sizes, 128.0)


def test_attention_is_half_products_as_deep_as_a_head() -> None:
    kinds, (m, n, k) = np.array([MATMUL, ATTENTION]), (np.array([float(x)] * 2) for x in (1024, 1024, 128))
    assert systolic_efficiency(kinds, m, n, k, 256.0).tolist() == pytest.approx([1 / 2, 2 / 3])


def test_results_that_are_fetched() -> None:
    kinds = np.array([MATMUL, ATTENTION, MEMORY])
    flops, depth = np.array([2 * 8 * 16 * 32.0, 4 * 8 * 16 * 32.0, 0.0]), np.array([32.0, 32.0, 0.0])
    assert product_results(kinds, flops, depth).tolist() == [8 * 16, 8 * 16, 0]


def test_operands_of_the_gradients_of_weights_are_turned() -> None:
    """Inputs of GPT-2's linear layers and gradients of their results, by hand: (from, to) features of each."""
    table, samples = operation_table(Workload.named("gpt2", 1024)), 4.0
    m, n, k, batch = (table.sizes * np.where(table.grows > 0, samples, 1.0)).T
    turned = turned_elements(table, m, n, k, batch)
    uses = np.bincount(table.row, minlength=len(turned))
    block = (768 + 3 * 768) + (768 + 768) + 2 * (768 + 4 * 768)
    assert float((turned * uses).sum()) == samples * 1024 * (12 * block + 768 + 50257)
