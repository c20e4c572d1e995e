"""Max-min fair sharing, against linear programs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from sim.engine.sharing import Demands, fair_fractions


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
        level = _highest(shares, fixed, dict.fromkeys(open_), None)
        stuck = [i for i in open_ if _highest(shares, fixed, dict.fromkeys(open_, level), i) <= level + 1e-9]
        fixed |= dict.fromkeys(stuck, level)
    return [fixed[i] for i in range(len(demands))]


def _highest(shares: np.ndarray, fixed: dict[int, float], least: dict[int, float | None], of: int | None) -> float:
    """Return the highest common level of the open activities, or of one with the others at ``least`` or more."""
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
    return float(-found.fun)


@st.composite
def instances(draw: st.DrawFn) -> list[Demands]:
    """Draw up to six activities on up to five resources."""
    resources = [f"link{k}" for k in range(draw(st.integers(1, 5)))]
    seconds = st.integers(1, 12).map(float)
    return [
        tuple(draw(st.dictionaries(st.sampled_from(resources), seconds, min_size=1)).items())
        for _ in range(draw(st.integers(1, 6)))
    ]


@settings(max_examples=250, deadline=None)
@given(demands=instances())
def test_fair_fractions_solve_the_lexicographic_program(demands: list[Demands]) -> None:
    """Progressive filling finds what successive linear programs find."""
    assert fair_fractions(demands) == pytest.approx(lexicographic_max_min(demands), abs=1e-6)


@settings(max_examples=200, deadline=None)
@given(demands=instances(), scale=st.floats(1e-9, 1e3))
def test_fair_fractions_fill_no_resource_beyond_one_and_leave_nobody_who_could_rise(
    demands: list[Demands], scale: float
) -> None:
    """No resource is used more than whole; everyone below full speed uses a full resource; units do not matter."""
    fractions = fair_fractions(demands)
    load: dict[object, float] = {}
    for fraction, demand in zip(fractions, demands, strict=True):
        for r, d in demand:
            load[r] = load.get(r, 0.0) + fraction * d / max(x for _, x in demand)
    assert max(load.values()) <= 1 + 1e-9
    for fraction, demand in zip(fractions, demands, strict=True):
        assert 0 < fraction <= 1 + 1e-12
        assert fraction >= 1 - 1e-9 or any(load[r] >= 1 - 1e-9 for r, _ in demand)
    rescaled = [tuple((r, d * scale) for r, d in demand) for demand in demands]
    assert fair_fractions(rescaled) == pytest.approx(fractions, rel=1e-9)


def test_fair_fractions_share_one_link_equally_and_leave_others_alone() -> None:
    """Three flows on one link get a third each; who demands half of it beside them is limited by it, others run on."""
    assert fair_fractions([(("a", 1.0),)] * 3) == pytest.approx([1 / 3] * 3)
    assert fair_fractions([(("a", 2.0),), (("a", 1.0), ("b", 2.0)), (("c", 5.0),)]) == pytest.approx([2 / 3, 2 / 3, 1])
