"""Flows against step lists: what every pair of ranks exchanges, all rounds together."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.collectives.catalogue import STEP_LISTS, collective_steps
from costmodels.collectives.cost import collective_cost
from costmodels.collectives.flows import collective_flows
from costmodels.collectives.network import NetworkParameters
from costmodels.collectives.traffic import LIBRARY
from tests.examples import examples

CASES = [
    (kind, name) for kind, names in STEP_LISTS.items() for name in names if (kind, name) != ("all_reduce", "tree")
]  # fmt: skip
"""All but the double binary tree, which is laid out evenly."""
NETWORK = NetworkParameters(
    intra_bandwidth_bytes_per_s=1e11, intra_latency_s=0.0, inter_bandwidth_bytes_per_s=1e10, inter_latency_s=0.0
)


def exchanged(kind: str, algorithm: str, ranks_per_node: tuple[int, ...]) -> dict[tuple[int, int], float]:
    """Return what the step list moves between pairs, per byte of payload."""
    case = collective_steps(kind, algorithm, ranks_per_node)
    chunks = {"barrier": 1, "all_to_all": case.num_chunks // case.num_ranks}.get(kind, case.num_chunks)
    found: dict[tuple[int, int], float] = defaultdict(float)
    for step in case.steps:
        found[step.source, step.target] += len(step.chunks) / chunks
    return found


@pytest.mark.parametrize(("kind", "algorithm"), CASES)
@pytest.mark.parametrize("num_ranks", [2, 3, 4, 5, 8, 13, 16])
def test_flows_in_one_node_equal_those_of_the_step_list(kind: str, algorithm: str, num_ranks: int) -> None:
    """Where there is one channel, every pair exchanges what it does step by step."""
    flows = collective_flows(kind, algorithm, (num_ranks,))
    found = dict(zip(zip(flows.sources.tolist(), flows.targets.tolist(), strict=True), flows.parts, strict=True))
    assert found == pytest.approx(exchanged(kind, algorithm, (num_ranks,)))


@pytest.mark.parametrize(("kind", "algorithm"), CASES)
@given(num_nodes=st.integers(2, 5), per_node=st.integers(1, 6))
@settings(max_examples=examples(6), deadline=None)
def test_channels_move_as_much_in_all_as_the_step_list(
    kind: str, algorithm: str, num_nodes: int, per_node: int
) -> None:
    """Channels spread traffic over a node's ranks; they neither add nor lose any."""
    ranks_per_node = (per_node,) * num_nodes
    flows = collective_flows(kind, algorithm, ranks_per_node)
    assert flows.parts.sum() == pytest.approx(sum(exchanged(kind, algorithm, ranks_per_node).values()))


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
@given(num_nodes=st.integers(2, 5), per_node=st.integers(1, 8))
@settings(max_examples=examples(10), deadline=None)
def test_every_rank_of_a_node_sends_and_receives_alike_between_nodes(kind: str, num_nodes: int, per_node: int) -> None:
    """A ring's channels use all adapters of equal nodes alike, and together carry what the closed form says."""
    ranks_per_node = (per_node,) * num_nodes
    flows = collective_flows(kind, "ring", ranks_per_node)
    crosses = flows.sources // per_node != flows.targets // per_node
    sent = np.bincount(flows.sources[crosses], flows.parts[crosses], minlength=num_nodes * per_node)
    received = np.bincount(flows.targets[crosses], flows.parts[crosses], minlength=num_nodes * per_node)
    assert np.allclose(sent, sent[0])
    assert np.allclose(received, sent[0])
    cost = collective_cost(kind, 1_000_000, ranks_per_node, NETWORK, "ring")
    assert sent[0] * per_node * 1_000_000 == pytest.approx(cost.nic_bytes)


@given(num_nodes=st.integers(2, 40))
@settings(max_examples=examples(10), deadline=None)
def test_the_busiest_of_a_double_binary_tree_sends_as_much_as_all_do_here(num_nodes: int) -> None:
    """Every node sends twice the payload; step by step none sends more, and half of them or more send as much."""
    flows = collective_flows("all_reduce", "tree", (1,) * num_nodes)
    assert np.allclose(np.bincount(flows.sources, flows.parts), 2.0)
    sent: dict[int, float] = defaultdict(float)
    for (source, _), part in exchanged("all_reduce", "tree", (1,) * num_nodes).items():
        sent[source] += part
    assert max(sent.values()) <= 2.0 + 1e-9
    assert sum(value > 2.0 - 1e-9 for value in sent.values()) >= num_nodes // 2 - 1


def test_every_algorithm_of_the_library_has_flows() -> None:
    """Whatever the tuner may choose can be put on links."""
    for kind, names in LIBRARY.items():
        for name in names:
            nodes = (4,) if name == "in_switch" else (4, 4)
            assert collective_flows(kind, name, nodes).parts.sum() > 0


def test_ranks_alone_exchange_nothing() -> None:
    """A group of one has no flows."""
    assert collective_flows("all_reduce", "ring", (1,)).parts.size == 0
