"""Prompts and decoding as plans: what real kernels compute with caches, against a dense model without any."""

from typing import Any

import pytest
import torch

from backends.execution.request import ExecutionRequest
from backends.torch.reference.eight_bits import rounded, scaled_and_rounded
from backends.torch.reference.references import References
from sim.inference.builder import build_inference
from sim.inference.spec import InferenceJob
from sim.plan.checking.check import check
from sim.training.spec.models.model import TransformerSpec
from tests.backends.inference_runs import EXPERTS, GROUPED, JOBS, TILED, job
from tests.backends.one_process import CPU, execute_in_one_process, run_in_one_process

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("name", JOBS)
def test_logits_are_those_of_a_pass_over_the_whole_sequence(name: str) -> None:
    """Every pass's logits are within 1e-9 of the dense model's, and every chosen token is its most likely one."""
    plan = build_inference(JOBS[name], name)
    check(plan)
    report = run_in_one_process(plan, JOBS[name])
    heads = [rank for rank in range(plan.mesh.size) if plan.mesh.coordinate(rank, "pp") == plan.mesh.degree("pp") - 1]
    assert {key.split(": ")[0] for key in report.errors} == {f"rank {rank}" for rank in heads}
    assert len(report.errors) == len(heads) * 2 * (1 + JOBS[name].num_steps)
    assert report.tolerance == 1e-9
    assert report.passed, report.worst


@pytest.mark.parametrize("model", [GROUPED, TILED])
@pytest.mark.parametrize("changes", [{"precision": "fp8"}, {"cache_precision": "fp8"}])
def test_a_check_sees_eight_bits(model: TransformerSpec, changes: dict[str, Any]) -> None:
    """A plan in eight bits is far from the model in 64, so that a reference without the rounding would notice."""
    report = run_in_one_process(build_inference(job(model, wide=True, **changes), "eight bits"), job(model))
    assert 1e-3 < report.worst[1] < 0.3


def test_numbers_of_eight_bits_are_torchs() -> None:
    """The reference's rounding, with a scale and without, is that of the type; what is too large is the largest."""
    x = torch.randn(4000, generator=torch.Generator().manual_seed(0), dtype=torch.float32) * 30.0
    x = torch.cat((x, x / 3000.0, torch.tensor([0.0, 448.0, 600.0, -1e9])))
    cast = x.clamp(-448.0, 448.0).to(torch.float8_e4m3fn).float()
    assert torch.equal(rounded(x), cast)
    row = x[:64].reshape(8, 8)
    scaled = scaled_and_rounded(row, (1,))
    assert ((scaled - row).abs().amax(1) <= row.abs().amax(1) / 16).all()
    assert torch.equal(scaled_and_rounded(4.0 * row, (1,)), 4.0 * scaled)


def chosen(wanted: InferenceJob) -> dict[int, list[int]]:
    """Return the tokens that each sequence of the first rank with a head gets, by micro-batch and place."""
    names = frozenset(f"chosen@{index}" for index in range(1 + wanted.num_steps))
    request = ExecutionRequest(plan=build_inference(wanted, "tokens"), keep=names)
    values = execute_in_one_process(request, References(CPU)).ranks[-1].values
    count, found = len(wanted.prompt_tokens), dict[int, list[int]]()
    for (_, microbatch), ids in sorted(values.items()):
        for place, token in enumerate(ids.ravel()):
            found.setdefault((microbatch or 0) * count + place, []).append(int(token))
    return found


def test_every_layout_chooses_the_same_tokens() -> None:
    """Greedy answers do not depend on tensor, pipeline and expert parallelism; they differ between sequences."""
    alone = chosen(job())
    assert len(alone) == 3
    assert len({tuple(tokens) for tokens in alone.values()}) == 3
    assert all(len(tokens) == 4 for tokens in alone.values())
    assert chosen(job(tp=2)) == alone
    assert chosen(job(pp=2)) == alone
    experts = chosen(job(EXPERTS))
    assert chosen(job(EXPERTS, tp=2, pp=2)) == experts


LOST = {
    "gpt, tp2": {"layer0.projection.all_reduce"},
    "experts, ep2": {"layer1.dispatch.all_to_all"},
    "pp2, two micro-batches": {"send_tokens.1@1", "recv_tokens.0@2"},
}
"""Ops that communicate nothing."""


@pytest.mark.parametrize("name", LOST)
def test_a_message_that_is_left_out_is_missed(name: str) -> None:
    """Without one sum, exchange, or message with chosen tokens the logits are far from the reference."""
    plan = build_inference(JOBS[name], name)
    ops = {op.name for program in plan.programs for task in program.tasks.values() for op in task.ops}
    assert ops >= LOST[name]
    report = run_in_one_process(plan, JOBS[name], mute=frozenset(LOST[name]))
    assert report.worst[1] > 1e-3
