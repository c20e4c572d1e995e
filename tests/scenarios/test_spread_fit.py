"""What packaged profiles say of their errors comes from measurements: made anew, it is what stands there."""

from math import log1p

import pytest

from costmodels.calibration.spread import spread_of
from costmodels.profile import load_profile
from costmodels.spread import NETWORK
from scenarios.calibration.spread_fit import network_calls, step_spread
from scenarios.validation import published
from traces.published import FOLDER


def test_the_network_s_errors_are_those_of_the_published_collectives() -> None:
    """Estimated again from the tables that come with meshtwin, they are the profile's, to its digits."""
    found, stated = spread_of(network_calls("a100")), load_profile("a100").spread[NETWORK]
    assert [deviation for _, deviation in found.deviation] == pytest.approx([d for _, d in stated.deviation], rel=5e-3)
    assert [seconds for seconds, _ in found.deviation] == pytest.approx([s for s, _ in stated.deviation], rel=5e-3)
    assert (found.common, found.near) == pytest.approx((stated.common, stated.near), abs=5e-3)


def test_steps_leave_what_kernels_and_network_do_not_explain() -> None:
    """Of a step nothing was fitted to, less is left than its whole error, and no more than H100's profile says."""
    table = FOLDER / "mlperf_gpt3_h100.yaml"
    (row,) = published.run((table,))["tables"][0]["rows"]
    assert 0 < step_spread([table], 0) < abs(log1p(row["error"]))
    assert step_spread([table], 0) <= load_profile("h100").step_spread


def test_as_many_constants_as_steps_leave_nothing_to_see() -> None:
    """One step says nothing of what one constant leaves."""
    with pytest.raises(ValueError, match="1 steps cannot show"):
        step_spread([FOLDER / "mlperf_gpt3_h100.yaml"], 1)
