"""Advice in words: the changes that help most, the causes of a slow step, and the changes that were tried."""

from collections.abc import Iterator, Sequence
from typing import Final

from costmodels.units import format_bytes, format_change, format_percent, format_time
from scenarios.report.blocks import Fact, Fold, Line, Only, Piece, Section, Table, Text
from scenarios.summaries.steps.advice import AdviceSummary, TriedChange

_HELP: Final = "what would help most"
_CAUSES: Final = "why it is slow"
_NOT_TRIED: Final = "not tried"
_COLUMNS: Final = ("change", "time per step", "throughput", "peak memory", "")


def advice_facts(advice: AdviceSummary, *, fits_memory: bool | None = None) -> tuple[Fact, ...]:
    """Return the advice as named lines for a page. ``fits_memory``: of the step as it stands."""
    return tuple(Fact(name, line) for name, line in _lines(advice, fits_memory))


def advice_lines(advice: AdviceSummary, *, fits_memory: bool | None = None) -> tuple[Text, ...]:
    """Return the advice as lines of a terminal. ``fits_memory``: of the step as it stands."""
    lines = _lines(advice, fits_memory)
    return tuple(Text((f"{name}: ", *((line,) if isinstance(line, str) else line))) for name, line in lines)


def advice_sections(advice: AdviceSummary) -> tuple[Section, ...]:
    """Return the tables of a page: the changes that were tried, and their effect."""
    if not advice.tried:
        return ()
    rows = [_row(change) for change in advice.tried]
    summary = f"{_counted(len(rows))}, the fastest first"
    lead = "Each change was simulated alone or as it stands here, with the same global batch."
    return (
        Section("What was tried", (Only("page", (Fold(summary, (Table(_COLUMNS, rows, text_columns=1),)),)),), lead),
    )


def options_of(change: Sequence[str]) -> str:
    """Return overrides as command line options."""
    return " ".join(f"--set {override}" if " " not in override else f"--set '{override}'" for override in change)


def effect_of(change: TriedChange, *, makes_room: bool = False) -> str:
    """Return the effect of a change: its time, its gain, and whether it fits in memory.

    ``makes_room``: the step without it does not fit, so that it does is the first thing to say.
    """
    if change.fits_memory is False:
        peak = "" if change.peak_memory_bytes is None else f": {format_bytes(change.peak_memory_bytes)}"
        return f"not enough alone to fit in memory{peak}"
    if change.gain is None or change.iteration_time_s is None:
        return ""
    about = "about " if change.estimated else ""
    effect = f"throughput {about}{format_change(change.gain)}, {about}{format_time(change.iteration_time_s)} a step"
    if makes_room and change.peak_memory_bytes is not None:
        return f"fits in memory: {format_bytes(change.peak_memory_bytes)}, {effect}"
    return effect


def _lines(advice: AdviceSummary, fits_memory: bool | None) -> Iterator[tuple[str, Line]]:
    """Yield name and line of each part of the advice."""
    yield _HELP, _best(advice, fits_memory)
    if advice.causes:
        causes = (f"{cause.cause} costs {format_percent(cause.fraction)} of the step" for cause in advice.causes)
        yield _CAUSES, "; ".join(causes)
    if advice.not_tried:
        seconds = sum(change.predicted_s for change in advice.not_tried)
        how = f"--advice full tries them, about {max(1.0, seconds):,.0f} s"
        if advice.level == "full":
            how = "each takes minutes to simulate; --set tries one"
        yield _NOT_TRIED, f"{grouped([change.set for change in advice.not_tried])}; {how}"


def _best(advice: AdviceSummary, fits_memory: bool | None) -> Line:
    best, reduced = advice.best, advice.reduced
    tried = _counted(len(advice.tried))
    if best is None:
        too_large = sum(change.fits_memory is False for change in advice.tried)
        tried += f", of which {too_large} do{'' if too_large > 1 else 'es'} not fit in memory" if too_large else ""
        which = f": {grouped([change.set for change in advice.tried])}" if advice.tried else ""
        return f"nothing tried adds 1 % to the throughput; tried {tried}{which}"
    line: Line = (Piece(options_of(best.set), "code"), f": {effect_of(best, makes_room=fits_memory is False)}")
    if reduced is not None:
        line = (*line, f", {reduced.part} {format_time(reduced.before_s)} to {format_time(reduced.after_s)}")
    return (*line, f" (best of {tried})")


def _counted(number: int) -> str:
    return f"{number} change{'' if number == 1 else 's'}"


def grouped(changes: Sequence[Sequence[str]]) -> str:
    """Return changes in few words, grouped by their first key: ``data.zero_stage 1, 2; tensor.degree 4``."""
    values: dict[str, list[str]] = {}
    for change in changes:
        key, _, value = change[0].partition("=")
        held = values.setdefault(".".join(key.split(".")[-2:]), [])
        if value not in held:
            held.append(value)
    return "; ".join(f"{key} {', '.join(held)}" for key, held in values.items())


def _row(change: TriedChange) -> tuple[str, ...]:
    about = "about " if change.estimated else ""
    time_s, gain, peak = change.iteration_time_s, change.gain, change.peak_memory_bytes
    return (
        " ".join(change.set),
        "" if time_s is None else about + format_time(time_s),
        "" if gain is None else about + format_change(gain),
        "" if peak is None else format_bytes(peak),
        "does not fit" if change.fits_memory is False else "",
    )
