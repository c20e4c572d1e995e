"""Gathers of updated parameters under the next step's forwards."""

from typing import Any

import pytest

from sim.engine.running.simulate import simulate
from sim.plan.words.op import Collective
from sim.plan.words.program import Phase, Program
from sim.plan.words.steps import drain
from sim.training.errors import SpecError
from tests.sim.jobs import dense_job, dense_plan, pricing_on

KEYS: dict[str, Any] = {"dp": 4, "pp": 2, "m": 4, "zero_stage": 1, "bucket_bytes": 20_000}


def gathers(program: Program) -> list[tuple[int, Collective]]:
    """Return the gathers of parameters in the order of their calls, with the steps that they reach back."""
    return [
        (call.lag, op)
        for call in program.calls
        if program.tasks[call.task].phase is Phase.OPTIMIZER
        for op in program.tasks[call.task].ops
        if isinstance(op, Collective)
    ]


def test_a_step_begins_with_the_gathers_that_the_one_before_left() -> None:
    """The same gathers as without, in the order of first use, before all else, and nothing but them is left over."""
    for plain, deferring in zip(
        dense_plan(**KEYS).programs, dense_plan(**KEYS, overlap_parameter_gather=True).programs, strict=True
    ):
        at_once, left = gathers(plain), gathers(deferring)
        assert [op.writes for _, op in left] == [op.writes for _, op in reversed(at_once)]
        assert len(left) > 2
        assert {lag for lag, _ in at_once} == {0}
        assert {lag for lag, _ in left} == {1}
        assert [call.lag for call in deferring.calls][: len(left) + 1] == [1] * len(left) + [0]
    (calls,) = {
        program.calls for program in drain(dense_plan(dp=4, zero_stage=1, overlap_parameter_gather=True)).programs
    }
    assert all(call.task.startswith("deferred_gather.") for call in calls)


def test_forwards_hide_gathers() -> None:
    """Where a network is slow beside the computing, a step is shorter."""
    prices = pricing_on("hgx-h100", 8, devices_per_node=1)
    model = {
        "family": "gpt", "num_layers": 8, "hidden_size": 1024, "num_heads": 8, "sequence_length": 512,
        "vocab_size": 1024, "num_kv_heads": 8, "ffn_hidden_size": 4096, "tied_embeddings": True, "attention": "flash",
    }  # fmt: skip
    keys = KEYS | {"model": model, "bucket_bytes": 0}
    plain, deferring = (
        simulate(dense_plan(**keys, overlap_parameter_gather=overlaps), prices) for overlaps in (False, True)
    )
    assert deferring.makespan_s < plain.makespan_s


@pytest.mark.parametrize(
    ("keys", "rule"),
    [
        ({"zero_stage": 0}, "zero_stage is 0"),
        ({"zero_stage": 3}, "zero_stage is 3"),
        ({"zero_stage": 1, "schedule": "aiao", "virtual_stages": 2}, "by itself"),
    ],
)
def test_gathers_that_cannot_be_left_over_are_refused(keys: dict[str, Any], rule: str) -> None:
    """Only ZeRO-1 gathers what it updates, and all-in-all-out overlaps it anyway."""
    with pytest.raises(SpecError, match=rule) as caught:
        dense_job(dp=2, pp=2, m=4, overlap_parameter_gather=True, **keys)
    assert caught.value.key == "parallel.data.overlap_parameter_gather"
