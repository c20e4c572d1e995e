"""Tracing: functions on symbolic tensors write the ops of a program.

A ``ProgramTracer`` collects the buffers, tasks and parameters of one program; a ``TaskTracer`` collects the
ops of one task and, while it records, a tape from which ``sim.plan.functions.gradients`` derives the backward task.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from costmodels.kernels import KERNELS, TensorSpec
from sim.plan.errors import LayoutError, PlanError
from sim.plan.words.buffer import Buffer, Initial, Kind, Part, Scope
from sim.plan.words.layout import REPLICATED, Layout, Shard
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Collective, CollectiveKind, Compute, Op, Reduction
from sim.plan.words.program import Phase, Task

MAIN_STREAM: Final = "compute"


class Tensor(Struct, frozen=True, eq=False):
    """A symbolic tensor: a buffer's name, this rank's shape, and the layout of the whole tensor over the mesh.

    ``regather``: function that writes the tensor again from a kept tensor (backward gathers an input again); None for a
    tensor that is kept itself.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    layout: Layout = REPLICATED
    regather: "Callable[[TaskTracer], Tensor] | None" = None

    @property
    def spec(self) -> TensorSpec:
        """Return shape and element type for the cost models."""
        return TensorSpec(self.shape, self.dtype)

    def relaid(self, layout: Layout) -> "Tensor":
        """Return the same buffer under another layout."""
        return Tensor(self.name, self.shape, self.dtype, layout)


class Parameter(Struct, frozen=True, eq=False):
    """A trainable tensor and the buffer in which its gradient accumulates over micro-batches.

    ``source``: its name in the dense model, and its part's number if it is split.
    ``holders``: positions, along the axis that splits parts, of the ranks with this part, if not all ranks have it.
    """

    value: Tensor
    gradient: Tensor
    source: str
    holders: tuple[int, ...] = ()


Gradients = Sequence[Tensor | None]


class Record(Struct, frozen=True, eq=False):
    """One differentiable operation on the tape.

    ``backward(tracer, output_gradients)`` emits the vector-Jacobian products as ops, and returns one gradient or None
    per input. ``settles``: output gradients must first be brought to the outputs' layouts. A change of layout needs no
    such conversion.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    backward: "Callable[[TaskTracer, Gradients], Gradients]"
    settles: bool = True


class ProgramTracer(Struct):
    """The builder of one program. It collects the mesh, buffers, parameters and tasks.

    ``role``: the coordinates of the ranks that run it; empty: all ranks do.
    """

    mesh: Mesh
    parameter_dtype: str
    gradient_dtype: str
    role: Mapping[str, int] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    parameters: dict[str, Parameter] = field(default_factory=dict)
    tasks: dict[str, Task] = field(default_factory=dict)

    def add_buffer(self, buffer: Buffer) -> Buffer:
        """Add a buffer. Raises PlanError if its name is taken."""
        if buffer.name in self.buffers:
            raise PlanError(f"buffer {buffer.name!r} is defined twice")
        self.buffers[buffer.name] = buffer
        return buffer

    def tensor(self, buffer: Buffer, layout: Layout = REPLICATED) -> Tensor:
        """Add a buffer and return it as a tensor."""
        self.add_buffer(buffer)
        return Tensor(buffer.name, buffer.shape, buffer.dtype, layout)

    def parameter(
        self,
        source: str,
        global_shape: tuple[int, ...],
        layout: Layout,
        initial: str,
        scale: float = 0.02,
        part: Part | None = None,
        holders: tuple[int, ...] = (),
    ) -> Parameter:
        """Return a parameter with its gradient buffer; both are created on first use.

        ``source``: its name in the dense model, which determines the initial values. ``part``: the parameter is this
        part of the rank's shard. ``holders``: see ``Parameter``. Raises PlanError if the parts are not equal.
        """
        name = source if part is None else f"{source}.part{part.index}"
        if name in self.parameters:
            return self.parameters[name]
        shape = layout.local_shape(global_shape, self.mesh)
        if part is not None:
            shape = _part_shape(source, shape, part)
        weight = Buffer(
            name=name, shape=shape, dtype=self.parameter_dtype, kind=Kind.PARAMETER, scope=Scope.PERSISTENT,
            initial=Initial(initial, source, scale), global_shape=global_shape, layout=layout, part=part,
        )  # fmt: skip
        zeros = Initial("zeros", source)
        of_weight = replace(
            weight, name=f"{name}.gradient", dtype=self.gradient_dtype, kind=Kind.GRADIENT, initial=zeros
        )
        value, gradient = self.tensor(weight, layout), self.tensor(of_weight, layout)
        self.parameters[name] = Parameter(value, gradient, name, holders)
        return self.parameters[name]

    def set_gradient_layout(self, parameter: Parameter, layout: Layout) -> None:
        """Set the layout of a parameter's gradient: the axes over which it is partial; not of a copy for one pass.

        Raises PlanError if two uses of the parameter give its gradient different layouts.
        """
        if parameter.source not in self.parameters:
            return
        known = self.parameters[parameter.source].gradient
        if known.layout not in (parameter.value.layout, layout):
            raise PlanError(f"the gradient of {parameter.source!r} is born as {layout} and as {known.layout}")
        self.parameters[parameter.source] = replace(parameter, gradient=known.relaid(layout))

    def add_task(self, name: str, phase: Phase, ops: Sequence[Op], stage: int = -1) -> Task:
        """Add a finished task. Raises PlanError if its name is taken or it has no ops."""
        if name in self.tasks:
            raise PlanError(f"task {name!r} is defined twice")
        if not ops:
            raise PlanError(f"task {name!r} has no ops: leave it out, and its calls")
        self.tasks[name] = Task(name, phase, tuple(ops), stage)
        return self.tasks[name]


def _part_shape(source: str, shape: tuple[int, ...], part: Part) -> tuple[int, ...]:
    if shape[part.dim] % part.count:
        raise PlanError(f"{source}: dimension {part.dim} of {shape} does not divide into {part.count} parts")
    return tuple(n // part.count if dim == part.dim else n for dim, n in enumerate(shape))


class TaskTracer(Struct):
    """The builder of one task. It collects ops and, while ``recording``, the tape.

    ``suffix``: a suffix for the names of ops. ``part``: a suffix for the names of buffers, for several tasks of a
    program that do the same on different parts of its tensors. ``stream``: the one on which kernels run. ``names``: how
    often each name of an op was asked for.
    """

    program: ProgramTracer
    scope: Scope = Scope.MICROBATCH
    ops: list[Op] = field(default_factory=list)
    tape: list[Record] = field(default_factory=list)
    recording: bool = True
    suffix: str = ""
    part: str = ""
    stream: str = MAIN_STREAM
    names: dict[str, int] = field(default_factory=dict)
    _regathered: dict[Tensor, Tensor] = field(default_factory=dict)

    @property
    def mesh(self) -> Mesh:
        """Return the mesh that the program lies over."""
        return self.program.mesh

    def unique(self, name: str) -> str:
        """Return an op name, with a number if this task used the name before; ``name`` may contain a buffer's name."""
        if self.part:
            name = name.replace(self.part, "")
        name += self.suffix
        count = self.names.get(name, 0)
        self.names[name] = count + 1
        return f"{name}.{count + 1}" if count else name

    def compute(
        self,
        name: str,
        kernel: str,
        inputs: Sequence[Tensor],
        layouts: Sequence[Layout],
        *,
        labels: Sequence[str] = ("",),
        kind: Kind = Kind.ACTIVATION,
        **attributes: Any,
    ) -> tuple[Tensor, ...]:
        """Emit a kernel and return its new outputs, one per layout.

        The first output takes the op's name, others the name and their label.
        """
        op_name = self.unique(name)
        specs = KERNELS[kernel].outputs([tensor.spec for tensor in inputs], attributes)
        outputs = []
        for label, spec, layout in zip(labels, specs, layouts, strict=True):
            buffer_name = (f"{op_name}.{label}" if label else op_name) + self.part
            buffer = Buffer(buffer_name, spec.shape, spec.dtype, kind, self.scope)
            outputs.append(self.program.tensor(buffer, layout))
        reads, writes = tuple([t.name for t in inputs]), tuple([t.name for t in outputs])
        self.ops.append(Compute(op_name, kernel, reads, writes, attributes, self.stream))
        return tuple(outputs)

    def update(
        self, name: str, kernel: str, inputs: Sequence[Tensor], updated: Sequence[Tensor], **attributes: Any
    ) -> None:
        """Emit a kernel that reads ``inputs`` and updates buffers (those of ``updated``) in place."""
        reads = tuple(t.name for t in (*inputs, *updated))
        self.ops.append(Compute(self.unique(name), kernel, reads, tuple(t.name for t in updated), attributes))

    def compute_and_update(
        self,
        name: str,
        kernel: str,
        inputs: Sequence[Tensor],
        updated: Sequence[Tensor],
        layout: Layout,
        **attributes: Any,
    ) -> Tensor:
        """Emit a kernel with one new output that also updates buffers in place; return the output."""
        op_name = self.unique(name)
        everything = (*inputs, *updated)
        spec = KERNELS[kernel].outputs([tensor.spec for tensor in everything], attributes)[0]
        y = self.program.tensor(Buffer(op_name + self.part, spec.shape, spec.dtype, Kind.WORKSPACE, self.scope), layout)
        writes = (y.name, *(t.name for t in updated))
        self.ops.append(Compute(op_name, kernel, tuple(t.name for t in everything), writes, attributes))
        return y

    def wait_for(self, *buffers: str) -> None:
        """Emit a wait: later ops of the compute stream start after these buffers are written."""
        name = self.unique(f"{buffers[0]}.wait")
        self.ops.append(Compute(name, "delay", buffers, (), {"duration_s": 0.0}))

    def optimize(self, name: str, kernel: str, gradient: Tensor, updated: Sequence[Tensor], **attributes: Any) -> None:
        """Emit an optimizer step on ``updated``: the parameter, its moments and, if given, a low-precision copy."""
        parameter, *rest = updated
        reads = tuple([t.name for t in (parameter, gradient, *rest)])
        self.ops.append(Compute(self.unique(name), kernel, reads, tuple([t.name for t in updated]), attributes))

    def emit(self, op: Op) -> None:
        """Add an op unchanged."""
        self.ops.append(op)

    def all_reduce(self, x: Tensor, axis: str, reduction: Reduction = Reduction.SUM) -> Tensor:
        """Sum a partial tensor over an axis, in place."""
        name = self.unique(f"{x.name}.all_reduce")
        self.ops.append(Collective(name, CollectiveKind.ALL_REDUCE, (axis,), (x.name,), (x.name,), axis, reduction))
        return x.relaid(x.layout.without(axis))

    def gather(self, x: Tensor, axis: str, dim: int, kind: Kind, label: str = "all_gather") -> Tensor:
        """Emit an all_gather of the slices along ``dim``, named after ``x`` and ``label``."""
        shape = tuple(n * (self.mesh.degree(axis) if i == dim else 1) for i, n in enumerate(x.shape))
        collective = Collective(
            self.unique(f"{x.name}.{label}"), CollectiveKind.ALL_GATHER, (axis,), (x.name,), (), axis, dim=dim
        )
        return self._resize(collective, x, shape, x.layout.without(axis), kind)

    def scatter_sum(self, x: Tensor, axis: str, dim: int, layout: Layout, kind: Kind) -> Tensor:
        """Emit a reduce_scatter along ``dim``."""
        degree = self.mesh.degree(axis)
        if x.shape[dim] % degree:
            raise PlanError(f"{x.name}: dimension {dim} of {x.shape} does not divide by {degree} ({axis})")
        shape = tuple(n // (degree if i == dim else 1) for i, n in enumerate(x.shape))
        collective = Collective(
            self.unique(f"{x.name}.reduce_scatter"),
            CollectiveKind.REDUCE_SCATTER,
            (axis,),
            (x.name,),
            (),
            axis,
            dim=dim,
        )
        return self._resize(collective, x, shape, layout, kind)

    def exchange(self, x: Tensor, axis: str, dim: int, kind: Kind) -> Tensor:
        """Emit the all_to_all that changes the sharded dimension of x to ``dim``.

        Raises LayoutError if ``axis`` does not shard ``x`` along another dimension, or if another axis splits its
        slices further. Raises PlanError if ``dim`` does not divide evenly.
        """
        old, degree = x.layout.get(axis), self.mesh.degree(axis)
        if not isinstance(old, Shard) or old.dim == dim:
            raise LayoutError(f"{x.name} lies {old} over {axis!r}, which no all_to_all brings to dimension {dim}")
        if x.layout.shard_axes(old.dim)[-1] != axis:
            raise LayoutError(f"{x.name} is cut further along dimension {old.dim} inside the slices of {axis!r}")
        if x.shape[dim] % degree:
            raise PlanError(f"{x.name}: dimension {dim} of {x.shape} does not divide by {degree} ({axis})")
        shape = tuple(n * degree if i == old.dim else n // degree if i == dim else n for i, n in enumerate(x.shape))
        name = self.unique(f"{x.name}.all_to_all")
        collective = Collective(
            name, CollectiveKind.ALL_TO_ALL, (axis,), (x.name,), (), axis, dim=dim, join_dim=old.dim
        )
        return self._resize(collective, x, shape, x.layout.without(axis).with_(axis, Shard(dim)), kind)

    def broadcast(self, x: Tensor, axis: str, root: int, layout: Layout, kind: Kind) -> Tensor:
        """Emit a broadcast of the root's x."""
        name = self.unique(f"{x.name}.broadcast")
        collective = Collective(name, CollectiveKind.BROADCAST, (axis,), (x.name,), (), axis, root=root)
        return self._resize(collective, x, x.shape, layout, kind)

    def reduce(self, x: Tensor, axis: str, root: int, layout: Layout, kind: Kind) -> Tensor:
        """Emit a sum of all ranks' x at the root; other ranks get zeros."""
        name = self.unique(f"{x.name}.reduce")
        collective = Collective(name, CollectiveKind.REDUCE, (axis,), (x.name,), (), axis, root=root)
        return self._resize(collective, x, x.shape, layout, kind)

    def _resize(self, collective: Collective, x: Tensor, shape: tuple[int, ...], layout: Layout, kind: Kind) -> Tensor:
        y = self.program.tensor(Buffer(collective.name + self.part, shape, x.dtype, kind, self.scope), layout)
        self.ops.append(replace(collective, writes=(y.name,)))
        return y

    def record(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        backward: Callable[["TaskTracer", Gradients], Gradients],
        *,
        settles: bool = True,
    ) -> None:
        """Record an operation on the tape; its backward runs on the stream on which it runs."""
        stream = self.stream

        def on_same_stream(r: "TaskTracer", gradients: Gradients) -> Gradients:
            with r.on_stream(stream):
                return backward(r, gradients)

        if self.recording:
            there = backward if stream == MAIN_STREAM else on_same_stream
            self.tape.append(Record(tuple(inputs), tuple(outputs), there, settles))

    @contextmanager
    def on_stream(self, stream: str) -> Iterator[None]:
        """Let kernels run on another stream, in backward too: those that work for the stream's communication."""
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    def saved(self, tensor: Tensor) -> Tensor:
        """Return a forward tensor for use in backward; gather it again if only its slice was kept."""
        if tensor.regather is None:
            return tensor
        if tensor not in self._regathered:
            self._regathered[tensor] = tensor.regather(self)
        return self._regathered[tensor]

    def global_shape(self, x: Tensor, *, without: str = "") -> tuple[int, ...]:
        """Return the shape of the whole tensor; dimensions sharded by the axis ``without`` stay local."""
        return tuple(
            n * prod(self.mesh.degree(axis) for axis in x.layout.shard_axes(dim) if axis != without)
            for dim, n in enumerate(x.shape)
        )
