"""Local updates: what their order costs, keeps and sends."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sim.engine.findings.timeline import timeline
from sim.engine.prices.textbook import TextbookPricing
from sim.engine.running.memory import peak_live_chunks
from sim.engine.running.simulate import simulate
from sim.plan.checking.check import check
from sim.plan.words.op import Collective, Recv, Send
from sim.plan.words.program import Phase, Plan
from sim.training.errors import SpecError
from sim.training.local.builder import build_local_training
from sim.training.local.textbook import build_local_textbook
from sim.training.pipeline.schedules import placement
from sim.training.spec.job import DelaySpec, PipelineSpec, TextbookTraining
from tests.backends.jobs import GPT, LLAMA, training
from tests.sim.jobs import op_times, pricing_on
from tests.sim.topology_strategies import single_devices

TIMES = st.sampled_from([0.25, 0.5, 1.0, 1.5, 2.0])


def textbook(ranks: int, microbatches: int, blocks: int = 1, update: Any = None, **times: float) -> TextbookTraining:
    """Return local updates with stated times."""
    delays = {"forward_s": 1.0, "backward_input_s": 1.0, "backward_weight_s": 1.0} | times
    pipeline = PipelineSpec(degree=ranks, schedule="local", virtual_stages=blocks)
    return TextbookTraining(
        model=DelaySpec(**delays), num_microbatches=microbatches, pipeline=pipeline, method="local", local_update=update
    )


def makespan_s(job: TextbookTraining) -> float:
    """Return the simulated time of a step."""
    return simulate(build_local_textbook(job, "local"), TextbookPricing(job.model.hop_s)).makespan_s


def local(update: str = "greedy", model: dict[str, Any] = LLAMA, **keys: Any) -> Plan:
    """Return the plan of a tiny transformer that is trained by local updates."""
    pipeline = {"schedule": "local"} | keys.pop("pipeline", {})
    numbers = {"method": "local", "local_update": update}
    return build_local_training(training(model=model, pipeline=pipeline, numbers=numbers, **keys), "local")


@pytest.mark.parametrize(("ranks", "microbatches", "seconds"), [(4, 8, 27.0), (8, 16, 55.0)])
def test_greedy_takes_the_time_of_the_worked_examples(ranks: int, microbatches: int, seconds: float) -> None:
    """With unit times 27 s where 1F1B takes 33 s, and 55 s where it takes 69 s."""
    assert makespan_s(textbook(ranks, microbatches)) == pytest.approx(seconds)


@pytest.mark.parametrize("update", ["greedy", "overlapping"])
@pytest.mark.parametrize("blocks", [1, 2])
def test_synchronising_gradients_takes_its_time(update: str, blocks: int) -> None:
    """Replicas that synchronise after all backwards add the stated time to a step; overlapped, no more than that."""
    base_s = makespan_s(textbook(4, 8, blocks, update))
    job = textbook(4, 8, blocks, update, gradient_sync_s=2.0)
    assert makespan_s(replace(job, overlap_gradient_sync=False)) == pytest.approx(base_s + 2.0)
    assert base_s < makespan_s(replace(job, overlap_gradient_sync=True)) <= base_s + 2.0 + 1e-9


@given(
    ranks=st.integers(1, 6), microbatches=st.integers(1, 9), blocks=st.integers(1, 3), forward_s=TIMES, input_s=TIMES,
    weight_s=TIMES, auxiliary_s=st.sampled_from([0.0, 0.5, 3.0]), hop_s=st.sampled_from([0.0, 0.25]),
)  # fmt: skip
def test_greedy_has_the_closed_form(
    ranks: int, microbatches: int, blocks: int, *, forward_s: float, input_s: float, weight_s: float,
    auxiliary_s: float, hop_s: float,
) -> None:  # fmt: skip
    """(P-1)(tF + hop) + m(tF + tA + tB + tW), whatever the times, and however many blocks share a rank."""
    job = textbook(
        ranks, microbatches, blocks, forward_s=forward_s, backward_input_s=input_s, backward_weight_s=weight_s,
        auxiliary_s=auxiliary_s, hop_s=hop_s,
    )  # fmt: skip
    each_s = forward_s + auxiliary_s + input_s + weight_s
    assert makespan_s(job) == pytest.approx((ranks - 1) * (forward_s + hop_s) + microbatches * each_s)


@given(
    ranks=st.integers(2, 6), microbatches=st.integers(1, 9), forward_s=TIMES, auxiliary_s=TIMES, input_s=TIMES,
    weight_s=TIMES, hop_s=st.sampled_from([0.0, 0.25]),
)  # fmt: skip
def test_overlapping_has_the_times_of_its_recurrence(
    ranks: int,
    microbatches: int,
    *,
    forward_s: float,
    auxiliary_s: float,
    input_s: float,
    weight_s: float,
    hop_s: float,
) -> None:
    """Forward, head and input gradient, then the backward of the micro-batch before, once the next rank says so."""
    job = textbook(
        ranks, microbatches, 1, "overlapping", forward_s=forward_s, backward_input_s=input_s,
        backward_weight_s=weight_s, auxiliary_s=auxiliary_s, hop_s=hop_s,
    )  # fmt: skip
    forward, answer = ({(-1, i): -hop_s for i in range(microbatches)} for _ in range(2))
    free = [0.0] * ranks
    first, last = 0, ranks - 1
    for i in range(microbatches + 1):  # the backward of micro-batch i-1 follows what is done for i
        for rank in range(ranks):
            if i < microbatches:
                forward[rank, i] = max(free[rank], forward[rank - 1, i] + hop_s if rank else 0.0) + forward_s
                own_s = {first: 0.0, last: input_s + weight_s}.get(rank, input_s)
                free[rank] = forward[rank, i] + auxiliary_s + own_s
                answer[rank, i] = free[rank]
        for rank in range(ranks - 1):
            if i:
                free[rank] = max(free[rank], answer[rank + 1, i - 1] + hop_s) + input_s + weight_s
    assert makespan_s(job) == pytest.approx(max(free))


def test_ranks_keep_one_micro_batch_and_two_where_they_wait() -> None:
    """Greedy: nothing is kept while later ranks work. Overlapping: one more, but on the last rank."""
    greedy = build_local_textbook(textbook(4, 8), "greedy")
    overlapping = build_local_textbook(textbook(4, 8, 1, "overlapping"), "overlapping")
    assert [peak_live_chunks(program) for program in greedy.programs] == [1, 1, 1, 1]
    assert [peak_live_chunks(program) for program in overlapping.programs] == [2, 2, 2, 1]


@pytest.mark.parametrize("update", ["greedy", "overlapping"])
def test_messages_go_forward_and_at_most_one_block_back(update: str) -> None:
    """Greedy sends no gradient. Overlapping sends one per boundary and micro-batch, of the next block's own loss."""
    plan = local(update, pipeline={"degree": 4}, batch=(3, 1))
    for rank, program in enumerate(plan.programs):
        ops = [op for _, _, _, op in program.instances()]
        kinds = {
            (type(op), str(op.direction)): sum(isinstance(o, type(op)) and o.direction == op.direction for o in ops)
            for op in ops
            if isinstance(op, Send | Recv)
        }
        back = update == "overlapping"
        expected = {
            (Send, "forward"): rank < 3, (Recv, "forward"): rank > 0, (Send, "backward"): back and rank > 0,
            (Recv, "backward"): back and rank < 3,
        }  # fmt: skip
        assert kinds == {kind: 3 for kind, there in expected.items() if there}


@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize(("update", "goes_back"), [("greedy", 0), ("overlapping", 1)])
def test_a_block_without_layers_is_its_head(update: str, goes_back: int, scattered: bool) -> None:
    """Two layers on four ranks: the last block's head learns, and the gradient of its input is the head's own."""
    tp = 2 if scattered else 1
    model = LLAMA | {"num_layers": 2}
    plan = local(
        update, model=model, pipeline={"degree": 4, "scatter_gather": scattered}, batch=(3, 1), tensor_degree=tp
    )
    check(plan)
    phases = Counter(plan.programs[3].tasks[call.task].phase for call in plan.programs[3].calls)
    assert phases[Phase.HEAD] == 3
    assert phases[Phase.SEND] == 3 * goes_back
    assert phases[Phase.FORWARD] == 3 * scattered  # a gather of what arrives
    assert phases[Phase.BACKWARD] == 3 * (goes_back and scattered)  # this rank's slice of what goes back
    assert peak_live_chunks(plan.programs[3]) == 1
    run = simulate(plan, pricing_on("hgx-h100", 4 * tp))
    assert timeline(run, "task").end_s.max() == timeline(run, "op").end_s.max() == run.makespan_s


def test_the_span_of_a_rank_without_layers_begins_with_its_head() -> None:
    """On a slow device the last rank has the longest span, and its program has no forward."""
    plan = local(model=LLAMA | {"num_layers": 2}, pipeline={"degree": 4}, batch=(3, 1))
    run = simulate(plan, single_devices(4, bandwidth="10 GB/s", slow_device=3, slowdown=20.0))
    program, times = run.programs[3], op_times(run)
    heads_s = [
        start_s for (rank, call, _), (start_s, _) in times.items()
        if rank == 3 and program.tasks[program.calls[call].task].phase is Phase.HEAD
    ]  # fmt: skip
    assert run.max_rank_span_s == run.makespan_s - min(heads_s)


def test_backward_of_a_block_computes_nothing_that_no_parameter_needs() -> None:
    """What only the gradient of a block's input needs is left out, but where it goes back."""
    for update, fed in (("greedy", 0), ("overlapping", 1)):
        program = local(update, pipeline={"degree": 4}).programs[3]
        ops = program.tasks["backward.3"].ops
        read = {name for task in program.tasks.values() for op in task.ops for name in op.reads}
        assert any(op.name.startswith("input.3.gradient_sum") for op in ops) == bool(fed)
        assert all(not op.writes or any(name in read or ".gradient" in name for name in op.writes) for op in ops)


def test_every_block_synchronises_and_updates_on_its_own() -> None:
    """A rank's gradients are summed over replicas after its own backwards, and it updates its own parameters alone."""
    plan = local(pipeline={"degree": 2, "virtual_stages": 2}, data_degree=2)
    for rank, program in enumerate(plan.programs):
        called = [call.task for call in program.calls]
        last = max(index for index, name in enumerate(called) if name.startswith("backward"))
        syncs = [index for index, name in enumerate(called) if name.startswith("gradient_sync")]
        assert len(syncs) == 2
        assert min(syncs) > last
        assert not any(isinstance(op, Collective) and "pp" in op.axes for _, _, _, op in program.instances())
        heads = {2 * rank, 2 * rank + 1}
        assert {task.stage for task in program.tasks.values() if task.phase is Phase.HEAD} == heads


def test_blocks_lie_consecutively() -> None:
    """Two blocks per rank are neighbours, so only every other boundary is sent."""
    place = placement(PipelineSpec(degree=3, schedule="local", virtual_stages=2))
    assert place.stages == ((0, 1), (2, 3), (4, 5))
    assert [place.hop(stage) for stage in range(5)] == [0, 1, 0, 1, 0]


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"pipeline": {"degree": 2}, "numbers": {"method": "local"}}, "parallel.pipeline.schedule"),
        ({"pipeline": {"degree": 2, "schedule": "local"}}, "parallel.pipeline.schedule"),
        ({"numbers": {"local_update": "greedy"}}, "training.local_update"),
        ({"model": GPT, "pipeline": {"schedule": "local"}, "numbers": {"method": "local"}}, "model.tied_embeddings"),
        (
            {"pipeline": {"schedule": "local"}, "numbers": {"method": "local"}, "zero_stage": 2, "data_degree": 2},
            "parallel.data.zero_stage",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(keys: dict[str, Any], key: str) -> None:
    """The schedule without the method and the other way round, shared tables, sharded gradients."""
    with pytest.raises(SpecError) as refused:
        training(**{"model": LLAMA, **keys})
    assert refused.value.key == key


def test_heads_without_local_updates_are_refused() -> None:
    """A textbook workload of backpropagation has no time for auxiliary heads."""
    delays = DelaySpec(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0, auxiliary_s=1.0)
    with pytest.raises(SpecError, match="auxiliary"):
        TextbookTraining(model=delays, num_microbatches=1, pipeline=PipelineSpec())
