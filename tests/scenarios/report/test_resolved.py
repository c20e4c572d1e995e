"""A result says what it is of, and how much memory it leaves."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from costmodels.software import GPU_RESERVE_BYTES
from scenarios.api import load, simulate
from scenarios.report.words import detail_rows, goal_words, room_words
from scenarios.summaries.as_json import as_json
from scenarios.summaries.steps.step import StepSummary

SCENARIO = """\
name: A small llama
cluster: {node: hgx-h100, num_nodes: 2}
model: {family: llama, num_layers: 4, hidden_size: 1024, num_heads: 8, num_kv_heads: 8, ffn_hidden_size: 2816,
        sequence_length: 2048, vocab_size: 32000}
parallel: {tensor: {degree: 2}, pipeline: {degree: 2}, data: {degree: auto}}
training: {global_batch_size: 64, microbatch_size: 2}
"""


@pytest.fixture
def summary_of(tmp_path: Path) -> Callable[[Sequence[str]], StepSummary]:
    """Return what gives the summary of the scenario under overrides."""
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    return lambda changes: simulate(path, changes).summary


def test_result_says_what_it_is_of(summary_of) -> None:
    """Sizes and choices are those of the file, with what it leaves open filled in."""
    summary = summary_of([])
    resolved = summary.resolved
    assert resolved is not None
    assert dict(resolved.degrees) == {"tensor": 2, "context": 1, "pipeline": 2, "data": 4, "expert": 1}
    assert (resolved.num_microbatches, resolved.tokens_per_step) == (8, 64 * 2048)
    assert dict(resolved.nodes) == {"hgx-h100": 2}
    rows = dict(detail_rows(summary))
    assert rows["strategy"] == "tensor 2 x pipeline 2 x data 4 on 2 hgx-h100; 8 micro-batches of 2"
    assert rows["model"].endswith("parameters, sequences of 2,048 tokens, 131,072 tokens a step")
    assert rows["profile"].startswith("h100: fitted to measurements; seed 0, meshtwin ")


def test_length_names_its_source(summary_of) -> None:
    """A length that the file does not state is named with what stated it."""
    preset = ["model={preset: llama-3-8b}", "training.recompute=full"]
    summary = summary_of(preset)
    assert summary.resolved is not None
    assert summary.resolved.sequence_length_from == "preset llama-3-8b"
    assert "tokens (preset llama-3-8b)" in dict(detail_rows(summary))["model"]
    stated = summary_of(["model={preset: llama-3-8b, sequence_length: 2048}", *preset[1:]])
    assert stated.resolved is not None
    assert stated.resolved.sequence_length_from == "model.sequence_length"


@pytest.mark.parametrize(
    ("node", "basis"),
    [
        ("hgx-h20", "roofline: roofline only, no kernel of this device was measured"),
        ("azure-nd-mi300x-v5", "roofline: roofline only, no kernel of this device was measured"),
        ("local-cpu", "cpu: uncalibrated, orders of magnitude only"),
    ],
)
def test_unmeasured_device_is_named_in_every_result(summary_of, node: str, basis: str) -> None:
    """Who reads the result sees that no kernel of this device was measured."""
    summary = summary_of([f"cluster.node={node}", "training.precision=fp32"])
    assert summary.resolved is not None
    assert summary.resolved.profile_basis == ("assumed" if node == "local-cpu" else "roofline")
    assert dict(detail_rows(summary))["profile"].startswith(basis)


def test_step_fits_to_the_last_byte_beside_the_reserve(summary_of) -> None:
    """The reserve that leaves just the peak still fits; one byte more does not."""
    free = summary_of([])
    assert free.memory_reserve_bytes == GPU_RESERVE_BYTES
    assert free.memory_capacity_bytes is not None
    peak = max(role.peak_memory_bytes for role in free.roles)
    room = free.memory_capacity_bytes - peak
    full = summary_of([f"software.memory_reserve={room} B"])
    assert full.fits_memory
    assert room_words(full).startswith(", 0 B to spare, ")
    over = summary_of([f"software.memory_reserve={room + 1} B"])
    assert not over.fits_memory
    assert room_words(over).startswith(", 1 B too much, ")
    assert room_words(summary_of(["software.memory_reserve=0 B"])).endswith("to spare")


def test_cpu_has_no_reserve(summary_of) -> None:
    """A process's memory is the machine's; nothing is held back."""
    assert summary_of(["cluster.node=local-cpu", "training.precision=fp32"]).memory_reserve_bytes == 0


def test_choice_of_shards_leaves_the_reserve_free() -> None:
    """What `osdp` shards fits beside the reserve, whatever the reserve is."""
    peaks = []
    for reserve in ("0 B", "4 GiB"):
        summary = simulate(load("llama-2-7b-osdp-8-v100", [f"software.memory_reserve={reserve}"])).summary
        assert summary.fits_memory, reserve
        peaks.append(max(role.peak_memory_bytes for role in summary.roles))
    assert peaks[0] > peaks[1]


def test_goal_is_whole_steps_of_the_step_s_time(summary_of) -> None:
    """A token more than so many steps see needs one more step; time and interval are theirs."""
    assert summary_of([]).goal is None
    for tokens, steps in ((10 * 64 * 2048, 10), (10 * 64 * 2048 + 1, 11)):
        summary = summary_of([f"training.tokens={tokens}"])
        assert summary.goal is not None
        assert summary.goal.num_steps == steps
        assert summary.goal.time_s == pytest.approx(steps * summary.iteration_time_s)
        assert summary.iteration_time_interval_s is not None
        bounds = [steps * bound for bound in summary.iteration_time_interval_s]
        assert list(summary.goal.time_interval_s or ()) == pytest.approx(bounds)
    assert dict(detail_rows(summary))["goal"].startswith("1.311 million tokens in ")


@pytest.mark.parametrize(
    ("changes", "usd_per_hour"),
    [([], 6.88), (["cluster.device_price=2.50 USD/h"], 2.5), (["cluster.node=hgx-h20"], None)],
    ids=["list price", "stated price", "no price"],
)
def test_goal_costs_all_devices_for_its_time(summary_of, changes: Sequence[str], usd_per_hour: float | None) -> None:
    """At the list price of the catalogue, or at the scenario's; where neither says one, nothing is said."""
    goal = summary_of(["training.tokens=1 B", *changes]).goal
    if usd_per_hour is None:
        assert "cost_usd" not in as_json(goal)
        assert "USD" not in goal_words(goal)
    else:
        assert goal.cost_usd == pytest.approx(goal.time_s / 3600.0 * usd_per_hour * 16)
        assert f"{usd_per_hour:.2f} USD/h per device" in goal_words(goal)


def test_goal_of_a_long_run_takes_its_interruptions(summary_of) -> None:
    """The elapsed time is the training time over the mean goodput."""
    keys = ["mtbf_per_device=50000 h", "checkpoint.save=30 s", "restart=5 min", "duration=1 d", "replications=3"]
    summary = summary_of(["training.tokens=15 T", *(f"reliability.{key}" for key in keys)])
    assert summary.goal is not None
    assert summary.reliability is not None
    assert summary.goal.elapsed_s == pytest.approx(summary.goal.time_s / summary.reliability.goodput.mean)
    assert summary.goal.elapsed_s > summary.goal.time_s
    assert " with interruptions; " in dict(detail_rows(summary))["goal"]
