"""Measurements as numbers: calls of a device or a network, and their durations."""

from hashlib import blake2b

from msgspec import Struct

from costmodels.kernels.tensor import Family, Work


class KernelSample(Struct, frozen=True, kw_only=True):
    """One kernel call, alone or while the job keeps the machine busy.

    ``key``: the text whose hash splits rows.
    ``label``: a description for people, each number with its name; empty: the key.
    ``dtype``: of the first operand with a floating-point type, as in the simulator's prices.
    ``kernel``: its name, if one kernel was measured.
    ``staged_bytes``: bytes that the op first moved in a separate kernel (fused attention of serving libraries first
        writes queries, keys and values in the layout of its cache).
    """

    key: str
    family: Family
    dtype: str
    work: Work
    seconds: float
    label: str = ""
    kernel: str = ""
    staged_bytes: int = 0


class CollectiveSample(Struct, frozen=True, kw_only=True):
    """One collective of a group with these numbers of ranks on its nodes; ``kind`` ``send_recv`` for a message.

    ``num_bytes``: as ``collective_cost`` counts them. A message has one rank on each of two nodes, or two on one node.
    ``compute_share``: fraction of its processor that a rank spent on the collective, None if unknown.
    ``key`` and ``label``: as for a kernel.
    """

    key: str
    kind: str
    num_bytes: int
    ranks_per_node: tuple[int, ...]
    seconds: float
    compute_share: float | None = None
    label: str = ""


Sample = KernelSample | CollectiveSample


def is_held_out(key: str, one_in: int) -> bool:
    """Return whether a sample is held out of the fit for checks: one in ``one_in``, by a hash of its key."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big") % one_in == 0
