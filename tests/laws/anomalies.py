"""What looks like a broken law and is none: each case by name, with its reason and the bound that tests hold it to.

A bound is a part of what the law compares, or a function in this file where it follows from the plans themselves.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from costmodels.memory import allocated_bytes
from sim.engine.running.run import SimulatedRun
from sim.plan.functions.gradients import is_recomputed
from sim.plan.words.buffer import Kind, Scope, Tier
from sim.plan.words.program import Phase, Program


@dataclass(frozen=True, slots=True)
class Anomaly:
    """``laws``: which it concerns. ``bound``: at most this part more than the law allows; 0: see ``bounded_by``."""

    laws: tuple[str, ...]
    reason: str
    bound: float = 0.0
    bounded_by: str = ""


ANOMALIES: Final[Mapping[str, Anomaly]] = {
    "ops that share a resource": Anomaly(
        ("faster_links", "faster_nvlink", "slower_devices", "framework_costs", "recomputation", "larger_batches",
         "more_replicas", "one_device_per_node"),
        "Ops that meet on a link or a device slow each other. Any other time changes which of them meet: groups that "
        "fall out of step take turns on a link, and groups in step all wait for it (Graham 1969, timing anomalies). "
        "The most in 800 scenarios is 11 %: a torus whose groups all start together. The same plan with nothing shared "
        "is held to the law without a bound.",
        bound=0.25,
    ),
    "waits for launches": Anomaly(
        ("faster_links", "faster_nvlink", "slower_devices"),
        "How late a launch comes is known before the step runs: a task's ops as they end alone, if the device begins "
        "with the host. An op that waits for a message inside the task ends later than that, and the wait for the next "
        "launch, which it covers, is counted all the same. Of 1,300 scenarios one has a step that is 0.015 % longer.",
        bound=0.001,
    ),
    "computed again for nothing": Anomaly(
        ("recomputation",),
        "Recomputation runs a whole layer again, as Megatron-LM's checkpoint does, also the ops whose outputs its "
        "backward does not read. Without it those outputs are gone by then.",
        bounded_by="computed_for_nothing_bytes",
    ),
    "outputs that are there twice": Anomaly(
        ("recomputation",),
        "Selective recomputation makes attention's output again for attention's backward, while the projection keeps "
        "the first one. With flash attention it saves the statistics of each row alone, which are smaller.",
        bounded_by="twice_made_bytes",
    ),
    "casts that are read again": Anomaly(
        ("recomputation",),
        "Under fp8 a step casts each weight once, to a copy for forward products and one for backward's. What runs "
        "forward products again keeps the first copy until then; without recomputation it is gone after forward.",
        bounded_by="casts_read_again_bytes",
    ),
    "shards beside whole tensors": Anomaly(
        ("zero_stages",),
        "A stage that shards one thing more keeps the shards beside the whole tensors that it makes and reduces, or "
        "gathers, some at a time. A small model has no more than these some, so it holds all of them and the shards.",
        bounded_by="shard_bytes",
    ),
    "shards of the optimizer": Anomaly(
        ("more_replicas",),
        "From ZeRO stage 1 on a rank updates its shard alone. With twice the replicas a shard is half as large, so the "
        "update takes less time.",
        bounded_by="update_seconds",
    ),
    "a protocol chosen by the rates of links": Anomaly(
        ("faster_links",),
        "A library chooses the protocol of an all_to_all by the rates of links and the bytes at a port. It knows no "
        "messages that crowd a few links without a switch, or that go in rounds. Faster links can move its choice from "
        "Simple to LL, whose flags double the bytes there. The most found on a grid of clusters, groups, sizes and "
        "factors is 46 % (Bruck's on a hybrid cube mesh, 1 MiB, A100 profile, 1.1 times the bandwidth), else 13 %. "
        "With any one protocol the law holds, but for the messages of an all_to_all.",
        bound=0.5,
    ),
    "messages of an all_to_all": Anomaly(
        ("faster_links",),
        "What the messages of an all_to_all occupy besides their bytes is taken from the fewest adapters that a "
        "member's node has, and their bytes from the links that they cross. Where those links are less busy than such "
        "an adapter, bytes that take less time shorten the links' part by less than they lengthen the messages'. The "
        "most found is 0.2 % with faster links, and below 2 % with fewer bytes.",
        bound=0.02,
    ),
    "a chain inside a node": Anomaly(
        ("one_device_per_node",),
        "NCCL's tree is a chain inside a node, of 2 (G - 1) hops, and a tree between nodes, of 2 log2 N. The V100 "
        "profile's hop inside a node was measured (2.0 us), its hop between nodes was not (8.7 us, NCCL's tuning.cc). "
        "So a small all_reduce of many V100 of one node takes longer than one of as many on a few nodes.",
        bound=0.25,
    ),
}  # fmt: skip
"""All anomalies that are known."""


def computed_for_nothing_bytes(program: Program) -> int:
    """Return the most bytes that a backward computes again of one layer without using them."""
    most = 0
    for task in program.tasks.values():
        again = {name for op in task.ops if is_recomputed(op) for name in op.writes}
        used = {
            name for op in task.ops if op.writes and not is_recomputed(op) for name in op.reads
        }  # a wait uses nothing
        of_layer: dict[str, int] = {}
        for name in again - used:
            buffer, layer = program.buffers[name], name.partition(".")[0]
            if buffer.scope is not Scope.PERSISTENT:
                of_layer[layer] = of_layer.get(layer, 0) + allocated_bytes(buffer.num_bytes)
        most = max([most, *of_layer.values()])
    return most


def twice_made_bytes(program: Program) -> int:
    """Return the most bytes of a checkpoint's output that is made again and that backward reads."""
    most = 0
    for task in program.tasks.values():
        again = {name for op in task.ops if is_recomputed(op) for name in op.writes}
        outputs = {name for op in task.ops if not op.writes for name in op.reads} & again
        used = {name for op in task.ops if op.writes and not is_recomputed(op) for name in op.reads}
        most = max([most, *(allocated_bytes(program.buffers[name].num_bytes) for name in outputs & used)])
    return most


def casts_read_again_bytes(program: Program) -> int:
    """Return the bytes of all casts of weights that recomputation reads; of those that a pass makes, one layer's."""
    again = {
        name for task in program.tasks.values() for op in task.ops if is_recomputed(op) for name in op.reads
        if ".float8" in name
    }  # fmt: skip
    of_step, of_layer = 0, dict[str, int]()
    for name in again:
        size, layer = allocated_bytes(program.buffers[name].num_bytes), name.partition(".")[0]
        if program.buffers[name].scope is Scope.STEP:
            of_step += size
        else:
            of_layer[layer] = of_layer.get(layer, 0) + size
    return of_step + max(of_layer.values(), default=0)


def shard_bytes(program: Program) -> int:
    """Return the bytes of all shards of gradients and parameters that a program holds on its device."""
    return sum(
        allocated_bytes(buffer.num_bytes)
        for name, buffer in program.buffers.items()
        if name.partition(".")[0] in {"shard", "gradient_shard", "gradient_piece"}
        and buffer.kind in {Kind.GRADIENT, Kind.PARAMETER}
        and buffer.tier is Tier.DEVICE
    )


def update_seconds(run: SimulatedRun) -> float:
    """Return how long the optimizer's kernels of a step take on the rank where they take longest."""
    return max(
        sum(
            float((times.ends_s - times.starts_s)[:, j].sum())
            for times in run.task_times(rank) if times.task.phase is Phase.OPTIMIZER
            for j, op in enumerate(times.task.ops) if op.stream == "compute"
        )
        for rank in run.programs
    )  # fmt: skip
