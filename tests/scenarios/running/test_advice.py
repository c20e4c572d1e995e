"""Advice: which changes are tried, what is said of them, and the causes of lost time."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from costmodels.units import format_bytes
from scenarios.report.pages.advice_section import advice_facts, grouped
from scenarios.summaries.steps.advice import AdviceSummary, TriedChange
from scenarios.summaries.steps.mean_rank import mean_busy_s, mean_exposed_s
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.advising import trials
from scenarios.workloads.steps.advising.advise import WORTH_DOING, advise
from scenarios.workloads.steps.cost import CostModel
from scenarios.workloads.steps.findings.changes import merged
from scenarios.workloads.steps.running import SimulatedStep, plan_of, simulate
from scenarios.workloads.steps.scenario import step_of
from scenarios.workloads.training.changes.recomputation import recomputing
from sim.training.pipeline.spec import Recompute
from tests.scenarios.typed_results import role_of

SCENARIOS = Path(__file__).parents[3] / "scenarios" / "library"
LLAMA_70B = """\
name: llama-3 70B, fewer layers
cluster: {node: hgx-h100, num_nodes: 8}
model: {preset: llama-3-70b, num_layers: 8}
training: {global_batch_size: 1024, microbatch_size: 1, precision: bf16, recompute: none}
parallel:
  tensor: {degree: 8, sequence_parallel: true}
  pipeline: {degree: 2}
  data: {degree: auto, zero_stage: 1}
"""


@pytest.fixture(autouse=True)
def short_advice() -> None:
    """Leave quick advice the time that it has."""


@pytest.fixture
def time_for_causes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave quick advice the time for causes, which come first, and for few changes."""
    monkeypatch.setattr(trials, "QUICK_S", 1.0)


def named(name: str, *overrides: str) -> SimulatedStep:
    """Return a step of the library, simulated."""
    return simulate(step_of(load_scenario(SCENARIOS / f"{name}.yaml", overrides)))


def with_change(found: SimulatedStep, overrides: Sequence[str]) -> SimulatedStep:
    """Return the step of the same file with further overrides, simulated as the command does it."""
    scenario = found.scenario
    return simulate(step_of(load_scenario(scenario.source, (*scenario.overrides, *overrides))))


def words(advice: AdviceSummary) -> dict[str, str]:
    """Return the lines of advice as plain text, by name."""
    lines = {fact.name: (fact.words,) if isinstance(fact.words, str) else fact.words for fact in advice_facts(advice)}
    return {
        name: "".join(part if isinstance(part, str) else part.text for part in line) for name, line in lines.items()
    }


def tried(advice: AdviceSummary, *overrides: str) -> TriedChange:
    """Return what was found about a change."""
    (found,) = (change for change in advice.tried if change.set == overrides)
    return found


def test_mean_is_over_ranks_not_roles() -> None:
    """A role counts as often as it has ranks."""
    roles = (
        role_of(num_ranks=3, busy_s={"compute": 8.0}, exposed_s={"tp": 1.0, "dp": 0.5}),
        role_of(num_ranks=1, busy_s={"compute": 4.0}, exposed_s={"dp": 0.5}),
    )
    assert mean_busy_s(roles) == {"compute": 7.0}
    assert mean_exposed_s(roles) == {"tp": 0.75, "dp": 0.5}


def test_quick_advice_finds_collective_products_of_a_large_step(write) -> None:
    """On 64 H100, where every op is simulated by itself with it, it is the best single key, and its gain is true."""
    found = simulate(step_of(load_scenario(write(LLAMA_70B))))
    advice = advise(found, "quick")
    assert advice.best is not None
    assert "parallel.tensor.collective_matmul=true" in advice.best.set
    assert advice.best.gain is not None
    assert advice.best.gain > 0.05
    after = with_change(found, advice.best.set).summary
    assert after.fits_memory
    assert after.iteration_time_s == pytest.approx(advice.best.iteration_time_s, rel=1e-9)
    assert advice.reduced is not None
    assert advice.reduced.part == "tensor-parallel communication"
    assert f"throughput +{100 * advice.best.gain:.1f} %" in words(advice)["what would help most"]


@pytest.mark.parametrize("name", ["tiny-gpt-2x2", "textbook-1f1b", "textbook-interleaved"])
def test_what_a_change_is_said_to_bring_is_what_it_brings(name: str) -> None:
    """The scenario simulated with the advised overrides has that much more throughput, and memory."""
    found = named(name)
    advice = advise(found, "quick")
    assert advice.best is not None
    after = with_change(found, advice.best.set).summary
    assert after.fits_memory == advice.best.fits_memory
    if advice.best.peak_memory_bytes is not None:
        assert max(role.peak_memory_bytes for role in after.roles) == advice.best.peak_memory_bytes
    gain = found.summary.iteration_time_s / after.iteration_time_s - 1.0
    assert advice.best.gain == pytest.approx(gain, rel=1e-9)
    assert gain >= WORTH_DOING
    assert advice.best.gain == max(change.gain for change in advice.tried if change.gain is not None)


def test_changes_beyond_the_predicted_cost_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """What quick advice does not try stands in its words, with the option that tries it, and full advice tries it."""
    found = named("tiny-gpt-2x2")
    full = advise(found, "full")
    assert full.not_tried == ()
    monkeypatch.setattr(trials, "QUICK_S", 0.0)
    none = advise(found, "quick")
    assert (none.best, none.tried) == (None, ())
    assert {change.set for change in none.not_tried} <= {change.set for change in full.tried}
    said = words(none)
    assert said["what would help most"] == "nothing tried adds 1 % to the throughput; tried 0 changes"
    assert "training.microbatch_size" in said["not tried"]
    assert "--advice full tries them, about 1 s" in said["not tried"]


def test_cost_is_predicted_from_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step simulated op by op costs more than one whose calls coalesce; half of a budget tries fewer changes."""
    found = named("tiny-gpt-2x2", "training.global_batch_size=256")
    model = CostModel.of(found.run, uneven=False)
    split = ["parallel.tensor.sequence_parallel=true", "parallel.tensor.collective_matmul=true"]
    plans = [plan_of(with_change(found, overrides).scenario) for overrides in ([], split)]
    whole_s, single_s = (model.simulating_s(plan, "gpipe") for plan in plans)
    assert single_s > 3 * whole_s
    numbers = []
    for budget_s in (0.2, 0.4):
        monkeypatch.setattr(trials, "QUICK_S", budget_s)
        numbers.append(len(advise(found, "quick").tried))
    assert 0 < numbers[0] < numbers[1]


def test_steps_that_are_too_long_are_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    """From two steps with fewer micro-batches, within 2 % of the whole step, and marked as an estimate."""
    found = named("tiny-gpt-2x2", "training.global_batch_size=192", "parallel.pipeline.schedule=gpipe")
    change = ("parallel.tensor.sequence_parallel=true", "parallel.tensor.collective_matmul=true")
    plan = plan_of(with_change(found, change).scenario)
    model = CostModel.of(found.run, uneven=False)
    whole_s = model.building_s(plan) + model.simulating_s(plan, "gpipe")
    monkeypatch.setattr(trials, "QUICK_S", 0.8 * whole_s)
    trial = trials.Trials(found, "quick").attempt(change)
    assert trial is not None
    assert trial.change.estimated
    assert trial.change.iteration_time_s == pytest.approx(with_change(found, change).run.iteration_time_s, rel=0.02)


@pytest.mark.parametrize("name", ["quickstart", "mixtral-8x7b-64-h100", "tiny-gpt-2x2", "textbook-pipedream-2bw"])
def test_no_change_touches_the_batch(name: str) -> None:
    """The global batch belongs to the training, not to its speed."""
    scenario = step_of(load_scenario(SCENARIOS / f"{name}.yaml"))
    every = [*(change.overrides for change in (*scenario.changes(), *scenario.remedies())), *scenario.ladder()]
    assert every
    keys = {override.partition("=")[0] for overrides in every for override in overrides}
    assert keys.isdisjoint({"training.global_batch_size", "training.num_microbatches"})


def test_no_change_trains_by_another_algorithm() -> None:
    """Asynchronous training stays asynchronous, though a flush would cost it time or save some."""
    found = named("textbook-pipedream-2bw")
    assert found.summary.algorithm != "backpropagation"
    for change in advise(found, "full").tried:
        assert with_change(found, change.set).summary.algorithm == found.summary.algorithm


def test_changes_without_effect_are_no_trials() -> None:
    """What is written already, and what a schedule refuses, is neither tried nor left out."""
    advice = advise(named("textbook-1f1b"), "full")
    assert advice.not_tried == ()
    sets = [change.set for change in advice.tried]
    assert len(sets) == len({tuple(sorted(each)) for each in sets})
    assert ("parallel.pipeline.schedule=1f1b", "parallel.pipeline.virtual_stages=1") not in sets


# --- memory --------------------------------------------------------------------------------------------------------


def test_change_that_does_not_fit_is_tried_with_one_that_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """On 1,536 GPUs selective recomputation takes 92 GiB of 80, and 61 with a split sequence: found in two seconds."""
    monkeypatch.setattr(trials, "QUICK_S", 2.0)
    advice = advise(named("quickstart", "training.global_batch_size=768"), "quick")
    alone = tried(advice, "training.recompute=selective")
    assert (alone.fits_memory, alone.gain) == (False, None)
    assert tried(advice, "training.recompute=none").fits_memory is False
    assert advice.best is not None
    assert advice.best.set == ("training.recompute=selective", "parallel.tensor.sequence_parallel=true")


def test_memory_is_held_against_the_room_beside_the_reserve() -> None:
    """A change whose peak is within the device's capacity, but not beside the reserve, does not fit."""
    change = "parallel.data.zero_stage=0"
    found = named("tiny-gpt-2x2", "parallel.data.zero_stage=1", "parallel.pipeline.degree=1", "parallel.data.degree=2")
    assert tried(advise(found, "quick"), change).fits_memory
    peaks = [
        max(role.peak_memory_bytes for role in step.summary.roles) for step in (found, with_change(found, [change]))
    ]
    assert peaks[0] < peaks[1]
    capacity = found.summary.memory_capacity_bytes
    assert capacity is not None
    software = replace(found.scenario.software, memory_reserve_bytes=capacity - peaks[0])
    scenario = load_scenario(
        found.scenario.source, (*found.scenario.overrides, f"software.memory_reserve={software.memory_reserve_bytes} B")
    )
    tight = simulate(step_of(scenario))
    assert tight.summary.fits_memory
    assert tried(advise(tight, "quick"), change).fits_memory is False


@pytest.mark.parametrize(("overrides", "expected"), [
    ([], "parallel.data.osdp={}"),
    (["parallel.data.zero_stage=2", "parallel.data.shard_degree=8"], "parallel.data.zero_stage=3"),
])  # fmt: skip
def test_sharding_makes_a_model_fit(write, overrides: list[str], expected: str) -> None:
    """Where the optimizer state alone does not do: operators by need, or all parameters; the fastest is advised."""
    cluster = [
        "cluster={node: dgx-1-v100-16g, num_nodes: 2}", "model.num_layers=24", "model.hidden_size=3072",
        "model.num_heads=24", "parallel={data: {degree: auto}}", "training.precision=fp16",
        "training.global_batch_size=16", "training.microbatch_size=1", "training.recompute=full",
    ]  # fmt: skip
    found = simulate(step_of(load_scenario(write(), [*cluster, *overrides])))
    assert found.summary.fits_memory is False
    advice = advise(found, "full")
    assert any(expected in change.set and change.fits_memory for change in advice.tried)
    assert advice.best is not None
    assert with_change(found, advice.best.set).summary.fits_memory
    assert advice.causes == ()


def test_changes_are_put_on_top_of_each_other_until_a_step_fits() -> None:
    """Where no single change is enough, several are; their names come in the order in which they were added."""
    found = named("llama-2-70b-zero1-64-a100", "training.recompute=none", "training.microbatch_size=8",
                  "parallel.tensor.sequence_parallel=false")  # fmt: skip
    assert found.summary.fits_memory is False
    advice = advise(found, "full")
    assert advice.best is not None
    assert advice.best.fits_memory
    assert with_change(found, advice.best.set).summary.fits_memory


def test_change_that_makes_a_step_fit_says_so_first() -> None:
    """It often costs throughput, which alone reads like bad advice; of a step that fits only gains are named."""
    found = named("llama-2-70b-zero1-64-a100", "training.recompute=none", "training.microbatch_size=8")
    assert found.summary.fits_memory is False
    advice = advise(found, "quick")
    assert advice.best is not None
    assert advice.best.fits_memory
    assert advice.best.peak_memory_bytes is not None
    (line,) = [f for f in advice_facts(advice, fits_memory=False) if f.name == "what would help most"]
    said = "".join(part if isinstance(part, str) else part.text for part in line.words)
    assert f": fits in memory: {format_bytes(advice.best.peak_memory_bytes)}, throughput " in said
    assert "fits in memory" not in words(advice)["what would help most"]


def test_advice_that_finds_nothing_counts_what_is_too_large() -> None:
    """A cause may have a remedy that does not fit: the answer says that this is why it is not named."""
    advice = replace(advise(named("textbook-1f1b"), "quick"), best=None)
    assert "not fit" not in words(advice)["what would help most"]
    tried = (*advice.tried[1:], replace(advice.tried[0], fits_memory=False))
    said = words(replace(advice, tried=tried))["what would help most"]
    assert f"tried {len(tried)} changes, of which 1 does not fit in memory: " in said


def test_change_that_is_not_enough_says_so() -> None:
    """Where nothing makes a step fit, the change of the smallest peak is named, as not enough."""
    found = named("tiny-gpt-2x2", "software.memory_reserve=79.9999 GiB", "cluster.node=hgx-h100")
    assert found.summary.fits_memory is False
    advice = advise(found, "quick")
    assert advice.best is not None
    assert advice.best.fits_memory is False
    assert "not enough alone to fit in memory" in words(advice)["what would help most"]


# --- causes --------------------------------------------------------------------------------------------------------

STRAGGLING = ("model.num_layers=2", "training.global_batch_size=32")


@pytest.mark.usefixtures("time_for_causes")
def test_stragglers_are_the_cause_that_a_step_without_them_shows() -> None:
    """Each slow part costs what the step gains without it; the bubble that they make is not blamed on the pipeline."""
    found = named("llama-2-13b-stragglers-64-h100", *STRAGGLING)
    advice = advise(found, "quick")
    fractions = {cause.cause: cause.fraction for cause in advice.causes}
    device, link = "slow device node 5 gpu 3 (1.15 times as long)", "slow link node 2 nic 0 out (4 times as long)"
    without = {
        "having 2 slow parts": "cluster.stragglers=[]",
        device: "cluster.stragglers=[{link: node 2 nic 0 out, slowdown: 4}]",
        link: "cluster.stragglers=[{device: node 5 gpu 3, slowdown: 1.15}]",
        "oversubscription above the leaves (2:1)": "cluster.topology.fabric.oversubscription=1",
    }
    assert {"having 2 slow parts", link} <= fractions.keys() <= without.keys()
    for cause, override in without.items():
        fraction = 1.0 - with_change(found, [override]).summary.iteration_time_s / found.summary.iteration_time_s
        assert fractions.get(cause, 0.0) == pytest.approx(fraction, abs=0.0 if cause in fractions else WORTH_DOING)
    assert list(fractions.values()) == sorted(fractions.values(), reverse=True)
    assert f"{link} costs {100 * fractions[link]:.1f} % of the step" in words(advice)["why it is slow"]


@pytest.mark.usefixtures("time_for_causes")
@pytest.mark.parametrize("where", ["plain", "fabric"])
def test_oversubscription_is_named_where_it_costs_time(where: str) -> None:
    """Of a plain cluster, and of leaves and spines that a file describes."""
    slow = {
        "plain": ("cluster={node: hgx-h100, num_nodes: 8, oversubscription: 8}",),
        "fabric": ("cluster.topology.fabric.oversubscription=8", "cluster.stragglers=[]"),
    }
    found = named("llama-2-13b-stragglers-64-h100", *STRAGGLING, *slow[where])
    (cause,) = advise(found, "quick").causes
    assert cause.cause.startswith("oversubscription")
    assert "(8:1)" in cause.cause
    assert cause.iteration_time_s == pytest.approx((1.0 - cause.fraction) * found.summary.iteration_time_s)
    assert cause.fraction > 0.05


@pytest.mark.usefixtures("time_for_causes")
def test_recomputation_is_named_even_where_nothing_else_fits() -> None:
    """A step that recomputes nothing shows what recomputation costs, whatever memory it would take."""
    found = named(
        "llama-2-70b-zero1-64-a100", "model.num_layers=8", "training.global_batch_size=64", "training.recompute=full"
    )
    (cause,) = advise(found, "quick").causes
    assert cause.cause == "recomputation"
    without = with_change(found, ["training.recompute=none"]).summary.iteration_time_s
    assert cause.iteration_time_s == pytest.approx(without, rel=1e-9)


RECOMPUTED_IN_PART = {
    "layers by name": ("training.recompute_layers=[0,2,3]",),
    "a number of layers": ("training.recompute_num_layers=3", "training.recompute_method=block"),
    "levels of stages": ("parallel.pipeline.recompute_per_stage=[full]",),
    "options": ("training.checkpoint_early_stop=true", "parallel.tensor.distribute_saved_activations=true"),
}


@pytest.mark.parametrize("keys", RECOMPUTED_IN_PART.values(), ids=RECOMPUTED_IN_PART)
def test_less_recomputation_is_tried_beside_every_key_of_recomputation(keys: tuple[str, ...]) -> None:
    """Keys that only some levels of recomputation have are taken back, so the rules refuse no level."""
    found = named(
        "tiny-gpt-2x2", "parallel.pipeline.degree=1", "parallel.data.degree=2", "training.recompute=full",
        "parallel.tensor.sequence_parallel=false", *keys,
    )  # fmt: skip
    job = found.scenario.dense_job
    assert job is not None
    levels: tuple[Recompute, ...] = ("none", "selective")
    for level in levels:
        after = with_change(found, recomputing(job, level))
        assert after.scenario.dense_job is not None
        assert after.scenario.dense_job.training.recompute == level
        assert after.summary.iteration_time_s < found.summary.iteration_time_s
    changes = {change.overrides for change in found.scenario.changes()}
    assert {recomputing(job, "none"), recomputing(job, "selective")} <= changes
    assert recomputing(job, "none") in {cause.overrides for cause in found.scenario.counterfactuals()}


def test_turns_of_passes_are_tried_where_exchanges_may_hide() -> None:
    """With DualPipe and experts on several ranks; not where passes take turns, nor where ranks exchange nothing."""
    turns = ("parallel.pipeline.overlap_exchanges=true",)
    shared = ("parallel={pipeline: {degree: 2, schedule: dualpipe}, data: {degree: 2}, expert: {degree: 2}}",)
    for overrides, tries in (
        (shared, True),
        ((*shared, *turns), False),
        ((*shared, "parallel.expert.degree=1"), False),
    ):
        scenario = step_of(
            load_scenario(SCENARIOS / "tiny-moe-uneven.yaml", [*overrides, "training.global_batch_size=16"])
        )
        assert (turns in {change.overrides for change in scenario.changes()}) is tries


# --- words ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("changes", "expected"), [
    ([("training.recompute=none",)], "training.recompute none"),
    ([("parallel.tensor.degree=4", "parallel.data.degree=auto"), ("parallel.tensor.degree=8", "x=1")],
     "tensor.degree 4, 8"),
    ([("a.b.c=1",), ("a.d=2",), ("a.b.c=3",)], "b.c 1, 3; a.d 2"),
])  # fmt: skip
def test_changes_in_few_words(changes: list[tuple[str, ...]], expected: str) -> None:
    """The key that leads each, with all its values."""
    assert grouped(changes) == expected


def test_later_overrides_replace_earlier_ones() -> None:
    """Changes that are put together set no key twice."""
    assert merged(("a=1", "b=2"), ("a=3",)) == ("b=2", "a=3")


@pytest.mark.parametrize("change", [lambda a: replace(a, best=None), lambda a: replace(a, best=None, tried=())])
def test_advice_that_finds_nothing_says_what_was_tried(change: Callable[[AdviceSummary], AdviceSummary]) -> None:
    """It never says that nothing can help."""
    advice = change(advise(named("textbook-1f1b"), "quick"))
    said = words(advice)["what would help most"]
    assert said.startswith(f"nothing tried adds 1 % to the throughput; tried {len(advice.tried)} changes")
    assert ("pipeline.schedule" in said) == bool(advice.tried)
