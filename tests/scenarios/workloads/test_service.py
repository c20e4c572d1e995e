"""The kind of work `service`, through the commands."""

import json
from pathlib import Path

import pytest

from scenarios.errors import ScenarioError
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.registry import workload_named
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


@pytest.mark.parametrize(
    ("change", "key", "said"),
    [
        ("service.tensor_degree=16", "service.tensor_degree", "1 x 16 devices are more than the cluster's 8"),
        ("service.tensor_degree=3", "service.tensor_degree", "32 heads cannot be divided over 3 devices"),
        ("model.preset=llama-3-70b", "service.tensor_degree", "leave no room for keys and values"),
        ("service.failures=[{replica: 8, at: 1 s, lasts: 1 s}]", "service.failures", "there is no replica 8"),
        ("requests={prompt_tokens: 5}", "requests.rate", "drawn requests need a rate"),
        ("requests.trace=nowhere.csv", "requests.trace", "there is no such file"),
        ("model.preset=deepseek-v3", "model.latent_attention", "latent attention is not built for services"),
    ],
)
def test_impossible_services_are_refused(service: Path, change: str, key: str, said: str) -> None:
    """The error names the key and works the rule out."""
    with pytest.raises(ScenarioError, match=said) as caught:
        load_scenario(service, [change])
    assert caught.value.key == key
