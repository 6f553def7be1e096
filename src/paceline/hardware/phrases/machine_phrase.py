"""The grammar of machines: counts, a device or an instance, nodes and a link, in any usual order.

A phrase has these parts, with filler words between them:

    COUNT      8, 2x8, 1+7, x8, *8, :8, (8x), eight
    NAME       a device or an instance, with its memory, form, maker or provider
    NODES      2 nodes, nodes=2; 8 per node, 8 each, gpus-per-node=8; 16 GPUs
    LINK       everything from a speed or the name of a network on
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from paceline.errors import UserError, shown
from paceline.hardware.phrases.machine_names import MachineName, known_name, name_at
from paceline.hardware.phrases.tokens import Token, spaced, tokens, vocabulary
from paceline.hardware.phrases.unmodelled import check_modelled
from paceline.hardware.placement import NodeSizes, parse_sizes

NO_NAME = "name the device: '8 H100', '2x8 A100, 400Gb/s RoCE', 'p5.48xlarge'"

_PORT_SPEEDS = (1, 10, 25, 40, 50, 56, 100, 200, 400, 800, 1600, 3200, 6400)
"""Gb/s of a port, or of all ports of a node, that people write as ``100G``."""
_BOARDS = ("hgx", "dgx")
_BY_NAME = ("laptop", "mobile", "max", "notebook")
"""Words that make another device of a name."""
_OF_NAMES = ("radeon", "pro", "geforce", "quadro", "tesla", "instinct")
"""Words that belong to an unknown name behind them."""


@dataclass(frozen=True, slots=True)
class MachinePhrase:
    """Machines as a phrase states them. Numbers that it leaves out are None.

    Attributes:
        text: the phrase.
        name: a device or an instance, as ``cluster`` takes it; the unknown words if no name is known.
        rented: whether it is an instance.
        known: whether the name is in the catalogue.
        count: a number whose unit is not stated: devices of one node or in all, or instances.
        devices: number in all; ``per_node``: of each node. ``nodes``: number of nodes.
        each: whether ``count`` is of each node, if the phrase says so. ``spread``: whether devices are spread on the nodes.
        network: the text of the link between nodes.
    """

    text: str
    name: str
    rented: bool
    known: bool
    count: int | None = None
    devices: int | None = None
    per_node: NodeSizes | None = None
    nodes: int | None = None
    each: bool | None = None
    spread: bool = False
    network: str | None = None


@cache
def machine_phrase(text: str) -> MachinePhrase:
    """Parse a phrase such as ``2x8 H100 IB``, ``H100:8``, ``16 A100, 2 nodes, 100GbE`` or ``p4d.24xlarge x 4``.

    Raises:
        UserError: two devices, two different numbers of one thing, or no text.
    """
    if not text.strip():
        raise UserError("a cluster without a name", NO_NAME)
    return _Reader(text).phrase()


@dataclass
class _Reader:
    """State of reading one phrase from left to right."""

    text: str
    given: str = field(init=False)
    said: list[Token] = field(init=False)
    place: int = 0
    name: MachineName | None = None
    name_start: int = 0
    before: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    sizes: NodeSizes | None = None
    nodes_first: bool = False
    times_count: bool = False
    colon_count: bool = False
    times_nodes: bool = False
    spread: bool = False
    per_key: bool = False
    one_node: bool = False
    board: str = ""
    link: list[str] = field(default_factory=list)
    unknown: list[Token] = field(default_factory=list)
    remarks: list[Token] = field(default_factory=list)
    seller: bool = False
    depth: int = 0

    def __post_init__(self) -> None:
        self.given, self.text = self.text.strip(), spaced(self.text)
        self.said = tokens(self.text, known_name)

    def phrase(self) -> MachinePhrase:
        """Read all tokens, then what they say together."""
        steps = (self._name, self._keyed, self._link, self._count, self._word)
        while self.place < len(self.said):
            if not any(step() for step in steps):
                self.place += 1
        return self._result()

    # Parts of a phrase. Each takes its tokens and returns whether it did.

    def _name(self) -> bool:
        token = self._token()
        if token is None or token.kind in ("comma", "sign", "open", "close", "colon", "times", "sizes"):
            return False
        found = name_at(self.said, self.place)
        if found is None:
            return False
        if self.name is None:
            self.name, self.name_start = found, self.place
        elif not _same(self.name, found):
            raise UserError(
                f"{self.given!r} names two machines: {self.name.text} and {found.text}",
                "give one; a cluster of different devices is not predicted",
            )
        self.place = found.end
        return True

    def _keyed(self) -> bool:
        """``nodes=4``, ``--gpus-per-node 8``, ``gpu: 8``, ``gpus per node = H100:8``."""
        token = self._token()
        kinds = [kind for kind in ("nodes", "devices") if token and token.kind == "word" and vocabulary().of(token, kind)]
        if not kinds:
            return False
        kind, place = kinds[0], self.place + 1
        after_dashes = (
            token is not None and self.text[: token.start].endswith(("--", "-")) and " " not in self.text[token.start - 1]
        )
        while (word := self._token(place)) and (word.kind == "sign" or vocabulary().of(word, "per") or self._node(place)):
            kind, place = ("per_node" if self._node(place) and kind == "devices" else kind), place + 1
        sign = self._token(place)
        if sign and (sign.kind == "colon" or after_dashes):
            place += sign.kind == "colon"
            number = self._token(place)
            if number and number.kind == "count" and name_at(self.said, place) is None:
                self._state(kind, number.number)
                self.place = place + 1
                return True
            if kind == "per_node":
                self.per_key, self.place = True, place
                return True
        if kinds[0] == "nodes" and self._behind_per():
            self.per_key, self.place = True, self.place + 1  # "4x GH200 per node"
            return True
        if kinds[0] == "nodes" and self._multiplied(self.place + 1):  # "node x 4"
            self._state("nodes", self.said[self.place + 2].number)
            self.place += 3
            return True
        if kinds[0] == "nodes" and self.name and len(self.before) == 1 and not self.after and "nodes" not in self.numbers:
            self._state("nodes", self.before.pop())  # "4 A100 nodes"
        self.place += 1
        return True

    def _count(self) -> bool:
        """A number with its unit, or alone."""
        token = self._token()
        if token is None:
            return False
        if token.kind == "sizes":
            self.sizes = parse_sizes(token.text)
            self.place += 1
            return True
        if token.kind != "count":
            return False
        place = self.place + 1
        if (sign := self._token(place)) and sign.kind == "sign" and self._glued(place):
            place += 1
        unit, place = self._unit(place)
        if unit == "nodes":
            self.one_node = not self.said[place - 1].folded.endswith("s")
            self.times_nodes |= self._behind_times()
            self.nodes_first |= self.name is None and not self.before
        if unit:
            self._state(unit, token.number)
            self.place = place
            return True
        sign, colon = self._token(self.place + 1), self._token(self.place - 1)
        if self.unknown and self.name is None and colon is self.unknown[-1]:
            self.unknown.append(token)  # a part of an unknown name
        elif self.name is None:
            self.before.append(token.number)
            self.times_count = bool(sign and sign.kind == "times")
        else:
            self.after.append(token.number)
            self.colon_count |= bool(colon and colon.kind == "colon")
        self.place += 1
        return True

    def _unit(self, place: int) -> tuple[str, int]:
        """Return the unit of the number before ``place``, empty if it has none, and the place after the unit."""
        token = self._token(place)
        if token is None or token.kind != "word":
            return "", place
        if self._node(place):
            return "nodes", place + 1
        devices = vocabulary().of(token, "devices")
        if devices:
            place += 1
        per = self._token(place)
        slash = per and per.text == "/"
        if per and (slash or vocabulary().of(per, "per")) and (self._node(place + 1) or per.folded in ("each", "apiece")):
            return "per_node", place + 1 + self._node(place + 1)
        return ("devices", place) if devices else ("", place)

    def _link(self) -> bool:
        """A network: from a speed or its name to the end, or to a number of nodes."""
        first = self.place
        while (token := self._token(first)) and (
            token.kind in ("count", "times")
            or token.folded in ("a", "an")
            or (first > self.place and (vocabulary().of(token, "ports_of") or token.folded in ("of", "at")))
        ):
            if token.kind == "count" and self._unit(first + 1)[0]:
                return False
            first += 1
        if not self._begins_link(first) or (first > self.place and not self._counts(first)):
            return False
        last = first
        while (token := self._token(last)) and not (last > first and self._ends_link(last)):
            last += 1
        while last > first and self.said[last - 1].kind in ("comma", "open", "sign"):
            last -= 1
        self.link.append(self.text[self.said[self.place].start : self.said[last - 1].end])
        self.place = last
        return True

    def _word(self) -> bool:
        token = self._token()
        assert token is not None
        words = vocabulary()
        self.depth += (token.kind == "open") - (token.kind == "close")
        if token.kind == "word":
            following = self._token(self.place + 1)
            self.spread |= words.of(token, "over") and following is not None and following.kind == "count"
            self.seller |= words.of(token, "sellers")
            if self._other_network(token):
                return True
            if token.folded in _BOARDS and self.depth <= 0:
                self.board = token.text
                if self.name is None and len(self.before) == 1:
                    self._state("nodes", self.before.pop())  # "one DGX box with H100"
            plain = words.of(token, "over", "per", "fillers", "makers", "sellers", "forms", "inside")
            if not plain and self.depth <= 0 and not (self.seller and self.name is None):
                (self.remarks if self._is_remark(token) else self.unknown).append(token)
        elif token.kind in ("size", "speed") and self.depth <= 0:
            self.unknown.append(token)
        self.place += 1
        return True

    def _is_remark(self, token: Token) -> bool:
        """Return whether an unknown word says nothing about the machines: it has no digit and is not next to the name."""
        before, after = self._token(self.place - 1), self._token(self.place + 1)
        if any(letter.isdigit() for letter in token.text) or token.folded in _BY_NAME or after is None:
            return False
        if self.name is not None or (self.unknown and before is self.unknown[-1]):
            return False
        ahead = any(name_at(self.said, place) for place in range(self.place + 1, len(self.said)))
        return ahead and name_at(self.said, self.place + 1) is None

    def _other_network(self, token: Token) -> bool:
        """An unknown word behind a comma, which is where the network stands."""
        before = self._token(self.place - 1)
        classes = ("over", "per", "fillers", "makers", "sellers", "forms", "inside", "nodes", "devices")
        if self.name is None or self.depth or before is None or before.kind != "comma" or vocabulary().of(token, *classes):
            return False
        self.link.append(self.text[token.start : self.said[-1].end])
        self.place = len(self.said)
        return True

    # Tests of tokens, and the result.

    def _token(self, place: int | None = None) -> Token | None:
        index = self.place if place is None else place
        return self.said[index] if 0 <= index < len(self.said) else None

    def _glued(self, place: int) -> bool:
        """Return whether a sign stands between two tokens without a space: ``8-GPU``."""
        before, sign, after = self._token(place - 1), self._token(place), self._token(place + 1)
        return bool(before and sign and after and before.end == sign.start and sign.end == after.start)

    def _node(self, place: int) -> bool:
        token = self._token(place)
        return token is not None and token.kind == "word" and vocabulary().of(token, "nodes")

    def _behind_per(self) -> bool:
        before = self._token(self.place - 1)
        return (
            before is not None and (before.text == "/" or vocabulary().of(before, "per")) and before.folded not in ("a", "an")
        )

    def _multiplied(self, place: int) -> bool:
        times, number = self._token(place), self._token(place + 1)
        return bool(times and number and times.kind == "times" and number.kind == "count")

    def _behind_times(self) -> bool:
        token = self._token(self.place - 1)
        return token is not None and token.kind == "times"

    def _begins_link(self, place: int) -> bool:
        token = self._token(place)
        if token is None:
            return False
        if token.kind == "speed":
            return True
        if token.kind == "size":  # 100G is a port, 60GB a memory
            return token.folded.rstrip("g t").isdigit() and int(token.folded.rstrip("g t")) in _PORT_SPEEDS
        return token.kind == "word" and (vocabulary().of(token, "links") or token.folded in vocabulary().ports)

    def _counts(self, first: int) -> bool:
        """Return whether the numbers before a link count its ports: not the devices of a name still to come."""
        return self.name is not None or not any(name_at(self.said, place) for place in range(first, len(self.said)))

    def _ends_link(self, place: int) -> bool:
        """Return whether a number of nodes, or a machine, begins at ``place``."""
        token = self._token(place)
        if token is None or token.kind not in ("count", "word"):
            return False
        if token.kind == "count":
            return self._unit(place + 1)[0] == "nodes"
        return self.name is None and name_at(self.said, place) is not None

    def _state(self, unit: str, number: int) -> None:
        if self.numbers.setdefault(unit, number) != number:
            what = {"nodes": "nodes", "per_node": "devices a node", "devices": "devices"}[unit]
            raise UserError(f"{self.given!r} says {self.numbers[unit]} and {number} {what}", "give one number")

    def _result(self) -> MachinePhrase:
        nodes, per_node = self.numbers.get("nodes"), self.numbers.get("per_node")
        count, each = None, None
        numbers = [*self.before, *self.after]
        if len(numbers) == 2 and self.sizes is None and nodes is None:
            swapped = len(self.before) == len(self.after) == 1 and not self.colon_count  # 8xH100 x 2
            nodes, count = reversed(numbers) if swapped else numbers
            each = True
        elif len(numbers) == 1:
            count = numbers[0]
            if nodes is not None and not self.spread:
                multiplied = self.times_count or self.times_nodes or bool(self.after)
                each = True if multiplied or self.nodes_first else None
            each = True if self.per_key else each
        elif numbers:
            raise UserError(f"{self.given!r} has too many numbers", "write 2x8 H100 for two nodes of eight")
        if self.name:
            check_modelled(self.name.text)
        if self.one_node and nodes and nodes > 1 and not (self.before or self.after or per_node or "devices" in self.numbers):
            nodes, per_node = 1, nodes  # "MI300X x8 node"
        if self.board and self.name and not self.name.rented and count is None and per_node is None and self.sizes is None:
            whole = name_at(tokens(f"{self.board} {self.name.text}", known_name), 0)
            self.name = whole if whole and whole.rented else self.name
        if self.name is None or self.unknown:
            return self._unknown(count, nodes)
        return MachinePhrase(
            self.given,
            self.name.text,
            self.name.rented,
            known=True,
            count=count,
            devices=self.numbers.get("devices"),
            per_node=self.sizes if self.sizes is not None else per_node,
            nodes=nodes,
            each=each,
            spread=self.spread,
            network=" ".join(self.link) or None,
        )

    def _unknown(self, count: int | None, nodes: int | None) -> MachinePhrase:
        """Return a phrase with a name that is not known: the first unknown words, as written."""
        if not self.unknown:
            raise UserError(f"unknown device: {shown(self.given)} names none", NO_NAME)
        first, last = self.said.index(self.unknown[0]), self.unknown[-1]
        while first and (self.said[first - 1].kind == "sign" or self.said[first - 1].folded in _OF_NAMES):
            first -= 1
        start = min(self.said[first].start, self.said[self.name_start].start) if self.name else self.said[first].start
        end = max(last.end, self.said[self.name.end - 1].end) if self.name else last.end
        network = " ".join(self.link) or None
        return MachinePhrase(
            self.given, self.text[start:end], rented=False, known=False, count=count, nodes=nodes, network=network
        )


def _same(one: MachineName, other: MachineName) -> bool:
    from paceline.hardware.instances import device_in

    first, second = device_in(one.text), device_in(other.text)
    return first is not None and second is not None and first.board == second.board
