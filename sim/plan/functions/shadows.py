"""Shadows: weights that all ranks of an axis get from one of them for a pass (He et al. 2022, FasterMoE).

Forward broadcasts the weights, and each rank multiplies its own rows with them. Backward sums the ranks' gradients at
the rank that the weights came from, which adds them to its own. Nothing else of a shadow outlives the pass.
"""

from dataclasses import dataclass, field

from costmodels.kernels import TensorSpec
from sim.plan.functions.basic import only
from sim.plan.functions.tracing import Gradients, Parameter, TaskTracer, Tensor
from sim.plan.words.buffer import Buffer, Kind
from sim.plan.words.layout import Layout
from sim.plan.words.op import Collective, CollectiveKind, Compute


@dataclass
class Shadows:
    """The shadows of one pass on a rank at ``place`` along ``axis``.

    ``settled`` and ``cleared`` are put around what uses the shadows, and return a tensor as it is.
    """

    t: TaskTracer
    axis: str
    place: int
    added: "list[tuple[Parameter, Parameter | None, int]]" = field(default_factory=list)
    """Each shadow, the parameter that it comes from if this rank has it, and the rank that has it."""

    def add(self, name: str, spec: TensorSpec, layout: Layout, own: Parameter | None, root: int) -> Parameter:
        """Return the shadow of a weight of the rank at ``root``, which is ``own`` there.

        ``spec``, ``layout``: this rank's piece of it, and how other axes cut it.
        """
        t = self.t
        shadow = t.unique(f"{name}.shadow")
        value = t.program.tensor(Buffer(shadow + t.part, spec.shape, spec.dtype, Kind.ACTIVATION, t.scope), layout)
        gradient = Buffer(f"{shadow}.gradient{t.part}", spec.shape, t.program.gradient_dtype, Kind.WORKSPACE, t.scope)
        found = Parameter(value, t.program.tensor(gradient, layout), shadow)
        reads = () if own is None else (own.value.name,)
        kind = CollectiveKind.BROADCAST
        t.emit(Collective(f"{shadow}.broadcast", kind, (self.axis,), reads, (value.name,), self.axis, root=root))
        self.added.append((found, own, root))
        return found

    def cleared(self, y: Tensor) -> Tensor:
        """Return y; backward, which comes to it first, begins with gradients of zero."""
        same = y.relaid(y.layout)

        def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
            for shadow, _, _ in self.added:
                given = {"shapes": (shadow.gradient.shape,), "dtype": shadow.gradient.dtype}
                r.emit(Compute(r.unique(f"{shadow.source}.clear"), "zeros", (), (shadow.gradient.name,), given))
            return [only(gradients)]

        self.t.record((y,), (same,), backward, settles=False)
        return same

    def settled(self, x: Tensor) -> Tensor:
        """Return x; backward, which comes to it last, sums the gradients where the weights came from."""
        same = x.relaid(x.layout)

        def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
            for shadow, own, root in self.added:
                self._sum(r, shadow, own, root)
            return [only(gradients)]

        self.t.record((x,), (same,), backward, settles=False)
        return same

    def _sum(self, r: TaskTracer, shadow: Parameter, own: Parameter | None, root: int) -> None:
        term, writes = shadow.gradient, list[Tensor]()
        if own is not None:
            name = r.unique(f"{shadow.source}.sum") + r.part
            writes = [r.program.tensor(Buffer(name, term.shape, term.dtype, Kind.WORKSPACE, r.scope))]
        names, kind = tuple(total.name for total in writes), CollectiveKind.REDUCE
        op_name = r.unique(f"{shadow.source}.reduce")
        r.emit(Collective(op_name, kind, (self.axis,), (term.name,), names, self.axis, root=root))
        if own is not None:
            r.update(f"{shadow.source}.add", "add", writes, (own.gradient,))
