"""Functions that a program repeats under other names, as a model repeats its layers: traced once, and then copied.

What a function writes follows from its input's shape and layout and from its own settings; the layers of a model
differ in names alone. So the first of them is traced, and others get its ops and buffers under their own names. The
same holds for their backwards.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from functools import partial
from typing import Self

from msgspec import Struct, field
from msgspec.structs import replace

from sim.plan.errors import PlanError
from sim.plan.functions.basic import only
from sim.plan.functions.gradients import pending_gradients
from sim.plan.functions.tracing import Gradients, Parameter, Record, TaskTracer, Tensor
from sim.plan.words.buffer import Buffer
from sim.plan.words.op import SEED, Compute, Op

Function = Callable[[TaskTracer, Tensor], Tensor]

_NO_STEM = ""
"""The stem of names that are the same in all copies."""


class Repeated(Struct, frozen=True):
    """Repeats functions of one tensor in the tasks of one program; ``forwards``, ``backwards``: those traced so far.

    repeated = Repeated()
    for index in range(80):
        x = repeated(t, f"layer{index}", "dense", partial(layer, index), x)
    """

    forwards: "dict[Hashable, _Forward]" = field(default_factory=dict)
    backwards: "dict[Hashable, _Copy]" = field(default_factory=dict)

    def __call__(self, t: TaskTracer, name: str, kind: Hashable, function: Function, x: Tensor) -> Tensor:
        """Return ``function(t, x)``.

        The names of its ops and buffers begin with ``name``, or with that of x. Functions of one ``kind`` differ in
        names alone.
        """
        if x.regather is not None:
            return function(t, x)
        key = (kind, t.recording, _settings(t), _content(x))
        known, stems = self.forwards.get(key), (x.name, name)
        copied = None if known is None else known.copy.write(t, stems)
        if known is not None and copied is not None:
            y = only(copied)
            self._record(t, _Call(key, name, x, y, partial(_tape, _beside(t), function, x)), known)
            return y
        before, begin = _Before.of(t), len(t.tape)
        y = function(t, x)
        copy, tape = before.copy(t, stems, (y,)), t.tape[begin:]
        if copy is not None and y.regather is None:
            num_uses = sum(record.inputs.count(x) for record in tape)
            settles = all(record.settles for record in tape if y in record.outputs)
            self.forwards[key] = forward = _Forward(copy, num_uses, settles)
            del t.tape[begin:]
            self._record(t, _Call(key, name, x, y, lambda: (tape, y)), forward)
        return y

    def _record(self, t: TaskTracer, call: "_Call", forward: "_Forward") -> None:
        """Record a function as one operation, whose input counts as often as the function uses it."""

        def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
            dy = only(gradients)
            key, stems = (call.key, _settings(r), _content(dy)), (dy.name, call.x.name, call.name)
            known = self.backwards.get(key)
            copied = None if known is None else known.write(r, stems)
            if copied is not None:
                return copied
            before, (tape, y) = _Before.of(r), call.tape()
            pending = pending_gradients(r, tape, {y: dy})
            terms: list[Tensor | None] = [*pending.pop(call.x, [])]
            if pending:
                raise PlanError(f"{call.name}: a function that is repeated uses other tensors than its input")
            terms += [None] * (forward.num_uses - len(terms))
            copy = before.copy(r, stems, terms)
            if copy is not None:
                self.backwards[key] = copy
            return terms

        t.record((call.x,) * forward.num_uses, (call.y,), backward, settles=forward.settles)


class _Call(Struct, frozen=True):
    """One call of a function. ``tape``: returns its tape, and its output there."""

    key: Hashable
    name: str
    x: Tensor
    y: Tensor
    tape: Callable[[], tuple[Sequence[Record], Tensor]]


class _Forward(Struct, frozen=True):
    """A traced function; on how many inputs of records its input is, and whether its output's gradient is settled."""

    copy: "_Copy"
    num_uses: int
    settles: bool


def _settings(t: TaskTracer) -> Hashable:
    """Return all of a tracer from which ops follow."""
    return t.scope, t.suffix, t.part, t.stream


def _content(x: Tensor) -> Hashable:
    """Return all of a tensor but its name."""
    return x.shape, x.dtype, x.layout


def _beside(t: TaskTracer) -> TaskTracer:
    """Return a tracer of the same settings and parameters that writes nothing into the program."""
    return TaskTracer(replace(t.program, buffers={}), t.scope, suffix=t.suffix, part=t.part, stream=t.stream)


def _tape(like: TaskTracer, function: Function, x: Tensor) -> tuple[Sequence[Record], Tensor]:
    """Return the tape of a function that was copied, traced for that alone, and its output there."""
    t = _beside(like)
    y = function(t, x)
    return t.tape, y


class _Before(Struct, frozen=True):
    """What a tracer had before a function wrote more: so many ops, buffers and parameters, and these names of ops."""

    num_ops: int
    num_buffers: int
    num_parameters: int
    names: Mapping[str, int]

    @classmethod
    def of(cls, t: TaskTracer) -> Self:
        """Return what a tracer has now."""
        return cls(len(t.ops), len(t.program.buffers), len(t.program.parameters), dict(t.names))

    def copy(self, t: TaskTracer, stems: Sequence[str], results: Gradients) -> "_Copy | None":
        """Return what was written since, to be copied; None where names do not follow from the stems alone."""
        ops = t.ops[self.num_ops :]
        buffers = [*t.program.buffers.values()][self.num_buffers :]
        parameters = [*t.program.parameters.values()][self.num_parameters :]
        names = {name: count for name, count in t.names.items() if count != self.names.get(name)}
        if not names.keys().isdisjoint(self.names) or any(_tells_names(op, stems) for op in ops):
            return None
        made = {buffer.name for buffer in buffers}
        own = [*made, *names, *[op.name for op in ops], *[p.source for p in parameters]]
        own += [buffer.initial.source for buffer in buffers if buffer.initial is not None]
        own += [op.attributes[SEED] for op in ops if isinstance(op, Compute) and SEED in op.attributes]
        needed = {name for op in ops for name in (*op.reads, *op.writes)} - made
        needed |= {tensor.name for tensor in results if tensor is not None} - made
        parts = {name: _parted(name, stems) for name in (*own, *needed)}
        if any(parts[name][0] == len(stems) for name in own):
            return None
        return _Copy(tuple(ops), buffers, parameters, names, needed, parts, results)


def _tells_names(op: Op, stems: Sequence[str]) -> bool:
    """Return whether a kernel's attributes tell names, apart from its seed."""
    if not isinstance(op, Compute):
        return False
    texts = [value for key, value in op.attributes.items() if key != SEED and isinstance(value, str)]
    return any(_parted(text, stems)[0] < len(stems) for text in texts)


def _parted(name: str, stems: Sequence[str]) -> tuple[int, str]:
    """Return the place of the first stem that a name begins with, and the rest of it; past the last: all of it."""
    for place, stem in enumerate(stems):
        if name == stem or name.startswith(f"{stem}."):
            return place, name[len(stem) :]
    return len(stems), name


class _Copy(Struct, frozen=True):
    """What a function wrote, to be written under other names.

    ``names``: how often each name of an op was asked for. ``needed``: buffers that were there before. ``parts``: by
    name, the place of the stem that it begins with, and the rest. ``results``: tensors that the function returned.
    """

    ops: Sequence[Op]
    buffers: Sequence[Buffer]
    parameters: Sequence[Parameter]
    names: Mapping[str, int]
    needed: Set[str]
    parts: Mapping[str, tuple[int, str]]
    results: Gradients

    def write(self, t: TaskTracer, stems: Sequence[str]) -> Gradients | None:
        """Write the same under names with these stems; return the results. None: a name is taken, or one is missing."""
        all_stems, program = (*stems, _NO_STEM), t.program
        new = {name: all_stems[place] + rest for name, (place, rest) in self.parts.items()}
        buffers = {new[buffer.name]: _renamed_buffer(buffer, new) for buffer in self.buffers}
        names = {new[name]: count for name, count in self.names.items()}
        is_taken = not (program.buffers.keys().isdisjoint(buffers) and t.names.keys().isdisjoint(names))
        if is_taken or not all(new[name] in program.buffers for name in self.needed):
            return None
        program.buffers.update(buffers)
        t.names.update(names)
        for parameter in self.parameters:
            own = _renamed_parameter(parameter, new)
            program.parameters[own.source] = own
        t.ops += [_renamed_op(op, new) for op in self.ops]
        return [None if tensor is None else _renamed(tensor, new) for tensor in self.results]


def _renamed_op(op: Op, new: Mapping[str, str]) -> Op:
    reads, writes = tuple([new[name] for name in op.reads]), tuple([new[name] for name in op.writes])
    if isinstance(op, Compute) and SEED in op.attributes:
        attributes = {**op.attributes, SEED: new[op.attributes[SEED]]}
        return replace(op, name=new[op.name], reads=reads, writes=writes, attributes=attributes)
    return replace(op, name=new[op.name], reads=reads, writes=writes)


def _renamed_buffer(buffer: Buffer, new: Mapping[str, str]) -> Buffer:
    if buffer.initial is None:
        return replace(buffer, name=new[buffer.name])
    return replace(buffer, name=new[buffer.name], initial=replace(buffer.initial, source=new[buffer.initial.source]))


def _renamed_parameter(parameter: Parameter, new: Mapping[str, str]) -> Parameter:
    value, gradient = (_renamed(tensor, new) for tensor in (parameter.value, parameter.gradient))
    return Parameter(value, gradient, new[parameter.source], parameter.holders)


def _renamed(tensor: Tensor, new: Mapping[str, str]) -> Tensor:
    return replace(tensor, name=new[tensor.name])
