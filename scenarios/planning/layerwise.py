"""Galvatron's, BMW's and Alpa's plans of a scenario: degrees that all layers share, and a strategy for every layer."""

from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Final, Literal

import numpy as np

from scenarios.errors import Origin, ScenarioError
from scenarios.planning.misfit import refuse_planner
from scenarios.planning.openings import KEYS, Openings
from scenarios.planning.pricing import priced
from scenarios.planning.studied import Studied
from scenarios.reading.schema.layer_ranges import written_layers
from sim.planner.decision_tree import decision_trees
from sim.planner.galvatron import Balancing, LayerwisePlan, fastest_plans
from sim.planner.layer_costs import Frame
from sim.planner.prices import Estimates
from sim.planner.space import RECOMPUTE, Grid, Ints, grid
from sim.training.data.operators import operator_shares

LayerwisePlanner = Literal["galvatron", "galvatron_bmw", "alpa"]
_BALANCING: Final[Mapping[LayerwisePlanner, Balancing]] = {
    "galvatron": "even", "galvatron_bmw": "moves", "alpa": "exact"
}  # fmt: skip
_MOST_PLANS: Final = 16
"""Plans that are kept for each strategy that is to be simulated."""
_LAYER_KEYS: Final = ("parallel.data.osdp.layers", "parallel.data.osdp.ends")
_BALANCING_KEYS: Final = ("parallel.pipeline.layers_per_stage", "training.recompute_layers")


def layerwise_of(openings: Openings, planner: LayerwisePlanner, num_proofs: int, workers: Executor) -> Studied:
    """Return the best plan of every frame of degrees with its estimate, priced by ``workers``.

    Raises ScenarioError for what the planner does not search, and where no plan fits.
    """
    _refuse_unsearched(openings)
    balancing = _BALANCING[planner]
    every = _frames(openings, balances=balancing != "even")
    found = priced(openings, every, workers) if len(every) else None
    plans: list[LayerwisePlan] = []
    if found is not None:
        modes = [RECOMPUTE[mode] == "full" for mode in np.unique(every.recompute).tolist()]
        frames, shares = _distinct(every), operator_shares(openings.job.model)
        plans = fastest_plans(
            frames, found.prices, openings.room_bytes, shares, shards=_shards(openings), recomputes=modes,
            balancing=balancing, most=_MOST_PLANS * num_proofs,
        )  # fmt: skip
    if not plans:
        refuse_planner(openings, planner, workers)
    keys = (*_LAYER_KEYS, *(_BALANCING_KEYS if balancing != "even" else ()))
    estimates = Estimates(np.array([p.time_s for p in plans]), np.array([p.memory_bytes for p in plans]))
    more = tuple(_overrides(plan) for plan in plans)
    studied = Studied(openings, _grid(plans), estimates, openings.room_bytes, Counter(), more, keys)
    studied.scenario(0)  # whose error is that of all
    return studied


def _frames(openings: Openings, *, balances: bool) -> Grid:
    """Return the grid of degrees, micro-batches and recomputation that layers can share.

    Of Galvatron's trees those whose tensor-parallel ranks are neighbours: one degree for all layers.
    """
    trees = decision_trees(openings.sizes.world_size)
    inside = [tree for tree in trees if tree.degree("tensor") == 1 or tree.levels[-1][0] == "tensor"]
    pairs = {(tree.degree("tensor"), tree.pipeline) for tree in inside}
    choices = openings.choices()
    modes = [mode for mode in choices["recompute"] if RECOMPUTE[mode] != "selective"]
    chosen = {"schedule": [0], "virtual_stages": [1], "context": [1], "expert": [1], "zero_stage": [0], "offload": [0]}
    every = grid({**choices, **chosen, "recompute": modes if balances else modes[:1]}, openings.sizes)
    kept = [pair in pairs for pair in zip(every.tensor.tolist(), every.pipeline.tolist(), strict=True)]
    return every.rows(np.array(kept, dtype=np.bool_))


def _distinct(every: Grid) -> list[Frame]:
    columns = (every.tensor, every.pipeline, every.data, every.microbatch_size, every.num_microbatches)
    return list(dict.fromkeys(Frame(*row) for row in zip(*(column.tolist() for column in columns), strict=True)))


def _shards(openings: Openings) -> list[bool]:
    stage = openings.fixed.get("zero_stage")
    return [False, True] if stage is None else [stage == 3]


def _grid(plans: list[LayerwisePlan]) -> Grid:
    """Return the plans as rows; one that shards a layer counts as ZeRO 3."""
    ones, full = np.ones(len(plans), dtype=np.int64), RECOMPUTE.index("full")

    def column(values: list[int]) -> Ints:
        return np.array(values, dtype=np.int64)

    return Grid(
        tensor=column([plan.frame.tensor for plan in plans]),
        context=ones,
        pipeline=column([plan.frame.pipeline for plan in plans]),
        schedule=np.zeros_like(ones),
        virtual_stages=ones,
        data=column([plan.frame.data for plan in plans]),
        expert=ones,
        zero_stage=column([3 * (p.ends_sharded or any(s.sharded for s in p.strategies)) for p in plans]),
        offload=np.zeros_like(ones),
        microbatch_size=column([plan.frame.microbatch_size for plan in plans]),
        recompute=column([full * any(s.recomputed for s in plan.strategies) for plan in plans]),
        num_microbatches=column([plan.frame.num_microbatches for plan in plans]),
    )


def _overrides(plan: LayerwisePlan) -> tuple[str, ...]:
    """Return what a plan sets beside the keys of a strategy."""
    sharded = written_layers(layer for layer, s in enumerate(plan.strategies) if s.sharded)
    again = [layer for layer, s in enumerate(plan.strategies) if s.recomputed]
    found = ["parallel.data.zero_stage=0"]
    if plan.frame.data > 1:
        found += [f"parallel.data.osdp.layers={_written(sharded)}", f"parallel.data.osdp.ends={plan.ends_sharded}"]
    if plan.frame.pipeline > 1:
        found.append(f"parallel.pipeline.layers_per_stage={_written(plan.layers_per_stage)}")
    if 0 < len(again) < len(plan.strategies):
        found.append(f"training.recompute_layers={_written(written_layers(again))}")
    return tuple(found)


def _written(values: "list[int | str] | tuple[int, ...]") -> str:
    """Return a list as YAML."""
    return f"[{', '.join(map(str, values))}]"


def _refuse_unsearched(openings: Openings) -> None:
    """Raise ScenarioError for what plans with a strategy for every layer do not know."""
    world, document = openings.sizes.world_size, openings.document
    if world & (world - 1):
        rule = f"Galvatron's degrees are powers of two, and there are {world:,} devices"
        raise ScenarioError(document.origin(("cluster",)), "cluster", rule, "take --planner auto")
    if openings.job.model.experts is not None:
        rule = "a strategy for every layer is not built for experts"
        raise ScenarioError(document.origin(("model",)), "model.experts", rule, "take --planner auto")
    allowed = {
        "zero_stage": (0, 3),
        "offload": (0,),
        "schedule": (0,),
        "virtual_stages": (1,),
        "context": (1,),
        "recompute": (0, 2),
    }
    choices = openings.choices()
    for name, values in allowed.items():
        if not set(values) & set(choices[name]):
            rule = "layers are sharded or not, and recomputed or not, in 1f1b pipelines, and here is "
            remedy = "leave it out, or take --planner auto"
            if name not in openings.fixed:  # what is searched, an option says
                rule += f"none of these: {', '.join(openings.schedules)}"
                raise ScenarioError(Origin(option="--schedules"), "", rule, remedy)
            rule, key = f"{rule}{openings.fixed[name]}", KEYS[name]
            raise ScenarioError(document.origin(key.split(".")), key, rule, remedy)
