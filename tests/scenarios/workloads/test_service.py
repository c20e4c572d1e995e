"""The kind of work `service`, through the commands."""

import json
import pickle
from pathlib import Path

import pytest
from msgspec.structs import replace

from scenarios.errors import ScenarioError
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.registry import workload_named
from sim.serving.prices.software import FRAMEWORKS, ServingSoftware
from tests.scenarios.workloads.test_kinds import run


@pytest.fixture
def service(tmp_path: Path) -> Path:
    """Return a small service's file."""
    path = tmp_path / "service.yaml"
    path.write_text(
        workload_named("service").starter.replace("num_requests: 500", "num_requests: 40"), encoding="utf-8"
    )
    return path


def test_service_simulates_prints_and_writes(service: Path, tmp_path: Path, capsys) -> None:
    """The parts of a request's time add up to its latency, and the page has both curves."""
    code, shown, _ = run(capsys, service, "--json", "--out", tmp_path / "out")
    assert code == 0
    summary = json.loads(shown)
    assert summary["num_finished"] == 40
    assert sum(summary["waits_s"].values()) == pytest.approx(summary["latency_s"]["mean"])
    assert summary["ttft_s"]["p50"] <= summary["ttft_s"]["p99"]
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "<h2>Time to first token</h2>" in page
    assert "<h2>What requests wait for</h2>" in page


def test_more_load_is_slower_and_a_slower_overhead_too(service: Path) -> None:
    """Times to the first token and per token grow with the rate and with the overhead of an iteration."""
    mean = []
    for changes in ((), ("requests.rate=400.0",), ("requests.rate=400.0", "service.overhead=5 ms")):
        scenario = load_scenario(service, changes)
        summary = scenario.workload.simulate(scenario).as_json()
        mean.append((summary["ttft_s"]["mean"], summary["tpot_s"]["mean"]))
    assert sorted(mean) == mean
    assert len(set(mean)) == 3


def test_fewest_replicas_are_sought(service: Path, tmp_path: Path, capsys) -> None:
    """The answer meets the objective, and one replica fewer does not; an objective beyond the cluster has no answer."""
    slo = "service.slo={ttft: 60 ms, tpot: 8 ms, share: 0.9}"
    code, shown, _ = run(capsys, service, "--set", slo, "--json", "--out", tmp_path / "out")
    assert code == 0
    summary = json.loads(shown)
    capacity = summary["capacity"]
    fewest = capacity["fewest_replicas"]
    met = {point["num_replicas"]: point["met_slo_fraction"] for point in capacity["tried"]}
    assert fewest == summary["num_replicas"] > 1
    assert met[fewest] == summary["met_slo_fraction"] >= 0.9 > met[fewest - 1]
    assert "the fewest of these" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    beyond = "service.slo={tpot: 1 us, share: 0.9}"
    scenario = load_scenario(service, (beyond,))
    found = scenario.workload.simulate(scenario).as_json()
    assert (found["capacity"]["fewest_replicas"], found["num_replicas"]) == (None, 8)
    assert "No number that the cluster has room for is enough" in run(capsys, service, "--set", beyond)[1]


@pytest.mark.parametrize("option", [("--detail", "op"), ("--no-fold",)])
def test_options_of_a_plan_are_refused(service: Path, capsys, option: tuple[str, ...]) -> None:
    """No rank of a service runs a plan whose ops could be shown or ranks folded."""
    code, _, problem = run(capsys, service, *option)
    assert (code, f"{option[0]}: a simulation of service has no ranks with a plan" in problem) == (2, True)


def test_plan_seeks_the_fewest_replicas(service: Path, tmp_path: Path, capsys) -> None:
    """`simulate plan` gives the answer of a simulation with the objective, and needs one; a strategy has no say."""
    slo = ("--set", "service.slo={ttft: 60 ms, tpot: 8 ms, share: 0.9}")
    code, shown, _ = run(capsys, "plan", service, *slo, "--json", "--out", tmp_path / "out")
    _, simulated, _ = run(capsys, service, *slo, "--json")
    assert code == 0
    assert json.loads(shown) == json.loads(simulated)
    assert json.loads(shown)["capacity"]["fewest_replicas"] > 1
    assert (tmp_path / "out" / "summary.json").is_file()
    for arguments, said in (((), "service.slo.share"), ((*slo, "--objective", "memory"), "leave out --objective"),
                            ((*slo, "--budget", "5 s"), "--budget and --resume")):  # fmt: skip
        code, _, problem = run(capsys, "plan", service, *arguments)
        assert (code, said in problem) == (2, True)


@pytest.mark.parametrize(
    ("change", "key", "said"),
    [
        ("service.slo={share: 0.9}", "service.slo.share", "limits, of which there are none"),
        ("service={replicas: 2, slo: {ttft: 1 s, share: 0.9}}", "service.replicas", "seeks the number of replicas"),
        ("service.tensor_degree=16", "service.tensor_degree", "1 x 16 devices are more than the cluster's 8"),
        ("service.tensor_degree=3", "service.tensor_degree", "32 heads cannot be divided over 3 devices"),
        ("model.preset=llama-3-70b", "service.tensor_degree", "leave no room for keys and values"),
        ("service.failures=[{replica: 8, at: 1 s, lasts: 1 s}]", "service.failures", "there is no replica 8"),
        ("requests={prompt_tokens: 5}", "requests.rate", "drawn requests need a rate"),
        (
            "requests={concurrency: 4, burstiness: 0.5}",
            "requests.burstiness",
            "users who wait send a request when the one before has ended",
        ),
        ("cluster.jitter.gemm=0.1", "cluster.jitter", "devices of a service take equal times"),
        ("model.causal=false", "model.causal", "only causal models continue a text"),
        ("model.hidden_size=4098", "model.num_heads", "hidden_size 4098 does not divide by num_heads 32"),
        ("model.num_kv_heads=5", "model.num_kv_heads", "num_heads 32 does not divide by num_kv_heads 5"),
        (
            "model={preset: mixtral-8x7b, experts: {top_k: 9}}; service.tensor_degree=4",
            "model.experts.top_k",
            "9 of 8 experts",
        ),
        ("requests.trace=nowhere.csv", "requests.trace", "there is no such file"),
        ("decoding={method: eagle}", "decoding.hit_rates", "eagle needs it"),
        ("decoding={acceptance: 0.5}", "decoding.acceptance", "autoregressive does not read it"),
        ("service.pipeline_degree=64", "service.pipeline_degree", "64 stages are more than the 32 layers"),
        ("service.pipeline_degree=16", "service.tensor_degree", "1 x 16 devices are more than the cluster's 8"),
        ("service.expert_degree=2", "service.expert_degree", "the model has none"),
        ("model={preset: mistral-7b}; requests.prompt_tokens=5000", "model.sliding_window", "built without windows"),
        ("service.expert_messages=nodes", "service.expert_messages", "no groups that send each other tokens"),
        (
            "model={preset: deepseek-v2-lite, experts: {num_experts: 60}}; service.expert_degree=8",
            "service.expert_degree",
            "60 experts cannot be shared out by 8 groups",
        ),
        (
            "cluster={node: hgx-h100, num_nodes: 1, devices_per_node: 6}; service.tensor_degree=4",
            "service.tensor_degree",
            "a group of 4 devices fills no whole nodes of 6",
        ),
        (
            "service.pipeline_degree=2; decoding={method: clover, recorded: python_help}",
            "decoding.method",
            "with stages that is not built",
        ),
    ],
)
def test_impossible_services_are_refused(service: Path, change: str, key: str, said: str) -> None:
    """The error names the key and works the rule out."""
    with pytest.raises(ScenarioError, match=said) as caught:
        load_scenario(service, change.split("; "))
    assert caught.value.key == key


def test_wrong_line_of_a_trace_is_named_with_one_remedy(service: Path) -> None:
    """The message has the trace's line and column, and says once what to write."""
    (service.parent / "a.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0,12,none\n")
    with pytest.raises(ScenarioError, match=r"a.csv:2: GeneratedTokens: 'none' is not a number") as caught:
        load_scenario(service, [f"requests={{trace: {service.parent / 'a.csv'}}}"])
    assert str(caught.value).count("write a whole number") == 1


def test_speculation_pays_at_small_batches_alone(service: Path) -> None:
    """A tree makes tokens faster for one sequence, and slower for a full batch; tokens per step are as expected."""
    tree = "decoding={method: medusa, drafted: 25, hit_rates: [0.6, 0.45, 0.35, 0.28, 0.22]}"
    few = ("requests.rate=1.0", "requests.output_variation=0.0")
    many = ("requests.rate=10000.0", "requests.num_requests=2000", "service.replicas=1", "requests.prompt_tokens=16")
    times = {}
    for load in (few, many):
        for changes in ((), (tree,)):
            scenario = pickle.loads(pickle.dumps(load_scenario(service, (*load, *changes))))  # as in a sweep
            found = scenario.workload.simulate(scenario).as_json()
            times[load, changes] = found["tpot_s"]["mean"]
    assert times[few, (tree,)] < 0.5 * times[few, ()]
    assert times[many, (tree,)] > times[many, ()]
    assert found["tokens_per_step"] == pytest.approx(2.894799, rel=0.02)


def test_drafts_cost_what_their_parts_cost(service: Path) -> None:
    """Heads beside each other are the cheapest, one layer more costs more, and a layer for each depth the most."""
    cost = {}
    for name in ("medusa", "hydra", "clover", "clover2"):
        decoding = load_scenario(service, [f"decoding={{method: {name}, hit_rates: [0.6, 0.45, 0.35]}}"]).spec.decoding
        cost[name] = decoding.draft_s(16)
    assert cost == dict(sorted(cost.items(), key=lambda entry: entry[1]))
    assert cost["medusa"] > 0.0


def test_a_sweep_of_services_that_answer_nobody_names_no_best(service: Path, capsys) -> None:
    """Users who leave at once: times are null, and no point is the best."""
    code, shown, _ = run(capsys, "sweep", service, "--set", "service.patience=1 us", "--set", "seed=0,1", "--jobs", 2)
    assert (code, "least" in shown) == (0, False)
    code, shown, _ = run(
        capsys, "sweep", service, "--set", "service.patience=1 us", "--set", "seed=0,1", "--jobs", 1, "--json"
    )
    assert [point["mean_latency_s"] for point in json.loads(shown)["points"]] == [None, None]


def test_a_framework_brings_its_constants_and_keys_replace_them(service: Path) -> None:
    """A framework's overheads count where the file states none."""
    software = load_scenario(service, ("service.framework=vllm", "service.overhead=5 ms")).cost.software
    assert software == replace(FRAMEWORKS["vllm"], iteration_s=5e-3)
    assert load_scenario(service, ()).cost.software == ServingSoftware()


def test_prompts_on_replicas_of_their_own_are_not_in_the_way(service: Path) -> None:
    """Nobody is stalled by prompts of others; moving takes at least what the bytes take; the parts add up."""
    scenario = load_scenario(service, ("service.prompt_replicas=4", "service.batching=prefill_first"))
    summary = scenario.workload.simulate(scenario).as_json()
    waits = summary["waits_s"]
    assert summary["num_finished"] == 40
    assert waits["stalled"] == 0.0
    assert waits["moved"] > 1024 * 131_072 / 450e9  # 128 KiB per token over an H100's NVLink
    assert sum(waits.values()) == pytest.approx(summary["latency_s"]["mean"])
    between = replace(scenario.spec.links, devices_per_node=1)
    assert between.transfer_s(0, 1, 1024) > scenario.spec.links.transfer_s(0, 1, 1024) > 0.0
    with pytest.raises(ScenarioError, match="leave none that decodes"):
        load_scenario(service, ("service.prompt_replicas=8",))
