"""Linear layers with eight-bit operands: E4M3, and E5M2 for gradients (Transformer Engine's HYBRID recipe).

Models that are not trained keep weights in E4M3 (``StoredProducts``). Of training:

Every operand is cast by an op of its own, with one scale per rank's part of a tensor. A weight is cast once per step,
by a task of its own. If every pass gathers its weights again, the weight is cast in each pass, right before its use.
The backward keeps the cast input. If the backward gathers the input again, it also casts it again.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from sim.plan.functions.linear import Products, Twice
from sim.plan.functions.tracing import Parameter, ProgramTracer, TaskTracer, Tensor
from sim.plan.words.buffer import E4M3, E5M2, Buffer, Initial, Kind, Scope
from sim.plan.words.op import Compute, Op
from sim.plan.words.program import Task


class Float8Products(Products, frozen=True):
    """The products of operands cast to eight bits, each with its scale."""

    prefix = "float8_"

    def attributes(self, x: Tensor) -> dict[str, Any]:
        """Return the attribute with the result type of a product: the type of its tensors before the cast."""
        return {"dtype": x.dtype}

    def weight(self, t: TaskTracer, weight: Parameter) -> Twice:
        """Return the copies of a weight in eight bits, which ``cast_weights`` writes, and their scale."""
        names, known = _copies(weight), t.program.buffers
        if names[0] not in known:
            common: dict[str, Any] = {"kind": Kind.PARAMETER, "scope": Scope.STEP}
            for name in names[:-1]:
                t.program.add_buffer(Buffer(name, weight.value.shape, E4M3, **common))
            t.program.add_buffer(Buffer(names[-1], (1,), "float32", **common))
        forward, backward, scale = (Tensor(name, known[name].shape, known[name].dtype) for name in names)
        return (forward, scale), (backward, scale)

    def activation(self, t: TaskTracer, name: str, x: Tensor) -> Twice:
        """Return x in E4M3, and a copy for backward if the whole of x is kept."""
        label = f"{name}.input"
        if x.regather is None:
            return _cast_twice(t, label, x, E4M3, Kind.ACTIVATION)
        return _cast(t, label, x, E4M3, Kind.ACTIVATION), ()

    def kept(self, r: TaskTracer, name: str, x: Tensor, taken: Twice) -> tuple[Tensor, ...]:
        """Return the input as cast in forward, or cast again if only a slice of it was kept."""
        return taken[1] or _cast(r, f"{name}.regathered", r.saved(x), E4M3, Kind.WORKSPACE)

    def gradient(self, r: TaskTracer, name: str, dy: Tensor) -> Twice:
        """Return dy in E5M2."""
        return _cast_twice(r, f"{name}.output_gradient", dy, E5M2, Kind.WORKSPACE)

    def piece(self, t: TaskTracer, name: str, x: Tensor) -> tuple[Tensor, ...]:
        """Return x in E4M3, with its own scale."""
        return _cast(t, name, x, E4M3, Kind.ACTIVATION)

    def gradient_piece(self, r: TaskTracer, name: str, dy: Tensor) -> tuple[Tensor, ...]:
        """Return dy in E5M2, with its own scale."""
        return _cast(r, name, dy, E5M2, Kind.WORKSPACE)

    def turned(self, r: TaskTracer, name: str, pieces: Sequence[tuple[Tensor, ...]]) -> Sequence[tuple[Tensor, ...]]:
        """Return copies of all pieces in the element order of the other product, made by one op."""
        tensors = [piece[0] for piece in pieces]
        turned = r.compute(
            f"{name}.transposed", "transpose_float8", tensors, [x.layout for x in tensors],
            labels=[f"piece{number}" for number in range(len(pieces))], kind=Kind.WORKSPACE,
        )  # fmt: skip
        return [(x, piece[1]) for x, piece in zip(turned, pieces, strict=True)]


class StoredProducts(Products, frozen=True):
    """The products of weights that are kept in eight bits, each with one scale, and of inputs cast token by token.

    Only for models that are not trained.
    """

    prefix = "float8_"

    def attributes(self, x: Tensor) -> dict[str, Any]:
        """Return the attribute with the result type of a product: the type of its input before the cast."""
        return {"dtype": x.dtype}

    def weight(self, t: TaskTracer, weight: Parameter) -> Twice:
        """Return the weight in eight bits, and its scale."""
        value, buffers = weight.value, t.program.buffers
        buffer, label = buffers[value.name], f"{value.name}.scale"
        assert buffer.initial is not None
        if label not in buffers:
            buffers[value.name] = replace(buffer, dtype=E4M3, initial=replace(buffer.initial, method="eight_bits"))
            scaled = Initial("scale", buffer.initial.source, of=(value.name,))
            t.program.add_buffer(Buffer(label, (1,), "float32", Kind.PARAMETER, Scope.PERSISTENT, initial=scaled))
        return (replace(value, dtype=E4M3), Tensor(label, (1,), "float32")), ()

    def activation(self, t: TaskTracer, name: str, x: Tensor) -> Twice:
        """Return x in E4M3, with a scale for each token, or for each expert's row."""
        pair = t.compute(
            f"{name}.input.cast", "cast_float8", (x,), (x.layout,) * 2, labels=("", "scale"), dtype=E4M3, copies=1,
            by_row=True,
        )  # fmt: skip
        return pair, ()


def cast_weights(t: TaskTracer, parameters: Iterable[Parameter]) -> None:
    """Emit the casts of the parameters that products use in eight bits."""
    for parameter in parameters:
        names = _copies(parameter)
        if names[0] in t.program.buffers:
            attributes = {"dtype": E4M3, "copies": 2}
            t.emit(
                Compute(t.unique(f"{parameter.source}.cast"), "cast_float8", (parameter.value.name,), names, attributes)
            )


def cast_in_pass(program: ProgramTracer, task: Task, parameters: Iterable[Parameter], label: str) -> Task:
    """Return a pass that casts its weights itself, each before its first product, in the element orders it needs.

    The copies belong to one micro-batch. Their names end in ``label``, which differs from pass to pass.
    """
    weight_of = {name: p for p in parameters for name in _copies(p) if name in program.buffers}
    used = dict.fromkeys(name for op in task.ops for name in op.reads if name in weight_of)
    for name in used:
        copy = replace(program.buffers[name], name=f"{name}{label}", scope=Scope.MICROBATCH)
        program.add_buffer(copy)
    ops: list[Op] = []
    cast: set[str] = set()
    for op in task.ops:
        for weight in dict.fromkeys(weight_of[name].source for name in op.reads if name in used):
            if weight not in cast:
                cast.add(weight)
                ops.append(_cast_of_weight(weight, weight_of, used, label))
        names = {name: f"{name}{label}" for name in op.reads if name in used}
        ops.append(replace(op, reads=tuple(names.get(name, name) for name in op.reads)))
    return replace(task, ops=tuple(ops))


def _cast_of_weight(source: str, weight_of: Mapping[str, Parameter], used: Collection[str], label: str) -> Compute:
    """Return the op that casts a weight into its used copies and their scale."""
    (weight,) = {p.value.name for p in weight_of.values() if p.source == source}
    writes = tuple(f"{name}{label}" for name, p in weight_of.items() if p.source == source and name in used)
    attributes = {"dtype": E4M3, "copies": len(writes) - 1}
    return Compute(f"{source}.cast{label}", "cast_float8", (weight,), writes, attributes)


def drop_casts(program: ProgramTracer, parameters: Iterable[Parameter]) -> None:
    """Remove the step-wide copies of weights, if every pass has its own copies."""
    for parameter in parameters:
        for name in _copies(parameter):
            program.buffers.pop(name, None)


def _copies(weight: Parameter) -> tuple[str, ...]:
    return tuple(f"{weight.source}.float8{label}" for label in ("", ".transposed", ".scale"))


def _cast(t: TaskTracer, name: str, x: Tensor, dtype: str, kind: Kind) -> tuple[Tensor, ...]:
    return t.compute(
        f"{name}.cast", "cast_float8", (x,), (x.layout,) * 2, labels=("", "scale"), kind=kind, dtype=dtype, copies=1
    )


def _cast_twice(t: TaskTracer, name: str, x: Tensor, dtype: str, kind: Kind) -> Twice:
    """Return two casts of x: in the element order of the first product, and in that of the second."""
    first, second, scale = t.compute(
        f"{name}.cast", "cast_float8", (x,), (x.layout,) * 3,
        labels=("", "transposed", "scale"), kind=kind, dtype=dtype, copies=2,
    )  # fmt: skip
    return (first, scale), (second, scale)
