"""Scenarios of a few layers, whose plans are priced for estimates."""

from collections.abc import Mapping
from typing import Final

from scenarios.planning.openings import Openings
from scenarios.workloads.steps.scenario import StepScenario
from sim.planner.prices import ProbeKey
from sim.planner.space import RECOMPUTE, OffloadChoice, Strategy
from sim.training.pipeline.rules import Schedule

_ZERO_STAGES: Final[Mapping[OffloadChoice | None, int]] = {None: 0, "none": 2, "optimizer": 2, "state": 3}


def small_scenario(
    openings: Openings, key: ProbeKey, num_layers: int, num_stages: int, schedule: Schedule = "1f1b",
    offload: OffloadChoice | None = None, num_microbatches: int = 1,
) -> StepScenario:  # fmt: skip
    """Return a scenario of a few layers and micro-batches on all ranks.

    ``offload``: with the ZeRO stage of state on hosts; "none" with ZeRO 2.

    ``key``: its tensor, context and expert degree, micro-batch and recomputation. Raises ScenarioError where the
    scenario's rules refuse it.
    """
    tensor, context, expert, microbatch_size, recompute = key
    data = openings.sizes.world_size // (tensor * context * num_stages)
    strategy = Strategy(
        tensor, context, num_stages, schedule, 1, data, expert, 0, offload or "none", microbatch_size,
        RECOMPUTE[recompute],
    )  # fmt: skip
    more = [
        f"training.global_batch_size={microbatch_size * data * num_microbatches}", f"model.num_layers={num_layers}",
        f"parallel.pipeline.degree={num_stages}", f"parallel.pipeline.schedule={schedule}",
        "parallel.pipeline.virtual_stages=1", f"parallel.data.degree={data}",
        f"parallel.data.zero_stage={_ZERO_STAGES[offload]}",
        f"parallel.data.offload={'optimizer' if offload == 'optimizer' else 'null'}",
    ]  # fmt: skip
    if openings.job.model.experts is not None:
        more.append("model.experts.first_dense_layers=0")
    return openings.scenario(strategy, more)
