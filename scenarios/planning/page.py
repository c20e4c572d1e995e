"""The answer of a search as blocks: the best plan, time against memory, all proved plans, and why the others lost."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from costmodels.units import format_bytes, format_percent, format_time
from scenarios.planning.openings import KEYS, TENSOR
from scenarios.planning.request import NUM_NODES
from scenarios.report.blocks import (
    Block,
    Card,
    Chart,
    Column,
    Headline,
    Legend,
    Line,
    Only,
    Piece,
    Section,
    Table,
    Text,
)
from scenarios.report.charts.axis_unit import SMALLEST_PEAK, drawn_number, memory_unit, time_unit
from scenarios.report.charts.hover_text import WHOLE_TEXT, hover_text
from scenarios.summaries.planning import PlanSummary, ProvedPlan, ShiftedPlan

_FRONT: Final = ("on the front", "#2f9e62")
_BEATEN: Final = ("beaten", "#4a7fd6")
_ROOM: Final = "#c8402f"
_UNKNOWN: Final = "-"
_SMALL_PRICE: Final = 0.1
"""Dollars below which three decimals say too little."""
_SHORT: Final = {
    "microbatch_size": "micro-batch",
    "virtual_stages": "stages per rank",
    "zero_stage": "ZeRO",
    "manager": "memory manager",
}


def plan_blocks(summary: PlanSummary) -> tuple[Block, ...]:
    """Return the blocks of a search."""
    best = summary.plans[0]
    sure = _sure(summary)
    title = f"{summary.scenario}: best of {summary.num_strategies:,} strategies by {summary.objective}"
    return (
        Only("page", (Headline(summary.scenario, f"search of strategies by {summary.objective}", _cards(summary)),)),
        Only("terminal", (Text((Piece(title, "strong"),), is_wrapped=True), _table(summary))),
        Only(
            "terminal", (Text((Piece(f"best: {_name(best)}", "strong"),), is_wrapped=True), Text(sure, is_wrapped=True))
        ),
        Only("page", (_front(summary), *_money(summary), Section("Simulated plans", (_table(summary),), sure))),
        *_sensitivity(summary),
        *_lost(summary),
    )


def _cards(summary: PlanSummary) -> tuple[Card, ...]:
    best = summary.plans[0]
    cost = (
        ()
        if best.cost_usd is None
        else (Card("Cost", f"{_usd_per_million(best)} USD", "per million tokens, list price"),)
    )
    energy = () if best.energy_j is None else (Card("Energy", f"{_joules(best)} J", "per token, of the devices alone"),)
    return (
        Card("Best", format_time(best.iteration_time_s), _name(best)),
        Card("Memory", format_bytes(best.peak_memory_bytes), f"room for {format_bytes(summary.memory_room_bytes)}"),
        *cost,
        *energy,
        Card("Strategies", f"{summary.num_strategies:,}", f"{len(summary.plans)} simulated"),
    )


def _sure(summary: PlanSummary) -> str:
    best, alike = summary.plans[0], sum(plan.indistinguishable for plan in summary.plans) - 1
    words = f"Each device has room for {format_bytes(summary.memory_room_bytes)}. Estimates differ from simulations by "
    words += f"{format_percent(summary.time_disagreement)} in time and {format_percent(summary.memory_disagreement)} "
    words += "in memory (medians). front: no other simulated plan takes less time, memory and money. "
    if alike < 1 or best.iteration_time_interval_s is None:
        return words + "No other simulated plan is as fast within the uncertainty of the best one's time."
    verb = "plan lies" if alike == 1 else "plans lie"
    interval = " to ".join(format_time(seconds) for seconds in best.iteration_time_interval_s)
    return words + f"~: {alike} other {verb} within the best one's interval, {interval}: any may be the fastest."


def varied(summary: PlanSummary) -> list[str]:
    """Return the keys that differ between plans."""
    keys = dict.fromkeys(key for plan in summary.plans for key in plan.set)
    return [key for key in keys if len({_value(plan, key) for plan in summary.plans}) > 1]


def _value(plan: ProvedPlan, key: str) -> str:
    """Return what a plan sets, empty where it does not set a key."""
    value = plan.set.get(key)
    return "" if value is None else _text(value)


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(map(_text, value.values()))
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _head(key: str) -> str:
    if key == TENSOR:
        return "method"
    last = key.removesuffix(".degree").rpartition(".")[2]
    return _SHORT.get(last, last.replace("_", " "))


def _name(plan: ProvedPlan) -> str:
    """Return a plan in words, without what is not used."""
    return _name_of(plan.set)


def _name_of(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{_head(key)} {_text(values[key])}" for key in values if _is_used(key, values))


def _is_used(key: str, values: Mapping[str, Any]) -> bool:
    """Return whether a plan does something by a key: it has ranks or stages, and a schedule has ranks to order."""
    value = values[key]
    if key == KEYS["schedule"]:
        return bool(values.get(KEYS["pipeline"]) != 1)
    counts = key.endswith(".degree") or key == KEYS["virtual_stages"]
    return not (value is None or value is False or value in ("auto", []) or (counts and value == 1))


def _table(summary: PlanSummary) -> Table:
    """Return all simulated plans; what is known of none has no column."""
    keys = varied(summary)
    numbers = {head: [of(plan) for plan in summary.plans] for head, of in _NUMBERS.items()}
    known = {head: column for head, column in numbers.items() if set(column) != {_UNKNOWN}}
    heads = [*map(_head, keys), *known]
    columns = [Column(head, is_number=place >= len(keys), overflow="whole") for place, head in enumerate(heads)]
    rows = [
        [*(_value(plan, key) for key in keys), *values]
        for plan, values in zip(summary.plans, zip(*known.values(), strict=True), strict=True)
    ]
    return Table(columns, rows, repeats=len(keys))


def _time(plan: ProvedPlan) -> str:
    return format_time(plan.iteration_time_s) + (" ~" if plan.indistinguishable else "")


def _usd_per_million(plan: ProvedPlan) -> str:
    found = plan.cost_usd_per_million_tokens
    return _UNKNOWN if found is None else f"{found:,.3f}" if found >= _SMALL_PRICE else f"{found:.3g}"


def _joules(plan: ProvedPlan) -> str:
    return _UNKNOWN if plan.energy_j_per_token is None else f"{plan.energy_j_per_token:,.3g}"


_NUMBERS: Final[Mapping[str, Callable[[ProvedPlan], str]]] = {
    "time": _time,
    "estimate": lambda plan: format_time(plan.estimated_time_s),
    "tokens/s": lambda plan: f"{plan.tokens_per_s:,.0f}",
    "memory": lambda plan: format_bytes(plan.peak_memory_bytes),
    "front": lambda plan: "yes" if plan.on_front else "",
    "USD/M tokens": _usd_per_million,
    "J/token": _joules,
}
"""The columns of a plan beside its keys."""


def _front(summary: PlanSummary) -> Section:
    peak_bytes = max(plan.peak_memory_bytes for plan in summary.plans)
    (words, scale), room_bytes = memory_unit(peak_bytes), summary.memory_room_bytes
    room, is_near = drawn_number(room_bytes / scale), peak_bytes > SMALLEST_PEAK * room_bytes
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": room, "y1": room,
            "line": {"color": _ROOM, "width": 1.5, "dash": "dash"}}  # fmt: skip
    chart = _against_time(
        summary, f"memory per rank ({words})", lambda plan: plan.peak_memory_bytes / scale, [line] * is_near
    )
    lead = "Lower left is better. No other simulated plan beats those on the front in time, memory and money."
    note = "The dashed line is the memory that there is room for."
    if not is_near:
        note = f"There is room for {format_bytes(room_bytes)}, far above the picture."
    return Section("Memory against time", (Legend(list(_groups(summary))), Chart("front", chart, 420)), lead, note)


def _money(summary: PlanSummary) -> tuple[Section, ...]:
    """Return dollars against time, where plans are on clusters of several sizes."""
    if NUM_NODES not in summary.searched or any(plan.cost_usd is None for plan in summary.plans):
        return ()
    chart = _against_time(summary, "USD per million tokens", lambda plan: plan.cost_usd_per_million_tokens or 0.0, [])
    lead = "Lower left is better. On one cluster dollars are in proportion to time."
    return (Section("Money against time", (Legend(list(_groups(summary))), Chart("money", chart, 420)), lead),)


def _groups(summary: PlanSummary) -> dict[tuple[str, str], list[ProvedPlan]]:
    """Return the plans on the front and the others, as far as there are some."""
    groups = {
        _FRONT: [plan for plan in summary.plans if plan.on_front],
        _BEATEN: [plan for plan in summary.plans if not plan.on_front],
    }
    return {key: plans for key, plans in groups.items() if plans}


def _against_time(
    summary: PlanSummary, title: str, value: Callable[[ProvedPlan], float], shapes: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return a chart of a number of every plan against its time."""
    unit, seconds = time_unit(max(plan.iteration_time_s for plan in summary.plans))
    data: list[dict[str, Any]] = [
        {
            "type": "scatter", "mode": "markers", "name": words, "marker": {"color": colour, "size": 10},
            "x": [drawn_number(plan.iteration_time_s / seconds) for plan in plans],
            "y": [drawn_number(value(plan)) for plan in plans],
            "hovertext": [hover_text(_name(plan), _numbers(plan)) for plan in plans],
            "hovertemplate": WHOLE_TEXT,
        }
        for (words, colour), plans in _groups(summary).items()
    ]  # fmt: skip
    layout = {
        "showlegend": False, "hovermode": "closest", "margin": {"l": 8, "r": 24, "t": 24, "b": 44},
        "xaxis": {"title": {"text": f"time per step ({unit})", "standoff": 6}, "zeroline": False},
        "yaxis": {"title": {"text": title, "standoff": 6}, "automargin": True, "zeroline": False},
        "shapes": shapes,
    }  # fmt: skip
    return {"data": data, "layout": layout}


def _numbers(plan: ProvedPlan) -> str:
    words = f"{format_time(plan.iteration_time_s)}, {format_bytes(plan.peak_memory_bytes)}"
    words += f", {plan.tokens_per_s:,.0f} tokens/s"
    return words if plan.cost_usd is None else f"{words}, {_usd_per_million(plan)} USD per million tokens"


def _sensitivity(summary: PlanSummary) -> tuple[Block, ...]:
    """Return the fastest plans under other conditions, beside the best one there."""
    rows = [_shifted_row(shifted) for shifted in summary.sensitivity]
    if not rows:
        return ()
    heads = ("under", "fastest plan", "its time", "the best plan above")
    table = Table([Column(head, is_number=False, overflow="whole") for head in heads], rows)
    lead = "The search again under other conditions, and what the best plan above takes there."
    return (
        Only("page", (Section("Under other conditions", (table,), lead),)),
        Only("terminal", (Text((Piece("under other conditions", "strong"),)), table)),
    )


def _shifted_row(shifted: ShiftedPlan) -> list[Line]:
    fastest_s, kept_s = shifted.iteration_time_s, shifted.kept_iteration_time_s
    if fastest_s is None:
        return [shifted.condition, "nothing fits", "", ""]
    return [shifted.condition, _name_of(shifted.set), format_time(fastest_s), _kept(kept_s, fastest_s)]


def _kept(kept_s: float | None, fastest_s: float) -> str:
    """Return what the best plan of a search takes where another one may be the fastest."""
    if kept_s is None:
        return "does not fit"
    more = kept_s / fastest_s - 1.0
    return f"{format_time(kept_s)}, {'the same' if more <= 0 else format_percent(more) + ' more'}"


def _lost(summary: PlanSummary) -> tuple[Block, ...]:
    """Return why strategies lost, for each surface in its form."""
    if not summary.lost:
        return ()
    rows = [(lost.reason, f"{lost.number:,}") for lost in summary.lost]
    lines = [Text((Piece(f"{number} {reason}", "soft"),), is_wrapped=True) for reason, number in rows]
    return (
        Only("page", (Section("Why the others lost", (Table(("reason", "strategies"), rows),)),)),
        Only("terminal", tuple(lines)),
    )
