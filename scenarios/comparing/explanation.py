"""Why one simulated step takes longer than another: what waits longer, in which ops, and for which links.

Nothing is guessed. The time of the mean rank is computing plus what it waits for, so the differences of these parts
add up to that of the steps. Ops and the links that hold them back are those of the two summaries.
"""

from collections.abc import Mapping
from math import isclose
from typing import Any, Final

from costmodels.units import format_percent, format_time
from scenarios.report.causes import COMPUTING, cause_of
from scenarios.report.words import mean_over_ranks
from sim.plan.words.stream import Purpose

Summary = Mapping[str, Any]
Row = dict[str, Any]

LATENCY: Final = "latency"
ALIKE: Final = 1e-4
"""Steps whose times differ by a smaller part take equally long."""


def explain(first: Summary, second: Summary, names: tuple[str, str]) -> dict[str, Any]:
    """Return where two simulated steps differ, from their summaries; ``difference_s`` is first less second.

    ``causes`` add up to the difference of the steps. ``communication`` by stream and kind of op, ``links`` by kind;
    each with the largest difference first. ``verdict``: the same in words.
    """
    causes = _differences(_causes(first), _causes(second), "cause")
    communication = _communication(first, second)
    return {
        "first": names[0],
        "second": names[1],
        "verdict": _verdict((first["iteration_time_s"], second["iteration_time_s"]), names, causes, communication),
        "causes": causes,
        "communication": communication,
        "links": _links(first, second),
    }


def _causes(summary: Summary) -> dict[str, float]:
    """Return what the mean rank's step divides into, in words."""
    parts = {COMPUTING[0]: mean_over_ranks(summary, "busy_s").get(Purpose.COMPUTE, 0.0)}
    for stream, seconds in mean_over_ranks(summary, "exposed_s").items():
        words = cause_of(stream)[0]
        parts[words] = parts.get(words, 0.0) + seconds
    return parts


def _differences(first: Mapping[str, float], second: Mapping[str, float], key: str) -> list[Row]:
    rows = [
        {key: name, **_pair("s", first.get(name, 0.0), second.get(name, 0.0))}
        for name in dict.fromkeys([*first, *second])
    ]
    return sorted(rows, key=lambda row: (-abs(row["difference_s"]), row[key]))


def _pair(unit: str, first: float, second: float) -> Row:
    difference = 0.0 if isclose(first, second, rel_tol=1e-9, abs_tol=1e-12) else first - second
    return {f"first_{unit}": first, f"second_{unit}": second, f"difference_{unit}": difference}


def _communication(first: Summary, second: Summary) -> list[Row]:
    """Return the time of every kind of op on both sides, and what it went to."""
    sides = [
        {(entry["stream"], entry["kind"]): entry for entry in summary["communication"]} for summary in (first, second)
    ]
    rows = []
    for stream, kind in dict.fromkeys([*sides[0], *sides[1]]):
        pair = [side.get((stream, kind)) for side in sides]
        row: Row = {"stream": stream, "kind": kind}
        row |= _pair("s", *(entry["time_s"] if entry else 0.0 for entry in pair))
        for which, entry in zip(("first", "second"), pair, strict=True):
            row[f"{which}_bound_s"] = {LATENCY: entry["latency_s"], **entry["bound_s"]} if entry else {}
            row[f"{which}_fullest_fraction"] = dict(entry["fullest_fraction"]) if entry else {}
        rows.append(row)
    return sorted(rows, key=lambda row: (-abs(row["difference_s"]), row["stream"], row["kind"]))


def _links(first: Summary, second: Summary) -> list[Row]:
    """Return the busiest link of each kind on both sides; 0 where a side has none."""
    sides = [
        {entry["kind"]: entry["busiest"]["busy_fraction"] for entry in summary["links"]} for summary in (first, second)
    ]
    rows = [
        {"kind": kind, **_pair("busy_fraction", sides[0].get(kind, 0.0), sides[1].get(kind, 0.0))}
        for kind in dict.fromkeys([*sides[0], *sides[1]])
    ]
    return sorted(rows, key=lambda row: (-abs(row["difference_busy_fraction"]), row["kind"]))


# --- in words ----------------------------------------------------------------------------------------------


def _verdict(times_s: tuple[float, float], names: tuple[str, str], causes: list[Row], communication: list[Row]) -> str:
    """Return which step is slower, what waits longer there, and for which links."""
    longer_s = abs(times_s[1] - times_s[0])
    if longer_s <= ALIKE * max(times_s):
        return f"{names[0]} and {names[1]} take equally long: {format_time(times_s[0])}."
    slow, fast = (1, 0) if times_s[1] > times_s[0] else (0, 1)
    slower = _slower(times_s[slow], times_s[fast])
    words = [
        f"{names[slow]} {slower} {names[fast]}: {format_time(times_s[slow])} against {format_time(times_s[fast])}."
    ]
    sign = 1 if slow == 0 else -1
    cause = max(causes, key=lambda row: sign * row["difference_s"])
    words.append(
        f"What grows most: {cause['cause']}, {format_time(sign * cause['difference_s'])} more of the mean rank's step."
    )
    ops = [row for row in communication if cause_of(row["stream"])[0] == cause["cause"]] or communication
    grown = max(ops, key=lambda row: sign * row["difference_s"], default=None)
    if grown is not None and sign * grown["difference_s"] > ALIKE * longer_s:
        words.append(_of_op(grown, ("first", "second")[slow], ("first", "second")[fast], names[fast]))
    return " ".join(words)


def _slower(slow_s: float, fast_s: float) -> str:
    """Return how much longer one step takes than another, that of twice as long or more as a factor."""
    if slow_s < 2.0 * fast_s:
        return f"is {format_percent((slow_s - fast_s) / fast_s)} slower than"
    return f"takes {slow_s / fast_s:,.4g} times as long as"


def _of_op(row: Row, slow: str, fast: str, name: str) -> str:
    """Return how much longer an op takes, and the links whose share of it grew most; ``name``: of the faster side."""
    longer_s = row[f"{slow}_s"] - row[f"{fast}_s"]
    words = f"{row['kind']} ({cause_of(row['stream'])[0]}) takes {format_time(longer_s)} longer per rank"
    now, then = row[f"{slow}_bound_s"], row[f"{fast}_bound_s"]
    link = max(now, key=lambda kind: now[kind] - then.get(kind, 0.0))
    if link == LATENCY:
        return f"{words}, most of it latency: {format_time(now[link])} against {format_time(then.get(link, 0.0))}."
    full = [row[f"{side}_fullest_fraction"].get(link) for side in (slow, fast)]
    before = format_percent(full[1], 0) if full[1] else "not used"
    return (
        f"{words}: {link} links hold it back for {format_time(now[link])} "
        f"({format_time(then.get(link, 0.0))} in {name}), and are {format_percent(full[0], 0)} full meanwhile "
        f"({before} in {name})."
    )
