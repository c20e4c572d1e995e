"""Collectives that take part of a device's arithmetic while their bytes move, as they do on processors."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from costmodels.hardware import load_node
from costmodels.profile import load_profile
from sim.engine.folding.folding import no_fold
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.running.simulate import simulate
from sim.plan.words.op import Collective
from sim.plan.words.program import Plan
from tests.examples import examples
from tests.sim.jobs import dense_plan, pricing_on

NODE = load_node("local-cpu")


def pricing(share: float, num_ranks: int) -> ClusterPricing:
    """Return prices on a CPU whose collectives take a share of their ranks' cores."""
    before = load_profile("cpu")
    profile = replace(before, network=replace(before.network, compute_share=share))
    return pricing_on(NODE, num_ranks, profile=profile)


def collective_of(plan: Plan) -> Collective:
    """Return a plan's first collective."""
    ops = (op for task in plan.programs[0].tasks.values() for op in task.ops)
    return next(op for op in ops if isinstance(op, Collective))


@given(share=st.floats(0.01, 1))
def test_collective_alone_takes_as_long_as_before(share: float) -> None:
    """Taking arithmetic changes no time where nobody else wants it; each member gives the stated part."""
    plan = dense_plan(dp=2)
    op, program = collective_of(plan), plan.programs[0]
    free, taking = (pricing(s, 2).price(plan, program, op, 0) for s in (0.0, share))
    assert taking.duration_s == pytest.approx(free.duration_s)
    taken = {
        resource: seconds
        for resource, seconds in taking.demands
        if isinstance(resource, tuple) and resource[0] == "compute"
    }
    assert taken == {("compute", rank): pytest.approx(share * free.occupancy_s) for rank in (0, 1)}


def test_overlap_costs_what_the_collective_takes() -> None:
    """A step whose gradients are synchronised meanwhile gets longer with the share, one that waits for them does not.

    It never gets longer than by the collectives' whole work.
    """
    for overlap in (True, False):
        plan = dense_plan(dp=2, m=2, overlap_gradient_sync=overlap, bucket_bytes=1)
        times_s = [simulate(plan, pricing(share, 2)).makespan_s for share in (0.0, 0.4, 0.8)]
        program = plan.programs[0]
        work_s = sum(
            pricing(0.0, 2).price(plan, program, op, 0).occupancy_s
            for task in program.tasks.values()
            for op in task.ops
            if isinstance(op, Collective)
        )
        if overlap:
            assert times_s[0] < times_s[1] < times_s[2] <= times_s[0] + 0.8 * work_s * (1 + 1e-9)
        else:
            assert times_s[1:] == pytest.approx([times_s[0]] * 2)


@settings(max_examples=examples(6), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    keys=st.sampled_from(
        [{"dp": 4}, {"tp": 2, "dp": 2}, {"dp": 4, "zero_stage": 3}, {"tp": 2, "pp": 2, "dp": 2, "m": 2}]
    ),
    share=st.floats(0.05, 1),
)
def test_folded_equals_unfolded_with_a_share(keys: dict[str, int], share: float) -> None:
    """One rank per class takes as long as all ranks, each of whose cores gives its part."""
    plan = dense_plan(**keys)
    prices = pricing(share, plan.mesh.size)
    every = simulate(plan, prices, fold=no_fold)
    folded = simulate(plan, prices)
    assert folded.makespan_s == pytest.approx(every.makespan_s, rel=1e-9)
    assert len(folded.folding.multiplicity) < plan.mesh.size
