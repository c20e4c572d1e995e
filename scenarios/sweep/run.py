"""Simulate all points of a sweep, and put them in order."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NoReturn

from msgspec import Struct

from scenarios.errors import Origin, ScenarioError
from scenarios.reading.documents.yaml_tree import Document, read_document
from scenarios.report.charts.thumbnail import Thumbnail
from scenarios.summaries.as_json import as_json
from scenarios.summaries.sweep import RefusedPoint, SweepSummary, SweptPoint, SweptSetting
from scenarios.sweep.point import Measured, measure
from scenarios.sweep.refusal import one_line
from scenarios.sweep.settings import Point, Setting, points
from scenarios.sweep.workers import OpenWorkers
from scenarios.workloads.loading import point_of, scenario_of
from scenarios.workloads.workload import Scenario, Workload

MAX_PICTURES: Final = 24
"""Sweeps of more points get no pictures of pipelines."""

MOST_TOGETHER: Final = 8
"""Largest number of points that go to a worker at once: a sweep that is cut off simulates them again."""


class Sweep(Struct, frozen=True):
    """A finished sweep: its answers, and the pictures of its points in the same order, if any."""

    summary: SweepSummary[Any]
    pictures: tuple[Thumbnail, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the answers as sweep.json holds them."""
        found: dict[str, Any] = as_json(self.summary)
        return found


class Job(Struct, frozen=True):
    """The points of a sweep that can be tried, their scenarios, and the lines of those that cannot."""

    settings: tuple[Setting, ...]
    points: tuple[tuple[Point, Scenario], ...]
    refused: dict[int, str]

    @property
    def name(self) -> str:
        """Return the scenario's name."""
        return self.points[0][1].name

    @property
    def workload(self) -> Workload[Any]:
        """Return the kind of work of all points."""
        return self.points[0][1].workload


def prepare(path: Path, settings: Sequence[Setting]) -> Job:
    """Return the points of a sweep, loaded. Raises the first refusal where the scenario's rules refuse all of them."""
    document = read_document(path)  # what is wrong with the file itself is no point's fault
    valid: list[tuple[Point, Scenario]] = []
    refused: dict[int, str] = {}
    for point in points(settings):
        try:
            valid.append((point, point_of(document, point.overrides)))
        except ScenarioError as error:
            refused[point.index] = one_line(error)
    if not valid:
        _refuse_all(document, next(points(settings)), len(refused))
    _refuse_several_kinds([scenario for _, scenario in valid])
    return Job(tuple(settings), tuple(valid), refused)


def _refuse_several_kinds(scenarios: Sequence[Scenario]) -> None:
    """Raise ScenarioError where points are of several kinds of work: their results do not compare."""
    kinds = sorted({scenario.workload.name for scenario in scenarios})
    if len(kinds) > 1:
        rule = f"points are of several kinds of work: {', '.join(kinds)}"
        raise ScenarioError(Origin(option="--set"), "workload", rule, "sweep each kind by itself")


Part = Sequence[tuple[Point, Scenario]]
"""Points that one worker simulates one after the other."""

Keep = Callable[[int, Measured | str], None]
"""Takes the number of a point that is done, and what came of it."""


def run(
    job: Job,
    open_workers: OpenWorkers,
    num_jobs: int,
    *,
    with_pictures: bool = False,
    tick: Callable[[], None],
    done: Mapping[int, Measured | str] | None = None,
    keep: Keep | None = None,
) -> Sweep:
    """Return the sweep: possible points first, the best of them first; ``tick`` is called as each point is done.

    ``done``: what came of points that were simulated before. ``keep``: called as each other point is done. The result
    does not depend on ``num_jobs``. Raises ScenarioError where no point can be simulated.
    """
    results = dict(done or {})
    for _ in results:
        tick()
    left = [(point, scenario) for point, scenario in job.points if point.index not in results]
    results |= _measured(left, open_workers, num_jobs, draw=with_pictures and can_draw(job), tick=tick, keep=keep)
    refused = dict(job.refused)
    found: list[tuple[Point, Measured]] = []
    for point, _ in job.points:
        result = results[point.index]
        if isinstance(result, str):
            refused[point.index] = result
        else:
            found.append((point, result))
    if not found:
        origin = job.points[0][1].document.origin(())
        raise ScenarioError(
            origin, "", refused[min(refused)], "change the scenario or the values", num_more=len(refused) - 1
        )
    found.sort(key=lambda entry: _rank(job.workload, *entry))
    pictures = tuple(result.picture for _, result in found if result.picture is not None)
    return Sweep(_summary(job, found, refused), pictures)


def _measured(
    points: Sequence[tuple[Point, Scenario]],
    open_workers: OpenWorkers,
    num_jobs: int,
    *,
    draw: bool,
    tick: Callable[[], None],
    keep: Keep | None,
) -> dict[int, Measured | str]:
    """Return what comes of some points, by number."""
    if not points:
        return {}

    def end(part: Part, future: Future[list[Measured | str]]) -> None:
        if keep is not None and not future.cancelled() and future.exception() is None:
            for (point, _), result in zip(part, future.result(), strict=True):
                keep(point.index, result)
        for _ in part:
            tick()

    parts, futures = parts_of(points, num_jobs), list[Future[list[Measured | str]]]()
    with open_workers(min(num_jobs, len(parts))) as workers:
        for part in parts:
            futures.append(workers.submit(measure, [scenario for _, scenario in part], draw))
            futures[-1].add_done_callback(partial(end, part))
        return {
            point.index: result
            for part, future in zip(parts, futures, strict=True)
            for (point, _), result in zip(part, future.result(), strict=True)
        }


def parts_of(points: Sequence[tuple[Point, Scenario]], num_jobs: int) -> list[Part]:
    """Return points in parts, each for one worker: those that have much in common are together, as in a plan.

    No part has more points than a worker's even share of all.
    """
    alike: dict[bytes | int, list[tuple[tuple[bytes, ...], tuple[Point, Scenario]]]] = {}
    for point, scenario in points:
        likeness = scenario.workload.likeness(scenario)
        alike.setdefault(likeness[0] if likeness else point.index, []).append((likeness, (point, scenario)))
    most = min(MOST_TOGETHER, -(-len(points) // num_jobs))
    parts: list[Part] = []
    for found in alike.values():
        group = [entry for _, entry in sorted(found, key=itemgetter(0))]
        count = -(-len(group) // most)
        ends = [len(group) * number // count for number in range(count + 1)]
        parts += [group[begin:end] for begin, end in pairwise(ends)]
    return parts


def _rank(workload: Workload[Any], point: Point, result: Measured) -> tuple[bool, bool, Any, int]:
    """Return what points are sorted by: whether they are possible, their results, their order in the product.

    Points without a result to sort by come after those that have one.
    """
    value = getattr(result.results, workload.order)
    return not workload.is_possible(result.results), value is None, 0.0 if value is None else value, point.index


def can_draw(job: Job) -> bool:
    """Return whether a sweep has pipelines, and few enough of them for pictures."""
    return len(job.points) <= MAX_PICTURES and any(scenario.workload.has_lanes(scenario) for _, scenario in job.points)


def _summary(job: Job, found: Sequence[tuple[Point, Measured]], refused: dict[int, str]) -> SweepSummary[Any]:
    by_index = {point.index: point.values for point in points(job.settings)} if refused else {}
    return SweepSummary(
        scenario=job.name,
        workload=job.workload.name,
        settings=tuple(SweptSetting(key=setting.key, values=tuple(setting.values)) for setting in job.settings),
        points=tuple(SweptPoint(set=point.values, results=result.results) for point, result in found),
        refused=tuple(RefusedPoint(set=by_index[index], reason=refused[index]) for index in sorted(refused)),
    )


def _refuse_all(document: Document, first: Point, count: int) -> NoReturn:
    """Raise the refusal of the first point, saying that the others were refused too."""
    try:
        scenario_of(document, first.overrides)
    except ScenarioError as error:
        rule = error.rule if count == 1 else f"all {count:,} points are refused, the first one: {error.rule}"
        raise ScenarioError(error.origin, error.key, rule, error.remedy) from error
    message = f"a point was refused, and then it was not: {first.overrides}"
    raise AssertionError(message)
