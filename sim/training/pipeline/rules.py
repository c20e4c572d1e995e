"""Rules of schedules for ranks, virtual stages and micro-batches, and rules of custom schedules.

Every function raises SpecError with the scenario key where a rule is broken.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct

from sim.training.errors import MicrobatchError, SpecError
from sim.training.pipeline import evaluate
from sim.training.pipeline.actions import Action
from sim.training.pipeline.placement import Placement, loop

Schedule = Literal[
    "gpipe", "1f1b", "interleaved_1f1b", "breadth_first", "aiao", "zb_h1", "zb_h2", "zb_v", "zb_auto", "chimera",
    "dualpipe", "dualpipe_v", "terapipe", "seq_1f1b", "custom", "local", "pipedream_2bw",
]  # fmt: skip

Actions = tuple[tuple[Action, ...], ...]
"""Every rank's actions."""

SCHEDULE_KEY: Final = "parallel.pipeline.schedule"
STAGES_KEY: Final = "parallel.pipeline.virtual_stages"
ACTIONS_KEY: Final = "parallel.pipeline.actions"
GROUP_KEY: Final = "parallel.pipeline.microbatch_group_size"
SLICES_KEY: Final = "parallel.pipeline.token_slices"
GRANULARITY_KEY: Final = "parallel.pipeline.slice_granularity"
SLICED_SCHEDULES: Final[tuple[Schedule, ...]] = ("terapipe", "seq_1f1b")
"""Schedules that send sequences through the pipeline in slices of tokens."""
OVERLAP_KEY: Final = "parallel.pipeline.overlap_exchanges"
OVERLAPPING_SCHEDULES: Final[tuple[Schedule, ...]] = ("dualpipe", "dualpipe_v", "custom")
BLOCKING_SCHEDULES: Final[tuple[Schedule, ...]] = ("gpipe", "terapipe")
"""Schedules with all forward messages before all backward messages."""


class Traits(Struct, frozen=True):
    """The placement of a schedule's stages, and the allowed number of stages per rank (of each copy of the model)."""

    placement: Literal["loop", "v", "bidirectional", "custom", "blocks"] = "loop"
    fewest_stages: int = 1
    most_stages: int = 1


_ANY: Final = 2**31
TRAITS: Final[Mapping[Schedule, Traits]] = {
    "gpipe": Traits(),
    "1f1b": Traits(),
    "interleaved_1f1b": Traits(fewest_stages=2, most_stages=_ANY),
    "breadth_first": Traits(most_stages=_ANY),
    "aiao": Traits(most_stages=_ANY),
    "zb_h1": Traits(most_stages=_ANY),
    "zb_h2": Traits(),
    "zb_v": Traits("v", 2, 2),
    "zb_auto": Traits(),
    "chimera": Traits("bidirectional"),
    "dualpipe": Traits("bidirectional"),
    "dualpipe_v": Traits("v", 2, 2),
    "terapipe": Traits(),
    "seq_1f1b": Traits(),
    "custom": Traits("custom", most_stages=_ANY),
    "local": Traits("blocks", most_stages=_ANY),
    "pipedream_2bw": Traits(),
}


def check_stages(schedule: Schedule, virtual_stages: int) -> None:
    """Refuse a number of virtual stages per rank that the schedule does not allow."""
    fewest, most = TRAITS[schedule].fewest_stages, TRAITS[schedule].most_stages
    if fewest <= virtual_stages <= most:
        return
    if most == _ANY:
        rule = f"{schedule} needs {fewest} or more virtual stages, got {virtual_stages}"
        raise SpecError(STAGES_KEY, rule, f"write virtual_stages: {fewest}, or schedule: 1f1b")
    if most == 1:
        rule = f"{schedule} has one virtual stage per rank, got {virtual_stages}"
        raise SpecError(STAGES_KEY, rule, "write schedule: interleaved_1f1b, or virtual_stages: 1")
    rule = f"{schedule} has {most} virtual stages per rank, got {virtual_stages}"
    raise SpecError(STAGES_KEY, rule, f"write virtual_stages: {most}")


def check_options(schedule: Schedule, group_size: int, max_live: int, kept: float, actions: Actions) -> None:
    """Refuse options of one schedule under another, and ``custom`` without its file."""
    given = (
        ("interleaved_1f1b", GROUP_KEY, bool(group_size)),
        ("zb_auto", "parallel.pipeline.max_live_microbatches", bool(max_live)),
        ("zb_auto", "parallel.pipeline.kept_for_weights", kept != 1.0),
        ("custom", ACTIONS_KEY, bool(actions)),
    )
    for owner, key, is_given in given:
        if is_given and schedule != owner:
            name = key.rpartition(".")[2]
            raise SpecError(key, f"{schedule} has no {name}", f"leave it out, or write schedule: {owner}")
    if schedule == "custom" and not actions:
        rule = "a custom schedule is read from a file, and none is named"
        raise SpecError(ACTIONS_KEY, rule, "write actions: FILE.csv, or another schedule")


def check_slices(schedule: Schedule, token_slices: Sequence[int], granularity: int) -> None:
    """Refuse slices under a schedule without slices, empty slices, and a granularity without slices to choose."""
    owners = " or ".join(SLICED_SCHEDULES)
    if granularity and (token_slices or schedule not in SLICED_SCHEDULES):
        rule = "it is for slices that are to be chosen, and there are none"
        raise SpecError(GRANULARITY_KEY, rule, f"leave it out, or write schedule: {owners} with token_slices: auto")
    if token_slices and schedule not in SLICED_SCHEDULES:
        raise SpecError(SLICES_KEY, f"{schedule} has no token_slices", f"leave it out, or write schedule: {owners}")
    empty = next((i for i, tokens in enumerate(token_slices) if tokens < 1), None)
    if empty is not None:
        rule = f"every slice has 1 token or more, number {empty} of the list has {token_slices[empty]}"
        raise SpecError(SLICES_KEY, rule, "write lengths of 1 or more")


def check_barrier(schedule: Schedule, barrier: bool | None) -> None:
    """Refuse a barrier between steps under a schedule that has none."""
    if barrier is False and schedule == "local":
        rule = "nothing holds back a faster rank, so no step repeats another"
        remedy = "leave it out; max_rank_span_s of the summary is the time of a step then"
        raise SpecError("parallel.pipeline.optimizer_barrier", rule, remedy)
    if barrier and schedule == "pipedream_2bw":
        rule = "pipedream_2bw has no barrier between steps: it never drains the pipeline"
        raise SpecError("parallel.pipeline.optimizer_barrier", rule, "leave it out, or write schedule: 1f1b")
    if barrier and schedule == "aiao":
        rule = "aiao updates every stage on its own, and leaves a part of their synchronisation to the next step"
        raise SpecError("parallel.pipeline.optimizer_barrier", rule, "leave it out, or write schedule: breadth_first")


def check_blocking(schedule: Schedule, *, blocking_messages: bool) -> None:
    """Refuse blocking messages where two ranks would wait for each other forever."""
    if blocking_messages and schedule not in BLOCKING_SCHEDULES:
        names = " or ".join(BLOCKING_SCHEDULES)
        rule = f"under {schedule} neighbours send to each other in turn, and with blocking messages both would wait"
        raise SpecError("parallel.pipeline.blocking_messages", rule, f"leave it out, or write schedule: {names}")


def check_overlap(schedule: Schedule, *, overlap_exchanges: bool) -> None:
    """Refuse passes that take turns under a schedule in which none overlap."""
    if overlap_exchanges and schedule not in OVERLAPPING_SCHEDULES:
        rule = f"under {schedule} no forward overlaps a backward"
        names = " or ".join(OVERLAPPING_SCHEDULES)
        raise SpecError(OVERLAP_KEY, rule, f"leave it out, or write schedule: {names}")


def check_microbatches(
    schedule: Schedule, num_ranks: int, num_microbatches: int, *, virtual_stages: int, group_size: int
) -> None:
    """Refuse numbers of ranks or micro-batches for which the schedule has no order, or not the order of its name."""
    p, m = num_ranks, num_microbatches
    if schedule == "interleaved_1f1b" and p == 1:
        rule = "interleaved_1f1b needs 2 or more pipeline ranks, got 1"
        raise SpecError("parallel.pipeline.degree", rule, "write degree: 2 or more, or schedule: 1f1b")
    if schedule in ("chimera", "dualpipe") and p % 2:
        rule = f"{schedule} pairs the ranks, so it needs an even number of them, got {p}"
        raise SpecError("parallel.pipeline.degree", rule, f"write degree: {p + 1}, or another schedule")
    if schedule == "interleaved_1f1b" and group_size:
        _check_group(p, m, group_size)
    elif schedule in ("interleaved_1f1b", "chimera"):
        _need_multiple(schedule, m, p, "the pipeline degree")
    elif schedule == "dualpipe":
        _need_multiple(schedule, m, 2, "half of them go each way")
    elif schedule == "zb_h1" and virtual_stages > 1:
        rounds = max(1, m // p)
        _need_multiple(schedule, m, rounds, f"rounds of {p} or a few more")
    least = {"pipedream_2bw": p, "zb_h1": p, "zb_h2": 2 * p - 1, "dualpipe": 2 * p, "dualpipe_v": 2 * p}
    fewest = least.get(schedule, 1)
    if m < fewest:
        rule = f"{schedule} on {p} ranks needs {fewest} or more micro-batches, got {m}"
        raise MicrobatchError(SCHEDULE_KEY, rule, f"use {fewest} or more, or schedule: 1f1b", fewest)


def _need_multiple(schedule: str, m: int, divisor: int, why: str) -> None:
    if m % divisor:
        rule = f"{schedule} needs a multiple of {divisor} micro-batches ({why}), got {m}"
        valid = -(-m // divisor) * divisor
        raise MicrobatchError(SCHEDULE_KEY, rule, f"the next valid number is {valid}", valid)


def _check_group(p: int, m: int, size: int) -> None:
    if not p <= size <= m:
        rule = f"a group of {size} micro-batches, where the pipeline degree is {p} and there are {m} micro-batches"
        raise SpecError(GROUP_KEY, rule, f"write a number from {p} to {m}" if p <= m else "use more micro-batches")
    if 0 < m % size < p:
        rule = f"{m} micro-batches in groups of {size} leave a last group of {m % size}, fewer than the {p} ranks"
        raise SpecError(GROUP_KEY, rule, f"write a divisor of {m}, or one that leaves {p} or more")


def check_times(schedule: Schedule, times: "evaluate.StageTimes") -> None:
    """Refuse durations with which a fixed zero-bubble order would stall."""
    if schedule in ("zb_h1", "zb_h2") and times.weight_s > min(times.forward_s, times.input_s):
        rule = (
            f"{schedule} is made for a backward_weight ({times.weight_s:g} s) of at most forward and backward_input "
            f"({times.forward_s:g} s, {times.input_s:g} s), and stalls here"
        )
        raise SpecError(SCHEDULE_KEY, rule, "write schedule: zb_auto, which is made for the stated times")


# --- custom schedules --------------------------------------------------------------------------------------


def custom_placement(actions: Actions) -> Placement:
    """Return the placement of a custom schedule: a stage belongs to the rank that runs it forward.

    Raises SpecError where a stage has no rank, or two.
    """
    owners: dict[int, int] = {}
    for rank, order in enumerate(actions):
        for action in order:
            if owners.setdefault(action.stage, rank) != rank:
                rule = f"stage {action.stage} runs on rank {owners[action.stage]} and on rank {rank}"
                raise SpecError(ACTIONS_KEY, rule, "leave every stage on one rank")
    missing = next((stage for stage in range(len(owners)) if stage not in owners), None)
    if missing is not None:
        raise SpecError(ACTIONS_KEY, f"no rank runs stage {missing}", "number the stages from 0 without gaps")
    ranks = tuple(owners[stage] for stage in range(len(owners)))
    looping = loop(len(actions), max(1, len(ranks) // len(actions)))
    return looping if looping.ranks == ranks else Placement(len(actions), ranks)


def check_actions(actions: Actions, num_ranks: int, virtual_stages: int, num_microbatches: int) -> None:
    """Refuse a custom schedule that is incomplete or gets stuck."""
    if len(actions) != num_ranks:
        rule = f"{len(actions)} rows of actions for {num_ranks} pipeline ranks"
        raise SpecError(ACTIONS_KEY, rule, "write one row per rank, or change parallel.pipeline.degree")
    placement = custom_placement(actions)
    if placement.num_stages != num_ranks * virtual_stages:
        rule = f"{placement.num_stages} stages, where {num_ranks} ranks x {virtual_stages} virtual stages are stated"
        fits = placement.num_stages and placement.num_stages % num_ranks == 0
        remedy = f"write virtual_stages: {placement.num_stages // num_ranks}" if fits else "complete the rows"
        raise SpecError(STAGES_KEY, rule, remedy)
    for rank, order in enumerate(actions):
        _check_whole(rank, order, placement.stages[rank], num_microbatches)
    try:
        evaluate.end_times(actions, placement, evaluate.StageTimes(1.0, 1.0, 1.0))
    except evaluate.StuckError as error:
        raise SpecError(ACTIONS_KEY, str(error), "move what these actions wait for ahead of them") from error


def _check_whole(rank: int, order: Sequence[Action], stages: Sequence[int], num_microbatches: int) -> None:
    """Refuse a row unless each stage runs each micro-batch once forward and once backward, whole or in two parts."""
    kinds: dict[tuple[int, int], str] = {}
    for action in order:
        chunk = (action.stage, action.microbatch)
        kinds[chunk] = kinds.get(chunk, "") + action.kind
    expected = {(stage, i) for stage in stages for i in range(num_microbatches)}
    for chunk in sorted(kinds.keys() - expected):
        rule = f"rank {rank} runs micro-batch {chunk[1]}, and there are {num_microbatches}"
        raise SpecError(ACTIONS_KEY, rule, "number the micro-batches from 0, or change their number")
    for stage, i in sorted(expected):
        found = kinds.get((stage, i), "")
        if found not in ("FB", "FIW"):
            counts = ", ".join(f"{count} x {stage}{kind}{i}" for kind, count in Counter(found).items()) or "nothing"
            rule = f"rank {rank} runs of stage {stage} and micro-batch {i}: {counts}"
            if sorted(found) in (["B", "F"], ["F", "I", "W"]):
                rule = f"rank {rank} runs stage {stage} and micro-batch {i} in the order {', '.join(found)}"
            remedy = f"write {stage}F{i} and later {stage}B{i}, or {stage}F{i}, {stage}I{i} and {stage}W{i}"
            raise SpecError(ACTIONS_KEY, rule, remedy)
