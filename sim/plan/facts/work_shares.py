"""The purpose of every op's work: the model, recomputation, empty slots of experts, or repetition on several ranks.

The shares are exact and follow from the ops. The reverse pass marks recomputed ops. A dispatch states its choices and
its slots. Ranks repeat work if their values are equal. Values differ between ranks because parameters are sharded,
samples are split over ranks, and some kernels use the rank's coordinate along an axis. Collectives make values equal,
or different again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from math import prod
from operator import or_
from typing import Any, Final, NamedTuple

from sim.plan.functions import experts
from sim.plan.functions.gradients import is_recomputed
from sim.plan.words.buffer import Kind
from sim.plan.words.calls import Calls
from sim.plan.words.layout import Shard
from sim.plan.words.op import Collective, CollectiveKind, Compute, Direction, Op, Recv, Send
from sim.plan.words.program import Plan, Program

_SAMPLING: Final = "tokens"
"""The kernel that creates a rank's own samples without reading any buffer."""
_CLEARING: Final = frozenset({"zero", "zeros"})
"""Kernels that clear a rank's own memory: the zeros are equal, but every rank needs its own."""
_BUFFER_BY_BUFFER: Final = frozenset({"scale", "zero"})
"""Kernels that process many buffers at once, independently of each other."""
_FROM_SLOTS: Final = frozenset(
    {"combine", "dispatch_backward", "grouped_matmul_weight_gradient", "float8_grouped_matmul_weight_gradient"}
)
"""Kernels that read slots of experts, and write none."""
_FILLING: Final = frozenset({"route", "dispatch"})
"""Kernels that fill slots of experts, or number them."""
_EQUALISING: Final = frozenset({CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER, CollectiveKind.BROADCAST})
"""Collectives after which all members hold equal values."""


class WorkShares(NamedTuple):
    """Fractions of an op's work; they add up to 1.

    ``needed``: work that one step of the model needs.
    ``recomputed``: work that runs a part of the forward again.
    ``empty_slots``: work on slots of experts without a token.
    ``duplicated``: repeated work: if n ranks compute on the same values, (n - 1)/n of it.
    """

    needed: float = 1.0
    recomputed: float = 0.0
    empty_slots: float = 0.0
    duplicated: float = 0.0


NEEDED: Final = WorkShares()
RECOMPUTED: Final = WorkShares(needed=0.0, recomputed=1.0)
TaskShares = Mapping[str, tuple[WorkShares, ...]]
"""By task that a program calls: the shares of each of its ops."""


def work_shares(plan: Plan, sample_axes: Sequence[str]) -> tuple[TaskShares, ...]:
    """Return the purposes of the ops of every program of a plan, in the order of the programs.

    ``sample_axes``: the mesh axes that split the samples.

        shares = work_shares(plan, SAMPLE_AXES)[0]["backward.0"]
    """
    messages: _Messages = {}
    keys = [(id(p.tasks), tuple(p.role), tuple(Calls.of(p.calls).first_calls)) for p in plan.programs]
    one_of = dict(zip(keys, plan.programs, strict=True))  # of those that call the same tasks in the same order
    walks = {key: _Walk(plan, program, tuple(sample_axes), messages) for key, program in one_of.items()}
    while outdated := [walk for walk in walks.values() if walk.is_outdated]:  # until the axes of no message change
        going = [walk.waits() for walk in outdated]
        while going:
            going = [waits for waits in going if next(waits, "")]
    return tuple(walks[key].shares for key in keys)


_Messages = dict[tuple[str, Direction], int]
"""By axis and direction of messages: the axes over which their contents differ."""


class _Walk:
    """A pass over a program's tasks in the order of their first calls.

    Sets of mesh axes are numbers with one bit per axis. Axes that the role fixes have no bit, as other roles run other
    programs, unless samples are split along them: such roles run one program on other sizes.
    ``filled``: by buffer of expert slots, the fraction of slots with tokens.
    ``chosen``: by buffer that numbers the slots of forced choices, or of a stated number of them, the same fraction.
    ``received``: the axes of the messages seen by the last walk.
    """

    def __init__(self, plan: Plan, program: Program, sample_axes: tuple[str, ...], messages: _Messages) -> None:
        self.plan, self.program, self.sample_axes, self.messages = plan, program, sample_axes, messages
        self.differs = _Differs(self._initial)
        self.filled: dict[str, float] = {}
        self.chosen: dict[str, float] = {}
        self.shares: TaskShares = {}
        self.received: _Messages | None = None
        self._laid: dict[tuple[object, ...], int] = {}
        self._sets: dict[tuple[str, ...], int] = {}
        self._known_shares: dict[tuple[int, float], WorkShares] = {}
        fixed = program.role.keys() - set(sample_axes)
        places = enumerate(plan.mesh.axes)
        self.bits = {axis: 1 << i for i, (axis, degree) in places if degree > 1 and axis not in fixed}
        buffers = program.buffers.items()
        self._parameters = frozenset(n for n, b in buffers if b.kind is Kind.PARAMETER and b.global_shape)

    @property
    def is_outdated(self) -> bool:
        """Return whether there was no walk yet, or the messages have changed since the last one."""
        if self.received is None:
            return True
        return any(self.messages.get(key, 0) != differs for key, differs in self.received.items())

    def waits(self) -> Iterator[str]:
        """Find the shares of every op, and add the sent messages to ``messages``.

        Yields each task that begins with a message that nobody has sent so far, before it goes through it: programs
        that send it go first.
        """
        self.differs, self.filled, self.chosen, self.received = _Differs(self._initial), {}, {}, {}
        self.shares = shares = dict[str, tuple[WorkShares, ...]]()
        for name in Calls.of(self.program.calls).counts():
            first = self.program.tasks[name].ops[0]
            if isinstance(first, Recv) and (first.axis, first.direction) not in self.messages:
                yield name
            shares[name] = self._shares_of(name)

    def _shares_of(self, task: str) -> tuple[WorkShares, ...]:
        """Return the shares of a task's ops, and record the state of the buffers that they write."""
        differs, parameters, named, shares = self.differs, self._parameters, self._named, list[WorkShares]()
        counted: dict[int, WorkShares] = {}
        ops, places = self.program.tasks[task].ops, self.program.distinct_ops.of_task[task]
        for op, place in zip(ops, places, strict=True):
            axes = named[place]
            if axes is None or self.filled:
                shares.append(self._share(op))
                continue
            for name in op.reads:
                axes |= differs[name]
            share = NEEDED
            if isinstance(op, Compute):
                if axes not in counted:
                    counted[axes] = self._counted(axes, 1.0)
                share = RECOMPUTED if is_recomputed(op) else counted[axes]
            elif isinstance(op, Collective):
                axes = self._after(op, axes)
            elif isinstance(op, Send | Recv):
                axes = self._carried(op, axes)
            for name in op.writes:
                if name not in parameters:
                    differs[name] = axes
            shares.append(share)
        return tuple(shares)

    @cached_property
    def _named(self) -> list[int | None]:
        """Return the axes that each distinct op names: only kernels name any. None for ops that are not plain."""
        return [self._axes_named(op) if _is_plain(op) else None for op in self.program.distinct_ops.ops]

    def _share(self, op: Op) -> WorkShares:
        """Return an op's shares, and record the state of the buffers that it writes."""
        differs = self._differing(op)
        self._write(op, differs)
        self._fill(op)
        if not isinstance(op, Compute) or op.kernel in _CLEARING:
            return NEEDED
        if is_recomputed(op):
            return RECOMPUTED
        filled = 1.0
        if self.filled:
            filled = min([self.filled[name] for name in (*op.reads, *op.writes) if name in self.filled], default=1.0)
        return self._counted(differs, filled)

    def _counted(self, differs: int, filled: float) -> WorkShares:
        """Return the shares of a kernel whose values differ over some axes, with a part of its slots filled."""
        if (differs, filled) not in self._known_shares:
            equal = [self.plan.mesh.degree(axis) for axis, bit in self.bits.items() if not differs & bit]
            once = filled / prod(equal)
            self._known_shares[differs, filled] = WorkShares(once, 0.0, 1.0 - filled, filled - once)
        return self._known_shares[differs, filled]

    def _differing(self, op: Op) -> int:
        """Return the axes over which the op's computation or message differs from rank to rank."""
        differs = self._axes_named(op)
        for name in op.reads:
            differs |= self.differs[name]
        return self._carried(op, differs) if isinstance(op, Send | Recv) else differs

    def _carried(self, op: Send | Recv, differs: int) -> int:
        """Return the axes over which a message differs; record those over which the buffers of one sent differ."""
        key = (op.axis, op.direction)
        if isinstance(op, Recv):
            assert self.received is not None
            return self.received.setdefault(key, self.messages.get(key, 0))
        self.messages[key] = self.messages.get(key, 0) | differs
        return differs

    def _axes_named(self, op: Op) -> int:
        """Return the axes along which a kernel uses the rank's coordinate; other ops do not."""
        if not isinstance(op, Compute):
            return 0
        named = self._set(self.sample_axes) if op.kernel == _SAMPLING else 0
        return reduce(or_, [self._axes_in(value) for value in op.attributes.values()], named)

    def _write(self, op: Op, differs: int) -> None:
        """Record the axes over which the op's outputs differ.

        Buffers that it processes independently keep their own.
        """
        by_buffer = isinstance(op, Collective) or (isinstance(op, Compute) and op.kernel in _BUFFER_BY_BUFFER)
        one_by_one = by_buffer and op.reads == op.writes
        for name in op.writes:
            after = self._after(op, self.differs[name] if one_by_one else differs)
            if name not in self._parameters:
                self.differs[name] = after

    def _after(self, op: Op, differs: int) -> int:
        """Return the axes over which a value differs after an op, from those before it."""
        if not isinstance(op, Collective):
            return differs
        return differs & ~self._set(op.axes) if op.kind in _EQUALISING else differs | self._set(op.axes)

    def _fill(self, op: Op) -> None:
        """Record the filled fraction of the slots that an op writes.

        That of the slots it reads, unless it fills slots. Slots from other ranks count as filled as this rank's own:
        the mean over ranks is the same.
        """
        if isinstance(op, Compute) and not (self.filled or op.attributes):
            return
        if isinstance(op, Compute) and op.kernel == "route" and "forced" in op.attributes:
            forced, capacity = op.attributes["forced"], op.attributes["capacity"]
            self.chosen[op.writes[2]] = sum(min(count, capacity) for count in forced) / (len(forced) * capacity)
        if isinstance(op, Compute) and "expected_choices" in op.attributes:
            num_experts, capacity = self.program.buffers[op.writes[-1]].shape[-1], op.attributes["capacity"]
            found = experts.filled_slots(op.attributes["expected_choices"], num_experts, capacity)
            self.chosen[op.writes[-1]] = found / (num_experts * capacity)
        if isinstance(op, Compute) and op.kernel == "dispatch":
            choices = prod(self.program.buffers[op.reads[1]].shape)
            num_experts, capacity = op.attributes["num_experts"], op.attributes["capacity"]
            evenly = experts.filled_slots(choices, num_experts, capacity) / (num_experts * capacity)
            self.filled[op.writes[0]] = self.chosen.get(op.reads[1], evenly)
            return
        read = [self.filled[name] for name in op.reads if name in self.filled] if self.filled else []
        if read and not (isinstance(op, Compute) and op.kernel in _FROM_SLOTS):
            slots = op.writes[:1] if isinstance(op, Compute) and op.kernel == "combine_backward" else op.writes
            self.filled.update(dict.fromkeys(slots, min(read)))

    def _initial(self, name: str) -> int:
        """Return the axes over which a buffer differs before it is written."""
        buffer = self.program.buffers[name]
        placements, initial = buffer.layout.placements, () if buffer.initial is None else buffer.initial.axes
        if not placements and not initial:
            return 0
        key = (placements, initial)
        if key not in self._laid:
            sharded = tuple(axis for axis, placement in placements if isinstance(placement, Shard))
            self._laid[key] = self._set((*sharded, *initial))
        return self._laid[key]

    def _set(self, axes: tuple[str, ...]) -> int:
        if axes not in self._sets:
            self._sets[axes] = reduce(or_, [self.bits.get(axis, 0) for axis in axes], 0)
        return self._sets[axes]

    def _axes_in(self, value: Any) -> int:
        """Return the axes named in an attribute or its parts, along which a kernel uses the rank's coordinate."""
        if isinstance(value, str):
            return self.bits.get(value, 0)
        if isinstance(value, Mapping):
            return reduce(or_, map(self._axes_in, value.values()), 0)
        if not isinstance(value, tuple | list):
            return 0
        named = [part for part in value if not isinstance(part, int | float)]  # of counts, one for each expert, none
        return reduce(or_, map(self._axes_in, named), 0)


class _Differs(dict[str, int]):
    """By buffer, the axes over which its values differ: those of its last write, before that those of its first value.

    Parameters stay as they are laid out.
    """

    def __init__(self, initial: Callable[[str], int]) -> None:
        super().__init__()
        self._initial = initial

    def __missing__(self, name: str) -> int:
        self[name] = axes = self._initial(name)
        return axes


def _is_plain(op: Op) -> bool:
    """Return whether the buffers that an op writes differ over the same axes, which follow from those that it reads.

    Such a kernel neither fills slots nor clears. Of a collective in place each buffer differs over axes of its own.
    """
    if not isinstance(op, Compute):
        return op.reads != op.writes
    fills = op.kernel in _FILLING or "expected_choices" in op.attributes
    return not fills and op.kernel not in _BUFFER_BY_BUFFER | _CLEARING
