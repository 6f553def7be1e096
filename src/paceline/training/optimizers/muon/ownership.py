"""Division of matrices among ranks by the FLOPs of their orthogonalization."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence


def owners(
    costs: Sequence[int], shapes: Sequence[tuple[int, int]], ranks: Sequence[int], loads: MutableMapping[int, int]
) -> list[int]:
    """Return the rank that orthogonalizes each matrix.

    The longest job goes to the rank with the least work (Graham 1969, LPT), so matrices of one shape go to ranks in turn.

    Args:
        costs, shapes: FLOPs and sides of each matrix.
        ranks: the ranks to choose from.
        loads: FLOPs that each rank has already; those of these matrices are added.
    """
    order = sorted(range(len(costs)), key=lambda i: (-costs[i], shapes[i], i))
    result = [0] * len(costs)
    for index in order:
        rank = min(ranks, key=lambda r: (loads.get(r, 0), r))
        loads[rank] = loads.get(rank, 0) + costs[index]
        result[index] = rank
    return result


def rounds(sizes: Sequence[int], owned_by: Sequence[int], bucket: int) -> list[list[int]]:
    """Return the matrices of each round of exchanges, by index, in order.

    Each rank orthogonalizes about as many elements in one round as in another.

    Args:
        sizes: elements of each matrix.
        owned_by: its owner.
        bucket: elements of a round over all ranks, unless one matrix of each has more.
    """
    totals: dict[int, int] = {}
    for size, owner in zip(sizes, owned_by, strict=True):
        totals[owner] = totals.get(owner, 0) + size
    count = max(1, -(-sum(sizes) // max(1, bucket)))
    found: list[list[int]] = [[] for _ in range(count)]
    before = dict.fromkeys(totals, 0)
    for index, (size, owner) in enumerate(zip(sizes, owned_by, strict=True)):
        middle = before[owner] + size / 2
        found[min(count - 1, int(count * middle / max(1, totals[owner])))].append(index)
        before[owner] += size
    return [members for members in found if members]
