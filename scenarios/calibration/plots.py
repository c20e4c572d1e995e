"""Plots of a calibration: predictions against measurements, errors and their distribution, collectives over bytes."""

from collections.abc import Callable, Mapping, Sequence
from math import exp, log, pi, sqrt
from typing import Final

import numpy as np
from msgspec.structs import replace

from costmodels.calibration.network import predict_collectives
from costmodels.calibration.samples import CollectiveSample
from costmodels.hardware import NodeSpec
from costmodels.profile import Profile
from costmodels.spread import Spread
from costmodels.units import format_change, format_rate, format_time
from scenarios.calibration.calibration import Point
from scenarios.report.charts.svg_plot import Array, Axis, Drawing, Mark, Plot, log_axis
from traces.kineto.statistics import bus_factor

FITTED: Final = ("fitted", "#4a7fd6")
HELD_OUT: Final = ("held out", "#d9822b")
GROUP_COLOURS: Final = ("#3a9b6e", "#9a63c9", "#c8402f", "#2f9fb8", "#b8860b", "#8a93a0")
"""Colours of groups of 2, 4, 8, 16, 32 ranks, and of more."""

MOST_TITLED: Final = 600
"""Largest number of points that are all labelled on hover; of more points only the worst are."""
_TITLED_OF_MANY: Final = 40
_LEAST_LIMIT: Final = log(1.15)
_MOST_LIMIT: Final = log(100.0)
_BINS: Final = (10, 48)
_CURVE_POINTS: Final = 81
_LEAST_APART: Final = 0.16
"""Distance of ticks, as a fraction of an axis, at which labels such as +100 % fit."""
_RATIOS: Final = (1.05, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0, 30.0, 100.0)


def error_of(point: Point) -> float:
    """Return log(predicted/measured)."""
    return log(point.predicted_s / point.measured_s)


def against_plot(points: Sequence[Point]) -> Drawing:
    """Return predicted over measured seconds, with the line of equality."""
    seconds = [value for p in points for value in (p.measured_s, p.predicted_s)]
    plot = Plot(log_axis("measured", seconds, format_time), log_axis("predicted", seconds, format_time))
    ends = [plot.x.low, plot.x.high]
    marks: list[Mark] = [plot.line(ends, ends, {"class": "guide"}), *_clouds(plot, points, lambda p: p.predicted_s)]
    return plot.drawing(marks, "predicted against measured time")


def error_plot(points: Sequence[Point], spread: Spread | None) -> Drawing:
    """Return predicted/measured over measured seconds, with a band of one standard deviation."""
    plot = Plot(log_axis("measured", [p.measured_s for p in points], format_time), _error_axis(points, "error"))
    ends, marks = [plot.x.low, plot.x.high], list[Mark]()
    if spread:
        inside = [seconds for seconds, _ in spread.deviation if ends[0] < seconds < ends[1]]
        lengths = [ends[0], *inside, ends[1]]
        deviations = np.array([spread.at(seconds) for seconds in lengths])
        around = [*np.exp(-deviations), *np.exp(deviations[::-1])]
        marks.append(plot.area([*lengths, *reversed(lengths)], around, {"class": "band"}))
    marks.append(plot.line(ends, [1.0, 1.0], {"class": "guide"}))
    marks += _clouds(plot, points, lambda p: p.predicted_s / p.measured_s)
    return plot.drawing(marks, "error over measured time")


def distribution_plot(points: Sequence[Point], spread: Spread | None) -> Drawing:
    """Return the distribution of errors, fitted and held out, with the profile's normal distribution."""
    axis = _error_axis(points, "predicted / measured")
    num_bins = int(np.clip(2 * sqrt(len(points)), *_BINS)) // 2 * 2
    edges = np.linspace(log(axis.low), log(axis.high), num_bins + 1)
    steps: dict[tuple[str, str], Array] = {}
    for half, ours in _halves(points):
        inside = np.clip([error_of(p) for p in ours], edges[0], edges[-1])
        steps[half] = np.histogram(inside, edges)[0] / len(ours)
    bell, places = np.empty(0), np.linspace(edges[0], edges[-1], _CURVE_POINTS)
    if spread:
        bell = _bell(places, [spread.at(p.predicted_s) for p in points]) * (edges[1] - edges[0])
    most = 1.08 * max(float(part.max()) for part in (*steps.values(), bell) if len(part))
    parts = Axis("part of the rows", 0.0, most, _even_ticks(most), lambda part: f"{100 * part:.3g} %", is_log=False)
    plot = Plot(axis, parts)
    marks: list[Mark] = [plot.line([1.0, 1.0], [0.0, most], {"class": "guide"})]
    for (name, colour), heights in steps.items():
        xs, ys = np.repeat(np.exp(edges), 2), np.concatenate([[0.0], np.repeat(heights, 2), [0.0]])
        look = {"style": f"fill:{colour};fill-opacity:0.14;stroke:{colour};stroke-width:1.5"}
        marks.append(plot.area(xs, ys, {**look, "class": name.replace(" ", "-")}))
    if spread:
        marks.append(plot.line(np.exp(places), bell, {"class": "guide dashed"}))
    return plot.drawing(marks, "distribution of the errors")


def _bell(places: Array, deviations: Sequence[float]) -> Array:
    """Return the density of normal errors at some places, each error with its own deviation."""
    own = np.maximum(np.array(deviations), 1e-6)[:, None]
    densities: Array = (np.exp(-((places / own) ** 2) / 2) / (own * sqrt(2 * pi))).mean(axis=0)
    return densities


def halves_legend(points: Sequence[Point]) -> list[tuple[str, str]]:
    """Return words and colours of the halves, fitted or held out, that have points."""
    return [half for half, _ in _halves(points)]


def group_words(group: Sequence[int]) -> str:
    """Return the number of ranks and nodes of a group in words."""
    if len(group) == 1:
        return f"{group[0]} ranks"
    return f"{len(group)} nodes x {group[0]}" if len(set(group)) == 1 else f"{sum(group)} ranks, {len(group)} nodes"


def collective_plot(points: Sequence[Point], node: NodeSpec, profile: Profile, *, is_rate: bool) -> Drawing:
    """Return seconds, or bus bandwidth, of one kind of collective over bytes: measured points and fitted curves."""
    curves, rings, heights = [], [], list[float]()
    for group, ours in _by_group(points).items():
        curve = _curve(ours, node, profile)
        line = [_height(sample, seconds, is_rate) for sample, seconds in curve]
        measured = [_height(s, s.seconds, is_rate) for p in ours for s in _collective(p)]
        curves.append((group, [s.num_bytes for s, _ in curve], line))
        rings.append((group, ours, measured))
        heights += [*line, *measured]
    title = "bus bandwidth" if is_rate else "time"
    upwards = log_axis(title, heights, (lambda rate: format_rate(rate, "B/s")) if is_rate else format_time)
    plot = Plot(_bytes_axis([s.num_bytes for p in points for s in _collective(p)]), upwards)
    strokes = {g: {"style": f"stroke:{group_colour(g)};stroke-width:1.6"} for g, _, _ in curves}
    marks: list[Mark] = [plot.line(xs, ys, strokes[g]) for g, xs, ys in curves]
    marks += [mark for group, ours, ys in rings for mark in _rings(plot, ours, ys, group_colour(group))]
    return plot.drawing(marks, f"{title} over bytes")


def groups_of(points: Sequence[Point]) -> list[tuple[int, ...]]:
    """Return the groups of some collectives, ranks per node, smaller ones first."""
    return sorted(_by_group(points), key=lambda group: (sum(group), len(group)))


def group_colour(group: Sequence[int]) -> str:
    """Return the colour of groups of a size: by the number of doublings from two ranks."""
    return GROUP_COLOURS[min(max(sum(group).bit_length() - 2, 0), len(GROUP_COLOURS) - 1)]


def _collective(point: Point) -> Sequence[CollectiveSample]:
    return [point.sample] if isinstance(point.sample, CollectiveSample) else []


def _by_group(points: Sequence[Point]) -> Mapping[tuple[int, ...], list[Point]]:
    found: dict[tuple[int, ...], list[Point]] = {}
    for point in points:
        for sample in _collective(point):
            found.setdefault(sample.ranks_per_node, []).append(point)
    return found


def _curve(points: Sequence[Point], node: NodeSpec, profile: Profile) -> list[tuple[CollectiveSample, float]]:
    """Return samples over the measured sizes of a group, with their predicted seconds."""
    samples = [s for p in points for s in _collective(p)]
    sizes = [s.num_bytes for s in samples]
    found = [replace(samples[0], num_bytes=round(size)) for size in np.geomspace(min(sizes), max(sizes), _CURVE_POINTS)]
    return list(zip(found, predict_collectives(found, node, profile), strict=True))


def _height(sample: CollectiveSample, seconds: float, is_rate: bool) -> float:
    if not is_rate:
        return seconds
    return sample.num_bytes / seconds * bus_factor(sample.kind, sum(sample.ranks_per_node))


def _rings(plot: Plot, points: Sequence[Point], heights: Sequence[float], colour: str) -> list[Mark]:
    """Return measured points of a group: filled where fitted, hollow where held out."""
    found: list[Mark] = []
    for held_out in (False, True):
        fill = "var(--ground)" if held_out else colour
        chosen = [
            (float(s.num_bytes), height, _words(p))
            for p, height in zip(points, heights, strict=True) if p.held_out is held_out for s in _collective(p)
        ]  # fmt: skip
        found += plot.circles(chosen, {"style": f"fill:{fill};stroke:{colour};stroke-width:1.5"})
    return found


def _clouds(plot: Plot, points: Sequence[Point], height: Callable[[Point], float]) -> list[Mark]:
    """Return the points of both halves; few points are all labelled on hover, of many only the worst."""
    marks: list[Mark] = []
    for (_, colour), ours in _halves(points):
        titled = sorted(ours, key=lambda p: -abs(error_of(p)))
        if len(points) > MOST_TITLED:
            titled = titled[:_TITLED_OF_MANY]
            stroke = {"style": f"stroke:{colour}"}
            marks += plot.dots([p.measured_s for p in ours], [height(p) for p in ours], stroke)
        circles = [(p.measured_s, height(p), _words(p)) for p in titled]
        faint = f"fill:{colour};fill-opacity:{0.65 if len(points) <= MOST_TITLED else 0}"
        marks += plot.circles(circles, {"style": f"{faint};pointer-events:all"})
    return marks


def _halves(points: Sequence[Point]) -> list[tuple[tuple[str, str], list[Point]]]:
    halves = [(half, [p for p in points if p.held_out is held]) for half, held in ((FITTED, False), (HELD_OUT, True))]
    return [(half, ours) for half, ours in halves if ours]


def _words(point: Point) -> str:
    times = f"measured {format_time(point.measured_s)}, predicted {format_time(point.predicted_s)}"
    half = (HELD_OUT if point.held_out else FITTED)[0]
    return f"{point.words}\n{times}, {percent_off(exp(error_of(point)))}, {half}"


def percent_off(ratio: float) -> str:
    """Return the deviation of predicted from measured, with its sign."""
    off = ratio - 1
    return format_change(off, 0 if abs(off) >= 0.1 else 1).replace("-", "−") if abs(off) >= 0.0005 else "0 %"


def _error_axis(points: Sequence[Point], title: str) -> Axis:
    """Return an axis of predicted/measured that holds all but one in 200 points."""
    sizes = np.abs([error_of(p) for p in points])
    limit = min(max(1.1 * float(np.quantile(sizes, 0.995)), _LEAST_LIMIT), _MOST_LIMIT)
    apart = 2 * limit * _LEAST_APART
    farthest = max(ratio for ratio in _RATIOS if log(ratio) <= limit)
    between = [ratio for ratio in _RATIOS if apart <= log(ratio) <= log(farthest) - apart]
    named = [*sorted(between, key=lambda ratio: abs(log(ratio) - 0.4 * log(farthest)))[:1], farthest]
    ticks = (*(1 / ratio for ratio in reversed(named)), 1.0, *named)
    return Axis(title, exp(-limit), exp(limit), ticks, percent_off)


def _bytes_axis(sizes: Sequence[int]) -> Axis:
    low, high = min(sizes) / 1.4, max(sizes) * 1.4
    powers = [2.0**power for power in range(0, 60) if low <= 2.0**power <= high]
    step = max(5 if len(powers) > 8 else 1, -(-len(powers) // 6))
    return Axis("bytes", low, high, tuple(p for p in powers if log(p, 2) % step < 0.5), _bytes_words)


def _bytes_words(num_bytes: float) -> str:
    unit = min(int(log(num_bytes, 2) // 10), 4)
    return f"{num_bytes / 2 ** (10 * unit):g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[unit]}"


def _even_ticks(most: float) -> tuple[float, ...]:
    """Return three to six round numbers from 0 to ``most``."""
    step = next(s for s in (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if most / s <= 6 or s == 0.5)
    return tuple(step * i for i in range(int(most / step) + 1))
