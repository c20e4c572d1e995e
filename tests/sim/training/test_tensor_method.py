"""Tensor-parallel methods as objects: layouts, boundaries, and sizes that the ranks must divide."""

import pytest

from sim.plan.words.layout import REPLICATED, Shard
from sim.training.errors import SpecError
from sim.training.spec.models.experts import ExpertsSpec
from sim.training.tensor.one_dimensional import OneDimensional
from sim.training.tensor.registry import tensor_method
from tests.sim.jobs import GPT, dense_job, dense_plan

SIZES = {"model.num_heads": 8, "model.num_kv_heads": 8, "model.ffn_hidden_size": 64, "model.vocab_size": 128,
         "model.sequence_length": 30}  # fmt: skip


def test_of_degree_one_a_method_does_nothing() -> None:
    """On one rank every layout is replicated, and a plan has no collectives."""
    method = OneDimensional()
    layouts = [method.residual, method.column_layout(1), method.row_layout(1), method.vocabulary_layout]
    assert {*layouts, method.column_bias_layout(), method.hidden_layout(), method.boundary(scatters=True).layout} == {
        REPLICATED
    }
    assert method.token_multiple(scatters=True) == 1
    ops = [op for program in dense_plan().programs for task in program.tasks.values() for op in task.ops]
    assert not [op for op in ops if hasattr(op, "axes")]


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_the_residual_stream_crosses_a_boundary_as_it_lies_or_is_scattered(*, sequence_parallel: bool) -> None:
    """What is sent is cut along its tokens where the stream is, or where whole tensors are scattered."""
    method = OneDimensional(degree=4, sequence_parallel=sequence_parallel)
    as_it_lies, scattered = (method.boundary(scatters=scatters) for scatters in (False, True))
    assert as_it_lies.layout == method.residual
    assert [placement for _, placement in scattered.layout.placements] == [Shard(0)]
    assert bool(scattered.scatter_axis) is not sequence_parallel


@pytest.mark.parametrize(
    ("method", "scatters", "key", "words"),
    [
        (OneDimensional(degree=3), False, "parallel.tensor.degree", "num_heads 8 does not divide"),
        (OneDimensional(degree=4), True, "parallel.tensor.degree", "sequence_length 30 does not divide"),
        (OneDimensional(sequence_parallel=True), False, "parallel.tensor.sequence_parallel", "there is only one"),
        (OneDimensional(degree=2, collective_matmul=True), False, "parallel.tensor.collective_matmul", "cuts up"),
    ],
)
def test_a_method_refuses_what_it_does_not_divide(method: OneDimensional, scatters: bool, key: str, words: str) -> None:
    """The error names the key to change and the sizes."""
    with pytest.raises(SpecError, match=words) as caught:
        method.check(SIZES, scatters=scatters)
    assert caught.value.key == key


def test_an_option_of_another_method_is_refused() -> None:
    """A method takes its own options by name. The error for another option names its key and the method."""
    method = tensor_method("1d", 4, {"sequence_parallel": True})
    assert method == OneDimensional(degree=4, sequence_parallel=True)
    with pytest.raises(SpecError, match="method 1d has no such option; leave it out") as caught:
        tensor_method("1d", 4, {"depth": 2})
    assert caught.value.key == "parallel.tensor.depth"


def test_a_job_gives_its_method_the_widths_of_experts() -> None:
    """A job refuses a degree that does not divide an expert, by the expert's key."""
    experts = ExpertsSpec(num_experts=4, top_k=1, ffn_hidden_size=30)
    with pytest.raises(SpecError, match=r"experts\.ffn_hidden_size 30 does not divide by tensor degree 4"):
        dense_job(tp=4, model=GPT | {"experts": experts})
