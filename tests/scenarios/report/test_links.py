"""What users are told of links: summary, console and report."""

import json
import re
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from scenarios.cli import main
from scenarios.report.pages.links_section import MAX_LINES, chosen_rows
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.running import SimulatedStep, simulate

SCENARIOS = Path(__file__).parents[3] / "scenarios" / "library"
SET = ["model.num_layers=4", "training.global_batch_size=16"]


@pytest.fixture(scope="module")
def result() -> SimulatedStep:
    """Return a small run on oversubscribed rails with a cable that is worn out."""
    return simulate(load_scenario(SCENARIOS / "llama-2-13b-stragglers-64-h100.yaml", SET))


def test_summary_names_the_worn_cable(result: SimulatedStep) -> None:
    """The busiest link is the one that is four times slower, with as many bytes as its neighbours carry."""
    first = result.as_json()["links"][0]
    assert (first["kind"], first["busiest"]["link"], first["busiest"]["count"]) == ("nic", "node 2 nic 0 out", 1)
    assert first["busiest"]["busy_fraction"] > 3 * first["busy_fraction"]
    assert first["busiest"]["busy_fraction"] <= first["busiest"]["peak_fraction"] <= 1
    assert first["bytes"] == pytest.approx(first["busiest"]["bytes"] * first["count"], rel=0.01)
    busy = [entry["busiest"]["busy_fraction"] for entry in result.as_json()["links"]]
    assert busy == sorted(busy, reverse=True)


def test_summary_says_what_communication_was_bound_by(result: SimulatedStep) -> None:
    """Tensor-parallel groups wait for NVSwitch alone, gradients for the network; parts add up to the whole time."""
    for entry in result.as_json()["communication"]:
        assert entry["time_s"] == pytest.approx(entry["latency_s"] + sum(entry["bound_s"].values()))
        inside = {"nvswitch port"}
        assert set(entry["bound_s"]) <= (inside if entry["stream"] == "tp" else {"nic", "leaf-spine"})


def test_console_shows_the_fullest_link(capsys: pytest.CaptureFixture[str]) -> None:
    """Its name stands beside time and memory."""
    path = SCENARIOS / "llama-2-13b-stragglers-64-h100.yaml"
    with pytest.raises(SystemExit):
        main([str(path), *(word for key in SET for word in ("--set", key))])
    assert re.search(
        r"fullest link +100\.0 % at its peak, \d+\.\d % of the step: node 2 nic 0 out", capsys.readouterr().out
    )


def test_report_draws_links_over_time(result: SimulatedStep, tmp_path: Path) -> None:
    """The heat map has a line per busiest class, every kind among them, of shares between 0 and 1."""
    result.write(tmp_path)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    match = re.search(r"const charts = (\{.*\});\n", text)
    assert match is not None
    figure: dict[str, Any] = json.loads(match.group(1))["links"]
    go.Figure(figure)
    shares = figure["data"][0]["z"]
    assert len(shares) == len(set(figure["data"][0]["y"])) <= MAX_LINES
    assert all(0 <= share <= 1 for line in shares for share in line)
    assert max(shares[0]) == 1
    assert "reduce_scatter, data-parallel communication" in text


def test_every_kind_of_link_has_lines(result: SimulatedStep) -> None:
    """However many classes one kind has, the others are drawn too."""
    use = result.links
    assert use is not None
    rows = chosen_rows(use)
    assert len(set(rows)) == len(rows) == min(MAX_LINES, len(use.example))
    assert {int(use.kind[row]) for row in rows} == set(use.kind.tolist())


def test_textbook_workloads_have_no_links() -> None:
    """Without a cluster there is nothing to say of links."""
    found = simulate(load_scenario(SCENARIOS / "textbook-1f1b.yaml"))
    assert found.links is None
    assert found.as_json()["links"] == found.as_json()["communication"] == []


def test_devices_without_nvswitch_do_not_speak_of_one(tmp_path: Path) -> None:
    """Processes on a CPU, and GPUs on PCIe, send through ports; summary, page and timeline name no NVSwitch."""
    for overrides in ([], ["cluster.node=aws-g6e-48xlarge"]):
        result = simulate(load_scenario(SCENARIOS / "tiny-gpt-2x2.yaml", [*overrides, "cluster.devices_per_node=4"]))
        assert {entry["kind"] for entry in result.as_json()["links"]} == {"device port"}
        assert result.as_json()["links"][0]["busiest"]["link"].split(" to ")[1] == "switch"
        result.write(tmp_path)
        page = (tmp_path / "report.html").read_text(encoding="utf-8").lower()
        assert "device port" in page
        assert "nvswitch" not in page
