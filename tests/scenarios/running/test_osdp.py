"""Operators chosen for a scenario: once, in its own numbers, told in words, and refused with the key to change."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from scenarios.errors import ScenarioError
from scenarios.report.words import sharded_words
from scenarios.summaries.steps.step import OperatorSharding, ShardedOperator
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.running import plan_of, simulate
from scenarios.workloads.steps.scenario import StepScenario
from sim.training.spec.job import DenseTraining

TINY = Path(__file__).parents[3] / "scenarios" / "library" / "tiny-gpt-2x2.yaml"


def tiny(osdp: str, *more: str) -> StepScenario:
    """Return the tiny GPT on four replicas with these options of OSDP."""
    return load_scenario(
        TINY, ["parallel.tensor.degree=1", "parallel.pipeline.degree=1", f"parallel.data={{degree: 4, {osdp}}}", *more]
    )


def test_the_summary_says_what_was_chosen() -> None:
    """Its peak is within the limit; the choice is that of the plan that was simulated."""
    summary = simulate(tiny("osdp: {memory_limit: 8 MB, splits: [1, 2]}")).as_json()
    osdp = summary["osdp"]
    assert osdp["memory_limit_bytes"] == 8_000_000
    assert 0 < len(osdp["sharded"]) < osdp["num_operators"] == 19
    assert max(role["peak_memory_bytes"] for role in summary["roles"]) <= 8_000_000
    assert "osdp" not in simulate(tiny("zero_stage: 3")).as_json()


def test_named_layers_are_sharded_and_no_others() -> None:
    """Layers are named by number and as ranges; the embedding and the head, here its norm, go by a key of their own."""
    kinds = {"qkv", "projection", "fc1", "fc2"}
    summary = simulate(tiny('osdp: {layers: [0, "2-3"], ends: true}')).as_json()["osdp"]
    named = {row["operator"] for row in summary["sharded"]}
    assert named == {f"layer{i}.{kind}" for i in (0, 2, 3) for kind in kinds} | {
        "embedding.word", "embedding.position", "final_norm",
    }  # fmt: skip
    assert summary["memory_limit_bytes"] is None
    alone = simulate(tiny("osdp: {layers: [1]}")).as_json()["osdp"]["sharded"]
    assert {row["operator"] for row in alone} == {f"layer1.{kind}" for kind in kinds}


def test_a_choice_is_made_once_in_the_scenarios_own_numbers() -> None:
    """A check runs in float64 what was chosen for 16 bits, whatever memory that takes."""
    scenario = tiny("osdp: {memory_limit: 3 MB}", "training.precision=bf16").decided()
    assert isinstance(scenario.job, DenseTraining)
    assert scenario.job.parallel.osdp is not None
    assert scenario.job.parallel.osdp.choices
    training = replace(scenario.job.training, precision="fp64")
    wide = replace(scenario, job=replace(scenario.job, training=training))
    assert wide.decided().job == wide.job
    names = {name for name in plan_of(wide).programs[0].buffers if name.startswith("gradient_shard.")}
    assert names == {name for name in plan_of(scenario).programs[0].buffers if name.startswith("gradient_shard.")}


def test_too_little_memory_names_the_key_and_what_is_needed() -> None:
    """The error has the place of the key, both sides of the rule, and remedies."""
    with pytest.raises(ScenarioError) as caught:
        tiny("osdp: {memory_limit: 1 MB}").decided()
    message = str(caught.value)
    assert "parallel.data.osdp: of all choices of operators to shard, the smallest needs" in message
    assert "the limit is 976.56 KiB" in message
    assert "allow more splits" in message


def test_choices_in_words() -> None:
    """Operators of all layers together, with their slices."""
    chosen = [(f"layer{i}.fc1", 1, 1) for i in (0, 7, 11)]
    chosen += [("layer3.qkv", 4, 4), ("embedding.word", 1, 1), ("layer3.fc2", 4, 1)]
    rows = tuple(ShardedOperator(operator=name, num_slices=g, num_sharded=z) for name, g, z in chosen)
    osdp = OperatorSharding(memory_limit_bytes=2**30, num_operators=50, sharded=rows)
    words = "6 of 50 operators within 1.00 GiB: 3 fc1, 1 qkv (4 slices), 1 embedding.word, 1 fc2 (1 of 4 slices)"
    assert sharded_words(osdp) == words
    assert sharded_words(replace(osdp, sharded=())) == "0 of 50 operators within 1.00 GiB"
