"""Gradients without clearing: the first op of a step that would add to a gradient assigns it instead.

This is PyTorch's ``zero_grad(set_to_none=True)``: if a parameter has no gradient, autograd keeps the first computed one
as it is (torch/csrc/autograd/functions/accumulate_grad.h). So a finished program loses the clearing ops, and one
addition per gradient. The task that writes a gradient first gets another version.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from sim.plan.words.buffer import Buffer, Kind, Scope
from sim.plan.words.op import Compute, Op, on_other_buffers
from sim.plan.words.program import Call, Program, Task

_NEW_WITHOUT: Final = frozenset(
    {
        "matmul_weight_gradient", "float8_matmul_weight_gradient", "matmul_part_weight_gradient", "bias_gradient",
        "matmul_pieces_weight_gradient", "float8_matmul_pieces_weight_gradient", "layer_norm_backward",
        "rms_norm_backward", "router_matmul_weight_gradient", "grouped_matmul_weight_gradient", "norm_of_sums_backward",
        "float8_grouped_matmul_weight_gradient",
    }
)  # fmt: skip
"""Kernels that return new gradients if they get no gradient to add to."""


def assign_gradients(program: Program) -> Program:
    """Return an equivalent program without the ops that clear gradients before a step.

    The first call that adds to a gradient runs ``{task}.first`` (the task's own name if it is never called again).
    There a kernel writes the gradient instead of adding to it. If a second kernel adds a weight gradient, the product
    itself becomes the gradient. An op that touches only some rows of a gradient, as an embedding's backward, gets
    zeros first. A gradient lives from there to its last use, unless this step still uses the gradient of an earlier
    one. A gradient that another op uses before any op adds to it is cleared as before.
    """
    needed: set[str] = set()
    while True:
        rewriter = _Rewriter(program, needed)
        rewritten = rewriter.rewrite()
        if rewriter.used_unassigned <= needed:
            return rewritten
        needed |= rewriter.used_unassigned


class _Rewriter(Struct):
    """The rewriting of a program, in the order of its calls.

    ``kept_clear``: gradients that are still cleared. ``unassigned``: gradients cleared so far and not yet written.
    ``used_unassigned``: unassigned gradients that an op used before any op wrote them.
    """

    program: Program
    kept_clear: set[str]
    unassigned: set[str] = field(default_factory=set)
    used_unassigned: set[str] = field(default_factory=set)
    touched: set[str] = field(default_factory=set)
    assigned_at_birth: set[str] = field(default_factory=set)
    versions: dict[tuple[str, frozenset[str]], Task] = field(default_factory=dict)

    def rewrite(self) -> Program:
        calls = [call._replace(task=task.name) for call in self.program.calls if (task := self._version(call)).ops]
        called = {call.task for call in calls}
        tasks = {name: task for name, task in self.program.tasks.items() if name in called}
        tasks |= {task.name: task for task in self.versions.values() if task.ops}
        alone = {
            f"{name}.first": name for name in self.program.tasks if name not in called and f"{name}.first" in called
        }
        renamed = {alone.get(name, name): replace(task, name=alone.get(name, name)) for name, task in tasks.items()}
        calls = [call._replace(task=alone.get(call.task, call.task)) for call in calls]
        return Program(self.program.role, self._buffers(), renamed, tuple(calls))

    def _buffers(self) -> Mapping[str, Buffer]:
        return {
            name: replace(buffer, scope=Scope.STEP) if name in self.assigned_at_birth else buffer
            for name, buffer in self.program.buffers.items()
        }

    def _version(self, call: Call) -> Task:
        """Return the task for a call: unchanged, without clearing ops, or with assignments of unassigned gradients."""
        task, fresh = self.program.tasks[call.task], set[str]()
        clears = {name for op in task.ops for name in self._cleared(op)}
        self.unassigned |= clears
        for op in task.ops:
            for name in () if self._cleared(op) else dict.fromkeys((*op.reads, *op.writes)):
                self._touch(name, op, fresh)
        if not fresh and not clears:
            return task
        key = task.name, frozenset(fresh)
        if key not in self.versions:
            self.versions[key] = self._rewritten(task, fresh)
        return self.versions[key]

    def _touch(self, name: str, op: Op, fresh: set[str]) -> None:
        if name in self.unassigned:
            self.unassigned.discard(name)
            if isinstance(op, Compute) and name in op.reads and name in op.writes:
                fresh.add(name)
                if name not in self.touched:
                    self.assigned_at_birth.add(name)
            else:
                self.used_unassigned.add(name)
        self.touched.add(name)

    def _cleared(self, op: Op) -> tuple[str, ...]:
        """Return the gradients that an op clears without need."""
        if not (isinstance(op, Compute) and op.kernel == "zero"):
            return ()
        is_gradient = {name: self.program.buffers[name].kind is Kind.GRADIENT for name in op.writes}
        return tuple(name for name in op.writes if is_gradient[name] and name not in self.kept_clear)

    def _rewritten(self, task: Task, fresh: set[str]) -> Task:
        """Return a version of a task that assigns the gradients ``fresh`` and clears none."""
        left = [self._without(op, self._cleared(op)) for op in task.ops]
        ops = tuple(_assigning([op for op in left if op is not None], set(fresh), self.program.buffers))
        count = sum(name == task.name for name, names in self.versions if names)
        suffix = f".first{count + 1 if count else ''}" if fresh else ""
        return replace(task, name=f"{task.name}{suffix}", ops=ops)

    @staticmethod
    def _without(op: Op, cleared: Sequence[str]) -> Op | None:
        """Return a clearing op without some of its buffers; None if no buffer is left."""
        if not cleared:
            return op
        left = tuple(name for name in op.writes if name not in cleared)
        return replace(op, reads=left, writes=left) if left else None


def _assigning(ops: Sequence[Op], fresh: set[str], buffers: Mapping[str, Buffer]) -> Iterator[Op]:
    """Yield copies of a task's ops. The first op that adds to a gradient of ``fresh`` assigns it instead.

    They are copies because an op belongs to one task.
    """
    products = _added_products(ops, fresh, buffers)
    for op in ops:
        names = [name for name in op.writes if name in fresh]
        fresh -= set(names)
        if not isinstance(op, Compute):
            yield replace(op)
        elif not names:
            yield on_other_buffers(op, products)
        elif op.kernel == "add" and op.reads[0] in products:
            continue
        elif op.kernel in _NEW_WITHOUT:
            dims = {"dims": len(buffers[names[0]].shape)} if op.kernel == "bias_gradient" else {}
            reads = tuple(name for name in op.reads if name not in names)
            yield replace(op, reads=reads, attributes={**op.attributes, **dims})
        else:
            yield from (_zeros(op, buffers[name]) for name in names)
            yield replace(op)


def _added_products(ops: Sequence[Op], fresh: set[str], buffers: Mapping[str, Buffer]) -> dict[str, str]:
    """Return, by product, the gradients to which an op adds a product that the task uses for nothing else.

    Other ops may update a product in place before it is added.
    """
    made = {name for op in ops if isinstance(op, Compute) for name in op.writes if name not in op.reads}
    readers = [name for op in ops for name in op.reads if name not in op.writes]
    found: dict[str, str] = {}
    for op in ops:
        if not (isinstance(op, Compute) and op.kernel == "add" and op.writes == op.reads[1:]):
            continue
        product, gradient = op.reads
        is_first = gradient in fresh and next(other for other in ops if gradient in other.writes) is op
        is_alike = buffers[product].dtype == buffers[gradient].dtype
        if is_first and is_alike and product in made and readers.count(product) == 1:
            found[product] = gradient
    return found


def _zeros(op: Compute, gradient: Buffer) -> Compute:
    attributes = {"shapes": (gradient.shape,), "dtype": gradient.dtype}
    return Compute(f"{op.name}.zeros", "zeros", (), (gradient.name,), attributes, op.stream)
