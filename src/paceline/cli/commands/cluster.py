"""``paceline cluster``: the user's own clusters by name."""

from __future__ import annotations

import argparse

from paceline.cli.parser import BRIEF, Answer, Parser
from paceline.errors import UserError
from paceline.hardware import Cluster, instance
from paceline.hardware.catalogue import is_device
from paceline.hardware.prices import dollars_text
from paceline.hardware.saved_clusters import SavedCluster, clusters_file, forget_cluster, save_cluster, saved_clusters
from paceline.reporting.text.screen import Pair, Screen

EXAMPLE = """example:
  paceline cluster add lab "4x8 H100, 400Gb/s RoCE" --price 2.50"""


def add(parser: Parser) -> None:
    """Add the actions of ``paceline cluster``."""
    action = parser.group(EXAMPLE)
    adding = action("add", "save a cluster under a name, for --on and --cluster")
    adding.runs(_add, EXAMPLE, shapes=BRIEF)
    adding.add_argument("name", metavar="NAME")
    adding.add_argument("cluster", metavar="CLUSTER", help="such as '4x8 H100, 400Gb/s RoCE'")
    adding.add_argument("--price", metavar="USD", type=float, help="dollars a device and hour (default: the listings)")
    listing = action("list", "the saved clusters")
    listing.runs(_list, "example:\n  paceline cluster list", shapes=BRIEF)
    removing = action("remove", "forget a cluster")
    removing.runs(_remove, "example:\n  paceline cluster remove lab", shapes=BRIEF)
    removing.add_argument("name", metavar="NAME")


def _add(o: argparse.Namespace) -> Answer:
    if is_device(o.name) or instance(o.name):
        raise UserError(f"{o.name} is a device or an instance", "save the cluster under a name of your own")
    cluster = Cluster.named(o.cluster)  # refuse an impossible cluster before it is saved
    entry = SavedCluster(o.name, o.cluster, o.price)
    file = save_cluster(entry)
    return _json(entry), Screen.plain(f"{o.name}: {cluster.world_size:,} {cluster.device.name}, saved in {file}")


def _list(o: argparse.Namespace) -> Answer:
    entries = list(saved_clusters().values())
    data = {"file": str(clusters_file()), "clusters": [_json(entry) for entry in entries]}
    if not entries:
        return data, Screen.plain(f"no cluster is saved in {clusters_file()}; paceline cluster add NAME CLUSTER saves one")
    pairs = tuple(Pair(entry.name, entry.text + _priced(entry)) for entry in entries)
    return data, Screen(title=f"Saved in {clusters_file()}:", answer=pairs, brief=", ".join(entry.name for entry in entries))


def _remove(o: argparse.Namespace) -> Answer:
    file = forget_cluster(o.name)
    return {"removed": o.name, "file": str(file)}, Screen.plain(f"{o.name} is gone from {file}")


def _priced(entry: SavedCluster) -> str:
    return "" if entry.usd_per_device_hour is None else f"; {dollars_text(entry.usd_per_device_hour)} a device and hour"


def _json(entry: SavedCluster) -> dict[str, object]:
    return {"name": entry.name, "cluster": entry.text, "usd_per_device_hour": entry.usd_per_device_hour}
