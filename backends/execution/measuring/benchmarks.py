"""Benchmarks of single operations: collectives, messages and handoffs between streams. Each is a plan of repeats.

The plans run like all others, through the same interpreter, threads and streams. So the figures include the cost of
issuing an op, as in a step. Kernels are measured inside steps (``steps``).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol

from msgspec.structs import replace

from sim.plan.words.buffer import Buffer, Initial, Kind, Scope
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Collective, CollectiveKind, Compute, Direction, Op, Recv, Send
from sim.plan.words.program import Call, Phase, Plan, Program, Task

BUFFER_BYTES: Final = 1 << 20
"""Approximate payload of one buffer, in bytes."""


class Request(NamedTuple):
    """A benchmark run: a plan, the number of steps (the last one counts), and the timing of ops or of the step."""

    plan: Plan
    iterations: int = 1
    timing: Literal["op", "step"] = "op"


class Result(Protocol):
    """One rank's results of the last step: the part of ``RankResult`` that benchmarks read."""

    @property
    def starts_s(self) -> Sequence[float]:
        """Return the start of every op, in seconds."""

    @property
    def ends_s(self) -> Sequence[float]:
        """Return the end of every op, in seconds."""

    @property
    def step_s(self) -> float:
        """Return the end of the rank's step, in seconds."""

    @property
    def cpu_s(self) -> float:
        """Return the processor time of the step, in seconds."""


class Benchmark(Protocol):
    """A benchmark: a plan to run, and the figures to take from its result. ``key``: its unique name."""

    @property
    def key(self) -> str:
        """Return the benchmark's name."""

    def request(self, processes: int, repeats: int) -> Request:
        """Return a run on at most ``processes`` ranks: one repeat that warms up, then ``repeats`` repeats."""

    def figures(self, result: Result, repeats: int) -> Mapping[str, float]:
        """Return the figures of one rank, in seconds, by key."""


class WindowBenchmark(ABC):
    """A small operation, repeated without a pause. Its figure is the mean time of the repeats."""

    ops_per_repeat: int

    @property
    @abstractmethod
    def key(self) -> str:
        """Return the benchmark's name."""

    @property
    def share_key(self) -> str:
        """Return the key of the operation's processor share: the fraction of a core that it uses, on every rank."""
        return f"{self.key}, processor"

    @abstractmethod
    def plan(self, processes: int, repeats: int) -> Plan:
        """Return a plan on at most ``processes`` ranks that repeats the operation ``repeats`` times in sequence."""

    def request(self, processes: int, repeats: int) -> Request:
        """Return a run of one step: one repeat that warms up, then ``repeats`` repeats."""
        return Request(self.plan(processes, repeats + 1))

    def figures(self, result: Result, repeats: int) -> Mapping[str, float]:
        """Return the mean seconds of one op, counted from the end of the first repeat."""
        ends_s = result.ends_s
        first = len(ends_s) // (repeats + 1) - 1
        return {
            self.key: (ends_s[-1] - ends_s[first]) / (repeats * self.ops_per_repeat),
            self.share_key: result.cpu_s / result.step_s,
        }


@dataclass(frozen=True, slots=True)
class CollectiveBenchmark(WindowBenchmark):
    """A collective of float32 among ``group`` neighbouring ranks, in as many groups at once as the processes allow.

    ``num_bytes``: payload as the cost models count it, a multiple of 4 x ``group``. A long payload consists of many
    buffers, as gradients and parameters do.
    """

    kind: CollectiveKind
    num_bytes: int
    group: int
    ops_per_repeat: int = 1

    @property
    def key(self) -> str:
        """Return kind, payload and group size."""
        return f"{self.kind} {self.num_bytes} B {self.group} ranks"

    def plan(self, processes: int, repeats: int) -> Plan:
        """Return a plan that repeats the collective on one stream. At its end an op waits for the last result."""
        gathers, scatters = self.kind is CollectiveKind.ALL_GATHER, self.kind is CollectiveKind.REDUCE_SCATTER
        in_place = self.kind is CollectiveKind.ALL_REDUCE
        read = self._vectors("x", Scope.PERSISTENT, of=self.group if gathers else 1)
        written = self._vectors("y", Scope.MICROBATCH, of=self.group if scatters else 1)
        buffers = read if in_place else [*read, *written]
        reads = tuple(buffer.name for buffer in read)
        writes = reads if in_place else tuple(buffer.name for buffer in written)
        whole = self.kind in {CollectiveKind.ALL_REDUCE, CollectiveKind.BROADCAST} or self._num_buffers > 1
        op = Collective("collective", self.kind, ("g",), reads, writes, "wire", dim=None if whole else 0)
        mesh = Mesh((("dp", processes // self.group), ("g", self.group)))
        program = _program({}, buffers, (op,), repeats)
        waiting = Task("wait", Phase.FORWARD, (Compute("wait", "delay", writes, (), {"duration_s": 0.0}, "wire"),))
        calls = (*program.calls, Call("wait", repeats - 1))
        return _plan(self.key, mesh, [replace(program, tasks={**program.tasks, "wait": waiting}, calls=calls)])

    @property
    def _num_buffers(self) -> int:
        return max(1, self.num_bytes // BUFFER_BYTES)

    def _vectors(self, name: str, scope: Scope, of: int) -> list[Buffer]:
        """Return one buffer for a piece of the payload, or buffers of equal length (but the first) for all of it."""
        count = 1 if of > 1 else self._num_buffers
        length, rest = divmod(self.num_bytes // 4 // of, count)
        return [_vector(f"{name}{i}", length + (rest if i == 0 else 0), scope) for i in range(count)]


@dataclass(frozen=True, slots=True)
class MessageBenchmark(WindowBenchmark):
    """A float32 message that goes back and forth between pairs of neighbours; each way counts as one message."""

    num_bytes: int
    ops_per_repeat: int = 2

    @property
    def key(self) -> str:
        """Return the size of the message."""
        return f"message {self.num_bytes} B"

    def plan(self, processes: int, repeats: int) -> Plan:
        """Return a plan of a message that goes back and forth: each rank sends the tensor that it has just received."""
        there = Send("there", "pp", 1, Direction.FORWARD, ("x",), "send")
        caught = Recv("caught", "pp", -1, Direction.FORWARD, ("x",), "receive")
        back = Send("back", "pp", -1, Direction.BACKWARD, ("x",), "send")
        returned = Recv("returned", "pp", 1, Direction.BACKWARD, ("x",), "receive")
        x = _vector("x", self.num_bytes // 4, Scope.PERSISTENT)
        programs = [
            _program({"pp": 0}, [x], (there, returned), repeats),
            _program({"pp": 1}, [x], (caught, back), repeats),
        ]
        return _plan(self.key, Mesh((("dp", processes // 2), ("pp", 2))), programs)


@dataclass(frozen=True, slots=True)
class HandoffBenchmark(WindowBenchmark):
    """The smallest kernel, on one stream or (``hands_over``) on two in turn. A handoff is the difference in time."""

    hands_over: bool
    ops_per_repeat: int = 2

    @property
    def key(self) -> str:
        """Return the name of the variant."""
        return "handoff" if self.hands_over else "no handoff"

    def plan(self, processes: int, repeats: int) -> Plan:
        """Return a plan of two kernels per repeat, each of which waits for the kernel before."""
        one = Compute("one", "zero", ("x",), ("x",))
        other = replace(one, name="other", stream="other" if self.hands_over else one.stream)
        x = _vector("x", 1, Scope.PERSISTENT)
        return _plan(self.key, Mesh((("dp", processes),)), [_program({}, [x], (one, other), repeats)])


def _vector(name: str, length: int, scope: Scope) -> Buffer:
    initial = Initial("zeros") if scope is Scope.PERSISTENT else None
    return Buffer(name, (length,), "float32", Kind.WORKSPACE, scope, initial=initial)


def _program(role: Mapping[str, int], buffers: list[Buffer], ops: tuple[Op, ...], repeats: int) -> Program:
    calls = tuple(Call("work", index) for index in range(repeats))
    return Program(role, {b.name: b for b in buffers}, {"work": Task("work", Phase.FORWARD, ops)}, calls)


def _plan(name: str, mesh: Mesh, programs: list[Program]) -> Plan:
    return Plan(name, mesh, tuple(programs))
