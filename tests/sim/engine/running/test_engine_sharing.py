"""Max-min fair sharing, against linear programs, exact rational numbers and a simulation that forgets nothing."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heappop, heappush

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from sim.engine.prices.activity import Activity
from sim.engine.running.sharing import SETTLE, Demands, SharedResources
from tests.examples import examples

ExactDemand = Mapping[str, Fraction]


def fair_fractions(demands: Sequence[Demands]) -> list[float]:
    """Return the speed of each of these activities, that start together, as a fraction of its speed alone."""
    resources = SharedResources(lambda *_: None)
    for key, demand in enumerate(demands):
        resources.start(key, demand, 0.0)
    resources.finish(SETTLE, 0, 0.0)
    return [resources.flows[key].fraction for key in range(len(demands))]


def lexicographic_max_min(demands: list[Demands]) -> list[float]:
    """Return max-min fair fractions by linear programs: raise the least, fix whoever cannot rise, and again."""
    resources = sorted({r for demand in demands for r, d in demand if d > 0}, key=str)
    shares = np.zeros((len(resources), len(demands)))
    for i, demand in enumerate(demands):
        for r, d in demand:
            if d > 0:
                shares[resources.index(r), i] = d / max(x for _, x in demand)
    fixed: dict[int, float] = {}
    while len(fixed) < len(demands):
        open_ = [i for i in range(len(demands)) if i not in fixed]
        level = _highest(shares, fixed, dict.fromkeys(open_), None)[-1]
        stuck, seen_above = [], set[int]()
        for i in open_:
            if i not in seen_above:
                found = _highest(shares, fixed, dict.fromkeys(open_, level), i)
                seen_above |= {j for j in open_ if found[j] > level + 1e-5}
                if found[i] <= level + 1e-9:
                    stuck.append(i)
        fixed |= dict.fromkeys(stuck, level)
    return [fixed[i] for i in range(len(demands))]


def _highest(
    shares: np.ndarray, fixed: dict[int, float], least: dict[int, float | None], of: int | None
) -> list[float]:
    """Return fractions, and their common level, where that level or the fraction ``of`` one is the highest.

    Open activities have ``least`` or more; the fixed ones have what they have.
    """
    num = shares.shape[1]
    objective = np.zeros(num + 1)
    objective[num if of is None else of] = -1.0
    bounds = [(fixed[i], fixed[i]) if i in fixed else (least[i] or 0.0, 1.0) for i in range(num)]
    rows, limits = [np.append(row, 0.0) for row in shares], [1.0] * len(shares)
    if of is None:
        for i in least:
            rows.append(np.append(-np.eye(num)[i], 1.0))
            limits.append(0.0)
    slack = 1e-12
    found = linprog(objective, A_ub=np.array(rows), b_ub=np.array(limits) + slack, bounds=[*bounds, (0.0, 1.0)])
    assert found.success, found.message
    return list(found.x)


def exact_fractions(demands: Sequence[ExactDemand]) -> list[Fraction]:
    """Return max-min fair fractions without rounding: raise everybody until a resource is full, and again."""
    shares = [{r: d / max(demand.values()) for r, d in demand.items()} for demand in demands]
    fractions = [Fraction(0)] * len(demands)
    rising = set(range(len(demands)))
    while rising:
        steps = [1 - fractions[i] for i in rising]
        free = {r: Fraction(1) for share in shares for r in share}
        for share, fraction in zip(shares, fractions, strict=True):
            for r, part in share.items():
                free[r] -= fraction * part
        load = {r: sum((shares[i].get(r, Fraction(0)) for i in rising), Fraction(0)) for r in free}
        step = min(steps + [free[r] / load[r] for r in free if load[r]])
        for i in rising:
            fractions[i] += step
        full = {r for r in free if load[r] and free[r] == step * load[r]}
        rising = {i for i in rising if fractions[i] < 1 and full.isdisjoint(shares[i])}
    return fractions


def simulated_naively(arrivals: Sequence[tuple[Fraction, ExactDemand]]) -> dict[int, Fraction]:
    """Return when each activity is done: at every arrival and every end all speeds are found anew, without rounding."""
    now, done = Fraction(0), dict[int, Fraction]()
    left: dict[int, Fraction] = {}
    waiting = sorted(range(len(arrivals)), key=lambda i: arrivals[i][0])
    while left or waiting:
        active = sorted(left)
        speeds = {
            i: fraction / max(arrivals[i][1].values())
            for i, fraction in zip(active, exact_fractions([arrivals[i][1] for i in active]), strict=True)
        }
        times = [now + left[i] / speeds[i] for i in active] + [arrivals[i][0] for i in waiting[:1]]
        later = min(times)
        for i in active:
            left[i] -= (later - now) * speeds[i]
            if not left[i]:
                done[i] = later
                del left[i]
        now = later
        while waiting and arrivals[waiting[0]][0] == now:
            left[waiting.pop(0)] = Fraction(1)
    return done


@dataclass(frozen=True)
class Ran:
    """``done_s``: when each activity was done; ``scheduled``: all calls of ``schedule``, as (time, key)."""

    done_s: dict[int, float]
    scheduled: list[tuple[float, int]]


def simulated(arrivals: Sequence[tuple[float, Demands]], singles_s: Mapping[int, float] | None = None) -> Ran:
    """Run activities on shared resources, with a heap as the clock; some stand for several that are alike."""
    queue: list[tuple[float, int, int, int | None]] = []
    ran, now = Ran({}, []), 0.0

    def schedule(delay_s: float, key: int, version: int) -> None:
        assert delay_s >= 0
        ran.scheduled.append((now, key))
        heappush(queue, (now + delay_s, len(ran.scheduled) + len(arrivals), key, version))

    shared = SharedResources(schedule)
    for i, (arrival_s, _) in enumerate(arrivals):
        heappush(queue, (arrival_s, i, i, None))
    while queue:
        now, _, key, version = heappop(queue)
        if version is None:
            shared.start(key, arrivals[key][1], now, (singles_s or {}).get(key, 0.0))
        elif shared.finish(key, version, now):
            ran.done_s[key] = now
    assert not shared.flows
    assert not any(supply.users for supply in shared.supplies.values())
    return ran


@st.composite
def instances(draw: st.DrawFn) -> list[Demands]:
    """Draw up to six activities on up to five resources."""
    resources = [f"link{k}" for k in range(draw(st.integers(1, 5)))]
    seconds = st.integers(1, 12).map(float)
    return [
        tuple(draw(st.dictionaries(st.sampled_from(resources), seconds, min_size=1)).items())
        for _ in range(draw(st.integers(1, 6)))
    ]


def exact_demands(seconds: st.SearchStrategy[Fraction]) -> st.SearchStrategy[ExactDemand]:
    """Return a strategy of demands on up to five resources."""
    return st.dictionaries(st.sampled_from("abcde"), seconds, min_size=1, max_size=4)


SMALL = st.builds(Fraction, st.integers(1, 12), st.integers(1, 4))
"""Durations that often meet: ties are frequent."""

WIDE = st.builds(lambda digits, power: digits * Fraction(10) ** power, st.integers(1, 9), st.integers(-9, 2))
"""Durations from a nanosecond to 900 seconds."""


def as_floats(demand: ExactDemand) -> Demands:
    """Return a demand in floating point."""
    return tuple((r, float(d)) for r, d in demand.items())


def random_component(num: int, num_resources: int, seed: int, widest: int) -> list[Demands]:
    """Return activities on three resources each, one of which is in their way most, and one that all have in common.

    Demands span ``widest`` powers of ten.
    """
    rng = random.Random(seed)

    def demand() -> Demands:
        first, *others = rng.sample(range(num_resources), 3)
        return ((first, 1.0), *((r, 10 ** rng.uniform(-widest, 0)) for r in others), (-1, rng.random() / num))

    return [demand() for _ in range(num)]


def assert_max_min_fair(demands: Sequence[Demands], fractions: Sequence[float]) -> None:
    """Assert the definition's equivalent: no resource is overfull, and who is below 1 has a bottleneck.

    A bottleneck is a full resource on which nobody is faster (Bertsekas and Gallager, section 6.5.2, proposition).
    """
    load: dict[object, float] = {}
    fastest: dict[object, float] = {}
    for fraction, demand in zip(fractions, demands, strict=True):
        for r, d in demand:
            load[r] = load.get(r, 0.0) + fraction * d / max(x for _, x in demand)
            fastest[r] = max(fastest.get(r, 0.0), fraction)
    assert max(load.values()) <= 1 + 1e-9
    for fraction, demand in zip(fractions, demands, strict=True):
        assert 0 < fraction <= 1
        assert fraction == 1 or any(load[r] >= 1 - 1e-9 and fraction >= fastest[r] * (1 - 1e-9) for r, _ in demand)


@settings(max_examples=examples(60), deadline=None)
@given(demands=instances())
def test_fair_fractions_solve_the_lexicographic_program(demands: list[Demands]) -> None:
    """Progressive filling finds what successive linear programs find."""
    assert fair_fractions(demands) == pytest.approx(lexicographic_max_min(demands), abs=1e-6)


@settings(max_examples=examples(120), deadline=None)
@given(demands=st.lists(exact_demands(SMALL), min_size=1, max_size=10))
def test_fair_fractions_are_those_without_rounding(demands: list[ExactDemand]) -> None:
    """With many ties, floating point finds the fractions of rational arithmetic."""
    exact = [float(fraction) for fraction in exact_fractions(demands)]
    assert fair_fractions([as_floats(demand) for demand in demands]) == pytest.approx(exact, rel=1e-12)


@settings(max_examples=examples(80), deadline=None)
@given(demands=st.lists(exact_demands(WIDE), min_size=1, max_size=8))
def test_fair_fractions_stay_exact_over_twelve_powers_of_ten(demands: list[ExactDemand]) -> None:
    """Demands from nanoseconds to minutes in one component lose no accuracy."""
    exact = [float(fraction) for fraction in exact_fractions(demands)]
    assert fair_fractions([as_floats(demand) for demand in demands]) == pytest.approx(exact, rel=1e-9)


@settings(max_examples=examples(80), deadline=None)
@given(demands=instances(), scale=st.floats(1e-9, 1e3))
def test_fair_fractions_fill_no_resource_beyond_one_and_leave_nobody_who_could_rise(
    demands: list[Demands], scale: float
) -> None:
    """Whoever is below full speed has a full resource where nobody is faster; units do not matter."""
    fractions = fair_fractions(demands)
    assert_max_min_fair(demands, fractions)
    rescaled = [tuple((r, d * scale) for r, d in demand) for demand in demands]
    assert fair_fractions(rescaled) == pytest.approx(fractions, rel=1e-9)


@pytest.mark.parametrize("widest", [1, 12])
def test_fair_fractions_of_a_thousand_activities_are_max_min_fair(widest: int) -> None:
    """One component of 1,000 activities on 500 resources meets the definition, with many levels."""
    demands = random_component(1000, 500, seed=widest, widest=widest)
    fractions = fair_fractions(demands)
    assert_max_min_fair(demands, fractions)
    assert len(set(fractions)) > 100


def test_fair_fractions_see_the_small_beside_the_large() -> None:
    """Who takes a billionth beside 1,000 that take all and stop elsewhere gets what is left, to the rounding of that.

    Half of a billionth is left, so a millionth of it is twice the rounding error of 1.
    """
    shares = {"full": Fraction(1), "nearly": Fraction(1)}
    demands = [shares] * 1000 + [{"full": Fraction(5, 10**7), "own": Fraction(1)}]
    demands += [{"nearly": Fraction(1, 10**9), "mine": Fraction(1)}]
    exact = [float(fraction) for fraction in exact_fractions(demands)]
    assert exact[-1] == pytest.approx(0.5)
    assert fair_fractions([as_floats(demand) for demand in demands]) == pytest.approx(exact, rel=1e-6)


def test_fair_fractions_share_one_link_equally_and_leave_others_alone() -> None:
    """Three flows on one link get a third each; who demands half of it beside them is limited by it, others run on."""
    assert fair_fractions([(("a", 1.0),)] * 3) == pytest.approx([1 / 3] * 3)
    assert fair_fractions([(("a", 2.0),), (("a", 1.0), ("b", 2.0)), (("c", 5.0),)]) == pytest.approx([2 / 3, 2 / 3, 1])


def test_fair_fractions_of_equals_are_equal_to_the_last_bit() -> None:
    """Activities in the same position get one number, though their resources were added up in another order."""
    ring = [((f"link{i}", 0.1), (f"link{(i + 1) % 7}", 0.3), (f"link{(i + 2) % 7}", 0.7)) for i in range(7)]
    assert len(set(fair_fractions(ring))) == 1


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_a_demand_must_be_positive_and_finite(seconds: float) -> None:
    """What is no duration is refused by name, first or not, before anything is scheduled."""
    for demands in ((("nic", seconds),), (("hbm", 1.0), ("nic", seconds)), (("nic", seconds), ("hbm", 1.0))):
        with pytest.raises(ValueError, match=r"activity 7 demands"):
            simulated([(0.0, (("hbm", 1.0),))] * 7 + [(0.0, demands)])
        with pytest.raises(ValueError, match=r"activity 0 demands .*nic"):
            fair_fractions([demands])


def test_an_activity_must_demand_something_and_name_it_once() -> None:
    """No demand at all, or two of one resource, are refused."""
    with pytest.raises(ValueError, match=r"activity 0 demands 0\.0 s in all"):
        fair_fractions([()])
    with pytest.raises(ValueError, match="activity 0 names nic twice"):
        fair_fractions([(("nic", 1.0), ("nic", 2.0))])


@settings(max_examples=examples(80), deadline=None)
@given(
    st.lists(st.tuples(st.builds(Fraction, st.integers(0, 20), st.integers(1, 4)), exact_demands(SMALL)), max_size=9)
)
def test_activities_end_as_in_a_simulation_that_finds_all_speeds_anew(
    arrivals: list[tuple[Fraction, ExactDemand]],
) -> None:
    """Re-timing only what is connected gives the same ends as finding all speeds at every event, without rounding."""
    exact = simulated_naively(arrivals)
    done_s = simulated([(float(t), as_floats(demand)) for t, demand in arrivals]).done_s
    assert done_s == pytest.approx({i: float(end) for i, end in exact.items()}, rel=1e-9)


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.tuples(WIDE, exact_demands(WIDE)), max_size=7))
def test_activities_of_nanoseconds_and_of_minutes_share_exactly(arrivals: list[tuple[Fraction, ExactDemand]]) -> None:
    """Arrivals and demands from 1e-9 s to 900 s in one run end when rational arithmetic says."""
    exact = simulated_naively(arrivals)
    done_s = simulated([(float(t), as_floats(demand)) for t, demand in arrivals]).done_s
    assert done_s == pytest.approx({i: float(end) for i, end in exact.items()}, rel=1e-9)


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 12), st.integers(1, 5), st.integers(1, 9), exact_demands(SMALL)),
        min_size=1,
        max_size=5,
    )
)
def test_one_that_stands_for_several_ends_when_they_do(several: list[tuple[int, int, int, ExactDemand]]) -> None:
    """Alike activities, each with a resource of its own beside shared ones, may be one with what all demand."""
    apart, together, singles_s, first = [], [], {}, []
    for i, (arrival, count, own, demand) in enumerate(several):
        first.append(len(apart))
        apart += [(float(arrival), ((("own", i, k), float(own)), *as_floats(demand))) for k in range(count)]
        all_demand = {r: count * d for r, d in demand.items()}
        together.append((float(arrival), ((("own", i), float(own)), *as_floats(all_demand))))
        singles_s[i] = float(max(own, *demand.values()))
    apart_s, together_s = simulated(apart).done_s, simulated(together, singles_s).done_s
    assert together_s == pytest.approx({i: apart_s[first[i]] for i in together_s}, rel=1e-9)


def test_only_those_who_share_are_timed_again() -> None:
    """A start on one link leaves the activities of another alone; those it slows down are scheduled once more."""
    ran = simulated([(0.0, (("a", 4.0),)), (0.0, (("b", 4.0),)), (1.0, (("a", 1.0),))])
    assert ran.done_s == pytest.approx({0: 5.0, 1: 4.0, 2: 3.0})
    assert [entry for entry in ran.scheduled if entry[1] == 1] == [(0.0, 1)]
    assert [time_s for time_s, key in ran.scheduled if key == 0] == pytest.approx([0.0, 1.0, 3.0])


def test_who_keeps_its_speed_keeps_its_end() -> None:
    """An activity that shares a link with a new one, but has room on it, is not scheduled again."""
    ran = simulated([(0.0, (("link", 1.0), ("hbm", 10.0))), (1 / 3, (("link", 1.0), ("other", 9.0)))])
    assert ran.done_s == {0: 10.0, 1: pytest.approx(9 + 1 / 3)}
    assert [key for _, key in ran.scheduled if key != SETTLE] == [0, 1]


def test_all_who_start_and_end_together_are_settled_once() -> None:
    """100 activities that begin and end together on one link are timed once, not once for each of them."""
    ran = simulated([(2.0, (("link", 1.0),))] * 100)
    assert len(set(ran.done_s.values())) == 1
    assert ran.done_s[0] == pytest.approx(102.0)
    assert [time_s for time_s, key in ran.scheduled if key == SETTLE] == pytest.approx([2.0, 102.0])
    assert len(ran.scheduled) == 103  # the first begins alone; then all are timed


def test_an_activity_lasts_as_long_as_one_that_it_stands_for() -> None:
    """What is left to demand of links may be less than one of those alone takes: it lasts the longer of the two."""
    assert Activity(1.0, (("a", 2.0), ("b", 3.0))).duration_s == 4.0
    assert Activity(1.0, (("a", 2.0),), single_s=5.0).duration_s == 6.0
    assert Activity(1.0, (), single_s=5.0).occupancy_s == 5.0
    assert Activity(1.0, (("a", 8.0),), single_s=5.0).occupancy_s == 8.0


@settings(max_examples=examples(24))
@given(
    demands=st.lists(
        st.lists(st.floats(0.1, 3.0), min_size=3, max_size=3).map(lambda d: tuple(zip("abc", d, strict=True))),
        min_size=2, max_size=6,
    ),
    kept=st.lists(st.integers(1, 7), min_size=6, max_size=6), num_first=st.integers(1, 5),
)  # fmt: skip
def test_activities_that_yield_take_what_the_others_leave(
    demands: list[Demands], kept: list[int], num_first: int
) -> None:
    """The others are as fast as without them; no resource is overused, and what holds them up is used whole."""
    demands = [tuple(d for bit, d in enumerate(own) if kept[i] >> bit & 1) for i, own in enumerate(demands)]
    num_first = min(num_first, len(demands) - 1)
    resources = SharedResources(lambda *_: None)
    for key, demand in enumerate(demands):
        resources.start(key, demand, 0.0, yields=key >= num_first)
    resources.finish(SETTLE, 0, 0.0)
    found = [resources.flows[key].fraction for key in range(len(demands))]
    assert found[:num_first] == pytest.approx(fair_fractions(demands[:num_first]))
    used = dict.fromkeys("abc", 0.0)
    for demand, fraction in zip(demands, found, strict=True):
        for resource, d in demand:
            used[str(resource)] += fraction * d / max(x for _, x in demand)
    assert all(part <= 1.0 + 1e-9 for part in used.values())
    for demand, fraction in zip(demands[num_first:], found[num_first:], strict=True):
        assert fraction == pytest.approx(1.0) or any(used[str(r)] == pytest.approx(1.0) for r, _ in demand)


def test_an_activity_that_yields_stands_still_and_goes_on() -> None:
    """Beside one that needs the whole resource for 1 s, from 0.5 s on, one of 1 s ends after 2 s."""
    ends, clock = dict[int, float](), [(0.0, 0, -1, 0), (0.5, 1, -2, 0)]
    numbers = iter(range(2, 100))
    resources = SharedResources(lambda delay_s, *event: heappush(clock, (now_s + delay_s, next(numbers), *event)))
    while clock:
        now_s, _, key, version = heappop(clock)
        if key in {-1, -2}:
            resources.start(-key, (("link", 1.0),), now_s, yields=key == -1)
        elif resources.finish(key, version, now_s):
            ends[key] = now_s
    assert ends == pytest.approx({1: 2.0, 2: 1.5})
