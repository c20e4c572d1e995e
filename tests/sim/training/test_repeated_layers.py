"""Layers that differ in names alone are traced once, and have what each would have if it were traced."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.plan.functions.repeated import Repeated
from sim.plan.functions.tracing import TaskTracer, Tensor
from sim.plan.words.program import Plan
from sim.training.local.builder import build_local_training
from sim.training.spec.combinations import first_refusal, verdict_on
from sim.training.spec.job import DenseTraining
from sim.training.spec.techniques import TECHNIQUES
from sim.training.steps.builder import build_dense_training
from sim.training.steps.delayed import build_delayed_training
from sim.training.steps.transformer import TransformerBuilder
from tests.examples import examples
from tests.sim.jobs import GPT, LLAMA, dense_job
from tests.sim.training.test_combinations import BUILT, job_of
from tests.sim.training.test_shared_stages import uneven_keys


def build(job: DenseTraining) -> Plan:
    """Return the plan of a job's step."""
    if job.parallel.pipeline.gradient_delay:
        return build_delayed_training(job, "test")
    return (build_local_training if job.training.method == "local" else build_dense_training)(job, "test")


def traced(self: Repeated, t: TaskTracer, name: str, kind: object, function: Any, x: Tensor) -> Tensor:
    """Trace a function, in the place of what copies it."""
    return function(t, x)  # type: ignore[no-any-return]


def parts(plan: Plan) -> list[object]:
    """Return all that the programs of a plan have, in order."""
    return [
        (program.role, program.released, program.calls, [*program.tasks.items()], [*program.buffers.items()])
        for program in plan.programs
    ]


def check_law(job: DenseTraining) -> None:
    """Check that a plan is the same whether layers are copied or traced."""
    copied = build(job)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Repeated, "__call__", traced)
        assert parts(copied) == parts(build(job))


def job_with(used: frozenset[str]) -> DenseTraining:
    """Return a job with some techniques whose stages have several layers."""
    return job_of(used, num_layers=12 if "two_copies" in used else 8)


@pytest.mark.parametrize("name", TECHNIQUES)
def test_copied_layers_have_what_traced_ones_have_with_every_technique(name: str) -> None:
    """The law holds for every technique with what it needs."""
    used = verdict_on(name, name).used
    if first_refusal(used) is None:
        check_law(job_with(frozenset(used)))


@settings(max_examples=examples(8), deadline=None)
@given(pair=st.sampled_from(BUILT))
def test_two_techniques_together_are_written_the_same(pair: tuple[str, str]) -> None:
    """The law holds for pairs of techniques."""
    check_law(job_with(frozenset(verdict_on(*pair).used)))


@settings(max_examples=examples(8), deadline=None)
@given(keys=uneven_keys())
def test_layers_of_several_kinds_are_written_the_same(keys: dict[str, Any]) -> None:
    """The law holds where layers have unlike windows or experts, and are recomputed in unlike ways."""
    check_law(dense_job(**keys))


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize(
    ("keys", "expected"),
    [({"model": GPT | {"dropout": 0.1}}, [0, 15]), ({"model": LLAMA}, [0, 15]),
     ({"model": LLAMA, "gradient_placeholders": True}, [0, 14, 15])],
)  # fmt: skip
def test_few_layers_are_traced(
    *, keys: dict[str, Any], expected: list[int], recompute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first layer is, and the last, which backward begins with; one more where that makes something for all."""
    indices = list[int]()
    layer = TransformerBuilder._layer

    def noted(self: TransformerBuilder, index: int, t: TaskTracer, x: Tensor) -> Tensor:
        indices.append(index)
        return layer(self, index, t, x)

    monkeypatch.setattr(TransformerBuilder, "_layer", noted)
    build_dense_training(
        dense_job(**keys | {"model": keys["model"] | {"num_layers": 16}, "recompute": recompute}), "test"
    )
    assert sorted(indices) == expected
