"""Forms that end while a lead of messages still shrinks are not run: they have no period. One just long enough is."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.running import leads
from sim.engine.running.shorter import Shorter
from sim.engine.running.simulate import Simulation
from sim.plan.words.program import Plan
from tests.sim.engine.running.test_repeated import LAW, long_plans, prices_for
from tests.sim.jobs import GPT, dense_plan, pricing_on


class Forms:
    """Forms of a plan, recorded as a simulation tries them, by how many repetitions they leave out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tried: list[int] = []
        self.periods: list[object] = []
        original = Simulation._try_without

        def recorded(simulation: Simulation, times: int, *others: Any) -> Any:
            found = original(simulation, times, *others)
            self.tried.append(times)
            self.periods.append(found[1] if found else None)
            return found

        monkeypatch.setattr(Simulation, "_try_without", recorded)


def of_each(plan: Plan, pricing: Any) -> tuple[Any, Forms, Any, Forms]:
    """Return the run and the forms tried, and both again where no form is left out."""
    found: list[Any] = []
    for ask in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            forms = Forms(patch)
            if not ask:
                patch.setattr(leads, "repetitions_in_lead", lambda *_: 0)
            found += [Simulation(plan).run(pricing), forms]
    return found[0], found[1], found[2], found[3]


def test_a_form_in_which_a_lead_still_shrinks_is_left_out() -> None:
    """A first stage that is a little faster uses up the lead of the gradients that come to it; then it waits."""
    plan = dense_plan(pp=2, m=400, schedule="zb_h1", model=GPT | {"num_layers": 16, "sequence_length": 512})
    run, forms, other, all_forms = of_each(plan, pricing_on("hgx-h100", plan.mesh.size))
    assert run.repeated is not None
    assert other.repeated is not None
    assert run.iteration_time_s == pytest.approx(other.iteration_time_s, rel=1e-12)
    assert (forms.tried, all_forms.tried) == ([395, 390, 374], [395, 390, 380, 360])


def test_the_form_after_a_lead_is_just_long_enough() -> None:
    """It has three repetitions more than the lead lasts; the longest form is tried even if the lead outlasts it."""
    shorter, waiting = Shorter(dense_plan(pp=2, m=400)), [380, 360, 300]
    assert shorter.after_lead(390, 0, waiting) == waiting
    assert shorter.after_lead(390, 20, waiting) == [367, 360, 300]
    assert shorter.after_lead(390, 200, waiting) == [300]


@LAW
@given(data=st.data(), plan=long_plans())
def test_what_is_left_out_has_no_period(data: Any, plan: Plan) -> None:
    """On random plans no form with a period is left out, but those longer than the one that shows it."""
    run, forms, other, all_forms = of_each(plan, data.draw(prices_for(plan)))
    left_out = [
        period for times, period in zip(all_forms.tried, all_forms.periods, strict=True)
        if times not in forms.tried and times > forms.tried[-1]
    ]  # fmt: skip
    assert left_out == [None] * len(left_out)
    assert (run.repeated is None) == (other.repeated is None)
    assert run.iteration_time_s == pytest.approx(other.iteration_time_s, rel=1e-9)
