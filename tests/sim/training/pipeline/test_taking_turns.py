"""A forward and a backward that overlap take turns, so that experts' exchanges run while the other pass computes."""

from collections.abc import Sequence
from typing import Any

import pytest

from sim.engine.findings.breakdown import breakdowns
from sim.engine.running.simulate import simulate
from sim.plan.checking.check import check
from sim.plan.words.op import Collective, CollectiveKind, Op
from sim.plan.words.program import Plan, Program
from sim.training.errors import SpecError
from sim.training.pipeline.spec import PipelineSpec
from sim.training.spec.models.experts import ExpertsSpec
from tests.sim.jobs import LLAMA, dense_job, dense_plan, pricing_on

MODEL: dict[str, Any] = LLAMA | {
    "num_layers": 4, "hidden_size": 1024, "num_heads": 8, "sequence_length": 1024,
    "experts": ExpertsSpec(num_experts=8, top_k=4, ffn_hidden_size=1024, dispatch="exact", routing="balanced"),
}  # fmt: skip
KEYS: dict[str, Any] = {"model": MODEL, "pp": 2, "dp": 8, "expert_degree": 8, "m": 8, "precision": "bf16"}


def plan(*, in_turns: bool) -> Plan:
    """Return a step under DualPipe, with experts on eight ranks."""
    return dense_plan(schedule="dualpipe", overlap_exchanges=in_turns, **KEYS)


def names(ops: Sequence[Op]) -> list[str]:
    """Return the names of ops."""
    return [op.name for op in ops]


def pieces_of(program: Program, task: str) -> list[str]:
    """Return the pieces of a pass, in order."""
    return [name for name in program.tasks if name.startswith(f"{task}.piece")]


def test_pieces_are_the_whole_pass_cut_after_its_exchanges() -> None:
    """Every piece but the last ends with an exchange of tokens; together they are the pass, and stay as long."""
    program = plan(in_turns=True).programs[0]
    for task, main in (("forward.0", 0), ("backward.3", -1)):
        pieces = [program.tasks[name] for name in pieces_of(program, task)]
        assert names([op for piece in pieces for op in piece.ops]) == names(program.tasks[task].ops)
        for piece in pieces[:-1]:
            last = piece.ops[-1]
            assert isinstance(last, Collective)
            assert last.kind is CollectiveKind.ALL_TO_ALL
        kind = "opens" if main == 0 else "closes"
        assert [getattr(piece.traits, kind) for piece in pieces].count(True) == 1
        assert getattr(pieces[main].traits, kind)
        assert len(pieces) == 2 * 2 + 1  # two layers with two exchanges each


def test_passes_that_overlap_take_turns() -> None:
    """Pieces of the forward and of the backward alternate, of one micro-batch each; other calls stay as they were."""
    program, whole = plan(in_turns=True).programs[0], plan(in_turns=False).programs[0]
    calls = [(call.task, call.microbatch) for call in program.calls]
    first = next(place for place, (task, _) in enumerate(calls) if ".piece" in task)
    assert [task for task, _ in calls[first : first + 4]] == [
        "forward.3.piece0", "backward.0.piece0", "forward.3.piece1", "backward.0.piece1",
    ]  # fmt: skip
    assert len({microbatch for _, microbatch in calls[first : first + 10]}) == 2
    once = [(task.replace(".piece0", ""), m) for task, m in calls if ".piece" not in task or task.endswith("piece0")]
    assert once == [(call.task, call.microbatch) for call in whole.calls]


def test_exchanges_hide_behind_the_other_pass() -> None:
    """Ranks compute as long as before, and wait for exchanges for less than two thirds of the time."""
    found = []
    for in_turns in (False, True):
        each = plan(in_turns=in_turns)
        check(each)
        run = simulate(each, pricing_on("hgx-h100", 16))
        found.append((breakdowns(run)[0], run.iteration_time_s))
    (whole, whole_s), (turns, turns_s) = found
    assert turns.busy_s["compute"] == pytest.approx(whole.busy_s["compute"])
    assert turns.exposed_s["ep"] < 0.67 * whole.exposed_s["ep"]
    assert turns_s < whole_s


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"expert_degree": 1}, "no ranks exchange tokens"),
        ({"zero_stage": 2}, "passes that gather parameters are not built in pieces"),
    ],
)
def test_turns_need_exchanges_and_whole_parameters(keys: dict[str, Any], words: str) -> None:
    """Without exchanges there is nothing to hide, and ZeRO-2 is not built in pieces."""
    with pytest.raises(SpecError, match=words):
        dense_job(schedule="dualpipe", overlap_exchanges=True, **KEYS | keys)


def test_turns_need_passes_that_overlap() -> None:
    """Under 1F1B a backward waits for the forward before it, and the other way round."""
    with pytest.raises(SpecError, match="under 1f1b no forward overlaps a backward"):
        PipelineSpec(degree=2, schedule="1f1b", overlap_exchanges=True)
