"""Hosts of nodes, as data: memory, cores and links to the devices, and the part that each device gets."""

from paceline.hardware.hosts.host_share import HostShare, HostSystem, host_of, host_share, hosts, missing_host

__all__ = ["HostShare", "HostSystem", "host_of", "host_share", "hosts", "missing_host"]
