"""Prices that several plans share: each plan's collectives are those of its own mesh."""

from costmodels.hardware import load_node
from sim.engine.findings.alone import tasks_alone_s
from tests.sim.jobs import dense_plan, pricing_on


def test_prices_of_one_mesh_are_not_those_of_another() -> None:
    """Plans of 2, 4 and 8 tensor-parallel ranks cost with shared prices what each costs with its own, to the last bit.

    Their activations are of one size, so nothing but the mesh tells their collectives apart.
    """
    node = load_node("hgx-h100")
    shared = pricing_on(node, 8)
    found = []
    for degree in (2, 4, 8):
        plan = dense_plan(tp=degree, dp=8 // degree)
        found.append(tasks_alone_s(plan, shared))
        assert found[-1] == tasks_alone_s(plan, pricing_on(node, 8))
    assert found[0] != found[1] != found[2]
