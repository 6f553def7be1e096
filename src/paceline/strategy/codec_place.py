"""Places where a codec can work (device, host, network card), switches that add, and the support of each."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, final

from paceline.errors import UserError
from paceline.hardware.cluster import Cluster
from paceline.hardware.nics import Nic, nic
from paceline.hardware.switches import Aggregation, aggregation
from paceline.strategy.choices.values import Value
from paceline.strategy.compression.compression import Compression
from paceline.strategy.compression.compressions import COMPRESSIONS
from paceline.strategy.exchanges import EXCHANGES, Exchange


class Exchanging(Protocol):
    """Fields of a ``GradientExchange`` on which the place of its codec and of its sums depends."""

    @property
    def compression(self) -> Compression: ...
    @property
    def exchange(self) -> Exchange: ...
    @property
    def codec_at(self) -> Place: ...
    @property
    def residuals_at(self) -> Place: ...
    @property
    def compress_pull(self) -> bool: ...
    @property
    def servers(self) -> int: ...
    @property
    def description(self) -> Compression: ...


class Place(Value, ABC):
    """Place where a codec works, or that holds residuals between exchanges.

    Attributes:
        text: the place in words.
    """

    __slots__ = ()
    known: ClassVar[dict[str, Any]]
    text: ClassVar[str]

    def __bool__(self) -> bool:
        return True

    @abstractmethod
    def is_of(self, kind: str) -> bool:
        """Return whether gradients on a device of this kind (``cpu``, ``gpu``) are already at this place."""

    def check(self, x: Exchanging) -> None:
        """Raise UserError if the codec of ``x`` cannot work here. The error names the nearest that can."""
        if not x.description.can_be_placed:
            why = "its factors are made by PyTorch's hook" if x.description.low_rank else "it compresses nothing"
            raise UserError(f"{x.compression} with its codec {self.text}: {why}", "leave codec_at out, or name a compression")

    @abstractmethod
    def check_cluster(self, x: Exchanging, cluster: Cluster) -> None:
        """Raise UserError if the cluster lacks the place."""

    def check_runs(self, x: Exchanging, device: str) -> None:
        """Raise UserError if training with gradients on ``device`` cannot run the codec here. Empty: device not yet known."""
        del x
        if device and not self.is_of(device):
            here = ON_HOST if device == "cpu" else ON_GPU
            raise UserError(
                f"the codec {self.text}: training runs it where the gradients live, here {here.text}",
                f"give codec_at {here}, or leave it out",
            )


@final
class UsualPlace(Place):
    """Default place of codecs and residuals. A codec works at the gradients' place; residuals are kept at the codec's place."""

    __slots__ = ()
    name, text = "", ""

    def __bool__(self) -> bool:
        return False

    def is_of(self, kind: str) -> bool:
        """Return True, because the default place is that of the gradients."""
        del kind
        return True

    def check(self, x: Exchanging) -> None:
        """Accept every codec."""

    def check_cluster(self, x: Exchanging, cluster: Cluster) -> None:
        """Accept every cluster."""


@final
class OnHost(Place):
    """Host processor and its memory."""

    __slots__ = ()
    name, text = "host", "on the host"

    def is_of(self, kind: str) -> bool:
        """Return True for gradients on a CPU."""
        return kind == "cpu"

    def check(self, x: Exchanging) -> None:
        """Raise UserError if a host cannot compute the exchange's sums."""
        super().check(x)
        if not x.exchange.adds_on_host:
            legal = ", ".join(name for name, exchange in EXCHANGES.items() if exchange.adds_on_host)
            raise UserError(f"exchange {x.exchange.name!r} does not add on the host", f"legal with codec_at host: {legal}")

    def check_cluster(self, x: Exchanging, cluster: Cluster) -> None:
        """Raise UserError if the link to the host is unknown."""
        _check_host_link(cluster, "the codec on the host", "codec_at")


@final
class OnGpu(Place):
    """GPU that computes the gradients."""

    __slots__ = ()
    name, text = "gpu", "on the GPU"

    def is_of(self, kind: str) -> bool:
        """Return True for gradients on anything but a CPU."""
        return kind != "cpu"

    def check_cluster(self, x: Exchanging, cluster: Cluster) -> None:
        """Raise UserError if there is no GPU."""
        if cluster.device.kind == "cpu":
            raise UserError(f"the codec on a GPU, and {cluster.device.name} has none", "give codec_at host, or leave it out")


@final
class InCard(Place):
    """Network card that compresses.

    It compresses fp32 on its way to the line and restores it on the other side (Li et al. 2018, INCEPTIONN, MICRO, section
    VI). It has no scale of a whole tensor, keeps no residual and adds nothing: hosts add fp32.
    """

    __slots__ = ()
    name, text = "nic", "in the network card"

    def is_of(self, kind: str) -> bool:
        """Return False, because no gradients are in a card."""
        del kind
        return False

    def check(self, x: Exchanging) -> None:
        """Raise UserError if a card cannot do the compression, or cannot do it in this exchange."""
        super().check(x)
        if not x.compression.in_card:
            legal = ", ".join(name for name, c in COMPRESSIONS.items() if c.in_card)
            raise UserError(f"a network card does not do {x.compression}", f"legal with codec_at nic: {legal}")
        if not x.exchange.adds_in_card:
            legal = ", ".join(
                sorted((n for n, e in EXCHANGES.items() if e.adds_in_card), key=lambda n: EXCHANGES[n].has_servers)
            )
            raise UserError(
                f"exchange {x.exchange.name!r} does not go with a codec in the network card",
                f"legal with codec_at nic: {legal} (the latter without compress_pull)",
            )
        if x.compression.card_scales and not x.exchange.has_servers:
            raise UserError(
                f"{x.compression} in a card scales packet by packet: around a ring the ranks would end with different sums",
                "give exchange parameter_server with compress_pull=False (--no-compress-pull), or inceptionn",
            )
        if x.exchange.has_servers and x.compress_pull:
            raise UserError(
                "a card of an aggregator compresses gradients alone: what returns travels as fp32",
                "give compress_pull=False (--no-compress-pull), or exchange ring",
            )

    def check_cluster(self, x: Exchanging, cluster: Cluster) -> None:
        """Raise UserError if the network is not Ethernet with TCP, or if its card does not do the compression."""
        if cluster.num_nodes == 1:
            raise UserError("a codec in the network card, and one node, which has no network", "give more nodes and a network")
        if cluster.network.kind != "ethernet" or cluster.network.transport not in ("", "TCP"):
            raise UserError(
                f"a codec in the network card follows TCP on an Ethernet, {cluster.network.name} has other packets",
                f"give a network such as {'100Gb/s TCP' if cluster.network.kind == 'ethernet' else '100Gb/s'}",
            )
        card = cluster.nic or nic()
        if x.compression.name not in card.compressions:
            raise UserError(f"{card.name} does not do {x.compression}", f"legal for it: {', '.join(card.compressions)}")

    def check_runs(self, x: Exchanging, device: str) -> None:
        """Raise UserError if this host has no card, a card with another codec, or gradients that no card of a lab sees."""
        from paceline.lab.card_spec import CardSpec, card_of_this_host  # a lab is loaded for a run alone

        wanted = CardSpec(x.compression.name, round(-math.log2(x.description.option_values["bound"])))
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


USUAL_PLACE, ON_HOST, ON_GPU, IN_CARD = UsualPlace(), OnHost(), OnGpu(), InCard()
PLACES: Mapping[str, Place] = {name: place for name, place in Place.known.items() if place}
"""Values of ``GradientExchange.codec_at`` by name; empty: the gradients' place."""


@dataclass(frozen=True, slots=True)
class Fabric:
    """Parts of the network that process gradients: cards that compress, and switches that add. None: not used."""

    nic: Nic | None = None
    aggregation: Aggregation | None = None


PLAIN = Fabric()


def fabric(x: Exchanging, cluster: Cluster) -> Fabric:
    """Return the network parts that an exchange uses on ``cluster``. The default card is the catalogue's first.

    Raises:
        UserError: as ``check_fabric``.
    """
    in_card = x.codec_at is IN_CARD
    if not in_card and not x.exchange.uses_switch:
        return PLAIN
    check_fabric(x, cluster)
    if x.exchange.uses_switch:
        return Fabric(aggregation=_aggregation(cluster))
    return Fabric(nic=cluster.nic or nic())


def check_fabric(x: Exchanging, cluster: Cluster) -> None:
    """Raise UserError if the cluster lacks hardware that the exchange needs.

    Checked are the GPU, a known link to its host, a card on Ethernet, and a switch that adds.
    """
    x.codec_at.check_cluster(x, cluster)
    if x.residuals_at:
        _check_host_link(cluster, "residuals in the memory of the host", "residuals_at")
    if x.exchange.uses_switch:
        _check_switch(x, cluster)


def _check_host_link(cluster: Cluster, what: str, option: str) -> None:
    """Raise UserError if the catalogue lacks the link between the devices and their host."""
    if cluster.device.kind != "cpu" and not cluster.device.host_link:
        raise UserError(
            f"{what} of {cluster.device.name}: its link to the host is not in the catalogue",
            f"name a device that has it, such as A100 or H100, or leave {option} out",
        )


def _aggregation(cluster: Cluster) -> Aggregation | None:
    """Return the switches that the user named, or SHARP if the network's name implies switches that reduce."""
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
    if not set(x.compression.switch_sums) & set(switch.sums):
        able = [name for name, c in COMPRESSIONS.items() if set(c.switch_sums) & set(switch.sums)]
        raise UserError(
            f"{switch.name} adds {' and '.join(switch.sums)}, which is not how {x.compression} travels",
            f"legal for it: {', '.join(able)}",
        )
