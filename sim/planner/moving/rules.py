"""Jobs whose steps are sums of calls."""

from typing import Final

import numpy as np

from sim.engine.prices.pricing import ClusterPricing
from sim.training.data.axes import training_mesh
from sim.training.errors import SpecError
from sim.training.spec.job import DenseTraining

KEY: Final = "model.experts.placement.step_times"
_LEAVE: Final = "write step_times: engine, or leave it out"


def check_summable(job: DenseTraining, pricing: ClusterPricing) -> None:
    """Raise SpecError unless all ranks share out the experts, are alike, and have one sum of gradients per bucket."""
    mesh, experts, training = training_mesh(job.parallel), job.model.experts, job.training
    assert experts is not None
    rules = {
        f"{job.parallel.expert_degree} of {mesh.size} ranks share out the experts": mesh.size
        != job.parallel.expert_degree,
        "rows travel in eight bits": experts.dispatch_precision == "fp8",
        "products are in eight bits": training.types.casts,
        "gradients are scaled or checked before their sums": training.check_gradients or job.gradient_scale != 1.0,
        "a host launches the kernels one by one": pricing.software.launches,
        "collectives take a part of the arithmetic": any(
            profile.network.compute_share for profile in (pricing.profile, *pricing.profiles.values())
        ),
        "an all_to_all has an algorithm of its own": pricing.algorithms.get("all_to_all", "auto")
        not in {"auto", "direct"},
    }
    for rule, holds in rules.items():
        if holds:
            raise SpecError(KEY, f"steps as sums are not built where {rule}", _LEAVE)
    fast = pricing.cluster.topology.device_slowdown[pricing.cluster.devices[: mesh.size]]
    if pricing.variation.is_any or len(np.unique(fast)) > 1 or len(pricing.cluster.device_types) > 1:
        raise SpecError(KEY, "steps as sums are not built where devices differ", _LEAVE)
