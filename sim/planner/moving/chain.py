"""The calls of one rank's passes in order: kernels that are alike in all steps, kernels on experts' rows, exchanges.

A step with another placement has the same calls. Only the rows of the experts' kernels and the bytes of the exchanges
change. So the calls are read off the plan of one rank, and what stays is priced once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from sim.engine.prices.activity import Activity
from sim.engine.prices.pricing import ClusterPricing
from sim.plan.words.op import Collective, CollectiveKind, Compute, Op
from sim.plan.words.program import Phase, Plan, Program

_OF_RANKS = frozenset({"part_rows", "join_rows"})
"""Kernels on all rows of a rank; the others between two exchanges are of one copy of an expert each."""


class Run(Struct, frozen=True):
    """Kernels one after the other, alike in all steps. ``waits_for``: the number of a communication; -1: none."""

    seconds: float
    waits_for: int


class Span(Struct, frozen=True):
    """The kernels on rows between two exchanges of a layer: of all rows of a rank, and of the copies of experts.

    ``waits_for``: the number of the first exchange.
    """

    layer: int
    of_rank: tuple[Compute, ...]
    of_copies: tuple[Compute, ...]
    waits_for: int

    @property
    def kernels(self) -> tuple[str, ...]:
        """Return the names of the kernels: in spans with the same ones equal rows take equal times."""
        return tuple(op.kernel for op in (*self.of_rank, *self.of_copies))


class Exchange(Struct, frozen=True):
    """An exchange of rows of a layer: towards the experts, or ``back``."""

    layer: int
    back: bool


class Meeting(Struct, frozen=True):
    """Another collective of the passes, in which all ranks take part; the same in all steps."""

    activity: Activity


Link = Run | Span | Exchange | Meeting


class Chain(Struct, frozen=True):
    """``links`` in issue order; ``written_at``: the number of the one that writes a buffer last."""

    links: tuple[Link, ...]
    written_at: dict[str, int]


def chain_of(plan: Plan, program: Program, pricing: ClusterPricing) -> Chain:
    """Return the passes of a program, up to the sums of gradients, and what is done before them."""
    reader = _Reader(plan, program, pricing)
    for call in program.calls:
        task = program.tasks[call.task]
        if task.phase is Phase.GRADIENT_SYNC:
            break
        for op in task.ops:
            reader.read(op)
        reader.close()
    return Chain(tuple(reader.links), reader.written_at)


@dataclass
class _Reader:
    """Reads ops. ``seconds``, ``waits_for``: of the run that goes on; ``rows``: the kernels of the span that does.

    ``exchange``: the number of the exchange towards experts that has not come back. ``arriving``: the communication
    that no kernel has waited for yet, by the buffer that it writes.
    """

    plan: Plan
    program: Program
    pricing: ClusterPricing
    links: list[Link] = field(default_factory=list)
    written_at: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    waits_for: int = -1
    rows: list[Compute] = field(default_factory=list)
    exchange: int = -1
    arriving: dict[str, int] = field(default_factory=dict)

    def read(self, op: Op) -> None:
        """Take the next op."""
        if isinstance(op, Compute):
            self._kernel(op)
        elif isinstance(op, Collective):
            self._communicate(op)
        else:
            message = f"{op.name} is neither a kernel nor a collective"
            raise TypeError(message)

    def _kernel(self, op: Compute) -> None:
        on_rows = self.exchange >= 0 and (op.kernel in _OF_RANKS or ".experts." in op.name)
        waits_for = max([self.arriving.get(name, -1) for name in (*op.reads, *op.writes)], default=-1)
        if on_rows != bool(self.rows) or (not on_rows and waits_for >= 0):
            self.close()
        if on_rows:
            self.rows.append(op)
        else:
            self.seconds += self.pricing.price(self.plan, self.program, op, 0).duration_s
        if waits_for >= 0:
            self.waits_for = waits_for
            self.arriving = {name: number for name, number in self.arriving.items() if number > waits_for}
        self.written_at |= dict.fromkeys(op.writes, len(self.links))

    def _communicate(self, op: Collective) -> None:
        self.close()
        self.arriving |= dict.fromkeys(op.writes, len(self.links))
        if op.kind is not CollectiveKind.ALL_TO_ALL or not op.sizes:
            self.links.append(Meeting(self.pricing.price(self.plan, self.program, op, 0)))
            return
        self.links.append(Exchange(_layer_of(op.name), back=self.exchange >= 0))
        self.exchange = -1 if self.exchange >= 0 else len(self.links) - 1

    def close(self) -> None:
        """End the run or the span that goes on, if there is one."""
        if self.rows:
            whole, copies = (
                tuple(op for op in self.rows if (op.kernel in _OF_RANKS) is all_) for all_ in (True, False)
            )
            self.links.append(Span(_layer_of(self.rows[0].name), whole, copies, self.waits_for))
        elif self.seconds or self.waits_for >= 0:
            self.links.append(Run(self.seconds, self.waits_for))
        self.seconds, self.waits_for, self.rows = 0.0, -1, []


def sums_of(program: Program) -> Sequence[Collective]:
    """Return the sums of gradients over all ranks, in issue order."""
    tasks = [program.tasks[call.task] for call in program.calls]
    ops = [op for task in tasks if task.phase is Phase.GRADIENT_SYNC for op in task.ops]
    return [op for op in ops if isinstance(op, Collective)]


def _layer_of(name: str) -> int:
    """Return the layer of an op, whose name begins with it."""
    return int(name.partition(".")[0].removeprefix("layer"))
