"""The distribution of the work over the ranks: typed input."""

from math import prod

from msgspec import Struct, field

from sim.memory.spec import MemorySpec
from sim.plan.words.mesh import Axes
from sim.training.pipeline.spec import PipelineSpec
from sim.training.sequence.method import SequenceMethod
from sim.training.sequence.unshared import Unshared
from sim.training.spec.parallelism.mesh_axes import AXIS_ORDER, mesh_axes
from sim.training.spec.parallelism.sharding import OsdpSpec, ShardingSpec
from sim.training.tensor.method import TensorMethod
from sim.training.tensor.one_dimensional import OneDimensional


class ParallelSpec(Struct, frozen=True, kw_only=True):
    """The distribution of the work over the mesh. ``axis_order``: last varies fastest over ranks."""

    tensor: TensorMethod = field(default_factory=OneDimensional)
    sequence: SequenceMethod = field(default_factory=Unshared)
    """The method by which ranks share every sequence."""
    pipeline: PipelineSpec = field(default_factory=PipelineSpec)
    data_degree: int = 1
    expert_degree: int = 1
    """Data-parallel ranks that share out the experts."""
    expert_nodes: int = 1
    """Nodes on which those ranks lie: a token is sent once to each with experts of its choice. 1: to every expert."""
    zero_stage: int = 0
    sharding: ShardingSpec = field(default_factory=ShardingSpec)
    osdp: OsdpSpec | None = None
    """Sharding by operator, in the place of a ZeRO stage."""
    memory: MemorySpec | None = None
    """ZeRO 3: state in tiers of memory; None: all of it on the devices."""
    overlap_gradient_sync: bool = True
    overlap_parameter_gather: bool = False
    """ZeRO 1: updated parameters are gathered during the next step's forwards."""
    deferred_sync: float | None = None
    """aiao: part of the gradients of all but a rank's first stage that is synchronised in the next step's forwards.

    None: left to prices where aiao defers a part; see ``sim.training.spec.openings``.
    """
    bucket_bytes: int = 0
    """Gradients are synchronised in buckets of at least this many bytes; 0: one bucket per virtual stage, in ZeRO 2 at
    least 5e8 elements.
    """
    axis_order: tuple[str, ...] = AXIS_ORDER

    @property
    def gradient_delay(self) -> int:
        """Return how many steps old the weights of a gradient are when the gradient updates them."""
        return 1 if self.sharding.delayed_update else self.pipeline.gradient_delay

    @property
    def world_size(self) -> int:
        """Return the number of ranks."""
        return prod(degree for _, degree in self.mesh_axes)

    @property
    def context_degree(self) -> int:
        """Return the number of ranks that share every sequence."""
        return self.sequence.degree

    @property
    def num_replicas(self) -> int:
        """Return how many ranks hold the same parameters, but for experts that are shared out."""
        return self.data_degree * self.context_degree

    @property
    def mesh_axes(self) -> Axes:
        """Return names and degrees of the mesh's axes, in order; those of context parallelism only where it is used."""
        return mesh_axes(
            self.axis_order, pipeline=self.pipeline.degree, data=self.data_degree, context=self.sequence.axes,
            tensor=self.tensor.axes,
        )  # fmt: skip

    @property
    def token_multiple(self) -> int:
        """Return a divisor of the number of tokens of every task: tensor-parallel ranks share them out."""
        return self.tensor.token_multiple(scatters=self.pipeline.scatter_gather)
