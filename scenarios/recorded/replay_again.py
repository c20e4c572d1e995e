"""A recorded run again: its summary, and the timelines of what was and of what would have been."""

from pathlib import Path

from msgspec import Struct

from scenarios.library.shipped import named_recording
from scenarios.recorded.replay_summary import summarise, summarise_chakra
from scenarios.summaries.recorded.replay import ReplaySummary
from sim.replay.chakra_run import replay_chakra
from sim.replay.changes import HOST_SPEED, ChangeError, Changes, as_mapping, refuse_missing, refuse_without_effect
from sim.replay.run import Replayer
from traces.chakra.file import read_trace
from traces.chakra.node import HOST
from traces.errors import TraceError
from traces.kineto.breakdown import CLASSES
from traces.kineto.rank import StepWindow
from traces.kineto.trace import load, to_timeline
from traces.timeline import Timeline


class Replayed(Struct, frozen=True):
    """A replay: its summary, the timeline as measured, and the timeline with changes."""

    summary: ReplaySummary
    measured: Timeline
    timeline: Timeline


def profile_again(path: Path, changes: Changes, window: StepWindow | None) -> Replayed:
    """Return what the PyTorch profiler recorded, with changes. Raises ChangeError for some of nothing."""
    trace = load(path, window)
    names = {name for rank in trace.ranks for name in rank.rows.name.values}
    refuse_missing(changes, {rank.rank for rank in trace.ranks}, names)
    kinds = {rank.rows.kind.values[code] for rank in trace.ranks for code in set(rank.rows.kind.codes.tolist())}
    refuse_without_effect(changes, {CLASSES.get(kind, "") for kind in kinds})
    replayer = Replayer(trace)
    unchanged = replayer.run(Changes())
    replay = replayer.run(changes) if as_mapping(changes) else unchanged
    summary = summarise(named_recording(path), replayer, (unchanged, replay), changes)
    return Replayed(summary, to_timeline(trace), to_timeline(replay.trace))


def chakra_again(path: Path, changes: Changes, window: StepWindow | None) -> Replayed:
    """Return the run of a folder of Chakra traces, with changes.

    Raises TraceError for chosen steps, of which they hold one, and ChangeError for changes of what they do not have.
    """
    if window is not None and window.first is not None:
        raise TraceError(str(path), "Chakra traces hold one step, of no number", "leave --steps out", key="--steps")
    trace = read_trace(path)
    refuse_missing(changes, trace.ranks, {node.name for nodes in trace.ranks.values() for node in nodes})
    changed = [nodes for rank, nodes in trace.ranks.items() if changes.of_rank(rank).host != 1.0]
    if changed and not any(node.kind == HOST for nodes in changed for node in nodes):
        rule, remedy = "no node of these ranks is the host's", "change the device or kernels[PATTERN]"
        key = next(key for key in as_mapping(changes) if key.endswith(HOST_SPEED))
        raise ChangeError(key, rule, remedy)
    try:
        runs = replay_chakra(trace, Changes()), replay_chakra(trace, changes)
    except TraceError as error:
        raise TraceError(str(path), error.rule, error.remedy) from error
    return Replayed(summarise_chakra(path, trace, runs, changes), *runs)
