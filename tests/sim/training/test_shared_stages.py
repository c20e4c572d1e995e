"""Stages that are equal but for names are written once, and have what each of them would have if it were written."""

from collections.abc import Collection, Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sim.moe.skew import Skew
from sim.plan.facts.namesakes import apart, sharing_tasks
from sim.plan.words.program import Plan, Task
from sim.training.pipeline.actions import Action
from sim.training.spec.combinations import first_refusal, verdict_on
from sim.training.spec.job import DenseTraining
from sim.training.spec.models.experts import ExpertsSpec
from sim.training.spec.models.window import SlidingWindow
from sim.training.spec.techniques import TECHNIQUES
from sim.training.steps.builder import StageProgramBuilder, build_dense_training
from tests.examples import examples
from tests.sim.jobs import GPT, LLAMA, dense_job
from tests.sim.training.test_combinations import BUILT, job_of

PIPELINE: dict[str, Any] = {"pp": 5, "m": 12, "num_layers": 23}
"""A pipeline with three stages in the middle, and with layers of one digit and of two."""
OTHERS = {"virtual_stages": {"num_layers": 20}, "two_copies": {"pp": 6, "num_layers": 12}}
EXACT = ExpertsSpec(num_experts=4, top_k=2, ffn_hidden_size=32, dispatch="exact", routing="balanced")
UNSHARED = frozenset({"osdp", "set_gradients_to_none", "two_copies"})
"""Techniques with which each stage is written for itself."""


def written(job: DenseTraining) -> tuple[Plan, Plan]:
    """Return a job's plan written stage by stage, and the one whose equal stages are written once."""
    return build_dense_training(job, "test"), build_dense_training(job, "test", shares_tasks=True)


def groups(plan: Plan) -> list[int]:
    """Return of each program the first one that has the same tasks."""
    tasks = [id(program.tasks) for program in plan.programs]
    return [tasks.index(own) for own in tasks]


def parts(plan: Plan) -> list[object]:
    """Return all that the programs of a plan have, in order, and what they are called."""
    return [
        (
            *(program.role, program.released, program.calls),
            *([*program.tasks.items()], [*program.buffers.items()], [*map(program.named, program.tasks)]),
        )
        for program in plan.programs
    ]


def check_law(job: DenseTraining) -> None:
    """Check that a plan is the same however it is written."""
    one_by_one, shared = written(job)
    assert apart(shared) == one_by_one
    assert parts(sharing_tasks(shared)) == parts(sharing_tasks(one_by_one))


def piped(pair: tuple[str, str]) -> DenseTraining | None:
    """Return a job with two techniques in a pipeline; None where that is refused, or built in another way."""
    used = verdict_on(*pair).used | {"pipeline"}
    used |= {"tied_over_ranks"} if "tied_embeddings" in used else set()
    if first_refusal(used) is not None or used & {"local", "delayed"}:
        return None
    keys = PIPELINE | (OTHERS["two_copies"] if "two_copies" in used else {})
    return job_of(used, **keys | (OTHERS["virtual_stages"] if "aiao" in used else {}))


@pytest.mark.parametrize("name", TECHNIQUES)
def test_stages_in_the_middle_are_written_once_with_every_technique(name: str) -> None:
    """The law holds, and with nearly every technique the stages in the middle share what is written."""
    job = piped((name, name))
    if job is None:
        return
    check_law(job)
    shared = groups(build_dense_training(job, "test", shares_tasks=True))
    expected = groups(sharing_tasks(build_dense_training(job, "test")))
    assert shared == (list(range(job.parallel.pipeline.degree)) if name in UNSHARED else expected)


@settings(max_examples=examples(8), deadline=None)
@example(("zero_3", "fp8"))
@given(pair=st.sampled_from(BUILT))
def test_two_techniques_together_are_written_the_same(pair: tuple[str, str]) -> None:
    """The law holds for pairs of techniques."""
    if (job := piped(pair)) is not None:
        check_law(job)


@pytest.mark.parametrize(
    "keys",
    [
        {"schedule": "gpipe", "blocking_messages": True},
        {"schedule": "dualpipe_v", "virtual_stages": 2, "overlap_exchanges": True, "expert_degree": 2,
         "model": LLAMA | {"num_layers": 10, "experts": replace(EXACT, dispatch="slots", routing="learned")}},
        {"expert_degree": 2, "model": LLAMA | {"num_layers": 10, "experts": replace(EXACT, routing=Skew(zipf=1.5))}},
    ],
)  # fmt: skip
def test_stages_are_written_one_by_one_where_more_than_names_may_differ(keys: dict[str, Any]) -> None:
    """That is so where messages name ranks, passes take turns, or each layer has a routing of its own."""
    job = dense_job(**{"pp": 5, "dp": 2, "m": 20, "model": LLAMA | {"num_layers": 10}} | keys)
    check_law(job)
    shared = build_dense_training(job, "test", shares_tasks=True)
    assert len(set(groups(shared))) == len(shared.programs)


def test_biases_of_routers_are_summed_in_the_order_of_the_layers() -> None:
    """Layers 9 and 10 are in that order, as 5 and 6 are, though their names are not."""
    experts = ExpertsSpec(num_experts=4, top_k=2, ffn_hidden_size=32, gate="bias")
    check_law(dense_job(pp=4, dp=2, m=4, model=LLAMA | {"num_layers": 16, "experts": experts}))


def actions_of(ranks: Sequence[int], splits: Collection[int], num_microbatches: int) -> list[list[Action]]:
    """Return a schedule of stages on some ranks, all forwards first; some ranks split their backwards."""
    turns = [(microbatch, stage) for microbatch in range(num_microbatches) for stage in range(len(ranks))]
    rows: list[list[Action]] = [[] for _ in {*ranks}]
    for microbatch, stage in turns:
        rows[ranks[stage]].append(Action("F", stage, microbatch))
    for microbatch, stage in reversed(turns):
        kinds = "IW" if ranks[stage] in splits else "B"
        rows[ranks[stage]] += [Action(kind, stage, microbatch) for kind in kinds]
    return rows


@pytest.mark.parametrize(
    ("ranks", "splits", "shared"),
    [(range(5), {2}, [0, 1, 2, 1, 4]), ((0, 1, 2, 4, 3, 5), {}, [0, 1, 2, 3, 4, 5])],
)
def test_stages_with_other_tasks_or_neighbours_are_written_for_themselves(
    ranks: Sequence[int], splits: Collection[int], shared: Sequence[int]
) -> None:
    """That is a stage that runs backwards in two parts, and one whose neighbours are other ranks away."""
    size = len(ranks)
    actions = actions_of(ranks, splits, 4)
    job = dense_job(pp=size, m=4, schedule="custom", actions=actions, model=GPT | {"num_layers": size})
    check_law(job)
    assert groups(build_dense_training(job, "test", shares_tasks=True)) == shared


@st.composite
def any_actions(draw: Any, num_ranks: int, virtual_stages: int, num_microbatches: int) -> list[list[Action]]:
    """Draw such a schedule."""
    ranks = draw(st.permutations([*range(num_ranks)] * virtual_stages))
    return actions_of(ranks, draw(st.sets(st.sampled_from(range(num_ranks)))), num_microbatches)


@st.composite
def uneven_keys(draw: Any) -> dict[str, Any]:
    """Draw the keys of a job whose stages differ in their layers, in how they are recomputed, and in their schedule."""
    pp = draw(st.integers(3, 6))
    m = pp * draw(st.integers(2, 3))
    schedule = draw(st.sampled_from(["1f1b", "zb_h1", "interleaved_1f1b", "breadth_first", "zb_v", "custom"]))
    v = 2 if schedule in {"interleaved_1f1b", "breadth_first", "zb_v"} else draw(st.integers(1, 2))
    v = 1 if schedule in {"1f1b", "zb_h1"} else v
    uneven = st.lists(st.integers(1, 3), min_size=pp * v, max_size=pp * v).map(tuple)
    sizes: tuple[int, ...] = draw(st.one_of(st.just((3,) * (pp * v)), uneven))
    window = draw(st.sampled_from([None, SlidingWindow(size=8, global_every=draw(st.integers(2, 4)), rotary_base=1e4)]))
    gate = draw(st.sampled_from(["top_k", "bias"]))
    experts = ExpertsSpec(
        num_experts=4, top_k=2, ffn_hidden_size=32, first_dense_layers=draw(st.integers(0, 2)), gate=gate
    )
    model = draw(st.sampled_from([GPT | {"dropout": 0.1}, LLAMA | {"sliding_window": window}, LLAMA]))
    recompute: dict[str, Any] = draw(
        st.sampled_from([
            {"recompute": "full", "recompute_num_layers": 1},
            {"recompute": "full", "recompute_num_layers": max(sizes), "recompute_method": "uniform"},
            {"recompute": "full", "recompute_layers": tuple(sorted(draw(st.sets(st.integers(0, sum(sizes) - 1)))))},
            {"recompute_per_stage": tuple(draw(st.sampled_from(["none", "full"])) for _ in sizes)},
            {"recompute": "selective"},
        ])
    )  # fmt: skip
    return {
        "pp": pp, "tp": 2, "schedule": schedule, "virtual_stages": v, "layers_per_stage": sizes,
        "model": model | {"num_layers": sum(sizes)} | ({"experts": experts} if draw(st.booleans()) else {}),
        "m": m, "dp": draw(st.integers(1, 2)), "zero_stage": draw(st.integers(0, 1)),
        "precision": draw(st.sampled_from(["bf16", "fp8"])), **recompute,
        **({"actions": draw(any_actions(pp, v, m))} if schedule == "custom" else {}),
    }  # fmt: skip


@settings(max_examples=examples(8), deadline=None)
@given(keys=uneven_keys())
def test_uneven_stages_are_written_the_same(keys: dict[str, Any]) -> None:
    """The law holds where stages have unlike layers, and are recomputed in unlike ways."""
    check_law(dense_job(**keys))


def test_names_of_a_stage_are_written_when_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan of 16 stages writes three; a task of another is written once someone asks for its own names."""
    ranks = list[int]()
    build = StageProgramBuilder.build

    def counted(self: StageProgramBuilder, *arguments: Any) -> Any:
        ranks.append(self.rank)
        return build(self, *arguments)

    monkeypatch.setattr(StageProgramBuilder, "build", counted)
    job = dense_job(pp=16, m=16, model=GPT | {"num_layers": 16})
    plan = build_dense_training(job, "test", shares_tasks=True)
    assert ranks == [0, 1, 15]
    names: list[Task] = [plan.programs[9].named("forward.1") for _ in range(2)]
    assert {task.name for task in names} == {"forward.9"}
    assert all(op.name.startswith("layer9") for op in names[0].ops)
    assert ranks == [0, 1, 15, 9]
