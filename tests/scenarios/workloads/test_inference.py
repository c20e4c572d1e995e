"""The kind of work `inference`, through the commands."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from backends.execution.request import ExecutionRequest
from backends.execution.result import Execution
from backends.torch.launching.timeline import timeline
from backends.torch.reference.references import References
from scenarios.errors import ScenarioError
from scenarios.library.shipped import FOLDER
from scenarios.workloads.inference.outcome import InferenceOutcome
from scenarios.workloads.inference.summary import InferenceSummary
from scenarios.workloads.loading import load_scenario
from sim.plan.words.op import Compute
from sim.serving.prices.microbatches import Chunk
from tests.backends.one_process import CPU, execute_in_one_process
from tests.scenarios.workloads.test_kinds import run
from traces.timeline import Timeline

LARGE = FOLDER / "inference" / "llama-3-70b-8-h100.yaml"
TINY = FOLDER / "inference" / "tiny-experts-2x2.yaml"
FEW = ("model.num_layers=4",)
LONE = ("cluster.devices_per_node=1", "parallel.tensor.degree=1")
UNFUSED = {
    "split_qkv", "rotary", "append", "embedding", "take_rows", "most_likely", "split_latent", "merge_latent",
    "append_latents",
}  # fmt: skip
"""Kernels of a plan that the prices of services leave out, as serving engines fuse them or hide them."""


def outcome(path: Path, *changes: str) -> InferenceOutcome:
    """Return the simulation of a shipped scenario with changes."""
    scenario = load_scenario(path, changes)
    found: InferenceOutcome = scenario.workload.simulate(scenario)
    return found


def summary(*changes: str) -> InferenceSummary:
    """Return the summary of the large scenario, with four layers."""
    return outcome(LARGE, *FEW, *changes).summary


def test_inference_simulates_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Prompts and steps make up the whole time, and so do computing and waiting; the page has all parts."""
    settings = ("--set", "model.num_layers=2", "--set", "inference.output_tokens=3")
    code, shown, _ = run(capsys, LARGE, *settings, "--json", "--out", tmp_path / "out")
    assert code == 0
    found = json.loads(shown)
    later_s = (found["output_tokens"] - 1) * found["time_per_output_token_s"]
    assert found["prefill_time_s"] + later_s == pytest.approx(found["total_time_s"])
    assert found["computing_s"] + sum(found["waiting_s"].values()) == pytest.approx(found["total_time_s"])
    assert sum(found["critical_path_s"].values()) == pytest.approx(found["total_time_s"])
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert all(f"<h2>{words}</h2>" in page for words in ("What the time is spent on", "Timeline"))


def test_memory_is_weights_caches_and_room_for_more_blocks() -> None:
    """Weights and blocks have their closed forms; as many blocks as are free fit beside the peak, and no more."""
    scenario, memory = load_scenario(LARGE, FEW), summary().memory
    model, ranks = scenario.job.model, 8
    norms = (2 * model.num_layers + 1) * model.hidden_size
    assert memory.weights_bytes == 2 * ((model.num_parameters - norms) // ranks + norms)
    assert memory.block_bytes == 16 * model.num_layers * 2 * (model.num_kv_heads // ranks) * model.head_size * 2
    assert memory.kv_blocks == 16 * 129  # 2,048 + 7 tokens
    assert memory.cache_bytes == memory.kv_blocks * memory.block_bytes
    room = scenario.software.room_bytes(scenario.cluster.node_spec.device) - memory.peak_bytes
    assert 0 <= room - memory.free_kv_blocks * memory.block_bytes < memory.block_bytes
    alone = summary(*LONE, "model.num_layers=80", "inference.output_tokens=1")
    assert not alone.memory.fits
    assert alone.memory.free_kv_blocks == 0


def test_steps_read_more_keys_and_larger_batches_take_longer() -> None:
    """The last step is slower than the first, if barely; four times the sequences take less than four times as long."""
    found, small = summary("inference.prompt_tokens=4000"), summary("inference.sequences=4")
    assert found.first_step_time_s is not None
    assert found.last_step_time_s is not None
    assert found.first_step_time_s <= found.last_step_time_s < 1.01 * found.first_step_time_s
    large = summary()
    assert large.time_per_output_token_s is not None
    assert small.time_per_output_token_s is not None
    assert 1 < large.time_per_output_token_s / small.time_per_output_token_s < 4
    assert large.output_tokens_per_s > small.output_tokens_per_s


def test_stages_need_several_microbatches() -> None:
    """With as many micro-batches as stages a pipeline gives nearly twice the tokens in the time of one micro-batch."""
    stages = ("parallel.tensor.degree=4", "parallel.pipeline.degree=2", "inference.prompt_tokens=16")
    one, two = summary(*stages), summary(*stages, "inference.microbatches=2")
    assert one.num_sequences * 2 == two.num_sequences
    assert one.waiting_s["bubble"] > 0.4 * one.total_time_s
    assert 1.5 < two.output_tokens_per_s / one.output_tokens_per_s < 2.0


SMALL = "model={preset: llama-3-8b, num_layers: 4}"
LATENT = (
    "model={family: llama, num_layers: 2, hidden_size: 2048, num_heads: 16, ffn_hidden_size: 8192, vocab_size: 32000, "
    "sequence_length: 4096, "
    "latent_attention: {q_rank: 1536, kv_rank: 512, head_size: 128, rotary_head_size: 64, value_head_size: 128}}"
)
EXPERTS = (
    "model={family: llama, num_layers: 2, hidden_size: 4096, num_heads: 32, num_kv_heads: 8, ffn_hidden_size: 14336, "
    "vocab_size: 32000, sequence_length: 4096, "
    "experts: {num_experts: 8, top_k: 2, ffn_hidden_size: 14336}}"
)


@pytest.mark.parametrize(
    "changes",
    [
        (*FEW, "parallel.tensor.degree=8"),
        (SMALL, "parallel.tensor.degree=1"),
        (SMALL, "parallel.tensor.degree=2", "inference.sequences=64"),
    ],
)
def test_services_have_the_prices_of_plans(changes: tuple[str, ...]) -> None:
    """A service's step is up to 10 % shorter than the plan's, its prompts 4 %: by the kernels that it leaves out.

    Without these steps agree to 0.2 %. Prompts agree to 1.5 %: a service prices the attention of each one alone.
    """
    found = outcome(LARGE, *changes, "inference.output_tokens=2")
    cost, tokens = _service_cost(found, changes), found.scenario.job.prompt_tokens
    prompts_s = cost.pass_s(0, 0, 0.0, [Chunk(count, 0) for count in tokens])
    step_s = cost.pass_s(len(tokens), 1, float(tokens[0]))
    planned_s = found.summary.time_per_output_token_s
    assert planned_s is not None
    assert 0.90 < step_s / planned_s < 1
    assert planned_s - _left_out_s(found, 1) == pytest.approx(step_s, rel=0.002)
    assert 0.96 < prompts_s / found.summary.prefill_time_s < 1
    assert found.summary.prefill_time_s - _left_out_s(found, 0) == pytest.approx(prompts_s, rel=0.015)


@pytest.mark.parametrize("further", [(1,), (2,), (2, "inference.cache_precision=fp8")])
def test_services_of_latents_have_the_prices_of_plans(further: tuple[int, *tuple[str, ...]]) -> None:
    """The same for latent attention, of whose small kernels a service leaves out more; prompts agree to 6 %."""
    degree, *cached = further
    changes = (LATENT, f"parallel.tensor.degree={degree}", "inference.output_tokens=2", *cached)
    found = outcome(LARGE, *changes)
    cost, tokens = _service_cost(found, changes), found.scenario.job.prompt_tokens
    prompts_s = cost.pass_s(0, 0, 0.0, [Chunk(count, 0) for count in tokens])
    step_s = cost.pass_s(len(tokens), 1, float(tokens[0]))
    planned_s = found.summary.time_per_output_token_s
    assert planned_s is not None
    assert planned_s - _left_out_s(found, 1) == pytest.approx(step_s, rel=0.002)
    assert found.summary.prefill_time_s - _left_out_s(found, 0) == pytest.approx(prompts_s, rel=0.06)


def test_services_of_stages_have_the_prices_of_plans() -> None:
    """A step of two micro-batches on two stages takes up to 6 % less than the plan's.

    Prompts keep stages as busy as the plan of two micro-batches does but for the time in which its pipeline fills: it
    takes three stages' times, and an iteration in a cycle two.
    """
    changes = (SMALL, "parallel.tensor.degree=1", "parallel.pipeline.degree=2")
    found = outcome(LARGE, *changes, "inference.microbatches=2", "inference.output_tokens=4")
    cost, tokens = _service_cost(found, changes), found.scenario.job.prompt_tokens * 2
    step_s = cost.pass_s(len(tokens), 1, tokens[0] + 1.0)
    planned_s = found.summary.time_per_output_token_s
    assert planned_s is not None
    assert 0.94 < step_s / planned_s < 1
    prompts_s = cost.pass_s(0, 0, 0.0, [Chunk(count, 0) for count in tokens])
    assert 1.5 * prompts_s / found.summary.prefill_time_s == pytest.approx(0.97, abs=0.03)


def test_services_of_shared_out_experts_have_the_prices_of_plans() -> None:
    """Two groups that exchange tokens: steps agree to 5 %, prompts to 6 %, where every expert's slots are filled."""
    changes = (EXPERTS, "parallel.tensor.degree=1", "parallel.expert.degree=2", "inference.output_tokens=2")
    found = outcome(LARGE, *changes)
    cost, tokens = _service_cost(found, changes), found.scenario.job.prompt_tokens * 2
    step_s = cost.pass_s(len(tokens), 1, float(tokens[0]))
    planned_s = found.summary.time_per_output_token_s
    assert planned_s is not None
    assert planned_s - _left_out_s(found, 1) == pytest.approx(step_s, rel=0.05)
    prompts_s = cost.pass_s(0, 0, 0.0, [Chunk(count, 0) for count in tokens])
    assert found.summary.prefill_time_s - _left_out_s(found, 0) == pytest.approx(prompts_s, rel=0.06)


def _service_cost(found: InferenceOutcome, changes: tuple[str, ...]) -> Any:
    """Return the prices of a service of the same model on the same devices."""
    scenario, of = found.scenario, found.scenario.job.parallel
    keys = {change.partition("=")[0]: change.partition("=")[2] for change in changes}
    cached = keys.get("inference.cache_precision", "bf16")
    degrees = f"tensor_degree: {of.tensor.degree}, pipeline_degree: {of.pipeline.degree}"
    service = load_scenario(
        FOLDER / "services" / "llama-3-8b-8-h100.yaml",
        [
            f"model={keys.get('model', '{preset: llama-3-70b}')}",
            f"service={{{degrees}, expert_degree: {of.expert_degree}, cache_precision: {cached}}}",
        ],
    )
    return dataclasses.replace(
        service.cost, model=replace(service.cost.model, num_layers=scenario.job.model.num_layers)
    )


def _left_out_s(found: InferenceOutcome, index: int) -> float:
    """Return the time of a pass's kernels that services leave out, and of the sum of embedded tokens over ranks."""
    total_s = 0.0
    for times in found.run.task_times(0):
        if times.task.name.endswith(f"@{index}"):
            for place, op in enumerate(times.task.ops):
                is_unfused = isinstance(op, Compute) and op.kernel in UNFUSED
                if is_unfused or op.name in {"embedding.all_reduce", "final_norm"}:
                    total_s += float((times.ends_s - times.starts_s)[:, place].sum())
    return total_s


@pytest.mark.parametrize(
    ("change", "key", "said"),
    [
        ("parallel.tensor.degree=3", "parallel.tensor.degree", "3 ranks do not fill 8 devices"),
        ("parallel.pipeline.degree=16", "parallel.tensor.degree", "do not fill 8 devices"),
        ("parallel.expert.degree=2", "parallel.expert.degree", ""),
        ("inference={prompts: [5], sequences: 2}", "inference.sequences", "states the tokens of every sequence"),
        ("inference.prompts=[]", "inference.prompts", "must hold at least 1 item, it holds 0"),
        ("inference.prompt_tokens=9000", "inference.prompt_tokens", "the model knows 8,192 positions"),
        ("inference={output_tokens: 5, tokens_per_step: 3}", "inference.output_tokens", "steps of 3"),
        ("model={preset: llama-3-8b, sliding_window: {size: 64}}", "model.sliding_window", "without a window"),
    ],
)
def test_what_cannot_be_is_refused(change: str, key: str, said: str) -> None:
    """Errors name the key that is to change, and what is wrong with it."""
    with pytest.raises(ScenarioError) as found:
        load_scenario(LARGE, [change])
    assert found.value.key == key
    assert said in str(found.value)


class InOneProcess:
    """A backend that runs all ranks in this process."""

    def execute(self, request: ExecutionRequest) -> Execution:
        """Return what all ranks find out."""
        return execute_in_one_process(request, References(CPU))

    def timeline(self, execution: Execution) -> Timeline:
        """Return the timeline of the run, whose times are counts of ops."""
        return timeline(execution.plan, execution.ranks)


@pytest.fixture
def in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an execution take place in this process."""
    library = SimpleNamespace(backend=lambda *_: InOneProcess())
    monkeypatch.setattr("scenarios.workloads.inference.execution.load_torch_backend", lambda: library)


@pytest.mark.usefixtures("in_one_process")
def test_an_inference_is_executed_and_checked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Stages and experts: work, memory and logits are as they should be, and every sequence has its answer."""
    code, shown, _ = run(capsys, "execute", TINY, "--check", "--steps", 2, "--json", "--out", tmp_path)
    found = json.loads(shown)
    assert code == 0
    assert found["same_work"]
    assert found["same_peak_memory"]
    assert found["check"]["max_relative_error"] < 1e-12
    assert 0 < found["prefill_time_s"] < found["total_time_s"]
    assert [len(tokens) for tokens in found["tokens"]] == [6, 6, 6]
    assert "check" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_check_with_experts_needs_slots_for_all(capsys: pytest.CaptureFixture[str]) -> None:
    """A model that would drop choices is not compared with one that drops none."""
    setting = "model.experts.capacity_factor=1.0"
    code, _, error = run(capsys, "execute", TINY, "--set", setting, "--check")
    assert code == 2
    assert "write 2" in error
