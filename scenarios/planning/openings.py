"""What a scenario leaves open: keys that are left out, or `auto`, and the values that they may take."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

from msgspec import Struct

from scenarios.errors import ScenarioError
from scenarios.reading.clusters.machine import ClusterSpec, cluster_spec
from scenarios.reading.documents.checking import check_document
from scenarios.reading.documents.overrides import apply_overrides
from scenarios.reading.documents.yaml_tree import Document
from scenarios.reading.models.written_out import written_out
from scenarios.reading.schema.model import HuggingFaceModel, PresetModel
from scenarios.workloads.loading import point_of
from scenarios.workloads.registry import workload_of
from scenarios.workloads.steps.scenario import StepScenario, step_of
from scenarios.workloads.training.schema import DenseScenario
from sim.planner.space import OFFLOADS, RECOMPUTE, SCHEDULES, SEARCHED, Sizes, Strategy
from sim.training.pipeline.rules import OVERLAP_KEY, OVERLAPPING_SCHEDULES, Schedule
from sim.training.spec.job import DenseTraining

KEYS: Final[Mapping[str, str]] = {
    "tensor": "parallel.tensor.degree",
    "context": "parallel.context.degree",
    "pipeline": "parallel.pipeline.degree",
    "schedule": "parallel.pipeline.schedule",
    "virtual_stages": "parallel.pipeline.virtual_stages",
    "data": "parallel.data.degree",
    "expert": "parallel.expert.degree",
    "zero_stage": "parallel.data.zero_stage",
    "offload": "parallel.data.offload",
    "microbatch_size": "training.microbatch_size",
    "recompute": "training.recompute",
}
"""The key of each field of a strategy."""
TENSOR: Final = "parallel.tensor"
_MESH: Final = "parallel.tensor.mesh"
_SCHEDULE: Final = "parallel.pipeline.schedule"
_SEQUENCE_PARALLEL: Final = "parallel.tensor.sequence_parallel"
_NOT_SEARCHED: Final = (
    "parallel.pipeline.layers_per_stage", "parallel.pipeline.recompute_per_stage",
    "parallel.pipeline.microbatch_group_size", "parallel.pipeline.max_live_microbatches",
    "parallel.pipeline.kept_for_weights", "parallel.pipeline.token_slices", "parallel.pipeline.slice_granularity",
    "parallel.data.osdp",
    "parallel.data.deferred_sync", "parallel.data.delayed_update",
    "parallel.data.shard_degree", "parallel.data.local_degree", "parallel.data.gradient_sync",
    "parallel.data.bucket", "parallel.axis_order", "training.recompute_num_layers", "training.recompute_layers",
    "training.method",
)  # fmt: skip
"""Keys that the estimates know nothing of."""
MANAGER: Final = "memory.manager"
_MOVED: Final = {"optimizer": f"{KEYS['offload']}=optimizer", "state": f"{MANAGER}=angel_ptm"}
"""What puts state on the hosts."""
_NODES: Final = "parallel.expert.nodes"
_MOST_MICROBATCH: Final = 16
_MOST_STAGES: Final = 8
_MOST_ZERO: Final = 3


class Openings(Struct, frozen=True):
    """A scenario with open keys: what is fixed, and sizes. ``anchor``: all degrees 1; ``job``: its training.

    ``schedules``: those to search where none is written.
    ``document``: with the keys of a named model written out, so that no strategy reads the files of models again.
    """

    document: Document
    anchor: StepScenario
    job: DenseTraining
    cluster: ClusterSpec
    sizes: Sizes
    fixed: Mapping[str, Any]
    open_keys: frozenset[str]
    schedules: tuple[Schedule, ...]

    @property
    def overlaps(self) -> bool:
        """Return whether passes that overlap are to take turns, under the schedules in which some do."""
        return at(self.document, OVERLAP_KEY) is True

    @property
    def moves_state(self) -> bool:
        """Return whether all state on the hosts is searched beside state on the devices."""
        return bool(at(self.document, MANAGER) == "auto")

    @property
    def ranks_per_node(self) -> int:
        """Return how many ranks share a node, and with it its host."""
        return min(self.cluster.devices_per_node, self.sizes.world_size)

    @property
    def room_bytes(self) -> int:
        """Return what a plan may use of the device with the least memory."""
        return min(self.anchor.software.room_bytes(device) for device, _ in self.anchor.devices)

    def choices(self) -> dict[str, Sequence[int]]:
        """Return the values that each field of a strategy may take."""
        model, world = self.job.model, self.sizes.world_size
        experts = model.experts.num_experts if model.experts is not None else 1
        searched: dict[str, Sequence[int]] = {
            "tensor": _powers(self.ranks_per_node),
            "context": _powers(min(world, 64)) if self._is_auto("context") else [1],
            "pipeline": [p for p in range(1, min(world, model.num_layers) + 1) if world % p == 0],
            "schedule": [SCHEDULES.index(name) for name in self.schedules],
            "virtual_stages": list(range(1, _MOST_STAGES + 1)),
            "expert": [e for e in _powers(min(world, experts)) if experts % e == 0],
            "zero_stage": list(range(_MOST_ZERO + 1)),
            "offload": list(range(len(OFFLOADS) if self.moves_state else len(OFFLOADS) - 1)),
            "microbatch_size": _divisors(self.sizes.global_batch_size, _MOST_MICROBATCH),
            "recompute": list(range(len(RECOMPUTE))),
        }
        if model.attention == "flash":
            searched["recompute"] = [RECOMPUTE.index("none"), RECOMPUTE.index("full")]
        for name, value in self.fixed.items():
            names: tuple[str, ...] = {"recompute": RECOMPUTE, "schedule": SCHEDULES, "offload": OFFLOADS}.get(name, ())
            searched[name] = [names.index(value) if names else value]
        return searched

    def _is_auto(self, name: str) -> bool:
        return bool(at(self.document, KEYS[name]) == "auto")

    def overrides(self, strategy: Strategy) -> tuple[str, ...]:
        """Return a strategy as overrides of the open keys."""
        named = [name for name in KEYS if name in self.open_keys and name != "offload"]
        found = [f"{KEYS[name]}={getattr(strategy, name)}" for name in named]
        if "offload" in self.open_keys and strategy.offload != "none":
            found.append(_MOVED[strategy.offload])
        if self._is_auto("offload") and strategy.offload != "optimizer":
            found.append(f"{KEYS['offload']}=null")
        if self.moves_state and strategy.offload != "state":
            found.append("memory=null")
        if self.overlaps:
            may_overlap = strategy.schedule in OVERLAPPING_SCHEDULES and strategy.expert > 1
            found.append(f"{OVERLAP_KEY}={may_overlap}")
        if _SEQUENCE_PARALLEL in self.open_keys:
            found.append(f"{_SEQUENCE_PARALLEL}=auto")
        return tuple(found)

    def scenario(self, strategy: Strategy, more: Sequence[str] = ()) -> StepScenario:
        """Return the scenario with a strategy. Raises ScenarioError where its rules refuse it."""
        return step_of(point_of(self.document, (*self.overrides(strategy), *more)))


def openings_of(document: Document, schedules: tuple[Schedule, ...] = SEARCHED, *, released: bool = False) -> Openings:
    """Return what a scenario leaves open; ``released``: written keys of the strategy count as left out.

    ``schedules``: those to search where none is written.

    Raises ScenarioError for keys that a search knows nothing of, and for what is wrong with the file.
    """
    _refuse_unknown(document)
    written = {name: at(document, key) for name, key in KEYS.items()}
    mesh = at(document, _MESH)
    if isinstance(mesh, list) and all(isinstance(side, int) for side in mesh):
        written["tensor"] = prod(mesh)
    fixed = {} if released else {name: value for name, value in written.items() if value not in (None, "auto")}
    open_keys = {name for name in KEYS if name not in fixed}
    sequence = at(document, _SEQUENCE_PARALLEL)
    one_axis = at(document, "parallel.tensor.method") in (None, "1d")
    open_keys |= {_SEQUENCE_PARALLEL} if sequence is None and one_axis else set()
    neutral = {
        **dict.fromkeys(KEYS, 1),
        "zero_stage": 0,
        "recompute": "none",
        "data": "auto",
        "schedule": "1f1b",
        "offload": "null",
    }
    put = [f"{OVERLAP_KEY}=false"] if at(document, OVERLAP_KEY) is True else []
    put += ["memory=null"] if at(document, MANAGER) == "auto" else []
    put += [f"{key}={neutral[name]}" for name, key in KEYS.items() if name in open_keys]
    changed = apply_overrides(document, put)
    checked = check_document(changed, DenseScenario)
    cluster = cluster_spec(changed, checked.cluster)
    sizes = {"training.global_batch_size": cluster.world_size, "training.microbatch_size": 1}
    alone: dict[str, Any] = {KEYS[name]: neutral[name] for name in KEYS if name != "microbatch_size"}
    alone["memory"] = "null"
    if mesh is not None:
        alone[TENSOR] = "{degree: 1}"
        del alone[KEYS["tensor"]]
    if at(document, OVERLAP_KEY) is True:
        alone[OVERLAP_KEY] = False
    if at(document, _NODES) is not None:
        alone[_NODES] = 1  # where one rank has all experts; strategies keep what is written
    anchor = step_of(point_of(document, [f"{key}={value}" for key, value in (alone | sizes).items()]))
    job = anchor.dense_job
    assert job is not None  # it is a scenario of training
    found = Sizes(cluster.world_size, checked.training.global_batch_size, job.model.num_layers)
    if isinstance(checked.model, PresetModel | HuggingFaceModel):
        document = written_out(document, checked.model)
    return Openings(document, anchor, job, cluster, found, fixed, frozenset(open_keys), schedules)


def _refuse_unknown(document: Document) -> None:
    if (kind := workload_of(document)).schema is not DenseScenario:
        rule = f"a scenario of {kind.name} has no strategy to search"
        raise ScenarioError(document.origin(("workload",)), "workload", rule, "take a scenario of training")
    for key in _NOT_SEARCHED:
        if at(document, key) not in (None, "auto"):
            rule = "a search of strategies does not know it"
            raise ScenarioError(document.origin(key.split(".")), key, rule, "leave it out")
    _refuse_managers(document)
    if (schedule := at(document, _SCHEDULE)) not in (None, "auto", *SCHEDULES):
        rule = f"a search estimates {', '.join(SCHEDULES)}, and here is {schedule}"
        remedy = "leave it out, or compare with simulate sweep"
        raise ScenarioError(document.origin(_SCHEDULE.split(".")), _SCHEDULE, rule, remedy)
    if at(document, OVERLAP_KEY) is True and schedule not in (None, "auto", *OVERLAPPING_SCHEDULES):
        rule = f"under {schedule} no forward overlaps a backward"
        raise ScenarioError(document.origin(OVERLAP_KEY.split(".")), OVERLAP_KEY, rule, "leave it out")


def _refuse_managers(document: Document) -> None:
    """Raise ScenarioError where the section of memory says more than that state may lie on the hosts."""
    section = at(document, "memory")
    if section is None or section == {"manager": "auto"}:
        return
    rule = "a search chooses between state on the devices and angel_ptm, and knows no other key of this section"
    raise ScenarioError(document.origin(("memory",)), "memory", rule, "leave it out, or write memory: {manager: auto}")


def at(document: Document, key: str) -> Any:
    """Return the value of a dotted key as written, None where there is none."""
    value: Any = document.data
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _divisors(number: int, most: int) -> list[int]:
    return [k for k in range(1, most + 1) if number % k == 0]


def _powers(most: int) -> list[int]:
    return [1 << k for k in range(most.bit_length()) if 1 << k <= most]
