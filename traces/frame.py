"""Timelines as pandas tables."""

import pandas as pd

from traces.timeline import COLUMNS, Timeline, Words
from traces.unrolling import unrolled


def frame_of(timeline: Timeline) -> pd.DataFrame:
    """Return a row per op or task, by rank, start and end, with ``duration_s`` beside the timeline's own columns.

    Folded timelines are unrolled: every pass has its rows. Words are categories. ``microbatch`` and ``stage`` are <NA>
    for ops without one.
    """
    timeline = unrolled(timeline)
    frame = pd.DataFrame({name: _column(timeline, name) for name in COLUMNS})
    for name in ("microbatch", "stage"):
        frame[name] = frame[name].astype("Int32").mask(frame[name] < 0)
    frame["duration_s"] = timeline.end_s - timeline.start_s
    return frame


def _column(timeline: Timeline, name: str) -> object:
    """Return a column in its pandas form."""
    values = getattr(timeline, name)
    if isinstance(values, Words):
        return pd.Categorical.from_codes(values.codes, categories=pd.Index(list(values.values)))
    return values
