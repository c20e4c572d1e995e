from pathlib import Path

import pytest

from scenarios.errors import ScenarioError
from scenarios.planning.layerwise import layerwise_of
from scenarios.planning.openings import openings_of
from scenarios.planning.proof import Proof, prove
from scenarios.planning.request import Planner, Request
from scenarios.planning.resources import Resources
from scenarios.planning.search import search
from scenarios.planning.studied import Studied
from scenarios.reading.documents.overrides import apply_overrides
from scenarios.reading.documents.yaml_tree import read_document
from scenarios.sweep.workers import ThisProcess
from sim.training.spec.job import DenseTraining

HERE = Resources(ThisProcess())
"""This process simulates."""

UNEVEN = """
name: uneven
seed: 0
cluster: {node: hgx-h100, num_nodes: 1, devices_per_node: 4}
model:
  {family: llama, num_layers: 16, hidden_size: 1024, num_heads: 8, ffn_hidden_size: 4096, vocab_size: 128000,
   sequence_length: 1024}
training: {global_batch_size: 32, microbatch_size: 1}
parallel: {tensor: {degree: 1}}
"""
PLANNERS: tuple[Planner, ...] = ("galvatron", "alpa", "galvatron_bmw")


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """A model whose head takes as long as several layers, on four GPUs."""
    path = tmp_path / "uneven.yaml"
    path.write_text(UNEVEN, encoding="utf-8")
    return path


def studied(path: Path, planner: Planner, *overrides: str) -> Studied:
    """Return the plans of a planner, by estimate."""
    assert planner in ("galvatron", "galvatron_bmw", "alpa")
    document = apply_overrides(read_document(path), overrides)
    return layerwise_of(openings_of(document), planner, 1, ThisProcess())


def proof(found: Studied) -> Proof:
    """Return the simulation of the plan that is best by estimate."""
    outcome = prove(found.scenario(0), found.room_bytes)
    assert isinstance(outcome, Proof)
    return outcome


def test_stages_are_balanced_on_an_uneven_model(scenario: Path) -> None:
    """With a slow head BMW and Alpa give the last stage fewer layers, and the engine agrees that the step is faster."""
    even, *balanced = (studied(scenario, planner, "parallel.pipeline.degree=4") for planner in PLANNERS)
    even_s = proof(even).time_s
    assert even_s is not None
    for found in balanced:
        time_s, job = proof(found).time_s, found.scenario(0).job
        assert found.estimates.time_s[0] < even.estimates.time_s[0]
        assert time_s is not None
        assert time_s < 0.95 * even_s
        assert isinstance(job, DenseTraining)
        assert job.parallel.pipeline.layers_per_stage[-1] < 4


def test_layers_have_strategies_of_their_own_where_memory_is_short(scenario: Path) -> None:
    """Between a plan that keeps everything and one that shards and recomputes everything lie mixed ones, which fit."""
    fixed = ("parallel.pipeline.degree=1", "software.memory_reserve=74.5 GiB")
    found = studied(scenario, "galvatron_bmw", *fixed)
    job, outcome = found.scenario(0).job, proof(found)
    assert isinstance(job, DenseTraining)
    assert 0 < len(job.training.recompute_layers or ()) < 16 or 0 < len(job.operator_choices) < 67
    assert outcome.time_s == pytest.approx(found.estimates.time_s[0], rel=0.15)
    assert 0.7 * found.estimates.memory_bytes[0] < outcome.memory_bytes <= found.room_bytes


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("cluster.devices_per_node=6", "degrees are powers of two, and there are 6 devices"),
        ("model.experts={num_experts: 4, top_k: 2, ffn_hidden_size: 512}", "not built for experts"),
        ("parallel.data.zero_stage=2", "layers are sharded or not"),
        ("training.precision=fp8", "operators by the bytes"),
        ("parallel.pipeline.schedule=interleaved_1f1b", "in 1f1b pipelines"),
    ],
)
def test_what_layers_cannot_do_is_refused(scenario: Path, override: str, words: str) -> None:
    """Galvatron's plans know no other stages of ZeRO, schedules, precisions or models, and say so."""
    with pytest.raises(ScenarioError, match=words):
        search(scenario, [override], Request(planner="galvatron"), HERE)
