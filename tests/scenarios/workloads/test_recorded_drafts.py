"""Recorded drafts: what was measured with torch, and services that use it."""

from pathlib import Path

import pytest
import yaml

from scenarios.errors import ScenarioError
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.registry import workload_named
from traces.recorded_drafts import FOLDER, recorded_drafts, recording_names


@pytest.fixture
def service(tmp_path: Path) -> Path:
    """Return a small service's file."""
    path = tmp_path / "service.yaml"
    path.write_text(
        workload_named("service").starter.replace("num_requests: 500", "num_requests: 20"), encoding="utf-8"
    )
    return path


def test_clovers_heads_hit_more_often_than_medusas() -> None:
    """At every depth, on greedy answers and on the held-out text itself, with trees of either kind."""
    found = yaml.safe_load((FOLDER / "python_help.yaml").read_text(encoding="utf-8"))
    for key in ("first_guess", "first_guess_of_text", "first_five"):
        for medusa, clover in zip(found["medusa"][key], found["clover"][key], strict=True):
            assert clover > medusa + 0.05
    for method in ("medusa", "clover"):
        for tree in found[method]["tokens_per_step"]:
            assert tree["static"] == pytest.approx(tree["product_of_rates"], rel=0.1)


@pytest.mark.parametrize("name", recording_names())
def test_recorded_rates_are_rates(name: str) -> None:
    """At most one guess of a depth is right."""
    found = recorded_drafts(name)
    for table in found.tables.values():
        assert all(0.0 < sum(rates) <= 1.0 for rates in table)
    assert all(0.0 < acceptance < 1.0 for acceptance in found.acceptance.values())


def tokens_per_step(service: Path, decoding: str) -> float:
    """Return the simulated tokens of a step."""
    scenario = load_scenario(service, (f"decoding={decoding}",))
    return float(scenario.workload.simulate(scenario).as_json()["tokens_per_step"])


def test_services_decode_as_was_recorded(service: Path) -> None:
    """A simulated service yields the tokens per step that torch measured, within what 2,000 draws allow."""
    found = yaml.safe_load((FOLDER / "python_help.yaml").read_text(encoding="utf-8"))
    for method in ("medusa", "clover"):
        tree = found[method]["tokens_per_step"][0]
        simulated = tokens_per_step(service, f"{{method: {method}, drafted: {tree['nodes']}, recorded: python_help}}")
        assert simulated == pytest.approx(tree["static"], rel=0.08)
    simulated = tokens_per_step(service, "{method: prompt_lookup, recorded: python_help}")
    assert 1.2 < simulated < 2.0


@pytest.mark.parametrize(
    ("decoding", "key", "said"),
    [
        ("{method: clover, recorded: nothing}", "decoding.recorded", "there is no recording nothing"),
        ("{method: eagle, recorded: python_help}", "decoding.recorded", "python_help has no drafts by eagle"),
        ("{recorded: python_help}", "decoding.recorded", "autoregressive does not read it"),
        ("{method: clover, recorded: python_help, hit_rates: [0.5]}", "decoding.hit_rates", "does not read it"),
        ("{method: clover, hit_rates: [0.9], rank_ratio: 0.5}", "decoding.rank_ratio", "are right 1.80 times"),
    ],
)
def test_wrong_recordings_are_refused(service: Path, decoding: str, key: str, said: str) -> None:
    """Each mistake names its key."""
    with pytest.raises(ScenarioError, match=said) as raised:
        load_scenario(service, (f"decoding={decoding}",))
    assert key in str(raised.value)
