"""Checks of kernels: each is known, and its work follows from its buffers and attributes."""

from collections.abc import Sequence

from costmodels.errors import KernelError
from costmodels.kernels import KERNELS
from sim.plan.checking.collectives import where
from sim.plan.errors import CheckError
from sim.plan.facts.description import kernel_signature, kernel_work
from sim.plan.words.op import Compute
from sim.plan.words.program import Program


def check_kernels(program: Program, passed: set[tuple[object, ...]]) -> None:
    """Raise CheckError for a kernel that does not exist, or whose cost has no value for its buffers and attributes.

    ``passed``: the signatures of calls that are known to be right; those of the program join them.
    """
    for op in program.distinct_ops.ops:
        if isinstance(op, Compute) and (signature := kernel_signature(program, op)) not in passed:
            _check_kernel(program, op)
            passed.add(signature)


def _check_kernel(program: Program, op: Compute) -> None:
    if op.kernel not in KERNELS:
        raise CheckError(f"{where(program, op)}: unknown kernel {op.kernel!r}")
    try:
        kernel_work(program, op)
    except (KernelError, LookupError, ArithmeticError, TypeError, ValueError) as error:
        rule = f": {error}" if isinstance(error, KernelError) else ""
        given = f"reads {_shapes(program, op.reads)}, writes {_shapes(program, op.writes)}"
        attributes = f"has the attributes {dict(op.attributes)}" if op.attributes else "has no attributes"
        raise CheckError(
            f"{where(program, op)}: kernel {op.kernel!r} cannot do this work{rule}; it {given}, and {attributes}"
        ) from error


def _shapes(program: Program, names: Sequence[str]) -> str:
    return " and ".join(f"{name!r} {list(program.buffers[name].shape)}" for name in names) or "nothing"
