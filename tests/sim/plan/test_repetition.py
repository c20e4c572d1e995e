"""Calls that recur are found in a time that grows as the number of calls."""

import pytest

from sim.plan.facts.repetition import CodedCalls, Repetition, repetitions
from sim.plan.words.program import Plan
from tests.sim.jobs import GPT, dense_plan


def coded(plan: Plan) -> list[CodedCalls]:
    """Return the calls of each program as numbers."""
    return [CodedCalls.of(program) for program in plan.programs]


def test_a_section_that_recurs_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All forwards of gpipe recur after one micro-batch, so after two as well: more is not tried, and none is found."""
    looked_at = list[int]()
    find = CodedCalls.repetition

    def counted(calls: CodedCalls, microbatches: int) -> Repetition | None:
        looked_at.append(microbatches)
        return find(calls, microbatches)

    monkeypatch.setattr(CodedCalls, "repetition", counted)
    assert repetitions(coded(dense_plan(pp=2, m=300, schedule="gpipe"))) is None
    assert looked_at == [1]
    assert repetitions(coded(dense_plan(pp=2, m=300, schedule="1f1b"))) is not None


def test_what_recurs_after_two_micro_batches_alone_is_found() -> None:
    """Where calls of two micro-batches alternate, the shorter distance is tried first and does not hold."""
    plan = dense_plan(pp=2, m=300, schedule="interleaved_1f1b", virtual_stages=2, model=GPT | {"num_layers": 4})
    found = repetitions(coded(plan))
    assert found is not None
    assert {repetition.microbatches for repetition in found} == {2}
