"""What would help most."""

from pathlib import Path

import pytest

from scenarios.report.words import recompute_fraction
from scenarios.summaries.steps.mean_rank import mean_busy_s, mean_exposed_s
from scenarios.summaries.steps.step import EngineWork, StepSummary
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.advice import MOST_EVENTS, WORTH_DOING, advise
from scenarios.workloads.steps.running import plan_of, simulate
from scenarios.workloads.steps.scenario import StepScenario
from sim.engine.running.memory import memory_use
from tests.scenarios.typed_results import role_of, step_of

SCENARIOS = Path(__file__).parents[3] / "scenarios" / "library"


def computing(needed_s: float, recomputed_s: float = 0.0) -> dict[str, dict[str, float]]:
    """Return what a role computes for, and that it does."""
    parts = {"needed": needed_s, "recomputed": recomputed_s, "empty_slots": 0.0, "duplicated": 0.0}
    return {"busy_s": {"compute": needed_s + recomputed_s}, "computing_s": parts}


def summary(recomputed_s: float = 0.0, **changes: object) -> StepSummary:
    """Return a summary of a step of 10 s on two roles of unlike size, with too many events to try changes."""
    many = computing(8.0 - recomputed_s, recomputed_s)
    roles = (
        role_of(role="pp=0", num_ranks=3, **many, exposed_s={"tp": 1.0, "dp": 0.5}),
        role_of(role="pp=1", num_ranks=1, **computing(4.0), exposed_s={"dp": 0.5}),
    )
    engine = EngineWork(events=MOST_EVENTS + 1, wall_time_s=0.1)
    base = {"iteration_time_s": 10.0, "fits_memory": True, "roles": roles, "engine": engine}
    return step_of(**{**base, **changes})


@pytest.fixture
def scenario(write) -> StepScenario:
    """Return the first scenario."""
    return load_scenario(write())


def test_mean_is_over_ranks_not_roles() -> None:
    """A role counts as often as it has ranks."""
    assert mean_busy_s(summary().roles) == {"compute": 7.0}
    assert mean_exposed_s(summary().roles) == {"tp": 0.75, "dp": 0.5}


def test_recomputation_is_the_mean_ranks_time_for_it() -> None:
    """Three of four ranks that compute for 2 s of 10 s again are 15 % of the step."""
    assert recompute_fraction(summary(recomputed_s=2.0)) == pytest.approx(0.15)
    assert recompute_fraction(summary()) == 0.0


@pytest.mark.parametrize(("changes", "overrides", "loss", "expected"), [
    ({"bubble_fraction": 0.2}, [], "pipeline bubble", "virtual_stages=5"),
    ({"bubble_fraction": 0.2}, ["parallel.pipeline={degree: 8}"], "pipeline bubble", "virtual_stages=2"),
    ({"exposed_communication_fraction": 0.2}, ["cluster.node=dgx-b200"], "communication", "tensor.degree=4"),
    ({"recomputed_s": 2.0}, ["cluster.node=dgx-b200"], "recomputation", "recompute=selective"),
    ({"fits_memory": False}, [], "memory", "zero_stage=1"),
    ({"fits_memory": False}, ["parallel.data.zero_stage=1"], "memory", "sequence_parallel=true"),
])  # fmt: skip
def test_greatest_loss_gets_a_change_against_it(
    write, changes: dict[str, object], overrides: list[str], loss: str, expected: str
) -> None:
    """Each kind of loss is answered in kind, and the change makes a valid scenario."""
    scenario = load_scenario(write(), overrides)
    advice = advise(scenario, summary(**changes))
    assert advice is not None
    assert advice.loss.startswith(loss)
    assert expected in advice.options
    load_scenario(scenario.source, (*overrides, *advice.overrides))


@pytest.mark.parametrize(
    ("name", "overrides", "exposed", "words", "expected"),
    [
        ("mixtral-8x7b-64-h100.yaml", [], {"ep": 2.0, "dp": 1.0, "bubble": 5.0}, "expert-parallel exchange",
         ("parallel.expert.degree=4",)),
        ("mixtral-8x7b-64-h100.yaml", [], {"ep": 1.0, "dp": 2.0}, "data-parallel communication",
         ("training.global_batch_size=512",)),
        ("llama-3-8b-131072-tokens-16-h100.yaml", ["model.sequence_length=32768"], {"cp": 1.0},
         "context-parallel communication",
         ("parallel.context.degree=4", "parallel.data.degree=auto")),
    ],
)  # fmt: skip
def test_the_greatest_part_of_what_is_waited_for_is_named_and_answered(
    name: str, overrides: list[str], exposed: dict[str, float], words: str, expected: tuple[str, ...]
) -> None:
    """Waiting for experts is answered with fewer ranks that share them out, for a context with fewer that share it."""
    roles = (role_of(role="all", num_ranks=64, **computing(8.0), exposed_s=exposed),)
    scenario = load_scenario(SCENARIOS / name, overrides)
    advice = advise(scenario, summary(exposed_communication_fraction=0.3, roles=roles))
    assert advice is not None
    assert advice.loss == f"communication that nothing hides, most of it {words}"
    assert advice.overrides == expected


@pytest.mark.parametrize(
    ("name", "exposed", "unanswered"),
    [
        ("quickstart.yaml", {"tp": 2.0, "pp_recv": 0.1}, "scatter_gather"),
        ("mixtral-8x7b-64-h100.yaml", {"pp_recv": 2.0, "ep": 0.1}, "expert.degree"),
    ],
)
def test_nothing_is_changed_that_is_hardly_waited_for(name: str, exposed: dict[str, float], unanswered: str) -> None:
    """No valid change against what is waited for is none at all, not one against a cause of 1 % of the step."""
    roles = (role_of(role="all", num_ranks=64, **computing(8.0), exposed_s=exposed),)
    scenario, step = load_scenario(SCENARIOS / name), summary(exposed_communication_fraction=0.3, roles=roles)
    advice = advise(scenario, step)
    assert advice is None or unanswered not in advice.options


@pytest.mark.parametrize("name", ["textbook-1f1b", "textbook-interleaved", "textbook-zero-bubble", "tiny-gpt-2x2"])
def test_what_is_advised_against_a_bubble_makes_it_smaller(name: str) -> None:
    """Also of a schedule without much of one, which interleaving would give up."""
    fractions = []
    overrides: tuple[str, ...] = ()
    for _ in range(2):
        scenario = load_scenario(SCENARIOS / f"{name}.yaml", overrides)
        fractions.append(simulate(scenario).summary.bubble_fraction)
        advice = advise(scenario, summary(bubble_fraction=fractions[-1]))
        assert advice is not None
        assert advice.loss == "pipeline bubble"
        overrides = advice.overrides
    assert fractions[1] < fractions[0]


@pytest.mark.parametrize("name", ["tiny-gpt-2x2", "gpt-3.6b-data-parallel-64-a100", "llama-2-13b-stragglers-64-h100"])
def test_what_a_change_is_said_to_bring_is_what_it_brings(name: str) -> None:
    """The scenario simulated with the advised overrides has that much more throughput."""
    path = SCENARIOS / f"{name}.yaml"
    scenario = load_scenario(path)
    before = simulate(scenario).summary
    advice = advise(scenario, before)
    assert advice is not None
    after = simulate(load_scenario(path, advice.overrides)).summary
    assert after.fits_memory
    assert advice.gain == pytest.approx(after.tokens_per_s / before.tokens_per_s - 1.0, rel=1e-9)
    assert advice.gain >= WORTH_DOING
    assert f"throughput {100 * advice.gain:+.1f} %" in advice.effect


def test_no_single_other_change_brings_more_than_the_advised() -> None:
    """Of each other loss the first change that is worth it adds less; those that add less than 1 % are not advised."""
    path, overrides = SCENARIOS / "mixtral-8x7b-64-h100.yaml", ("training.recompute=full",)
    scenario = load_scenario(path, overrides)
    before = simulate(scenario).summary
    advice = advise(scenario, before)
    assert advice is not None
    assert advice.gain is not None
    gains = []
    for loss in scenario.losses(before):
        for change in loss.changes:
            after = simulate(load_scenario(path, (*overrides, *change))).summary
            gain = after.tokens_per_s / before.tokens_per_s - 1.0
            if after.fits_memory and gain >= WORTH_DOING:
                gains.append(gain)
                break
    assert len(gains) > 1
    assert advice.gain == pytest.approx(max(gains), rel=1e-9)


def test_changes_of_large_steps_are_not_tried(scenario) -> None:
    """What would take seconds to simulate is named as it is, without what it brings."""
    advice = advise(scenario, summary(bubble_fraction=0.2))
    assert advice is not None
    assert advice.gain is None
    assert advice.effect == ""


def test_change_that_would_not_fit_is_passed_over(write) -> None:
    """Selective recomputation keeps 111 GiB on an 80 GB device, so it is advised with a split sequence: 63 GiB."""
    scenario = load_scenario(write())
    advice = advise(scenario, summary(recomputed_s=2.0))
    assert advice is not None
    assert advice.fits_memory
    assert advice.overrides == ("training.recompute=selective", "parallel.tensor.sequence_parallel=true")


def test_change_that_is_not_enough_says_so(write) -> None:
    """Where no single change makes a plan fit, the first valid one is advised, and marked."""
    overrides = ["cluster.node=dgx-1-v100-16g", "training.recompute=none"]
    advice = advise(load_scenario(write(), overrides), summary(fits_memory=False))
    assert advice is not None
    assert not advice.fits_memory
    assert advice.overrides == ("parallel.data.zero_stage=1",)


@pytest.mark.parametrize(("pipeline", "stage", "expected"), [
    (1, "", ("parallel.data.zero_stage=0", "parallel.data.osdp={}")),
    (2, "", ("parallel.data.zero_stage=0", "parallel.data.osdp={}")),
    (2, ", zero_stage: 2, shard_degree: 8", ("parallel.data.zero_stage=3",)),
])  # fmt: skip
def test_parameters_are_sharded_where_nothing_else_fits(
    write, pipeline: int, stage: str, expected: tuple[str, ...]
) -> None:
    """Where sharding the optimizer state alone does not do: operators by need, or where that is not built, all."""
    overrides = [
        "cluster={node: dgx-1-v100-16g, num_nodes: 2}",
        f"model.num_layers={24 * pipeline}", "model.hidden_size=3072", "model.num_heads=24",
        f"parallel={{pipeline: {{degree: {pipeline}}}, data: {{degree: auto{stage}}}}}",
        "training.global_batch_size=16", "training.microbatch_size=1", "training.recompute=full",
    ]  # fmt: skip
    advice = advise(load_scenario(write(), overrides), summary(fits_memory=False))
    assert advice is not None
    assert advice.fits_memory
    assert advice.overrides == expected


@pytest.mark.parametrize(("tokens", "expected"), [(262144, "context.degree=16"), (524288, "tensor.degree=2")])
def test_ranks_that_share_sequences_share_longer_ones_among_more(tokens: int, expected: str) -> None:
    """Of twice the ranks each has half of a sequence's activations; where that does not do, the model is cut up."""
    path = SCENARIOS / "llama-3-8b-131072-tokens-16-h100.yaml"
    scenario = load_scenario(path, [f"model.sequence_length={tokens}"])
    advice = advise(scenario, summary(fits_memory=False))
    assert advice is not None
    assert advice.fits_memory
    assert advice.overrides == (f"parallel.{expected}", "parallel.data.degree=auto")


@pytest.mark.parametrize(("schedule", "virtual_stages"), [("1f1b", 1), ("interleaved_1f1b", 2)])
def test_few_microbatches_have_the_peak_of_many(write, schedule: str, virtual_stages: int) -> None:
    """What is left out to judge memory quickly does not change a single role's peak."""
    parallel = f"parallel.pipeline={{degree: 4, schedule: {schedule}, virtual_stages: {virtual_stages}}}"
    changes = [parallel, "parallel.data.degree=48", "model.num_layers=16"]
    scenario = load_scenario(write(), changes)
    few = scenario.with_few_microbatches()
    assert few.job.training.global_batch_size < scenario.job.training.global_batch_size
    peaks = [[memory_use(program).peak_bytes for program in plan_of(it).programs] for it in (few, scenario)]
    assert peaks[0] == peaks[1]


def test_small_losses_are_not_worth_a_change(scenario) -> None:
    """Under two percent of the step nothing is advised."""
    assert advise(scenario, summary(bubble_fraction=0.019)) is None


def test_change_that_is_no_valid_scenario_is_passed_over(write) -> None:
    """Listed layers fix the number of virtual stages, so more micro-batches are advised."""
    stages = f"[{', '.join(['10'] * 8)}]"
    scenario = load_scenario(write(), [f"parallel.pipeline={{degree: 8, layers_per_stage: {stages}}}"])
    advice = advise(scenario, summary(bubble_fraction=0.2))
    assert advice is not None
    assert advice.overrides == ("training.global_batch_size=4608",)


def test_textbook_bubble_gets_advice_too(write, textbook) -> None:
    """A textbook workload has a bubble and nothing else to lose."""
    scenario = load_scenario(write(textbook))
    advice = advise(scenario, summary(bubble_fraction=0.3, exposed_communication_fraction=0.9))
    assert advice is not None
    assert advice.overrides == ("parallel.pipeline.schedule=interleaved_1f1b", "parallel.pipeline.virtual_stages=2")
