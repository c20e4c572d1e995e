"""A timeline with the facts beside it: the files of ``--out``, or a profile of the PyTorch profiler."""

from pathlib import Path
from typing import Final

from msgspec import Struct

from scenarios.library.shipped import near_recording
from scenarios.results.summary_file import REMEDY, executed_cores, read_json, simulated_step
from scenarios.summaries.comparing.compared_step import ComparedStep
from scenarios.summaries.comparing.notes import drawn_note, executed_note, simulated_note
from scenarios.summaries.measured.execution import EXECUTION_SCHEMA
from scenarios.summaries.recorded.trace import TRACE_SCHEMA
from scenarios.summaries.steps.step import SCHEMA
from traces.doubt import Doubt
from traces.errors import TraceError
from traces.kineto.document import ARCHIVES, SUFFIXES
from traces.kineto.rank import StepWindow
from traces.kineto.trace import load, to_timeline
from traces.parquet import read_timeline
from traces.timeline import Timeline

TIMELINE: Final = "timeline.parquet"
_SIDE: Final = (
    "name a folder that simulate wrote with --out, its timeline.parquet, or what torch.profiler recorded (.json, "
    ".json.gz, a folder or tar archive of these)"
)


class Result(Struct, frozen=True):
    """A timeline, the step's summary if a simulation wrote one, and whether a profiler recorded it.

    ``warnings``: parts of a profile that were left out, with counts.
    ``note``: the reason why times may be off, or empty.
    """

    timeline: Timeline
    step: ComparedStep | None = None
    recorded: bool = False
    note: str = ""
    warnings: tuple[Doubt, ...] = ()


def timeline_path(path: Path) -> Path:
    """Return the timeline in a folder of results, or the file itself."""
    return path / TIMELINE if path.is_dir() else path


def read_result(path: Path, window: StepWindow | None = None) -> Result:
    """Return the result at a path: timeline.parquet or its folder, or a profile (its steps in ``window``; None: all).

    Raises TraceError for a file that is no timeline, and for a summary of another timeline.
    """
    if is_profile(path):
        trace = load(path, window)
        return Result(to_timeline(trace), recorded=True, warnings=trace.warnings)
    refuse_other_files(path)
    file = timeline_path(path)
    timeline = read_timeline(file)
    beside = file.parent / "summary.json"
    if not beside.is_file():
        return Result(timeline)
    summary = read_json(beside)
    schema = summary.get("schema") if isinstance(summary, dict) else None
    if schema == EXECUTION_SCHEMA:
        return Result(timeline, note=executed_note(len(timeline.ranks), executed_cores(beside, summary)))
    if timeline.source != "simulated" or schema != SCHEMA or "communication" not in summary:
        return Result(timeline, recorded=schema == TRACE_SCHEMA)
    step_s = summary.get("iteration_time_s")
    if not isinstance(step_s, float) or abs(step_s - timeline.duration_s) > 1e-9 * timeline.duration_s:
        rule = f"it says {step_s} s, and {file.name} beside it {timeline.duration_s} s"
        raise TraceError(str(beside), rule, REMEDY)
    step = simulated_step(beside, summary)
    basis = simulated_note(step.resolved.profile_basis if step.resolved else None)
    drawn = drawn_note(step_s, step.iteration_time_median_s)
    return Result(timeline, step, note=", ".join(note for note in (basis, drawn) if note))


def refuse_other_files(path: Path) -> None:
    """Raise TraceError for a path that, by name or contents, is neither a timeline nor a profile."""
    if path.is_dir():
        if not (path / TIMELINE).exists():
            inner = next((entry for entry in sorted(path.iterdir()) if entry.is_dir() and _is_result(entry)), None)
            remedy = f"there is one in {inner}: name that" if inner else _SIDE
            raise TraceError(str(path), f"this folder holds neither a {TIMELINE} nor traces", remedy)
    elif not path.exists():
        raise TraceError(str(path), "there is no such file or folder", _SIDE)
    elif path.suffix.lower() != ".parquet":
        raise TraceError(str(path), "this is neither a timeline nor a trace", _SIDE)


def _is_result(folder: Path) -> bool:
    """Return whether a folder can be a side of a comparison."""
    return (folder / TIMELINE).exists() or is_profile(folder)


def refuse_other_than_recording(path: Path) -> None:
    """Raise TraceError for the mistyped name of a recording, and for files of ``--out`` in the place of a profile."""
    try:
        is_result, exists = (path / TIMELINE).is_file(), path.exists()
    except (OSError, ValueError):  # the reader of the file reports the error
        return
    if not exists and (near := near_recording(path)):
        raise TraceError(str(path), "there is no such file or folder", f"did you mean the recording {near}?")
    if is_result:
        rule = f"this is what simulate wrote with --out ({TIMELINE}), not what the PyTorch profiler recorded"
        raise TraceError(
            str(path), rule, "simulate compare takes it; here name the profile that it was made of, if any"
        )


def is_profile(path: Path) -> bool:
    """Return whether a path is to be read as a profile: by a file's name, or a folder without a timeline."""
    try:
        if path.is_dir():
            return not (path / TIMELINE).exists() and any(entry.name.endswith(SUFFIXES) for entry in path.iterdir())
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise TraceError(str(path), f"this cannot be read: {reason}", "name what you may read") from error
    return path.name.lower().endswith((*SUFFIXES, *ARCHIVES))


def names_of(first: Path, second: Path) -> tuple[str, str]:
    """Return names for two results: their files or folders, if these have different names."""
    names = [path.name.split(".")[0] if is_profile(path) else timeline_path(path).absolute().parent.name
             for path in (first, second)]  # fmt: skip
    return (names[0], names[1]) if names[0] != names[1] and all(names) else ("first", "second")
