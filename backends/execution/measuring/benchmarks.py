"""Benchmarks measured alone: collectives, messages and handoffs between streams, each as a plan of many repeats.

The plans run like all others, through the same interpreter, threads and streams. So the figures include the cost of
issuing an op, as in a step. Kernels are measured inside steps (``steps``).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, Protocol

from sim.plan.words.buffer import Buffer, Initial, Kind, Scope
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Collective, CollectiveKind, Compute, Direction, Op, Recv, Send
from sim.plan.words.program import Call, Phase, Plan, Program, Task

BUFFER_BYTES: Final = 1 << 20
"""Bytes of payload per buffer, about."""


class Request(NamedTuple):
    """A plan, the number of steps to run, and whether every op is timed or only the step; the last step counts."""

    plan: Plan
    iterations: int = 1
    timing: Literal["op", "step"] = "op"


class Result(Protocol):
    """One rank's results of the last step; see ``RankResult``."""

    @property
    def starts_s(self) -> Sequence[float]:
        """Return when every op began."""

    @property
    def ends_s(self) -> Sequence[float]:
        """Return when every op ended."""

    @property
    def step_s(self) -> float:
        """Return when the rank was done."""

    @property
    def cpu_s(self) -> float:
        """Return the processor time of the step."""


class Benchmark(Protocol):
    """One thing to measure. ``key``: a name that no other has."""

    @property
    def key(self) -> str:
        """Return the benchmark's name."""

    def request(self, processes: int, repeats: int) -> Request:
        """Return a run on at most so many ranks that does it ``repeats`` times after a first time that warms up."""

    def figures(self, result: Result, repeats: int) -> Mapping[str, float]:
        """Return the seconds measured by one rank, by key."""


class WindowBenchmark(ABC):
    """A small operation repeated without a break; its figure is the mean of all repeats."""

    ops_per_repeat: int

    @property
    @abstractmethod
    def key(self) -> str:
        """Return the benchmark's name."""

    @property
    def share_key(self) -> str:
        """Return the key of the fraction of a core that the operation takes, on every rank."""
        return f"{self.key}, processor"

    @abstractmethod
    def plan(self, processes: int, repeats: int) -> Plan:
        """Return a plan over at most so many ranks that does it ``repeats`` times, one after the other."""

    def request(self, processes: int, repeats: int) -> Request:
        """Return one step of ``repeats`` repeats and one before them."""
        return Request(self.plan(processes, repeats + 1))

    def figures(self, result: Result, repeats: int) -> Mapping[str, float]:
        """Return the seconds of one op, from the end of the first repeat on."""
        ends_s = result.ends_s
        first = len(ends_s) // (repeats + 1) - 1
        return {
            self.key: (ends_s[-1] - ends_s[first]) / (repeats * self.ops_per_repeat),
            self.share_key: result.cpu_s / result.step_s,
        }


@dataclass(frozen=True, slots=True)
class CollectiveBenchmark(WindowBenchmark):
    """One collective of float32 among ``group`` neighbours, in as many groups at once as there are processes for.

    ``num_bytes`` as the cost models count a collective's payload, a multiple of 4 x ``group``. Long payloads are
    made up of many buffers, as gradients and parameters are.
    """

    kind: CollectiveKind
    num_bytes: int
    group: int
    ops_per_repeat: int = 1

    @property
    def key(self) -> str:
        """Return kind, payload and group."""
        return f"{self.kind} {self.num_bytes} B {self.group} ranks"

    def plan(self, processes: int, repeats: int) -> Plan:
        """Return the collective, again and again, on one stream; at the end something waits for the last result."""
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
        """Return one buffer for a piece of the payload, else buffers for all of it, of one length but the first."""
        count = 1 if of > 1 else self._num_buffers
        length, rest = divmod(self.num_bytes // 4 // of, count)
        return [_vector(f"{name}{i}", length + (rest if i == 0 else 0), scope) for i in range(count)]


@dataclass(frozen=True, slots=True)
class MessageBenchmark(WindowBenchmark):
    """A float32 message there and back between pairs of neighbours; each way is one message."""

    num_bytes: int
    ops_per_repeat: int = 2

    @property
    def key(self) -> str:
        """Return the size."""
        return f"message {self.num_bytes} B"

    def plan(self, processes: int, repeats: int) -> Plan:
        """Return a message that goes back and forth: each side sends what it has just received."""
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
    """The smallest kernel, on one stream or alternating between two (``hands_over``); the difference is a handoff."""

    hands_over: bool
    ops_per_repeat: int = 2

    @property
    def key(self) -> str:
        """Return what is done."""
        return "handoff" if self.hands_over else "no handoff"

    def plan(self, processes: int, repeats: int) -> Plan:
        """Return two kernels per repeat, each waiting for the one before."""
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
