"""Laws of kinds of work beside trainings: a better network is never slower, and what is printed is what is written."""

import json
from pathlib import Path

import pytest

from scenarios.workloads.loading import load_scenario
from tests.scenarios.workloads.test_kinds import run

MODEL = (
    "{family: llama, num_layers: 4, hidden_size: 1024, num_heads: 8, ffn_hidden_size: 4096, sequence_length: 512, "
    "vocab_size: 1024}"
)
FILES = {
    "service": f"cluster: {{node: hgx-h100, num_nodes: 2}}\nmodel: {MODEL}\nrequests: {{rate: 1.0, num_requests: 1, "
    "prompt_tokens: 400, output_tokens: 30}\nservice: {tensor_degree: 4, pipeline_degree: 2}\n",
    "inference": f"cluster: {{node: hgx-h100, num_nodes: 2}}\nmodel: {MODEL}\n"
    "inference: {prompt_tokens: 64, output_tokens: 2}\nparallel: {tensor: {degree: 4}, pipeline: {degree: 4}}\n",
    "recommendation": "tables: [{name: a, num_rows: 2000}, {name: b, num_rows: 500}]\nmodel: {name: dlrm}\n"
    "trace: {batch_size: 64, num_batches: 3, num_unmeasured: 1}\ncache: {fraction: 0.2}\n"
    "cluster: {node: dgx-a100-80g, num_nodes: 2, devices_per_node: 1}\n",
}
TIMES = {
    "service": ("ttft_p50_s", "tpot_p50_s", "mean_latency_s"),
    "inference": ("prefill_time_s", "time_per_output_token_s", "total_time_s"),
    "recommendation": ("step_time_s",),
}


@pytest.fixture(params=FILES)
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a small file of a kind of work."""
    path = tmp_path / f"{request.param}.yaml"
    path.write_text(f"name: small\nworkload: {request.param}\n{FILES[request.param]}", encoding="utf-8")
    return path


def _times(file: Path, *changes: str) -> list[float]:
    scenario = load_scenario(file, changes)
    row = scenario.workload.simulate(scenario).row()
    return [getattr(row, name) for name in TIMES[file.stem]]


def test_a_better_network_is_never_slower(file: Path) -> None:
    """Bandwidth and latency, each by itself; a service with one request has no queue."""
    before = _times(file)
    better = [_times(file, change) for change in ("cluster.network.bandwidth=2x", "cluster.network.latency=0.5x")]
    for after in better:
        assert all(new_s <= old_s * (1 + 1e-9) for new_s, old_s in zip(after, before, strict=True))
    assert better[0] != before != better[1]


def test_the_terminal_the_page_and_the_summary_say_the_same(file: Path, tmp_path: Path, capsys) -> None:
    """``--json`` prints summary.json, and each answer above the tables stands on the page, in the same words."""
    _, shown, _ = run(capsys, file, "--out", tmp_path / "out")
    _, summary, _ = run(capsys, file, "--json")
    assert json.loads(summary) == json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    scenario = load_scenario(file)
    head = scenario.workload.simulate(scenario).blocks(drawn=False)[0]
    for card in head.cards:
        assert f"<b>{card.value}</b>" in page
        assert card.value in shown
