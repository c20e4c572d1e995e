"""Reductions and multicasts of switches: proved on symbolic chunks, their closed forms, and who may use them."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from costmodels.collectives.catalogue import collective_steps
from costmodels.collectives.cost import collective_cost, exclusive_seconds, why_not
from costmodels.collectives.network import COLLNET, NetworkParameters, Protocol
from costmodels.collectives.steps import StepList
from costmodels.collectives.steps_in_network import IN_NETWORK_STEPS
from costmodels.errors import AlgorithmError, CollectiveError
from costmodels.profile import list_profiles, load_profile
from tests.costmodels.collectives.test_steps import prove

GIB = 2**30
CASES = [(kind, name) for kind, algorithms in IN_NETWORK_STEPS.items() for name in algorithms]
BETWEEN = [case for case in CASES if case[1] in COLLNET]
equal_nodes = st.builds(lambda nodes, most: (most,) * nodes, st.integers(2, 9), st.integers(1, 8))
NET = NetworkParameters(
    intra_bandwidth_bytes_per_s=200e9,
    intra_latency_s=1e-6,
    inter_bandwidth_bytes_per_s=25e9,
    inter_latency_s=5e-6,
    nics_per_node=8,
    in_network_reduction=True,
)


@pytest.mark.parametrize(("kind", "algorithm"), CASES)
def test_every_rank_ends_with_the_right_sum_or_pieces(kind: str, algorithm: str) -> None:
    """The switch adds every term once and hands out whole sums; from 1 to 9 nodes of 1 to 8 ranks."""
    for nodes in range(1, 10):
        for most in range(1, 9):
            if algorithm == "in_switch" and nodes > 1:
                continue
            case = IN_NETWORK_STEPS[kind][algorithm]((most,) * nodes)
            assert (case.kind, case.num_ranks, case.num_switches) == (kind, nodes * most, 1)
            prove(case)


def crossing(case: StepList, most: int) -> tuple[float, float]:
    """Return what the busiest node sends to the switch and the busiest rank inside its node, of a payload of 1."""
    to_switch: dict[int, float] = defaultdict(float)
    inside: dict[int, float] = defaultdict(float)
    for step in case.steps:
        part = len(step.chunks) / case.num_chunks
        if step.target == case.num_ranks:
            to_switch[step.source // most] += part
        elif step.source < case.num_ranks:
            inside[step.source] += part
    return max(to_switch.values()), max(inside.values(), default=0.0)


@pytest.mark.parametrize(("kind", "algorithm"), BETWEEN)
@given(nodes=equal_nodes)
def test_closed_forms_are_the_step_lists_bytes(kind: str, algorithm: str, nodes: tuple[int, ...]) -> None:
    """The busiest node sends once what the closed form says, n in an all_reduce; the busiest rank what it passes on."""
    cost = collective_cost(kind, GIB, nodes, NET, algorithm)
    sent, passed = crossing(IN_NETWORK_STEPS[kind][algorithm](nodes), nodes[0])
    whole = GIB if kind == "all_reduce" else (len(nodes) - 1) / len(nodes) * GIB
    assert cost.nic_bytes == pytest.approx(whole)
    assert cost.port_bytes == pytest.approx(passed * GIB)
    if kind == "all_gather":  # a node puts in only its own; what it gets is the bound
        assert sent * len(nodes) == pytest.approx(1)
    else:
        assert sent * GIB == pytest.approx(cost.nic_bytes)


def test_in_switch_bytes_are_the_step_lists() -> None:
    """Inside a node a rank supplies n and multicasts its n/g."""
    for ranks in range(3, 9):
        sent, _ = crossing(IN_NETWORK_STEPS["all_reduce"]["in_switch"]((ranks,)), 1)
        assert sent == pytest.approx(1 + 1 / ranks)


@given(nodes=equal_nodes)
def test_latency_is_ncclls(nodes: tuple[int, ...]) -> None:
    """Two hops inside, 0.4 us per further member, or a chain both ways; one hop between (NCCL, tuning.cc)."""
    most = nodes[0]
    direct, chain = (collective_cost("all_reduce", 8, nodes, NET, name).latency_s for name in sorted(COLLNET)[::-1])
    assert direct == pytest.approx(2 * (min(1, most - 1) * 1e-6 + (most - 1) * 0.4e-6) + 5e-6, abs=1e-10)
    assert chain == pytest.approx(2 * (most - 1) * 1e-6 + 5e-6, abs=1e-10)


def test_a_rank_per_node_sends_once_and_receives_once() -> None:
    """Closed form n/B, half of the ring's 2 (g-1)/g n/B in the limit (Graham et al. 2016)."""
    nodes = (1,) * 64
    reduced = collective_cost("all_reduce", GIB, nodes, NET, "collnet_direct")
    ring = collective_cost("all_reduce", GIB, nodes, NET, "ring")
    assert exclusive_seconds(reduced, nodes, NET) - reduced.latency_s == pytest.approx(GIB / 25e9)
    assert ring.nic_bytes / reduced.nic_bytes == pytest.approx(2 * 63 / 64)


@pytest.mark.parametrize(("kind", "algorithm"), BETWEEN)
def test_switches_that_do_not_reduce_are_never_chosen(kind: str, algorithm: str) -> None:
    """``auto`` is what it was without them; a name is refused with the reason."""
    plain = replace(NET, in_network_reduction=False)
    for nodes in [(1,) * 4, (8,) * 4, (8,), (4, 2)]:
        for num_bytes in (8, 2**20, GIB):
            assert collective_cost(kind, num_bytes, nodes, plain).algorithm not in COLLNET
    with pytest.raises(AlgorithmError, match="8 ranks on each of 4 nodes: the switches between nodes do not reduce"):
        collective_cost(kind, GIB, (8,) * 4, plain, algorithm)


@pytest.mark.parametrize(
    ("kind", "nodes", "adapters", "why"),
    [
        ("all_reduce", (8,) * 4, 8, ""),
        ("all_reduce", (8,) * 4, 1, ""),
        ("all_reduce", (8, 4), 8, "as many ranks on every node, at most 8"),
        ("all_reduce", (9, 9), 9, "as many ranks on every node, at most 8"),
        ("all_reduce", (72, 72), 72, "as many ranks on every node, at most 8"),
        ("all_gather", (8,) * 4, 4, "an adapter for each rank of a node, and there are 4"),
        ("reduce_scatter", (2,) * 4, 1, "an adapter for each rank of a node, and there are 1"),
        ("all_gather", (4,) * 4, 4, ""),
        ("all_reduce", (8,), 8, "no switch between ranks on one node"),
    ],
)
def test_groups_that_collnet_serves(kind: str, nodes: tuple[int, ...], adapters: int, why: str) -> None:
    """Equal nodes of at most eight ranks; gathers and scatters with an adapter for each (NCCL, init.cc, tuning.cc)."""
    network = replace(NET, nics_per_node=adapters)
    found = why_not(kind, "collnet_direct", nodes, network)
    assert (found == "") if not why else (why in found)
    if len(nodes) == 1:  # what is about the network leaves a node to the library
        assert collective_cost(kind, GIB, nodes, network, "collnet_direct") == collective_cost(
            kind, GIB, nodes, network
        )
    elif why:
        assert collective_cost(kind, GIB, nodes, network).algorithm not in COLLNET
        with pytest.raises(AlgorithmError, match=why):
            collective_cost(kind, GIB, nodes, network, "collnet_direct")


@pytest.mark.parametrize("name", [name for name in list_profiles() if name not in ("cpu", "roofline", "turing")])
def test_large_reductions_between_nodes_choose_collnet_where_switches_reduce(name: str) -> None:
    """With a profile's own protocols, a gigabyte over many nodes of one rank is reduced by the switches."""
    network = replace(NET, protocols=load_profile(name).network.protocols)
    assert collective_cost("all_reduce", GIB, (1,) * 16, network).algorithm in COLLNET
    assert (
        collective_cost("all_reduce", GIB, (1,) * 16, replace(network, in_network_reduction=False)).algorithm == "ring"
    )


def test_libraries_without_collnet_of_their_own_send_its_messages() -> None:
    """A library whose tuner does not know it never chooses it; asked for by name, it goes by the ring's protocols."""
    ring = Protocol(name="simple", base_latency_s=7e-6, algorithms=("ring", "tree"))
    network = replace(NET, protocols=(ring,))
    assert collective_cost("all_reduce", GIB, (1,) * 16, network).algorithm == "ring"
    assert collective_cost("all_reduce", 8, (1,) * 16, network, "collnet_chain").latency_s == pytest.approx(12e-6)


def test_what_switches_do_has_no_step_list_for_processes() -> None:
    """Executed lists are of ranks alone; unequal nodes and several switches inside nodes are refused."""
    for kind, algorithm in CASES:
        with pytest.raises(CollectiveError, match="has no step list"):
            collective_steps(kind, algorithm, (4, 4))
    with pytest.raises(CollectiveError, match="as many ranks on every node"):
        IN_NETWORK_STEPS["all_reduce"]["collnet_direct"]((4, 3))
    with pytest.raises(CollectiveError, match="one node has one switch"):
        IN_NETWORK_STEPS["all_reduce"]["in_switch"]((4, 4))
