import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from benchmarks.planning import disagreements, loss
from scenarios.command_line import group
from scenarios.errors import ScenarioError
from scenarios.planning.files import best_text, write_plan
from scenarios.planning.openings import openings_of
from scenarios.planning.pricing import Priced
from scenarios.planning.proof import Proof, prove
from scenarios.planning.request import Planner, Request
from scenarios.planning.resources import Resources
from scenarios.planning.search import search
from scenarios.planning.studied import Studied, refusals, studied_of
from scenarios.reading.documents.named_file import written_elsewhere
from scenarios.reading.documents.overrides import apply_overrides
from scenarios.reading.documents.yaml_tree import read_document
from scenarios.sweep.workers import ThisProcess
from scenarios.workloads.loading import load_step
from scenarios.workloads.steps.running import plan_of, run_plan
from sim.engine.running.memory import memory_use
from sim.planner.prices import FREE, Prices, probe_keys
from sim.planner.space import ORDERED, SCHEDULES, SEARCHED
from sim.training.pipeline.rules import Schedule

HERE = Resources(ThisProcess())
"""This process simulates."""

PLANNERS: tuple[Planner, ...] = ("auto", "exhaustive")
SCENARIO = """
name: small
seed: 0
cluster: {node: hgx-h100, num_nodes: 1}
model: {family: gpt, num_layers: 8, hidden_size: 2048, num_heads: 16, vocab_size: 32000, sequence_length: 1024}
training: {global_batch_size: 32}
"""


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scenario that leaves the whole strategy open."""
    path = tmp_path_factory.mktemp("plan") / "small.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def studied(scenario: Path) -> Studied:
    """The estimates of all its strategies with micro-batches of 2."""
    keys = ["training.microbatch_size=2", "model.sequence_length=1064"]  # in steps of 56 tokens
    document = apply_overrides(read_document(scenario), keys)
    return studied_of(openings_of(document, SCHEDULES), ThisProcess())


def test_estimates_are_near_the_engine(tmp_path: Path) -> None:
    """Over random strategies of random models and clusters the median error is within 5 %, the 90th percentile 15 %."""
    pairs = [pair for number in range(5) for pair in disagreements(number, tmp_path)]
    assert len(pairs) > 8
    for errors in zip(*pairs, strict=True):
        assert np.median(errors) < 0.05, errors
        assert np.quantile(errors, 0.9) < 0.15, errors


@pytest.mark.parametrize("number", [1, 3])
def test_search_finds_the_optimum_of_all_simulations(number: int, tmp_path: Path) -> None:
    """On spaces that can be simulated whole, the search's pick is as fast as the engine's optimum, within 2 %."""
    found = loss(number, tmp_path, most=8, schedules=("1f1b", "interleaved_1f1b"))
    assert found is not None
    assert found <= 0.02


def test_estimated_memory_is_that_of_the_plan(studied: Studied) -> None:
    """Without shards, and with ZeRO 1, memory is the plan's within 1 % for any recomputation and any 1f1b pipeline."""
    plain = np.flatnonzero((studied.grid.zero_stage < 2) & studied.grid.runs(["1f1b"]))
    for row in np.random.default_rng(5).permutation(plain)[:12].tolist():
        plan = plan_of(studied.openings.scenario(studied.grid.strategy(row)))
        peak = max(memory_use(program).peak_bytes for program in plan.programs)
        assert studied.estimates.memory_bytes[row] == pytest.approx(peak, rel=0.01)


@pytest.mark.parametrize("schedule", ORDERED)
def test_estimates_of_walked_orders_are_near_the_engine(schedule: Schedule, studied: Studied) -> None:
    """Time is within 5 %, memory within 10 %."""
    number = 2 if schedule in SEARCHED else 1
    for row in np.random.default_rng(7).permutation(np.flatnonzero(studied.grid.runs([schedule])))[:number].tolist():
        proof = prove(studied.scenario(row), studied.room_bytes)
        assert isinstance(proof, Proof)
        assert studied.estimates.time_s[row] == pytest.approx(proof.time_s, rel=0.05)
        assert studied.estimates.memory_bytes[row] == pytest.approx(proof.memory_bytes, rel=0.1)


def test_slices_are_chosen_for_the_best_few(scenario: Path) -> None:
    """Slices shorten a pipeline with few micro-batches; estimates know what they save, within 8 %."""
    keys = ["model.hidden_size=4096", "model.num_heads=32", "model.sequence_length=1064"]  # in steps of 56 tokens
    keys += ["training={global_batch_size: 8, microbatch_size: 1, recompute: none}"]
    keys += ["parallel={tensor: {degree: 1}, pipeline: {degree: 4}, data: {zero_stage: 0}}"]
    request = Request(schedules=("1f1b", "seq_1f1b"))
    found = search(scenario, keys, request, HERE).summary
    plans = {plan.set["parallel.pipeline.schedule"]: plan for plan in found.plans}
    assert plans["seq_1f1b"].iteration_time_s < plans["1f1b"].iteration_time_s
    assert len(plans["seq_1f1b"].set["parallel.pipeline.token_slices"]) > 1
    for plan in plans.values():
        assert plan.estimated_time_s == pytest.approx(plan.iteration_time_s, rel=0.08)
        assert plan.estimated_memory_bytes == pytest.approx(plan.peak_memory_bytes, rel=0.01)


def test_estimates_know_passes_that_take_turns(scenario: Path) -> None:
    """Where experts' exchanges of one pass run beside the other, time is within 8 % of the engine's, and shorter."""
    keys = ["cluster={node: hgx-h100, num_nodes: 4}", "training.microbatch_size=1", "training.recompute=none"]
    keys += ["model.experts={num_experts: 16, top_k: 4, ffn_hidden_size: 4096}", "model.num_layers=8"]
    keys += ["parallel={tensor: {degree: 1}, data: {zero_stage: 1}, expert: {degree: 16}}"]
    keys += ["parallel.pipeline={degree: 2, schedule: dualpipe_v}", "training.global_batch_size=64"]
    times_s = []
    for overlaps in ("false", "true"):
        overridden = apply_overrides(
            read_document(scenario), [*keys, f"parallel.pipeline.overlap_exchanges={overlaps}"]
        )
        studied = studied_of(openings_of(overridden), ThisProcess())
        proof = prove(studied.scenario(0), studied.room_bytes)
        assert isinstance(proof, Proof)
        assert studied.estimates.time_s[0] == pytest.approx(proof.time_s, rel=0.08)
        times_s.append(proof.time_s)
    assert times_s[1] < 0.98 * times_s[0]


def test_optimizer_goes_to_the_host_where_nothing_else_fits(scenario: Path) -> None:
    """One device trains a model whose state alone fills it; time is estimated within 20 %, memory within 10 %."""
    keys = ["cluster={node: hgx-h100, num_nodes: 1, devices_per_node: 1}", "training.recompute=full"]
    keys += ["model.num_layers=24", "model.hidden_size=4096", "model.num_heads=32", "training.global_batch_size=4"]
    keys += ["training.microbatch_size=1"]
    document = apply_overrides(read_document(scenario), keys)
    found = search(scenario, keys, Request(num_proofs=1), HERE).summary
    best = found.plans[0]
    assert best.set["parallel.data.offload"] == "optimizer"
    assert best.estimated_time_s == pytest.approx(best.iteration_time_s, rel=0.2)
    assert best.estimated_memory_bytes == pytest.approx(best.peak_memory_bytes, rel=0.1)
    without = studied_of(openings_of(document), ThisProcess(), {"offload": [0]})
    assert without.estimates.memory_bytes.min() > without.room_bytes


def test_stages_without_layers_are_estimated(scenario: Path) -> None:
    """Two stages more than layers leave the ends with the embedding and the head; estimates are near the engine."""
    keys = ["model.num_layers=6", "parallel.pipeline.degree=2", "parallel.pipeline.virtual_stages=4"]
    keys += ["parallel.pipeline.schedule=interleaved_1f1b", "parallel.tensor.degree=1", "training.recompute=none"]
    keys += ["training.microbatch_size=1", "parallel.data.zero_stage=1"]
    studied = studied_of(openings_of(apply_overrides(read_document(scenario), keys)), ThisProcess())
    proof = prove(studied.scenario(0), studied.room_bytes)
    assert isinstance(proof, Proof)
    assert studied.estimates.time_s[0] == pytest.approx(proof.time_s, rel=0.05)
    assert studied.estimates.memory_bytes[0] == pytest.approx(proof.memory_bytes, rel=0.06)


def test_refused_strategies_are_counted_under_their_own_rules(studied: Studied) -> None:
    """Where probes are refused by different rules, each rule counts the strategies of its own probes."""
    tensor = {key: key[0] for key in probe_keys(studied.grid)[0]}
    rules = {key: f"rule of {degree}" for key, degree in tensor.items() if degree > 2}
    found = refusals(studied.grid, Priced(Prices({}, {}, {}, {}, {}, 8, 2, FREE, FREE), rules, {}))
    assert found == {f"refused: rule of {degree}": (studied.grid.tensor == degree).sum() for degree in (4, 8)}


def test_every_strategy_is_proved_or_lost_for_a_reason(scenario: Path) -> None:
    """Proved strategies and those that lost add up to all, whether some of them or all are simulated."""
    fixed = ["parallel.tensor.degree=2", "training.microbatch_size=8", "training.recompute=none"]
    fixed += ["parallel.pipeline.schedule=1f1b", "parallel.data.zero_stage=1"]
    auto, whole = (search(scenario, fixed, Request(planner=planner), HERE).summary for planner in PLANNERS)
    for summary in (auto, whole):
        assert len(summary.plans) + sum(lost.number for lost in summary.lost) == summary.num_strategies


def test_best_plan_is_a_scenario_that_takes_the_stated_time(scenario: Path, tmp_path: Path) -> None:
    """``--out`` writes a scenario of the best plan, which keeps fixed keys; files are the same on every run."""
    texts = []
    for folder in ("first", "second"):
        command = ["plan", str(scenario), "--proofs", "1", "--jobs", "1", "--out", str(tmp_path / folder), "--json"]
        command += ["--set", "parallel.pipeline.degree=2", "--set", "parallel.data.zero_stage=auto"]
        command += ["--set", "training.microbatch_size=2", "--set", "training.recompute=none"]
        result = CliRunner().invoke(group, command)
        assert result.exit_code == 0, result.output
        texts.append({path.name: path.read_bytes() for path in (tmp_path / folder).iterdir()})
    assert texts[0] == texts[1]
    assert set(texts[0]) == {"plan.json", "best.yaml", "report.html"}
    summary = json.loads(texts[0]["plan.json"])
    assert summary["schema"] == "meshtwin.plan/1"
    assert yaml.safe_load(texts[0]["best.yaml"])["parallel"]["pipeline"]["degree"] == 2
    assert "parallel.pipeline.degree" not in summary["searched"]
    best = load_step(tmp_path / "first" / "best.yaml")
    assert run_plan(best, plan_of(best)).iteration_time_s == summary["plans"][0]["iteration_time_s"]
    times = [plan["iteration_time_s"] for plan in summary["plans"]]
    assert times == sorted(times)
    front = [plan["peak_memory_bytes"] for plan in summary["plans"] if plan["on_front"]]
    assert front == sorted(front, reverse=True)


@pytest.mark.parametrize("by_option", [False, True], ids=["in the file", "by --set"])
def test_best_plan_finds_the_files_that_its_scenario_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, by_option: bool
) -> None:
    """A path begins at its file's folder, and that of ``--set`` at the shell's: best.yaml in another folder names the
    same files.
    """
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "vocab_size": 32000}
    config |= {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 4, "num_attention_heads": 16}
    config |= {"max_position_embeddings": 1024}
    models, shell = tmp_path / "models", tmp_path / "shell"
    for folder in (models, shell):
        folder.mkdir()
    (models / "config.json").write_text(json.dumps(config), encoding="utf-8")
    before, _, after = SCENARIO.partition("model: {")
    whole = f"{before}model: {{huggingface: config.json}}{after[after.index('}') + 1 :]}"
    (models / "named.yaml").write_text(whole, encoding="utf-8")
    monkeypatch.chdir(shell)
    overrides = ["training.microbatch_size=1", "training.recompute=none", "parallel.pipeline.degree=1"]
    overrides += ["parallel.data.zero_stage=0", *(["model.huggingface=../models/config.json"] if by_option else [])]
    found = search(models / "named.yaml", overrides, Request(num_proofs=1), HERE)
    write_plan(found, tmp_path / "out" / "plan")
    best = load_step(tmp_path / "out" / "plan" / "best.yaml")
    assert run_plan(best, plan_of(best)).iteration_time_s == found.summary.plans[0].iteration_time_s
    assert yaml.safe_load(best_text(found, models))["model"]["huggingface"] == "config.json"


def test_every_file_of_a_step_is_named_anew(tmp_path: Path) -> None:
    """Each key of a step that names a file is written for the new folder; absolute paths and other values stay."""
    away = tmp_path / "away.yaml"
    cluster, pipeline = {"node": "hgx-h100", "profile": "a.yaml"}, {"degree": 2, "actions": "b/c.csv"}
    model = {"huggingface": "/d.json", "experts": {"routing": {"trace": "../e.json", "step": 2}}}
    away.write_text(yaml.safe_dump({"cluster": cluster, "model": model, "parallel": {"pipeline": pipeline}}), "utf-8")
    document = read_document(away)
    moved = written_elsewhere(document, tmp_path / "out" / "plan")
    assert moved["cluster"] == cluster | {"profile": "../../a.yaml"}
    assert moved["parallel"]["pipeline"] == pipeline | {"actions": "../../b/c.csv"}
    assert moved["model"] == {"huggingface": "/d.json", "experts": {"routing": {"trace": "../../../e.json", "step": 2}}}
    assert document.data["cluster"] == cluster


def test_nothing_fits_says_what_would(scenario: Path) -> None:
    """Where nothing fits, the error has the leanest strategy's memory and the change under which one fits."""
    large = ["model.hidden_size=16384", "model.num_heads=128", "training.microbatch_size=1", "training.recompute=full"]
    whole = [*large, "parallel.tensor.degree=1", "parallel.pipeline.degree=1", "parallel.data.zero_stage=0"]
    with pytest.raises(
        ScenarioError, match=r"the leanest of \d+ needs [\d.]+ GiB per rank.*\n.*leave out parallel.ten"
    ):
        search(scenario, whole, Request(schedules=("1f1b",)), HERE)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("parallel.pipeline.schedule=pipedream_2bw", "a search estimates 1f1b, interleaved_1f1b, breadth_first"),
        ("parallel.pipeline={schedule: 1f1b, overlap_exchanges: true}", "under 1f1b no forward overlaps a backward"),
        ("parallel.expert.nodes=2", "parallel.expert.nodes: no ranks share out experts"),
        ("parallel.tensor.degree=3", "degrees have to multiply to 8 devices"),
        ("parallel.data.bucket=1 MiB", "a search of strategies does not know it"),
        ("training.global_batch_size=0", "global_batch_size"),
    ],
)
def test_what_cannot_be_searched_is_refused(scenario: Path, override: str, words: str) -> None:
    """Keys that estimates do not know, and mistakes in the file, are errors with the key and a remedy."""
    with pytest.raises(ScenarioError, match=words):
        search(scenario, [override], Request(), HERE)


@pytest.mark.parametrize(
    ("overrides", "planner", "words"),
    [
        (
            ["parallel.pipeline.schedule=1f1b"],
            "auto",
            "--schedules: the scenario writes .* so no schedules are searched",
        ),
        (["parallel.pipeline.degree=1"], "auto", "of schedules zb_h1, searched with ZeRO 0 and 1, on 2 to 32"),
        ([], "galvatron", "--schedules: layers are .* in 1f1b pipelines, and here is none of these: zb_h1"),
    ],
)
def test_schedules_that_cannot_be_searched_are_refused(
    scenario: Path, overrides: list[str], planner: Planner, words: str
) -> None:
    """An option that would say nothing is no option, and one that leaves no strategy is named."""
    with pytest.raises(ScenarioError, match=words):
        search(scenario, overrides, Request(planner=planner, schedules=("zb_h1",)), HERE)


def test_scenario_of_another_kind_is_refused() -> None:
    """A textbook schedule has stated times and no strategy to price."""
    result = CliRunner().invoke(group, ["plan", "textbook-1f1b"])
    assert result.exit_code == 2
    assert "a scenario of textbook has no strategy to search" in result.output


def test_estimates_know_that_exchanges_with_experts_share_adapters(scenario: Path) -> None:
    """Eight tensor-parallel ranks of a node send to experts on another node through its one adapter, all at once."""
    keys = ["cluster={node: cloud-a100-100g, num_nodes: 2}", "training.microbatch_size=4", "training.recompute=none"]
    keys += ["model.num_layers=2", "model.experts={num_experts: 4, top_k: 2, ffn_hidden_size: 4096}"]
    keys += ["parallel={tensor: {degree: 8}, pipeline: {degree: 1}, data: {zero_stage: 1}, expert: {degree: 2}}"]
    studied = studied_of(openings_of(apply_overrides(read_document(scenario), keys)), ThisProcess())
    assert len(studied.grid) == 1
    proof = prove(studied.scenario(0), studied.room_bytes)
    assert isinstance(proof, Proof)
    assert float(studied.estimates.time_s[0]) == pytest.approx(proof.time_s, rel=0.1)


def test_tokens_that_nodes_hand_on_are_kept_in_a_search(scenario: Path) -> None:
    """Ranks that share out experts lie on the written nodes, two or more on each; others are left out with the rule."""
    experts = "num_experts: 4, top_k: 2, gate: group_limited, num_groups: 2, top_groups: 2, ffn_hidden_size: 4096"
    keys = ["cluster={node: hgx-h100, num_nodes: 2, devices_per_node: 2}"]
    keys += ["training={global_batch_size: 8, microbatch_size: 1}"]
    keys += ["model.num_layers=2", f"model.experts={{{experts}, routing: balanced, dispatch: exact}}"]
    keys += ["parallel={tensor: {degree: 1}, pipeline: {degree: 1}, data: {zero_stage: 1}, expert: {nodes: 2}}"]
    keys += ["training.recompute=none"]
    studied = studied_of(openings_of(apply_overrides(read_document(scenario), keys)), ThisProcess())
    assert [studied.grid.strategy(row).expert for row in range(len(studied.grid))] == [4]
    two = "2 ranks that share out experts do not lie on 2 nodes, two or more on each"
    assert {rule.partition("nodes: ")[2]: number for rule, number in studied.refused.items()} == {
        "no ranks share out experts": 1, two: 1,
    }  # fmt: skip
    proof = prove(studied.scenario(0), studied.room_bytes)
    assert isinstance(proof, Proof)
    assert float(studied.estimates.time_s[0]) == pytest.approx(proof.time_s, rel=0.05)
