"""What is learned, as data: the layer table of a network, by name or traced. Importing this needs no torch."""

import sys
from types import ModuleType

from paceline.workload.catalogue import names, workload
from paceline.workload.factory import call_factory, load_factory
from paceline.workload.layers import Coverage, Layer, Parameter, Workload
from paceline.workload.trace import trace

__all__ = ["Coverage", "Layer", "Parameter", "Workload", "call_factory", "load_factory", "names", "trace", "workload"]


class _Package(ModuleType):
    """``paceline.workload("lenet5")`` is a call, whether or not the package of that name has been imported before."""

    def __call__(self, name: str) -> Workload:
        return workload(name)


sys.modules[__name__].__class__ = _Package
