"""Measurements as numbers: what was asked of a device or a network, and how long it took."""

from dataclasses import dataclass
from hashlib import blake2b

from costmodels.kernels.tensor import Family, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSample:
    """One kernel call, alone or as busy as the job keeps the machine.

    ``key``: the text whose hash splits rows. ``label``: the same for people, each number with its name; empty: the key.

    ``dtype``: of the first operand with a floating-point type, as in the simulator's prices. ``kernel``: its name, if
    one kernel was measured. ``staged_bytes``: bytes that the measured op moved before, in a kernel of its own (fused
    attention of serving libraries first writes queries, keys and values in the layout of its cache).
    """

    key: str
    family: Family
    dtype: str
    work: Work
    seconds: float
    label: str = ""
    kernel: str = ""
    staged_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveSample:
    """One collective of a group with so many ranks on each node; ``kind`` ``send_recv`` for a message.

    ``num_bytes`` as ``collective_cost`` counts them. A message has one rank on each of two nodes, or two on one.
    ``compute_share``: part of its processor that a rank gave to it meanwhile, None where that is not known. ``key`` and
    ``label`` as of a kernel's.
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
    """Return whether a sample is kept from the fit, to check it: one in ``one_in``, by a hash of its key."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big") % one_in == 0
