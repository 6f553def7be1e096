"""Where the codec works: on the device, on the host, or in the network card; and sums in the switch. What goes with what.

A card compresses fp32 on its way to the line and restores it on the other side (Li et al. 2018, INCEPTIONN, MICRO, section VI).
It has no scale of a whole tensor, keeps no residual and adds nothing: hosts add fp32.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from paceline.errors import UserError
from paceline.hardware.cluster import Cluster
from paceline.hardware.nics import Nic, nic
from paceline.hardware.switches import Aggregation, aggregation
from paceline.strategy.compression import Compression


class Exchanging(Protocol):
    """A gradient exchange as far as its codec's place and its sums go; ``GradientExchange`` is one."""

    @property
    def compression(self) -> str: ...
    @property
    def exchange(self) -> str: ...
    @property
    def codec_at(self) -> str: ...
    @property
    def residuals_at(self) -> str: ...
    @property
    def compress_pull(self) -> bool: ...
    @property
    def servers(self) -> int: ...
    @property
    def description(self) -> Compression: ...


PLACES = ("host", "gpu", "nic")
"""Names of ``GradientExchange.codec_at``; empty: where the gradients live."""
PLACE_TEXT = {"host": "on the host", "gpu": "on the GPU", "nic": "in the network card"}
IN_CARD = ("inceptionn", "inceptionn-scaled")
"""Compressions that a card can do: element by element, or block by block of a packet."""
CARD_EXCHANGES = ("ring", "parameter_server")
"""Exchanges whose messages a card compresses: partial sums around a ring, and gradients to an aggregator."""
HOST_EXCHANGES = ("sharded", "parameter_server", "ring", "allgather")
"""Exchanges whose sums a host can add up in place of a GPU."""
SWITCHED: Mapping[str, tuple[str, ...]] = {"dense": ("fp32", "int32"), "terngrad": ("ternary",)}
"""Compressions that a switch can add up, and the sums that it must have for one of them (``Aggregation.sums``)."""


def check_codec_place(x: Exchanging) -> None:
    """Raises UserError where the codec cannot work at ``x.codec_at``, with the nearest that can."""
    place, name = x.codec_at, x.compression
    if place == "":
        return
    described = x.description
    if not described.lossy and name != "bf16":
        why = "its factors are made by PyTorch's hook" if described.low_rank else "it compresses nothing"
        raise UserError(f"{name} with its codec {PLACE_TEXT[place]}: {why}", "leave codec_at out, or name a compression")
    if place == "host" and x.exchange not in HOST_EXCHANGES:
        raise UserError(
            f"exchange {x.exchange!r} does not add on the host", f"legal with codec_at host: {', '.join(HOST_EXCHANGES)}"
        )
    if place != "nic":
        return
    if name not in IN_CARD:
        raise UserError(f"a network card does not do {name}", f"legal with codec_at nic: {', '.join(IN_CARD)}")
    if x.exchange not in CARD_EXCHANGES:
        raise UserError(
            f"exchange {x.exchange!r} does not go with a codec in the network card",
            f"legal with codec_at nic: {', '.join(CARD_EXCHANGES)} (the latter without compress_pull)",
        )
    if name == "inceptionn-scaled" and x.exchange != "parameter_server":
        raise UserError(
            "inceptionn-scaled in a card scales packet by packet: around a ring the ranks would end with different sums",
            "give exchange parameter_server with compress_pull=False (--no-compress-pull), or inceptionn",
        )
    if x.exchange == "parameter_server" and x.compress_pull:
        raise UserError(
            "a card of an aggregator compresses gradients alone: what returns travels as fp32",
            "give compress_pull=False (--no-compress-pull), or exchange ring",
        )


@dataclass(frozen=True, slots=True)
class Fabric:
    """What is between the hosts beside links: cards that compress, and switches that add. None: not used."""

    nic: Nic | None = None
    aggregation: Aggregation | None = None


PLAIN = Fabric()


def fabric(x: Exchanging, cluster: Cluster) -> Fabric:
    """What an exchange uses on ``cluster``: the first card of the catalogue where it names none. Raises UserError as
    ``check_fabric``."""
    if x.codec_at != "nic" and x.exchange != "switch":
        return PLAIN
    check_fabric(x, cluster)
    if x.exchange == "switch":
        return Fabric(aggregation=_aggregation(cluster))
    return Fabric(nic=cluster.nic or nic())


def check_fabric(x: Exchanging, cluster: Cluster) -> None:
    """Raises UserError where the cluster lacks what the exchange needs: a GPU, a known link to its host, a card on an Ethernet,
    a switch that adds."""
    kind = cluster.device.kind
    if x.codec_at == "gpu" and kind == "cpu":
        raise UserError(f"the codec on a GPU, and {cluster.device.name} has none", "give codec_at host, or leave it out")
    if x.codec_at == "host" and kind != "cpu" and not cluster.device.host_link:
        raise UserError(
            f"the codec on the host of {cluster.device.name}: its link to the host is not in the catalogue",
            "name a device that has it, such as A100 or H100, or leave codec_at out",
        )
    if x.residuals_at and kind != "cpu" and not cluster.device.host_link:
        raise UserError(
            f"residuals in the memory of the host of {cluster.device.name}: its link to the host is not in the catalogue",
            "name a device that has it, such as A100 or H100, or leave residuals_at out",
        )
    if x.codec_at == "nic":
        _check_card(x, cluster)
    if x.exchange == "switch":
        _check_switch(x, cluster)


def _check_card(x: Exchanging, cluster: Cluster) -> None:
    if cluster.num_nodes == 1:
        raise UserError("a codec in the network card, and one node, which has no network", "give more nodes and a network")
    if cluster.network.kind != "ethernet" or cluster.network.transport not in ("", "TCP"):
        raise UserError(
            f"a codec in the network card follows TCP on an Ethernet, {cluster.network.name} has other packets",
            f"give a network such as {'100Gb/s TCP' if cluster.network.kind == 'ethernet' else '100Gb/s'}",
        )
    card = cluster.nic or nic()
    if x.compression not in card.compressions:
        raise UserError(f"{card.name} does not do {x.compression}", f"legal for it: {', '.join(card.compressions)}")


def _aggregation(cluster: Cluster) -> Aggregation | None:
    """That which was named, else SHARP where the network's name says that its switches reduce."""
    if cluster.aggregation is None and cluster.num_nodes > 1 and cluster.network.reduces:
        return aggregation("SHARP")
    return cluster.aggregation


def _check_switch(x: Exchanging, cluster: Cluster) -> None:
    if cluster.num_nodes == 1:
        raise UserError("exchange switch, and one node, which has no switch", "give more nodes and a network")
    switch, link = _aggregation(cluster), cluster.network
    if switch is None:
        what = "SHARP in its name" if link.kind == "infiniband" else "--aggregation SwitchML, ATP or 'Paceline switch'"
        raise UserError(f"exchange switch: the switches of {link.name} add nothing up", f"name what adds: {what}")
    if link.kind not in switch.kinds:
        raise UserError(f"{switch.name} does not add on {link.name}", f"legal for it: {', '.join(switch.kinds)} networks")
    if not set(SWITCHED[x.compression]) & set(switch.sums):
        able = [name for name, sums in SWITCHED.items() if set(sums) & set(switch.sums)]
        raise UserError(
            f"{switch.name} adds {' and '.join(switch.sums)}, which is not how {x.compression} travels",
            f"legal for it: {', '.join(able)}",
        )


def check_runs(x: Exchanging, device: str = "") -> None:
    """Raises UserError where training cannot execute an exchange that a prediction can describe.

    Args:
        device: where the gradients live, ``cpu`` or another kind; empty where it is not known yet.
    """
    from paceline.lab.adding_switch import VARIABLE  # a lab is loaded for a run alone

    if x.servers > 1:
        raise UserError(f"training runs one server, not {x.servers}", "take exchange sharded: every rank is a server there")
    if x.exchange == "switch" and not os.environ.get(VARIABLE):
        raise UserError(
            "exchange switch needs a switch that adds, and there is none between these workers",
            "run in a lab that has one: paceline lab up --switch; or predict it",
        )
    if x.codec_at == "nic":
        _check_own_card(x, device)
    elif device and x.codec_at and (x.codec_at == "host") != (device == "cpu"):
        here = "host" if device == "cpu" else "gpu"
        raise UserError(
            f"the codec {PLACE_TEXT[x.codec_at]}: training runs it where the gradients live, here {PLACE_TEXT[here]}",
            f"give codec_at {here}, or leave it out",
        )


def _check_own_card(x: Exchanging, device: str) -> None:
    """Raises UserError where this host has no card, one of another codec, or gradients that no card of a lab sees."""
    from paceline.lab.card_spec import CardSpec, card_of_this_host

    wanted = CardSpec(x.compression, round(-math.log2(x.description.option_values["bound"])))
    present = card_of_this_host()
    if present is None:
        raise UserError(
            "a codec in the network card, and these workers have no such cards",
            f"run in a lab that has them: paceline lab up --nic {wanted.text}; or predict it",
        )
    if (present.codec, present.k) != (wanted.codec, wanted.k):
        raise UserError(f"this host's card does {present.text}, not {wanted.text}", f"paceline lab up --nic {wanted.text}")
    if device not in ("", "cpu"):
        raise UserError("codec_at nic with gradients on a GPU", "a lab's cards serve gloo: train on CPUs, or predict it")
