"""The largest plans: bytes are counted in 64 bits, on every rank, in every sum over its ops."""

from typing import Final

import numpy as np

from sim.plan.words.calls import NO_MICROBATCH, Calls
from sim.plan.words.program import Program
from sim.training.errors import SpecError

MOST_BYTES: Final = 1 << 60
"""Bytes of all tensors of a rank, once for each micro-batch: eight times less than sums in 64 bits hold."""


def refuse_uncountable(program: Program) -> None:
    """Raise SpecError for a rank's program whose tensors, over all micro-batches, are more than can be counted."""
    numbers = Calls.of(program.calls).microbatches
    num_microbatches = max(1, int(np.count_nonzero(np.bincount(numbers[numbers != NO_MICROBATCH]))))
    num_bytes = num_microbatches * sum(program.bytes_of.values())
    if num_bytes > MOST_BYTES:
        rule = f"a rank's tensors of all {num_microbatches:,} micro-batches come to {num_bytes / MOST_BYTES:,.3g} EiB"
        remedy = "make the model, its sequences or the micro-batches smaller"
        raise SpecError("model", f"{rule}, and 1 EiB is the most that is counted", remedy)
