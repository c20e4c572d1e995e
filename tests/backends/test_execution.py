"""Real runs on four processes: same numbers as the dense reference, same ops and memory as the simulated run."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from statistics import median_low

import numpy as np
import pytest

from backends.execution.result import Execution
from backends.simulated import SimulatedBackend
from backends.torch.launching.timeline import timeline
from backends.torch.reference.references import References
from sim.engine.running.memory import memory_use
from sim.plan.words.buffer import Tier
from sim.plan.words.program import Plan
from sim.training.spec.job import DenseTraining
from tests.backends.jobs import prices
from tests.backends.one_process import run_in_one_process
from tests.backends.runs import JOBS, LOWER_PRECISIONS, SHARDED, SILENT, SILENT_ON_PROCESSES, SLICED, WRONG_STEPS
from traces.timeline import Timeline, Words

EVERYTHING = [*JOBS, *LOWER_PRECISIONS]


def simulated(plan: Plan, job: DenseTraining) -> Timeline:
    """Return the simulated timeline of a plan, all ranks, all ops."""
    return SimulatedBackend(prices(job.parallel.world_size), fold=False, detail="op").run(plan)


def streams(t: Timeline) -> dict[tuple[int, str], list[tuple[object, ...]]]:
    """Return what each stream ran, in order: op, kind, micro-batch, stage, bytes, FLOP, group."""
    of_stream = zip(t.rank.tolist(), _words(t.stream), strict=True)
    numbers = (t.microbatch.tolist(), t.stage.tolist(), t.bytes.tolist(), t.flop.tolist())
    table: dict[tuple[int, str], list[tuple[object, ...]]] = {}
    rows = zip(_words(t.name), _words(t.kind), *numbers, _words(t.group), strict=True)
    for stream, row in zip(of_stream, rows, strict=True):
        table.setdefault(stream, []).append(row)
    return table


def _words(column: Words) -> list[str]:
    """Return the words of all rows."""
    return [column.values[code] for code in column.codes.tolist()]


# --- the same numbers as the dense reference ---------------------------------------------------------------


@pytest.mark.parametrize("name", JOBS)
def test_plan_reproduces_the_dense_reference_in_float64(results: Mapping[str, Execution], name: str) -> None:
    """Loss, every gradient and every updated parameter of every rank are within 1e-9."""
    report = results[name].check
    assert report is not None
    assert report.tolerance == 1e-9
    assert report.passed, report.worst


@pytest.mark.parametrize("name", JOBS)
def test_check_compares_loss_all_gradients_and_all_parameters(results: Mapping[str, Execution], name: str) -> None:
    """Over all ranks, each element of each tensor of the model is compared, and the loss where it is computed."""
    job, execution = JOBS[name], results[name]
    report = execution.check
    assert report is not None
    compared = [key.split(": ", 1) for key in report.errors]
    sizes = {"parameter": 0, "gradient": 0, "optimizer": 0}
    losses = 0
    for rank_name, buffer_name in compared:
        buffer = execution.plan.program_of(int(rank_name.removeprefix("rank "))).buffers[buffer_name]
        losses += buffer_name == "loss"
        if buffer_name != "loss":
            sizes[str(buffer.kind)] += buffer.num_elements
    parallel = job.parallel
    last_ranks = parallel.tensor.degree * parallel.context_degree * parallel.data_degree
    assert losses == last_ranks * parallel.pipeline.num_copies
    assert sizes["parameter"] >= job.model.num_parameters
    assert sizes["gradient"] >= job.model.num_parameters


@pytest.mark.parametrize("name", LOWER_PRECISIONS)
def test_lower_precisions_are_close_to_the_float64_reference(results: Mapping[str, Execution], name: str) -> None:
    """Rounding explains what is left between the run and the reference."""
    report = results[name].check
    assert report is not None
    assert report.passed, report.worst
    assert report.worst[1] > 1e-9, "a run in lower precision cannot be exact: was float64 run instead?"


@pytest.mark.parametrize("name", ["three steps", "three steps, offloaded", "three steps, delayed update"])
def test_several_steps_reproduce_as_many_of_the_reference(results: Mapping[str, Execution], name: str) -> None:
    """Moments, updated parameters and new tokens of three steps all come out, the host's too."""
    report = results[name].check
    assert report is not None
    assert report.passed, report.worst


@pytest.mark.parametrize("name", SILENT)
def test_check_notices_each_kind_of_communication_left_out(references: References, name: str) -> None:
    """With one collective (or one boundary's messages) silent, something is wrong by far more than rounding."""
    request = SILENT[name]
    assert isinstance(request.check_against, DenseTraining)
    report = run_in_one_process(request.plan, request.check_against, references, request.mute)
    assert not report.passed
    assert report.worst[1] > 1e-3


@pytest.mark.parametrize("name", SILENT_ON_PROCESSES)
def test_check_of_real_processes_notices_communication_left_out(results: Mapping[str, Execution], name: str) -> None:
    """What is silent on four processes is noticed as it is with all ranks in one."""
    report = results[f"real: {name}"].check
    assert report is not None
    assert not report.passed
    assert report.worst[1] > 1e-3


@pytest.mark.parametrize("what", ["shard", "axes"])
def test_check_notices_a_collective_that_is_another_one(results: Mapping[str, Execution], what: str) -> None:
    """A layer gathered from the next one's shard, and a sum over the wrong ranks, are far from the reference."""
    report = results[f"altered {what}"].check
    assert report is not None
    assert not report.passed
    assert report.worst[1] > 1e-3


@pytest.mark.parametrize("what", SLICED)
def test_check_notices_slices_that_are_run_wrongly(results: Mapping[str, Execution], what: str) -> None:
    """A causal mask one token off, positions that are, and cached keys' or values' gradients of own slices alone."""
    report = results[f"altered {what}"].check
    assert report is not None
    assert not report.passed
    assert report.worst[1] > 1e-3


@pytest.mark.parametrize("name", WRONG_STEPS)
def test_check_notices_what_goes_wrong_between_steps(results: Mapping[str, Execution], name: str) -> None:
    """Gradients dropped, used before they are summed, cleared before they are used, counted as another step's."""
    report = results[name].check
    assert report is not None
    assert not report.passed
    assert report.worst[1] > 1e-4


def test_left_out_communication_covers_every_kind() -> None:
    """The plans silenced above use all collectives of dense training, both directions of messages included."""
    kinds = {name.split()[1] for name in SILENT}
    assert kinds == {
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "broadcast",
        "reduce",
        "messages",
        "copy",
    }
    assert {name.split()[2] for name in SILENT if "messages" in name} == {"forward", "backward"}


def test_sharding_sends_the_bytes_of_the_closed_form(results: Mapping[str, Execution]) -> None:
    """What rings really send: (g - 1)/g of all parameters per sharded sum, per gather, twice that of a shard's sum.

    Groups of 2 of 4 ranks, 2 micro-batches; the ends are gathered once per micro-batch, layers twice. The sum of the
    loss, one number, is what may be missing.
    """
    execution, model = results["hybrid as rings"], SHARDED["hybrid"].model
    assert execution.check is not None
    assert execution.check.passed
    total, layers = model.num_parameters, model.num_layers * model.layer_parameters
    scattered, gathered, replicated = 2 * total / 2, 2 * (total + layers) / 2, 2 * total / 2 / 2
    for result in execution.ranks:
        assert 0 <= result.sent_bytes - 8 * (scattered + gathered + replicated) <= 3 * 2 * 8


# --- the same ops and memory as the simulated run ----------------------------------------------------------


@pytest.fixture(scope="module")
def executed(results: Mapping[str, Execution]) -> Callable[[str], Timeline]:
    """Return a function from a run's name to its timeline; it keeps the last."""

    @lru_cache(maxsize=1)
    def timeline_of(name: str) -> Timeline:
        execution = results[name]
        return timeline(execution.plan, execution.ranks)

    return timeline_of


@pytest.mark.parametrize("name", JOBS)
def test_executed_timeline_has_the_simulated_ops_in_order(
    results: Mapping[str, Execution], executed: Callable[[str], Timeline], name: str
) -> None:
    """Stream by stream the same ops in the same order, with the same bytes and FLOP; no two overlap."""
    real = executed(name)
    real.check_streams()
    assert streams(real) == streams(simulated(results[name].plan, JOBS[name]))


@pytest.mark.parametrize("name", JOBS)
def test_executed_timeline_says_who_met_whom(executed: Callable[[str], Timeline], name: str) -> None:
    """Both ends of every message, and all members of every collective, share a number, each on a rank of its own."""
    real = executed(name)
    numbers = real.messages.numbers(len(real))
    meeting = ~real.kind.equal("compute") & ~real.kind.equal("copy")
    assert (numbers[meeting] >= 0).all()
    assert (numbers[~meeting] < 0).all()
    for number in np.unique(numbers[meeting]).tolist():
        rows = numbers == number
        assert len(set(real.rank[rows].tolist())) == np.count_nonzero(rows) > 1


@pytest.mark.parametrize("name", EVERYTHING)
def test_executed_memory_equals_the_simulated_account(results: Mapping[str, Execution], name: str) -> None:
    """Peak, peak by kind, and the bytes before, inside and after every call agree to the byte."""
    for result in results[name].ranks:
        expected = memory_use(results[name].plan.program_of(result.rank))
        memory = result.memory
        assert memory.peak_bytes == expected.peak_bytes
        assert dict(memory.peak_by_kind_bytes) == dict(expected.peak_by_kind_bytes)
        assert memory.before_bytes == expected.before_bytes.tolist()
        assert memory.most_bytes == expected.peak_bytes_of.tolist()
        assert memory.after_bytes == expected.after_bytes
        on_host = memory_use(results[name].plan.program_of(result.rank), Tier.HOST)
        assert result.host_peak_bytes == on_host.peak_bytes


@pytest.mark.parametrize("name", JOBS)
def test_executed_timeline_links_messages_and_collectives(executed: Callable[[str], Timeline], name: str) -> None:
    """A message arrives after it was sent; members of a collective start together, and its links are complete."""
    t = executed(name)
    messages = t.messages
    assert set(messages.send) == set(t.select(kind="send"))
    assert set(messages.recv) == set(t.select(kind="recv"))
    assert (t.end_s[messages.recv] >= t.start_s[messages.send]).all()
    assert (t.microbatch[messages.recv] == t.microbatch[messages.send]).all()
    for number in np.unique(messages.collective):
        members = messages.member[messages.collective == number]
        assert len(set(t.rank[members])) == len(members) > 1
        blocking = any("_forward." in t.name.at(int(row)) or "_backward." in t.name.at(int(row)) for row in members)
        assert len({t.name.at(int(row)) for row in members}) == (2 if blocking else 1), (
            "sender and receiver of a message"
        )
        assert np.ptp(t.start_s[members]) <= 1e-9


def test_memory_curve_of_the_timeline_has_the_accounted_peak(results: Mapping[str, Execution]) -> None:
    """The curve's highest step is the rank's peak."""
    execution = results["pp4 1f1b, recompute none"]
    t = timeline(execution.plan, execution.ranks)
    assert [t.memory.peak_bytes(r.rank) for r in execution.ranks] == [r.memory.peak_bytes for r in execution.ranks]


# --- time --------------------------------------------------------------------------------------------------


def test_delays_take_the_time_of_the_closed_form(results: Mapping[str, Execution]) -> None:
    """1F1B with delays takes (m+P-1)(tF+tB), and a little for running it."""
    ideal_s = (4 + 4 - 1) * 3 * 0.05
    assert ideal_s <= results["textbook"].iteration_time_s <= 1.5 * ideal_s


def test_the_time_of_an_execution_is_that_of_its_median_step(results: Mapping[str, Execution]) -> None:
    """All ranks report the times of the same step, whose slowest rank ends in the middle of those that count."""
    execution = results["three steps"]
    assert len(execution.step_times_s) == 2  # the first warms up
    assert execution.iteration_time_s == median_low(execution.step_times_s)
    assert {result.step_times_s for result in execution.ranks} == {execution.step_times_s}
    assert len(results["textbook"].step_times_s) == 1


def test_hazards_hold_in_executed_times(results: Mapping[str, Execution]) -> None:
    """A forward starts after its message has arrived, a backward after its own forward has ended."""
    execution = results["textbook"]
    t = timeline(execution.plan, execution.ranks)
    ends = {(int(t.rank[i]), t.name.at(i).split(".")[0], int(t.microbatch[i])): t.end_s[i] for i in range(len(t))}
    for i in range(len(t)):
        rank, microbatch, task = int(t.rank[i]), int(t.microbatch[i]), t.name.at(i).split(".")[0]
        if task == "backward":
            assert t.start_s[i] >= ends[rank, "forward", microbatch]
        if task in {"forward", "backward"} and (rank, f"recv_{task}", microbatch) in ends:
            assert t.start_s[i] >= ends[rank, f"recv_{task}", microbatch]


def test_step_timing_gives_a_time_and_no_rows(results: Mapping[str, Execution]) -> None:
    """``timing: step`` measures the step alone; memory is accounted all the same."""
    execution = results["step timing"]
    assert execution.iteration_time_s > 0
    assert execution.check is None
    assert len(timeline(execution.plan, execution.ranks)) == 0
    assert all(result.memory.peak_bytes > 0 for result in execution.ranks)
