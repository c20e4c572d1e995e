"""Forms of a step whose sections recur less often: where they are looked for."""

from typing import Any

import pytest

from sim.engine.running.paced import MULTIPLE
from sim.engine.running.shorter import Shorter
from tests.sim.jobs import GPT, dense_plan


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "breadth_first", "aiao"])
def test_no_section_recurs_more_often_than_there_are_micro_batches(
    schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of fewer micro-batches than a form must save, sections are not looked for: they would give no form."""
    keys: dict[str, Any] = {"virtual_stages": 2} if schedule in {"breadth_first", "aiao"} else {}
    plans = [
        dense_plan(pp=2, m=m, schedule=schedule, model=GPT | {"num_layers": 4}, **keys)
        for m in (2, MULTIPLE, 2 * MULTIPLE - 2, 2 * MULTIPLE, 4 * MULTIPLE)
    ]
    found = [Shorter(plan).section_forms(MULTIPLE) for plan in plans]
    looked_for = ["_sections" in vars(shorter) for shorter in map(Shorter, plans) if [shorter.section_forms(MULTIPLE)]]
    assert looked_for == [False, False, False, True, True]
    monkeypatch.setattr(Shorter, "_num_microbatches", 2**31)
    assert [Shorter(plan).section_forms(MULTIPLE) for plan in plans] == found
