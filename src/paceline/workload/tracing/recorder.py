"""Recorder of one forward and backward pass on the meta device: the work of each module, in order.

A forward operation belongs to the innermost module whose call is active. A backward operation belongs to the module whose
forward call made its autograd node. Nodes have increasing sequence numbers, which are read at every entry and exit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.errors import UserError
from paceline.workload.tracing.autocast import autocast
from paceline.workload.tracing.fused import fused_kernels
from paceline.workload.tracing.operations import NOTHING, Kernel, element_bytes, kernels, tensors_in, traffic

if TYPE_CHECKING:
    import torch
    from torch import nn

ROOT = "(model)"  # the outermost module's own operations; paths of submodules contain no brackets
LOSS = "loss"
_FORWARD, _BACKWARD = 0, 1
_ACCUMULATE = 2**63  # AccumulateGrad nodes have sequence number 2**64 - 1


@dataclass
class ModuleRecord:
    """Work of one module in one step: its (forward, backward) kernels in order, and bytes saved for the backward pass.

    ``streamed``: calls and bytes at their actual width of (forward, backward) memory-bound kernels, of a pass under autocast.
    """

    kernels: tuple[list[Kernel], list[Kernel]] = field(default_factory=lambda: ([], []))
    saved: float = 0.0
    streamed: tuple[list[float], list[float]] = field(default_factory=lambda: ([0.0, 0.0], [0.0, 0.0]))


class Recorder:
    """Record of one training step of ``model``, which is on the meta device.

    Attributes:
        work: records by module path, in the order of first operation.
        kinds: class name by module path.
        ready: names of parameters in the order in which their gradients were complete.
        calls: calls by (module path, operation).
        flops: FLOPs by (module path, operation), without unknown ones.
        failed: the operation that raised an error; empty before one did. ``at``: the module that ran it.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.work: dict[str, ModuleRecord] = defaultdict(ModuleRecord)
        self.kinds = {path or ROOT: type(module).__name__ for path, module in model.named_modules()}
        self.kinds[LOSS] = LOSS
        self.ready: list[str] = []
        self.calls: Counter[tuple[str, str]] = Counter()
        self.flops: dict[tuple[str, str], float] = {}
        self.failed, self.at = "", ""
        self._owners = {id(p): name.rpartition(".")[0] or ROOT for name, p in model.named_parameters()}
        self._storages: dict[int, Any] = {}  # kept alive, so that no other storage gets the same address
        self._stack: list[str] = []
        self._spans: list[tuple[int, str]] = []
        self._phase = _FORWARD

    def save(self, step: Callable[[], Any], loss: Callable[[Any], torch.Tensor], streamed: bool = False) -> None:
        """Run ``step`` and ``loss`` under 16-bit autocast, and record only the bytes saved for the backward pass, at their
        actual width.

        Args:
            streamed: record those of memory-bound kernels too, also of the backward pass.

        Raises:
            UserError: as ``run``.
        """
        with self._hooks(), fused_kernels(), _observe(self._streamed, self._failed) if streamed else nullcontext():
            with autocast():
                value = self._forward(step, loss, self._save_as_it_is)
            if streamed:
                self._backward(value)

    def run(self, step: Callable[[], Any], loss: Callable[[Any], torch.Tensor]) -> None:
        """Run ``step`` (which calls the model), ``loss`` of its result, and the backward pass.

        Raises:
            UserError: the model needs a value, which the meta device does not have, or nothing needs a gradient.
        """
        with self._hooks(), fused_kernels(), _observe(self._operation, self._failed):
            self._backward(self._forward(step, loss, self._save))
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                self.work[self.owner(name)]  # a module with trained parameters is a layer, even if the step does not reach it

    def _forward(
        self, step: Callable[[], Any], loss: Callable[[Any], torch.Tensor], save: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        import torch

        with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
            output = step()
            self._enter(LOSS)
            value = loss(output)
        if not value.requires_grad:
            raise UserError("nothing to train: the loss does not depend on a parameter that requires a gradient")
        return value

    def _backward(self, value: torch.Tensor) -> None:
        self._phase = _BACKWARD
        self._stack.clear()
        value.backward()  # type: ignore[no-untyped-call]

    def owner(self, parameter: str) -> str:
        """Return the module of a parameter or, if it is never called, the nearest enclosing module that is."""
        held = parameter.rpartition(".")[0]
        path = held
        while path and path not in self.work:
            path = path.rpartition(".")[0]
        return path or (ROOT if ROOT in self.work else held or ROOT)

    @contextmanager
    def _hooks(self) -> Iterator[None]:
        with ExitStack() as stack:
            for path, module in self.model.named_modules():
                before = module.register_forward_pre_hook(lambda _m, _x, path=path or ROOT: self._enter(path))
                after = module.register_forward_hook(lambda _m, _x, _y: self._leave(), always_call=True)
                stack.callback(before.remove)
                stack.callback(after.remove)
            for name, parameter in self.model.named_parameters():
                if parameter.requires_grad:
                    hook = parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                        lambda _p, name=name: self.ready.append(name)
                    )
                    stack.callback(hook.remove)
            yield

    def _enter(self, path: str) -> None:
        self._stack.append(path)
        self._mark()

    def _leave(self) -> None:
        self._stack.pop()
        self._mark()

    def _mark(self) -> None:
        import torch

        owner = self._stack[-1] if self._stack else ROOT
        self._spans.append((torch.autograd._get_sequence_nr(), owner))  # type: ignore[attr-defined]

    def _owner(self) -> str:
        """Return the module of the current operation."""
        import torch

        if self._stack:  # in the backward pass: activation checkpointing recomputes a forward pass
            return self._stack[-1]
        node = torch._C._current_autograd_node()
        if node is None:
            return LOSS if self._phase == _BACKWARD else ROOT
        number = node._sequence_nr()
        if number >= _ACCUMULATE:
            return self._owners.get(id(getattr(node, "variable", None)), LOSS)
        return self._spans[max(0, bisect_right(self._spans, number, key=lambda span: span[0]) - 1)][1]

    def _operation(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        import torch

        name = function._schema.name.replace("::", ".")
        if function.is_view or name in NOTHING:
            return
        inputs, outputs = list(tensors_in([args, kwargs])), list(tensors_in(result))
        owner = self._owner()
        bounded = torch.Tag.pointwise in function.tags or torch.Tag.reduction in function.tags
        launched = kernels(name, args, inputs, outputs, bounded)
        self.work[owner].kernels[self._phase].extend(launched)
        self.calls[owner, name] += 1
        counts = [kernel.flops for kernel in launched if kernel.flops is not None]
        if len(counts) == len(launched):
            self.flops[owner, name] = self.flops.get((owner, name), 0.0) + sum(counts)

    def _streamed(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        name = function._schema.name.replace("::", ".")
        if function.is_view or name in NOTHING:
            return
        inputs, outputs = list(tensors_in([args, kwargs])), list(tensors_in(result))
        launched = kernels(name, args, inputs, outputs, bounded=True)
        if all(kernel.kind == "memory" for kernel in launched):
            total = self.work[self._owner()].streamed[self._phase]
            total[0] += len(launched)
            total[1] += traffic(name, inputs, outputs, lambda kind: int(kind.itemsize))

    def _failed(self, function: Any) -> None:
        self.failed, self.at = function._schema.name.replace("::", "."), self._owner()

    def _save(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._save_bytes(tensor, element_bytes(tensor.dtype))

    def _save_as_it_is(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._save_bytes(tensor, tensor.dtype.itemsize)

    def _save_bytes(self, tensor: torch.Tensor, width: int) -> torch.Tensor:
        # Includes parameters. They do not grow with the batch, so they cancel in the bytes per sample.
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address not in self._storages:
            self._storages[address] = storage
            owner = self._stack[-1] if self._stack else ROOT
            self.work[owner].saved += storage.nbytes() / tensor.dtype.itemsize * width
        return tensor


@contextmanager
def _observe(
    record: Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None], failed: Callable[[Any], None]
) -> Iterator[None]:
    """Call ``record(function, args, kwargs, result)`` after every ATen operation, and ``failed(function)`` after an error."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Observer(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            try:
                result = func(*args, **(kwargs or {}))
            except Exception:
                failed(func)
                raise
            record(func, args, kwargs or {}, result)
            return result

    with Observer():  # type: ignore[no-untyped-call]
        yield
