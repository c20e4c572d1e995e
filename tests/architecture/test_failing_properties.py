"""A property test that fails reports its own failure, however large the drawn example is."""

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from sim.plan.words.program import Plan
from tests.sim.jobs import dense_plan


def test_a_failing_property_of_a_plan_raises_its_own_error() -> None:
    """Hypothesis warns of a plan's long text; as an error the warning would hide which assertion failed."""

    @settings(max_examples=1, database=None, phases=[Phase.generate])
    @given(plan=st.just(dense_plan(pp=2, m=64)))
    def no_plan_has_two_stages(plan: Plan) -> None:
        assert plan.mesh.size < 2, "the failure of the property"

    with pytest.raises(AssertionError, match="the failure of the property"):
        no_plan_has_two_stages()
