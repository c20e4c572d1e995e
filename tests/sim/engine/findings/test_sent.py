"""Bytes sent per rank and step, against closed forms."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.collectives.catalogue import collective_steps
from sim.engine.findings.sent import sent_bytes
from sim.engine.folding.folding import fold, no_fold
from sim.engine.running.simulate import simulate
from tests.examples import examples
from tests.sim.jobs import GPT, dense_plan, pricing_on

ELEMENT_BYTES = 2
BOUNDARY_ELEMENTS = GPT["sequence_length"] * GPT["hidden_size"]


def sent(num_ranks: int, *, node: str = "dgx-a100-80g", devices_per_node: int = 0, **keys: object) -> dict[str, float]:
    """Return what the mean rank of a job sends, by purpose."""
    pricing = pricing_on(node, num_ranks, devices_per_node=devices_per_node)
    return sent_bytes(simulate(dense_plan(precision="bf16", **keys), pricing), pricing)


@settings(max_examples=examples(6))
@given(p=st.sampled_from([2, 4]), rounds=st.integers(1, 3), b=st.integers(1, 3), v=st.sampled_from([1, 2]))
def test_pipelines_send_every_boundary_forward_and_back(p: int, rounds: int, b: int, v: int) -> None:
    """p v - 1 boundaries, m micro-batches, two ways: with v virtual stages about v times the traffic."""
    if p * v > GPT["num_layers"]:
        v = 1
    m = p * rounds
    schedule = "1f1b" if v == 1 else "interleaved_1f1b"
    found = sent(p, pp=p, m=m, b=b, schedule=schedule, virtual_stages=v)
    assert found["pp"] == pytest.approx(2 * (p * v - 1) * m * b * BOUNDARY_ELEMENTS * ELEMENT_BYTES / p)


@pytest.mark.parametrize(("t", "m", "collective_matmul"), [(2, 1, False), (4, 3, False), (2, 1, True), (4, 3, True)])
def test_sequence_parallel_ranks_send_what_their_layers_gather_and_scatter(
    t: int, m: int, collective_matmul: bool
) -> None:
    """A layer sends (t-1)/t of its activations ten times per micro-batch, and sums replicated gradients once a step.

    Two gathers and two scatters forward, four such backward (Korthikanti et al. 2022, section 4.2.2), and the inputs of
    both weight gradients gathered again. Norms and the biases of split rows are 6 h numbers of 32 bits. In pieces these
    are as many bytes.
    """
    keys = {"sequence_parallel": True, "collective_matmul": collective_matmul}
    h, s = GPT["hidden_size"], GPT["sequence_length"]
    deep, shallow = (sent(t, tp=t, m=m, **keys, model=GPT | {"num_layers": layers})["tp"] for layers in (6, 2))
    layer_bytes = (t - 1) / t * (10 * m * s * h * ELEMENT_BYTES + 2 * 6 * h * 4)
    assert (deep - shallow) / 4 == pytest.approx(layer_bytes)


def test_data_parallel_ranks_send_gradients_twice_over() -> None:
    """An all_reduce by a ring sends 2 (d-1)/d of the gradients and of the loss, in 32 bits."""
    d = 4
    found = sent(d, dp=d, m=2)
    h, s, layers = GPT["hidden_size"], GPT["sequence_length"], GPT["num_layers"]
    num_parameters = layers * (12 * h * h + 13 * h) + GPT["vocab_size"] * h + s * h + 2 * h
    assert found == {"dp": pytest.approx(2 * (d - 1) / d * 4 * (num_parameters + 1))}


def test_folding_changes_no_traffic() -> None:
    """The mean over all ranks is the same whether those that are alike are simulated once or all of them."""
    plan = dense_plan(tp=2, pp=2, dp=2, m=4, precision="bf16")
    pricing = pricing_on("dgx-a100-80g", 8, devices_per_node=4)
    folded, whole = (sent_bytes(simulate(plan, pricing, fold=way), pricing) for way in (fold, no_fold))
    assert set(folded) == {"tp", "pp", "dp", "embedding"}
    assert folded == pytest.approx(whole)


def test_mean_member_of_a_step_list_sends_what_is_counted() -> None:
    """For a forced algorithm the count is the step list's messages over the members."""
    steps = collective_steps("all_reduce", "halving_doubling", (4,))
    chunks = sum(len(step.chunks) for step in steps.steps) / steps.num_chunks / 4
    plan = dense_plan(dp=4, m=1, precision="bf16")
    auto = pricing_on("dgx-a100-80g", 4)
    ring, halving = (
        sent_bytes(simulate(plan, pricing), pricing)["dp"]
        for pricing in (
            type(auto)(auto.cluster, auto.profile, algorithms={"all_reduce": name})
            for name in ("ring", "halving_doubling")
        )
    )
    assert halving / ring == pytest.approx(chunks / (2 * 3 / 4))
