"""CPU stand-in of the streams and events of ``torch.cuda``: operations run at once, and the order of a GPU is checked.

Each stream has a vector clock (Fidge 1988, Mattern 1988). An operation advances the clock of its stream; an event is a copy of
it, and a wait takes the maximum. An access to memory is a fault unless the clock of its stream covers the last write, and for a
write every read since. Memory belongs to the stream that allocated it: a later allocation there may get it as soon as the host
has dropped it, unless another stream was named to ``keep``. Collectives run on one stream a group, as NCCL's do: it waits for
the caller's stream, and ``Work.wait`` makes the caller's stream wait for it.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from paceline.training import device_stream
from paceline.training.attach.hooks.base import HookBase
from paceline.training.exchanges.wires.collectives import ALL_GATHER, REDUCE_SCATTER

Clock = dict[str, int]
LAUNCHES = ("all_reduce", "broadcast", "batch_isend_irecv", "all_to_all_single", ALL_GATHER, REDUCE_SCATTER)
OUTPUT_FIRST = ("allgather", "reduce_scatter", "alltoall", "gather", "scatter")


def merge(clock: Clock, other: Clock) -> None:
    """Take the maximum of both into ``clock``."""
    for name, tick in other.items():
        clock[name] = max(clock.get(name, 0), tick)


class Access(NamedTuple):
    """Operation on a stream that has read or written a storage."""

    stream: str
    tick: int
    what: str

    def before(self, clock: Clock) -> bool:
        """Return whether a stream with this clock runs after it."""
        return clock.get(self.stream, 0) >= self.tick


class Memory:
    """Storage, the stream whose allocator owns it, and who has used it."""

    def __init__(self, storage: Any, owner: str, pinned: bool = False) -> None:
        self.weak, self.owner, self.pinned, self.size = StorageWeakRef(storage), owner, pinned, storage.nbytes()
        self.written: Access | None = None
        self.reads: dict[str, Access] = {}
        self.kept: set[Stream] = set()

    def uses(self) -> list[Access]:
        """Last accesses of all streams."""
        return [*self.reads.values(), *([self.written] if self.written else [])]


class Stream:
    """Queue of a device."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name, self.clock = world, name, {name: 0}

    def wait_event(self, event: Any) -> None:
        if event is not None:
            with self.world.lock:
                merge(self.clock, event.clock)

    def wait_stream(self, other: Stream) -> None:
        with self.world.lock:
            merge(self.clock, other.clock)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event(self.world)
        event.record(self)
        return event

    def synchronize(self) -> None:
        self.world.host_waits("Stream.synchronize", self.clock)


class Event:
    """Point of a stream."""

    def __init__(self, world: World) -> None:
        self.world, self.clock, self.time = world, Clock(), 0.0

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or self.world.current()
        with self.world.lock:
            self.clock, self.time = dict(stream.clock), time.perf_counter()

    def wait(self, stream: Stream | None = None) -> None:
        (stream or self.world.current()).wait_event(self)

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        self.world.host_waits("Event.synchronize", self.clock)

    def elapsed_time(self, later: Event) -> float:
        return 1000 * (later.time - self.time)


class Future(torch.futures.Future):  # type: ignore[type-arg]
    """Future as of ``devices=[...]``: its readers' streams wait for the stream that has set it."""

    world: World

    def set_result(self, value: Any) -> None:
        self.event, self.host = self.world.current().record_event(), dict(self.world._host())
        super().set_result(value)

    def wait(self) -> Any:
        value = super().wait()
        self.world.current().wait_event(self.event)
        merge(self.world._host(), self.host)  # what the thread that set it has waited for has ended for this one too
        self.world.keep(value, self.world.current())
        return value


class World:
    """One device, which CPU tensors are on. It takes the place of ``device_stream.engine`` in the block ``installed``.

    Attributes:
        faults: accesses that are in no order, and memory that may be used again too early.
        syncs: waits of the host for the device, by thread and function.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.default = Stream(self, "default")
        self.faults: list[str] = []
        self.syncs: list[tuple[str, str]] = []
        self.is_capturing = False
        self._made = 0
        self._local = threading.local()
        self._memory: dict[int, Memory] = {}
        self._dropped: list[tuple[Memory, list[Access]]] = []
        self._synced: Clock = {}
        self._comm: dict[str, Stream] = {}
        self._works: dict[int, tuple[Any, list[Event]]] = {}

    # Functions of the engine of ``device_stream``.

    def has_streams(self, device: torch.device) -> bool:
        return True

    def stream(self, device: torch.device | None = None, name: str = "stream") -> Stream:
        self._made += 1
        return Stream(self, f"{name} {self._made}")

    def current(self, device: torch.device | None = None) -> Stream:
        stream: Stream = getattr(self._local, "stream", self.default)
        return stream

    def event(self) -> Event:
        return Event(self)

    @contextmanager
    def running(self, stream: Stream, device: torch.device | None = None) -> Iterator[None]:
        before = self.current()
        self._local.stream = stream
        try:
            with nullcontext() if getattr(self._local, "watched", False) else self.watched():
                yield
        finally:
            self._local.stream = before

    @contextmanager
    def on(self, device: torch.device) -> Iterator[None]:
        yield

    def pinned_zeros(self, shape: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        zeros = torch.zeros(shape, dtype=dtype)
        with self.lock:
            self._find(zeros).pinned = True
        return zeros

    def keep(self, tensor: torch.Tensor, stream: Stream) -> None:
        with self.lock:
            self._find(tensor).kept.add(stream)

    def capturing(self) -> bool:
        return self.is_capturing

    def future(self, device: torch.device) -> Future:
        future = Future()
        future.world = self
        return future

    # Bookkeeping.

    def host_waits(self, what: str, clock: Clock) -> None:
        """Note that the host has waited for a clock."""
        with self.lock:
            frames = [f for f in traceback.extract_stack() if "/paceline/" in f.filename]
            self.syncs.append((threading.current_thread().name, f"{what} in {frames[-1].name if frames else 'the script'}"))
            merge(self._host(), clock)
            merge(self._synced, clock)

    def _host(self) -> Clock:
        if not hasattr(self._local, "host"):
            self._local.host = Clock()
        host: Clock = self._local.host
        return host

    def _find(self, tensor: torch.Tensor) -> Memory:
        storage = tensor.untyped_storage()
        memory = self._memory.get(storage._cdata)
        if memory is None or memory.weak.expired():
            memory = self._memory[storage._cdata] = Memory(storage, self.current().name)
        return memory

    def _fault(self, text: str) -> None:
        frames = [f for f in traceback.extract_stack() if "/paceline/" in f.filename]
        if len(self.faults) < 50:
            self.faults.append(f"{text} [{', '.join(f'{f.name}:{f.lineno}' for f in frames[-3:])}]")

    def collect(self) -> None:
        """Give memory that the host has dropped back to the stream that owns it.

        A stream that keeps it ends what is queued on it first, and so what it waits for, such as a collective.
        """
        for key, memory in list(self._memory.items()):
            if memory.weak.expired():
                del self._memory[key]
                ended = [self._synced, *(stream.clock for stream in memory.kept)]
                open_uses = [use for use in memory.uses() if not any(use.before(clock) for clock in ended)]
                if any(use.stream != memory.owner for use in open_uses):
                    self._dropped.append((memory, open_uses))

    def _allocated(self, memory: Memory, stream: Stream) -> None:
        """Check that the memory of dropped storages of this stream may be used by a new one."""
        for dropped, uses in list(self._dropped):
            late = [use for use in uses if not use.before(stream.clock)]
            if dropped.owner != stream.name:
                continue
            if not late:
                self._dropped.remove((dropped, uses))
            elif memory.size and memory.size <= dropped.size:
                self._dropped.remove((dropped, uses))
                self._fault(f"memory of {dropped.size} bytes used again on {stream.name} while {late[0]} may use it")

    def access(self, tensor: torch.Tensor, stream: Stream, write: bool, what: str, host: bool = False) -> None:
        """Check and note an access. ``host``: by the host, and not by the stream."""
        memory, clock = self._find(tensor), self._host() if host else stream.clock
        if not memory.size:
            return
        if memory.written is not None and not memory.written.before(clock):
            self._fault(f"{what} on {'the host' if host else stream.name} does not wait for {memory.written}")
        if write:
            late = [use for use in memory.reads.values() if not use.before(clock)]
            if late:
                self._fault(f"{what} on {'the host' if host else stream.name} overwrites what {late[0]} may read")
        if host:
            return
        mine = Access(stream.name, stream.clock[stream.name], what)
        if write:
            memory.written, memory.reads = mine, {}
        else:
            memory.reads[stream.name] = mine

    def operation(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation of torch, and note what it reads and writes."""
        name = str(func)
        if name.startswith("c10d"):
            return self._collective(func, args, kwargs)
        with self.lock:
            self.collect()
            stream = self.current()
            merge(stream.clock, self._host())
            stream.clock[stream.name] += 1
            is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
            read, written = _tensors_of(func, args, kwargs)
            known = {t.untyped_storage()._cdata for t in (*read, *written)}
            pinned = [self._find(t).pinned for t in (*read, *written)]
            on_host = any(pinned) and ("copy" not in name or all(pinned))
            if not is_view:
                for tensor in read:
                    self.access(tensor, stream, False, name, on_host)
                for tensor in written:
                    self.access(tensor, stream, True, name, on_host)
            if "_local_scalar_dense" in name or name.startswith("aten.equal"):
                self.host_waits("item" if "scalar" in name else "equal", stream.clock)
        result = func(*args, **kwargs)
        with self.lock:
            for tensor in _flat(result):
                if tensor.untyped_storage()._cdata not in known:
                    memory = self._find(tensor)
                    self._allocated(memory, stream)
                    if "empty" not in name:
                        self.access(tensor, stream, True, name)
        return result

    def _collective(self, func: Any, args: Any, kwargs: Any) -> Any:
        with self.lock:
            name = str(func).split(".")[1]
            groups = [a for a in args if isinstance(a, torch.ScriptObject)]
            label = "NCCL"
            for group in groups:
                try:
                    label = f"NCCL of {dist.ProcessGroup.unbox(group).group_name}"
                    break
                except Exception:  # another kind of object, such as ReduceOp
                    continue
            caller = self.current()
            comm = self._comm.setdefault(label, Stream(self, label))
            merge(comm.clock, caller.clock)
            comm.clock[comm.name] += 1
            lists = [list(_flat(a)) for a in args]
            tensors = [part for part in lists if part]
            output_first = name.lstrip("_").startswith(OUTPUT_FIRST)
            for place, part in enumerate(tensors):
                for tensor in part:
                    if name != "barrier":
                        self.access(tensor, comm, name != "send" and (place == 0 or not output_first), f"{name}")
            self._launched().append(comm.record_event())
            if not getattr(self._local, "launching", False):  # from C++, as by DDP's constructor, where the wait is not seen
                merge(caller.clock, comm.clock)
        return func(*args, **kwargs)

    def _launched(self) -> list[Event]:
        if not hasattr(self._local, "launched"):
            self._local.launched = []
        launched: list[Event] = self._local.launched
        return launched

    def native(self, tensor: torch.Tensor, what: str) -> None:
        """Note that a kernel outside of torch works on a tensor."""
        with self.lock:
            stream = self.current()
            stream.clock[stream.name] += 1
            self.access(tensor, stream, False, what)
            self.access(tensor, stream, True, what)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the operations of this thread."""
        self._local.watched = True
        try:
            with _Mode(self):
                yield
        finally:
            self._local.watched = False

    @contextmanager
    def installed(self) -> Iterator[World]:
        """Be the device of this process in the block, and watch the caller's operations."""
        saved: list[tuple[Any, str, Any]] = []

        def put(owner: Any, name: str, value: Any) -> None:
            saved.append((owner, name, owner.__dict__.get(name, saved)))
            setattr(owner, name, value)

        put(device_stream, "engine", self)
        put(device_stream.HostCopies, "_made", {})
        for name, value in self._patches(dist, LAUNCHES, self._launch):
            put(dist, name, value)
        work, plain_wait = dist.Work, dist.Work.wait

        def wait(of: Any, *args: Any) -> Any:
            self._wait_for(of)
            return plain_wait(of, *args)

        put(work, "wait", wait)
        plain_future = work.get_future

        def get_future(of: Any) -> Any:  # its callbacks have further streams, which wait; they are not watched
            self._wait_for(of)
            return plain_future(of)

        put(work, "get_future", get_future)
        for name in ("numpy", "tolist", "cpu"):
            put(torch.Tensor, name, self._host_read(name))
        put(HookBase, "_to_ddp", self._to_ddp(HookBase._to_ddp))
        put(torch.cpu, "Stream", lambda priority=-1: self.stream(None, "FSDP2"))
        put(torch.cpu, "Event", lambda: Event(self))
        put(torch.cpu, "current_stream", self.current)
        put(torch.cpu, "stream", lambda stream: self.running(stream) if stream is not None else nullcontext())
        try:
            with self.watched():
                yield self
        finally:
            for owner, name, value in reversed(saved):
                delattr(owner, name) if value is saved else setattr(owner, name, value)

    def _patches(self, owner: Any, names: Sequence[str], wrap: Any) -> list[tuple[str, Any]]:
        return [(name, wrap(getattr(owner, name))) for name in names if hasattr(owner, name)]

    def _launch(self, plain: Any) -> Any:
        def launch(*args: Any, **kwargs: Any) -> Any:
            before, self._local.launching = len(self._launched()), True
            try:
                works = plain(*args, **kwargs)
            finally:
                self._local.launching = False
            for work in works if isinstance(works, list) else [works]:
                if work is not None:
                    self._works[id(work)] = work, self._launched()[before:]
            return works

        return launch

    def _wait_for(self, work: Any) -> None:
        _, events = self._works.pop(id(work), (None, self._launched()[-1:]))
        for event in events:
            self.current().wait_event(event)

    def _host_read(self, name: str) -> Any:
        plain = getattr(torch.Tensor, name)

        def read(tensor: torch.Tensor) -> Any:
            if type(tensor) in (torch.Tensor, nn.Parameter):
                with self.lock:
                    pinned = self._find(tensor).pinned
                    if pinned:
                        self.access(tensor, self.current(), False, name, host=True)
                    elif name == "numpy":  # codecs and kernels in C++, whose place a GPU's kernels take
                        self.native(tensor, "a kernel")
                    else:
                        self.access(tensor, self.current(), False, name)
                        self.host_waits(name, self.current().clock)
            return plain(tensor)

        return read

    def _to_ddp(self, plain: Any) -> Any:
        """Wait for futures as DDP does in C++ at the end of a backward pass, right before that."""
        futures: list[Any] = []

        def to_ddp(hook: Any, future: Any, last: bool) -> Any:
            futures.append(future)
            if last and torch._C._current_graph_task_id() != -1:
                mine = futures.copy()
                futures.clear()
                engine: Any = torch.autograd.Variable._execution_engine
                engine.queue_callback(lambda: [one.wait() for one in mine] and None)
            return plain(hook, future, last)

        return to_ddp


class _Mode(TorchDispatchMode):
    """Mode that shows a world every operation of a thread."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, FakeTensor) for kind in types) or torch._C._get_dispatch_mode(
            torch._C._TorchDispatchModeKey.FAKE
        ):
            return func(*args, **(kwargs or {}))
        if any(kind not in (torch.Tensor, nn.Parameter) for kind in types):
            return NotImplemented
        return self.world.operation(func, args, kwargs or {})


def _flat(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided and value.device.type == "cpu":
            yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _flat(one)


def _tensors_of(func: Any, args: Any, kwargs: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Tensors that an operation reads, and those that it writes, by its schema."""
    read: list[torch.Tensor] = []
    written: list[torch.Tensor] = []
    for place, argument in enumerate(func._schema.arguments):
        value = kwargs.get(argument.name, args[place] if place < len(args) else None)
        is_written = argument.alias_info is not None and argument.alias_info.is_write
        (written if is_written else read).extend(_flat(value))
    return read, written
