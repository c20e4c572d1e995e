"""Links that never bind, held against the linear program that asks how much a link can carry."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from sim.engine.folding import slack
from sim.engine.folding.slack import never_binding
from sim.engine.prices.traffic import Load
from tests.examples import examples

NUM_INSIDE, NUM_NETWORK = 5, 4
NUM_LINKS = NUM_INSIDE + NUM_NETWORK
IN_NETWORK = np.arange(NUM_LINKS) >= NUM_INSIDE
USES = st.dictionaries(st.integers(0, NUM_LINKS - 1), st.sampled_from([0.25, 0.5, 1.0, 2.0]), min_size=1, max_size=6)


def load_of(users: list[dict[int, float]]) -> Load:
    """Return a load by user, link and seconds."""
    rows = [(user, link, seconds) for user, uses in enumerate(users) for link, seconds in sorted(uses.items())]
    groups, links, seconds = zip(*rows, strict=True)
    return Load(np.array(groups), np.array(links), np.array(seconds))


def most_carried(users: list[dict[int, float]], link: int) -> float:
    """Return the most that a link can be asked to carry while no link outside the network carries more than 1."""
    demands = np.array([[uses.get(k, 0.0) for uses in users] for k in range(NUM_LINKS)])
    kept = demands[:NUM_INSIDE]
    found = linprog(-demands[link], A_ub=kept, b_ub=np.ones(len(kept)), bounds=(0, None))
    return np.inf if found.status == 3 else -float(found.fun)


@settings(max_examples=examples(60), deadline=None)
@given(exchanges=st.lists(st.lists(USES, min_size=1, max_size=4), min_size=1, max_size=3))
def test_links_that_never_bind_are_held_back_by_others(exchanges: list[list[dict[int, float]]]) -> None:
    """No rates that links outside the network allow ask more than all of a link that is said never to bind."""
    never = never_binding([load_of(users) for users in exchanges], IN_NETWORK)
    users = [user for exchange in exchanges for user in exchange]
    assert not never[:NUM_INSIDE].any()
    for link in np.flatnonzero(never):
        assert most_carried(users, int(link)) <= 1 + 1e-9


@settings(max_examples=examples(60), deadline=None)
@given(exchanges=st.lists(st.lists(USES, min_size=1, max_size=4), min_size=1, max_size=3))
def test_links_that_a_load_alone_fills_are_those_that_no_choice_covers(exchanges: list[list[dict[int, float]]]) -> None:
    """What a load alone carries is no more than the linear program's most, and telling by it changes no answer."""
    loads = [load_of(users) for users in exchanges]
    for users, load in zip(exchanges, loads, strict=True):
        carried = slack._carried(slack._Users.of(load, IN_NETWORK[load.links]), NUM_LINKS)
        assert all(carried[link] <= most_carried(users, int(link)) + 1e-9 for link in np.flatnonzero(IN_NETWORK))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slack, "_carried", lambda users, num_links: np.zeros(num_links))
        by_choice = never_binding(loads, IN_NETWORK)
    assert never_binding(loads, IN_NETWORK).tolist() == by_choice.tolist()


def summed_one_by_one(exchanges: list[list[dict[int, float]]], last: bool) -> list[float]:
    """Return the sum over each network link's covers, after the users of all exchanges have chosen, by plain loops."""
    of_link: list[dict[int, float]] = [{} for _ in range(NUM_LINKS)]
    for users in sorted(exchanges, key=lambda users: sum(map(len, users)) / len(users)):
        chosen = []
        for uses in users:
            outside = {link: seconds for link, seconds in uses.items() if link < NUM_INSIDE}
            longest = max(outside.values(), default=0.0)
            tight = sorted(link for link, seconds in outside.items() if seconds == longest) or [0]
            for link in sorted(uses.keys() - outside.keys()):
                held, own = of_link[link], tight[-1 if last else 0]
                ratios = {cover: uses[link] / outside[cover] if cover in outside else 1e30 for cover in (own, *held)}
                added = {cover: max(ratio - held.get(cover, 0.0), 0.0) for cover, ratio in ratios.items()}
                best = min([own, *sorted(held)], key=lambda cover, added=added: added[cover])  # type: ignore[misc]
                chosen.append((link, best, ratios[best]))
        for link, cover, ratio in chosen:
            of_link[link][cover] = max(ratio, of_link[link].get(cover, 0.0))
    return [sum(held.values()) for held in of_link]


@settings(max_examples=examples(60), deadline=None)
@given(exchanges=st.lists(st.lists(USES, min_size=1, max_size=6), min_size=1, max_size=4), last=st.booleans())
def test_users_choose_as_if_one_by_one(exchanges: list[list[dict[int, float]]], last: bool) -> None:
    """The sums over covers are those of a loop over users, each of which takes what adds least to a link's sum."""
    loads = sorted(map(load_of, exchanges), key=slack._links_per_user)
    reaching = [slack._Users.of(load, IN_NETWORK[load.links]) for load in loads]
    sums = slack._bounds(reaching, IN_NETWORK, last=last)
    assert sums.tolist() == pytest.approx(summed_one_by_one(exchanges, last)[NUM_INSIDE:], rel=1e-12)


def test_a_ring_counts_for_an_adapter_that_counts_already() -> None:
    """Four messages and a ring over the same adapters cannot fill a link as wide as four adapters."""
    adapters, uplink = range(4), NUM_INSIDE
    messages = [{adapter: 1.0, uplink: 0.25} for adapter in adapters]
    ring = dict.fromkeys(adapters, 1.0) | {4: 1.0, uplink: 0.25}
    assert never_binding([load_of(messages), load_of([ring])], IN_NETWORK)[uplink]
    elsewhere = {4: 1.0, uplink: 0.25}
    assert not never_binding([load_of(messages), load_of([elsewhere])], IN_NETWORK)[uplink]
