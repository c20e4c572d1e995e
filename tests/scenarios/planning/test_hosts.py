"""State on hosts: its estimates beside the engine, and the searches that find nothing on the devices."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from scenarios.errors import ScenarioError
from scenarios.planning.misfit import refuse_misfit
from scenarios.planning.openings import openings_of
from scenarios.planning.page import plan_blocks
from scenarios.planning.proof import Proof, prove
from scenarios.planning.request import Request
from scenarios.planning.resources import Resources
from scenarios.planning.search import search
from scenarios.planning.studied import studied_of
from scenarios.reading.documents.overrides import apply_overrides
from scenarios.reading.documents.yaml_tree import read_document
from scenarios.sweep.workers import ThisProcess
from scenarios.workloads.loading import load_step
from scenarios.workloads.steps.running import plan_of, run_plan

HERE = Resources(ThisProcess())
"""This process simulates."""
SCENARIO = """
name: small
seed: 0
cluster: {node: dgx-a100-40g, num_nodes: 1}
model: {family: gpt, num_layers: 4, hidden_size: 1024, num_heads: 16, vocab_size: 8000, sequence_length: 512,
  tied_embeddings: false}
training: {global_batch_size: 16, microbatch_size: 1, recompute: none}
parallel: {data: {zero_stage: auto}}
"""
REPLICAS = ("parallel.tensor.degree=1", "parallel.pipeline.degree=1")
WOVEN = ("parallel.tensor.degree=4", "parallel.pipeline={degree: 2, schedule: interleaved_1f1b, virtual_stages: 2}")
ON_HOST = "parallel.data={zero_stage: 2, offload: optimizer}"
ALL_ON_HOST = ("parallel.data={zero_stage: 3}", "memory={manager: auto}")


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scenario that leaves most of the strategy open."""
    path = tmp_path_factory.mktemp("hosts") / "small.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    return path


@pytest.mark.parametrize("degrees", [REPLICAS, WOVEN])
@pytest.mark.parametrize(("place", "name"), [((ON_HOST,), "optimizer"), (ALL_ON_HOST, "state")])
def test_estimates_are_near_the_engine(
    degrees: tuple[str, ...], place: tuple[str, ...], name: str, scenario: Path
) -> None:
    """Hosts that are slower than the passes decide the step. Time is within 15 % of the engine, memory within 20 %."""
    document = apply_overrides(read_document(scenario), [*degrees, *place])
    studied = studied_of(openings_of(document), ThisProcess())
    row = next(row for row in range(len(studied.grid)) if studied.grid.strategy(row).offload == name)
    proof = prove(studied.scenario(row), studied.room_bytes)
    assert isinstance(proof, Proof)
    assert studied.estimates.time_s[row] == pytest.approx(proof.time_s, rel=0.15)
    assert studied.estimates.memory_bytes[row] == pytest.approx(proof.memory_bytes, rel=0.2)


def test_all_state_goes_to_the_host_where_nothing_else_fits(tmp_path: Path) -> None:
    """One device trains a model whose parameters alone are more than its memory; the plan runs as it was predicted."""
    path = tmp_path / "large.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    keys = ["cluster={node: dgx-1-v100-16g, num_nodes: 1, devices_per_node: 1}", "training.global_batch_size=2"]
    keys += ["model.num_layers=12", "model.hidden_size=8192", "model.num_heads=64", "training.recompute=full"]
    found = search(path, keys, Request(num_proofs=1), HERE)
    best = found.summary.plans[0]
    assert best.set["memory.manager"] == "angel_ptm"
    assert "memory.manager" in found.summary.searched
    assert best.estimated_time_s == pytest.approx(best.iteration_time_s, rel=0.15)
    (tmp_path / "best.yaml").write_text(yaml.safe_dump(dict(found.best.data)), encoding="utf-8")
    again = load_step(tmp_path / "best.yaml")
    assert run_plan(again, plan_of(again)).iteration_time_s == best.iteration_time_s


def test_what_fits_nowhere_is_refused_with_what_was_tried(scenario: Path) -> None:
    """The error has what the leanest strategy needs for each place of state, and what the host has."""
    keys = ["cluster={node: dgx-1-v100-16g, num_nodes: 1, devices_per_node: 1}", "training.global_batch_size=1"]
    keys += ["model.num_layers=12", "model.hidden_size=16384", "model.num_heads=128", "training.recompute=auto"]
    keys += ["training.microbatch_size=auto", "memory={manager: auto}"]
    words = (
        r"the leanest of 9 needs [\d.]+ GiB per rank with all state on the device; [\d.]+ GiB per rank with the "
        r"optimizer on the host, and [\d.]+ GiB of a host with 512.00 GiB; [\d.]+ GiB per rank with all state on the "
        r"host \(memory.manager\), and "
    )
    studied = studied_of(openings_of(apply_overrides(read_document(scenario), keys), ("1f1b",)), ThisProcess())
    assert np.array_equal(np.isinf(studied.estimates.memory_bytes), studied.grid.offload > 0)
    with pytest.raises(ScenarioError, match=words):
        refuse_misfit(studied, ThisProcess())


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_an_optimizer_on_the_host_goes_with_written_degrees(precision: str, scenario: Path) -> None:
    """Where a tensor degree is written, hosts are priced with it, and no rule refuses them, in any precision."""
    keys = ["parallel.tensor.degree=4", f"training.precision={precision}"]
    document = apply_overrides(read_document(scenario), keys)
    studied = studied_of(openings_of(document), ThisProcess(), {"offload": [1], "pipeline": [1]})
    assert len(studied.grid)
    assert not studied.refused


def test_best_plan_without_state_on_hosts_leaves_these_keys_out(scenario: Path) -> None:
    """Where all places are open, and the devices are the fastest, the best scenario has no key of hosts."""
    keys = ["memory={manager: auto}", "parallel.data.offload=auto", *REPLICAS, "training.global_batch_size=8"]
    found = search(scenario, keys, Request(num_proofs=1), HERE)
    best = found.summary.plans[0]
    assert best.set["memory"] is None
    assert f"data 8, ZeRO {best.set['parallel.data.zero_stage']}'" in repr(plan_blocks(found.summary))
    assert "memory" not in found.best.data
    assert "offload" not in found.best.data["parallel"]["data"]


@pytest.mark.parametrize("section", ["{manager: deepspeed}", "{manager: auto, gathered: 1 GB}"])
def test_other_keys_of_memory_are_refused(section: str, scenario: Path) -> None:
    """A search knows one manager, with its defaults."""
    with pytest.raises(ScenarioError, match="knows no other key of this section"):
        search(scenario, [f"memory={section}"], Request(), HERE)
