"""PipeDream-2BW: steps without a flush, two versions of the weights."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.findings.critical_path import critical_path
from sim.engine.prices.textbook import TextbookPricing
from sim.engine.running.memory import memory_use, peak_live_chunks
from sim.engine.running.simulate import simulate
from sim.plan.words.program import Phase
from sim.training.errors import SpecError
from sim.training.pipeline.two_versions import NUM_STEPS
from sim.training.spec.job import DelaySpec, PipelineSpec, TextbookTraining
from sim.training.steps.builder import build_dense_training
from sim.training.steps.delayed import build_delayed_textbook, build_delayed_training
from tests.backends.jobs import GPT, LLAMA, training

TIMES = st.sampled_from([0.25, 0.5, 1.0, 1.5, 2.0])


def textbook(ranks: int, microbatches: int, **times: float) -> TextbookTraining:
    """Return a textbook workload."""
    delays = {"forward_s": 1.0, "backward_input_s": 1.0, "backward_weight_s": 1.0} | times
    pipeline = PipelineSpec(degree=ranks, schedule="pipedream_2bw")
    return TextbookTraining(model=DelaySpec(**delays), num_microbatches=microbatches, pipeline=pipeline)


@given(ranks=st.integers(1, 6), more=st.integers(0, 4), forward_s=TIMES, input_s=TIMES, weight_s=TIMES)
def test_steady_step_has_no_bubble(ranks: int, more: int, forward_s: float, input_s: float, weight_s: float) -> None:
    """A step takes m(tF+tB+tW), and no rank waits in it: all of that is busy."""
    m = ranks + more
    job = textbook(ranks, m, forward_s=forward_s, backward_input_s=input_s, backward_weight_s=weight_s)
    run = simulate(build_delayed_textbook(job, "2bw"), TextbookPricing())
    each_s = forward_s + input_s + weight_s
    assert run.iteration_time_s == pytest.approx(m * each_s)
    assert run.makespan_s == pytest.approx((NUM_STEPS * m + ranks - 1) * each_s)


@given(ranks=st.integers(1, 5), more=st.integers(0, 3), forward_s=TIMES, hop_s=st.sampled_from([0.0, 0.25, 1.0]))
def test_the_critical_path_is_one_steps(ranks: int, more: int, forward_s: float, hop_s: float) -> None:
    """Of the steps that a plan holds it is the path of one of them, without a gap, as long as that step."""
    job = textbook(ranks, ranks + more, forward_s=forward_s, hop_s=hop_s)
    run = simulate(build_delayed_textbook(job, "2bw"), TextbookPricing(hop_s))
    steps = critical_path(run).steps
    assert steps[0].start_s == pytest.approx(0.0, abs=1e-9)
    assert steps[-1].end_s == pytest.approx(run.iteration_time_s)
    assert all(before.end_s == pytest.approx(after.start_s) for before, after in pairwise(steps))


def test_rank_keeps_what_1f1b_keeps_and_weights_twice() -> None:
    """P-r micro-batches live on rank r; parameters count twice, everything else that stays once."""
    plan = build_delayed_training(training(model=LLAMA, pipeline={"degree": 4, "schedule": "pipedream_2bw"}), "2bw")
    once = build_dense_training(training(model=LLAMA, pipeline={"degree": 4}), "1f1b")
    assert [peak_live_chunks(program) for program in plan.programs] == [4, 3, 2, 1]
    for program, other in zip(plan.programs, once.programs, strict=True):
        late, soon = (memory_use(p).peak_by_kind_bytes for p in (program, other))
        assert late["parameter"] == 2 * soon["parameter"]
        for kind in ("gradient", "optimizer", "activation"):
            assert late[kind] == soon[kind]


def test_mixed_precision_keeps_one_master() -> None:
    """Two low-precision versions, one set of master weights and moments."""
    job = training(model=LLAMA, pipeline={"degree": 2, "schedule": "pipedream_2bw"}, precision="bf16")
    program = build_delayed_training(job, "2bw").programs[0]
    weights = sum(b.num_elements for b in program.buffers.values() if b.name.endswith(".newest"))
    sizes: dict[str, int] = {}
    for buffer in program.buffers.values():
        sizes[buffer.kind] = sizes.get(buffer.kind, 0) + buffer.num_elements
    assert (sizes["parameter"], sizes["optimizer"]) == (2 * weights, 3 * weights)


def test_forwards_before_an_update_read_the_newest_version() -> None:
    """Of every step but the first, the forwards that rank r runs ahead: P-1-r."""
    plan = build_delayed_training(training(model=LLAMA, pipeline={"degree": 4, "schedule": "pipedream_2bw"}), "2bw")
    for rank, program in enumerate(plan.programs):
        early = [call.microbatch for call in program.calls if call.task.startswith("newest")]
        assert early == [4 * step + k for step in range(1, NUM_STEPS) for k in range(3 - rank)]
        forwards = [c for c in program.calls if program.tasks[c.task].phase is Phase.FORWARD]
        assert len(forwards) == NUM_STEPS * 4
        reads = {name for op in program.tasks[f"backward.{rank}"].ops for name in op.reads}
        assert not any(name.endswith(".newest") for name in reads)


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"batch": (3, 1)}, "parallel.pipeline.schedule"),
        ({"model": GPT}, "model.tied_embeddings"),
        ({"data_degree": 2, "zero_stage": 1, "batch": (8, 1)}, "parallel.data.zero_stage"),
        ({"data_degree": 2, "zero_stage": 2, "batch": (8, 1)}, "parallel.data.zero_stage"),
    ],
)
def test_what_does_not_go_together_is_refused(keys: dict[str, Any], key: str) -> None:
    """Fewer micro-batches than ranks, shared tables, sharded state."""
    with pytest.raises(SpecError) as refused:
        training(**{"model": LLAMA, "pipeline": {"degree": 4, "schedule": "pipedream_2bw"}, **keys})
    assert refused.value.key == key
