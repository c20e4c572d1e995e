"""The inputs of a result: the sizes and choices of a scenario, with its defaults filled in."""

from collections.abc import Mapping, Sequence

from msgspec import Struct


class Resolved(Struct, frozen=True, kw_only=True):
    """A training step as it was simulated.

    ``degrees``: of parallelism, by section of ``parallel``.
    ``num_microbatches``: of one replica.
    ``sequence_length_from``: the place where the length was stated.
    ``profile``: the profile of the efficiencies; ``profile_basis``: ``measured``, or ``roofline`` if no kernel of the
        device was measured.
    ``tensor_mesh``: ranks along each side of a method on a mesh, else empty.
    """

    version: str
    nodes: Mapping[str, int]
    devices_per_node: int
    profile: str
    profile_basis: str
    num_parameters: int
    sequence_length: int
    sequence_length_from: str
    tokens_per_step: int
    global_batch_size: int
    microbatch_size: int
    num_microbatches: int
    degrees: Mapping[str, int]
    tensor_method: str
    tensor_mesh: Sequence[int]
    sequence_parallel: bool
    schedule: str
    precision: str
    recompute: str
    recompute_num_layers: int | None
    recompute_method: str | None
    recompute_layers: Sequence[int] | None
    zero_stage: int
