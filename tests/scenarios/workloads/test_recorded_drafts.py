"""Recorded drafts: what was measured with torch, and services that use it."""

from math import ceil
from pathlib import Path

import pytest
import yaml

from scenarios.errors import ScenarioError
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.registry import workload_named
from sim.serving.decoding.method import Decoding
from tests.fuzz.seeds import DRAFTS
from traces.errors import TraceError
from traces.recorded_drafts import FOLDER, RecordedSteps, read_drafts, recorded_drafts, recording_names


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a small service's file in the working directory, with a recording beside it."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "service.yaml"
    path.write_text(
        workload_named("service").starter.replace("num_requests: 500", "num_requests: 20"), encoding="utf-8"
    )
    (tmp_path / "mine.yaml").write_text(DRAFTS, encoding="utf-8")
    return path


def test_clovers_heads_hit_more_often_than_medusas() -> None:
    """At every depth, on greedy answers and on the held-out text itself."""
    found = yaml.safe_load((FOLDER / "python_help.yaml").read_text(encoding="utf-8"))
    for key in ("first_guess", "first_guess_of_text", "first_five"):
        for medusa, clover in zip(found["medusa"][key], found["clover"][key], strict=True):
            assert clover > medusa + 0.05


def test_heads_that_know_their_own_guesses_hit_more_often() -> None:
    """At depths 2 and 3, in order: Medusa, which does not, then Clover, then Hydra and EAGLE, which run a layer."""
    found = yaml.safe_load((FOLDER / "python_help_heads.yaml").read_text(encoding="utf-8"))
    for depth in (1, 2):
        rates = [found[method]["first_guess"][depth] for method in ("medusa", "clover", "hydra", "eagle")]
        assert rates == sorted(rates)


@pytest.mark.parametrize("name", recording_names())
def test_recorded_rates_are_rates(name: str) -> None:
    """At most one guess of a depth is right, some are, and some drafted tokens of a chain are accepted."""
    found = recorded_drafts(name)
    for table in found.tables.values():
        assert all(0.0 < sum(rates) <= 1.0 for rates in table)
    assert all(0.0 < acceptance < 1.0 for acceptance in found.acceptance.values())


def decoding_of(service: Path, decoding: str) -> Decoding:
    """Return the method of a service."""
    return load_scenario(service, (f"decoding={decoding}",)).spec.decoding


def tokens_per_step(service: Path, decoding: str) -> float:
    """Return the simulated tokens of a step."""
    scenario = load_scenario(service, (f"decoding={decoding}",))
    return float(scenario.workload.simulate(scenario).as_json()["tokens_per_step"])


def test_services_decode_as_was_recorded(service: Path) -> None:
    """A simulated service yields the tokens per step that torch measured, within what 2,000 draws allow."""
    found = yaml.safe_load((FOLDER / "python_help.yaml").read_text(encoding="utf-8"))
    for method in ("medusa", "clover"):
        tree = next(tree for key in ("trees", "tokens_per_step") if key in found[method] for tree in found[method][key])
        measured = tree["static"]["tokens_per_step"] if isinstance(tree["static"], dict) else tree["static"]
        simulated = tokens_per_step(service, f"{{method: {method}, drafted: {tree['nodes']}, recorded: python_help}}")
        assert simulated == pytest.approx(measured, rel=0.1)
    simulated = tokens_per_step(service, "{method: prompt_lookup, recorded: python_help}")
    assert 1.2 < simulated < 2.0


@pytest.mark.parametrize(("method", "tree"), [("hydra", "static"), ("eagle", "reranked"), ("lookahead", None)])
def test_services_decode_as_all_heads_were_recorded(method: str, tree: str | None, service: Path) -> None:
    """The same of the other recording: static and dynamic trees, and lookahead's steps."""
    found = yaml.safe_load((FOLDER / "python_help_heads.yaml").read_text(encoding="utf-8"))[method]
    measured = found["trees"][1][tree]["tokens_per_step"] if tree else found["tokens_per_step"]
    keys = f"drafted: 16, tree: {tree}" if tree else f"drafted: {found['drafted']}"
    simulated = tokens_per_step(service, f"{{method: {method}, {keys}, recorded: python_help_heads}}")
    assert simulated == pytest.approx(measured, rel=0.1)


def test_dynamic_trees_take_their_steps_from_a_file(service: Path) -> None:
    """A pass has the recorded positions, rounded up; steps have the recorded lengths; a wider draft takes longer."""
    keys = "{method: eagle, drafted: 4, recorded: mine.yaml, tree: %s}"
    static, dynamic = (decoding_of(service, keys % shape) for shape in ("static", "reranked"))
    steps = read_drafts(service.parent / "mine.yaml").trees["eagle"]["reranked", 4]
    assert dynamic.positions == ceil(steps.positions) == 5
    assert dynamic.lengths == steps.lengths
    assert dynamic.draft_s(64) > static.draft_s(64) > 0.0
    assert tokens_per_step(service, keys % "reranked") == pytest.approx(mean(steps), rel=0.08)


def test_parallel_guesses_and_pieces_are_verified_at_no_cost_of_drafting(service: Path) -> None:
    """Jacobi's guesses are a chain with an acceptance; lookahead's steps are recorded, with pieces beside the chain."""
    steps = read_drafts(service.parent / "mine.yaml").chains["lookahead"][4]
    found = decoding_of(service, "{method: lookahead, recorded: mine.yaml}")
    assert (found.positions, found.lengths, found.draft_s(8)) == (7, steps.lengths, 0.0)
    chain = decoding_of(service, "{method: jacobi, recorded: mine.yaml}")
    assert (chain.positions, chain.draft_s(8)) == (5, 0.0)
    assert chain.lengths == decoding_of(service, "{method: jacobi, acceptance: 0.3}").lengths


def mean(steps: RecordedSteps) -> float:
    """Return the mean tokens of recorded steps."""
    return sum(tokens * share for tokens, share in enumerate(steps.lengths, start=1))


@pytest.mark.parametrize(
    ("decoding", "key", "said"),
    [
        ("{method: clover, recorded: nothing}", "decoding.recorded", "there is no recording nothing"),
        ("{method: clover, recorded: nothing.yaml}", "decoding.recorded", "there is no such file"),
        ("{method: medusa, recorded: mine.yaml}", "decoding.recorded", "mine.yaml has no drafts by medusa"),
        ("{method: medusa, recorded: mine.yaml, tree: reranked}", "decoding.recorded", "medusa with tree: reranked"),
        ("{method: eagle, recorded: service.yaml}", "decoding.recorded", "service.yaml has no drafts by eagle"),
        ("{method: lookahead}", "decoding.recorded", "lookahead needs it"),
        ("{method: eagle, tree: reranked, hit_rates: [0.5]}", "decoding.recorded", "eagle needs it"),
        ("{method: jacobi, tree: reranked, acceptance: 0.3}", "decoding.tree", "jacobi drafts no tree"),
        (
            "{method: eagle, tree: reranked, recorded: mine.yaml, drafted: 5}",
            "decoding.drafted",
            "mine.yaml has no steps of eagle with 5 drafted tokens",
        ),
        ("{recorded: python_help}", "decoding.recorded", "autoregressive does not read it"),
        ("{drafted: 8}", "decoding.drafted", "autoregressive does not read it"),
        ("{method: jacobi, acceptance: 0.3, rank_ratio: 0.5}", "decoding.rank_ratio", "jacobi does not read it"),
        (
            "{method: eagle, tree: reranked, recorded: mine.yaml, rank_ratio: 0.5}",
            "decoding.rank_ratio",
            "eagle does not read it",
        ),
        ("{method: clover, recorded: python_help, hit_rates: [0.5]}", "decoding.hit_rates", "does not read it"),
        ("{method: clover, hit_rates: [0.9], rank_ratio: 0.5}", "decoding.rank_ratio", "are right 1.80 times"),
    ],
)
def test_wrong_recordings_are_refused(service: Path, decoding: str, key: str, said: str) -> None:
    """The error names the key."""
    with pytest.raises(ScenarioError, match=said) as caught:
        load_scenario(service, (f"decoding={decoding}",))
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("[0.6, 0.2]", "[0.6, 0.5]"), "eagle.hit_rates: guesses of a depth are right more than once"),
        (("[0.5, 0.25, 0.25]", "[0.5, 0.25]"), "lookahead.lengths: shares of steps add up to 0.750, not to 1"),
        (("acceptance: 0.3", "acceptance: often"), "Expected `float | null`, got `str`"),
        (("positions: 4.6", "positions: 0.5"), "Expected `float` >= 1.0"),
        ((DRAFTS, "- a list"), "a recording is a mapping"),
        ((DRAFTS, "a: [b"), "the file cannot be read"),
    ],
)
def test_damaged_recordings_are_refused(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    """The error names the file, and the method or the place."""
    path = tmp_path / "damaged.yaml"
    path.write_text(DRAFTS.replace(*change), encoding="utf-8")
    with pytest.raises(TraceError) as caught:
        read_drafts(path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)
