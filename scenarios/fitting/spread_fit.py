"""The fit of a profile's error model to measurements; the profile's other parameters stay."""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from scipy.optimize import brentq

from costmodels.calibration.document import CalibratedProfile, spread_entry
from costmodels.calibration.kernels import Fitted, predict_kernels
from costmodels.calibration.samples import KernelSample, Sample
from costmodels.calibration.spread import Erred, spread_of, widened
from costmodels.errors import CatalogueError
from costmodels.hardware import NodeSpec, load_node
from costmodels.kernels.tensor import Work
from costmodels.profile import STEP, Profile
from costmodels.spread import NETWORK, kernel_place, transfer_place
from costmodels.units import format_count
from scenarios.calibration.calibration import SPREAD_SOURCE, held_out_calls, points_of
from scenarios.calibration.tables import HELD_OUT_TABLES, read_tables, refuse_twice
from scenarios.errors import Origin, ScenarioError
from scenarios.fitting.measured_steps import OF_STEPS, measured_steps, refuse_other_machine
from scenarios.validation.collective_row import collective_time_s
from scenarios.validation.published import entry_of, where_of
from scenarios.workloads.steps.intervals import errors_of
from sim.engine.findings.critical_path import critical_path
from sim.engine.running.simulate import simulate
from sim.engine.uncertainty.interval import step_deviation
from traces.errors import TraceError
from traces.kineto.pointwise import pointwise_kernels
from traces.published import PublishedRow, PublishedTable, load_table

_NETWORK_SOURCE: Final = (
    "log(measured/predicted) of {calls} collectives and messages of {tables}, whether the section network was fitted "
    "to them or not; kinds and groups of a publication count alike"
)
_TRACE_SOURCE: Final = (
    "log(measured/predicted) of memory-bound kernels in {trace}, recorded on a device of {node}, about one fraction of "
    "the bandwidth for all; operators count alike"
)
_STEP_SOURCE: Final = "What {tables} are off (root mean square; {constants} fitted) beside what the families explain"

_SIDECARS: Final = frozenset({".yaml", ".yml"})
_FRACTIONS: Final = (log(0.01), log(100.0))
"""Logarithms of the smallest and the largest fraction of the bandwidth that are tried."""
_NUM_CHOSEN: Final[Mapping[str, int]] = {"elementwise": 1}
"""Number of constants refitted for a family's calls: the fraction of the bandwidth in a trace."""


class SpreadRequest(Struct, frozen=True, kw_only=True):
    """The measurements for ``simulate spread``: tables of any kind, and a trace.

    ``system``: the system whose rows of a CSV of collectives count. Other fields: see ``StepTables`` and ``Evidence``.
    """

    tables: tuple[Path, ...] = ()
    system: str | None = None
    num_constants: int = 0
    all_groups: bool = False
    trace: Path | None = None
    trace_node: str | None = None


class StepTables(Struct, frozen=True):
    """Tables of steps, and the number of constants that were fitted to them.

    In tables with groups only the fitted group's rows count; the others also judge intervals.
    ``all_groups``: all groups count.
    """

    paths: Sequence[Path]
    num_constants: int = 0
    all_groups: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Measurements by which a profile is judged.

    ``samples``: kernels and collectives, of which one in ``HELD_OUT_TABLES`` counts.
    ``collectives``, ``steps``: tables with a sidecar.
    ``trace``: a profile of the PyTorch profiler with shapes, recorded on ``trace_node``.
    """

    samples: Sequence[Sample] = field(default=(), repr=False)
    collectives: Sequence[PublishedTable] = ()
    steps: StepTables | None = None
    trace: Path | None = None
    trace_node: str | None = None


def read_evidence(request: SpreadRequest) -> Evidence:
    """Return the measurements of tables (YAML: sidecars; others as in ``read_samples``) and of a trace.

    Raises ScenarioError without any measurement, and TraceError or ScenarioError for an unusable table.
    """
    tables = request.tables
    if not tables and request.trace is None:
        raise ScenarioError(Origin(option="spread"), "", "nothing measured is named", "name tables, or a --trace")
    refuse_twice(tables)
    if request.trace is None and request.trace_node is not None:
        rule = "it names the node of a trace, and there is no trace"
        raise ScenarioError(Origin(option=f"--recorded-on {request.trace_node}"), "", rule, "name a --trace")
    sidecars = [load_table(path) for path in tables if path.suffix in _SIDECARS]
    for table in sidecars:
        if table.prediction not in {"collective_time_s", *OF_STEPS}:
            rule, remedy = f"no errors are drawn of {table.prediction}", "name a table of collectives, or of steps"
            raise ScenarioError(Origin(str(table.path)), "measured.prediction", rule, remedy)
    steps = [table.path for table in sidecars if table.prediction in OF_STEPS]
    if not steps and (request.num_constants or request.all_groups):
        option = Origin(option="--constants" if request.num_constants else "--all-groups")
        raise ScenarioError(option, "", "it belongs to tables of steps, and there is none", "leave it out, or name one")
    return Evidence(
        samples=read_tables([path for path in tables if path.suffix not in _SIDECARS], request.system),
        collectives=[table for table in sidecars if table.prediction == "collective_time_s"],
        steps=StepTables(steps, request.num_constants, request.all_groups) if steps else None,
        trace=request.trace,
        trace_node=request.trace_node,
    )


def measured_families(calibrated: CalibratedProfile, evidence: Evidence) -> dict[str, dict[str, Any]]:
    """Return a profile's error model, by family and for ``step``, as its section ``spread`` holds it.

    Steps are judged with the families' new errors. Raises ScenarioError for measurements of another machine, for tables
    without held-out rows, and for no more steps than fitted constants; TraceError for a trace without kernels of known
    shapes.
    """
    calls, sources = _calls(calibrated, evidence)
    spreads = {family: spread_of(ours, _NUM_CHOSEN.get(family, 0)) for family, ours in calls.items()}
    found = {family: spread_entry(spread, "; ".join(sources[family])) for family, spread in spreads.items()}
    if evidence.steps:
        profile = replace(calibrated.profile, spread={**calibrated.profile.spread, **spreads})
        deviation = step_spread(evidence.steps, replace(calibrated, profile=profile))
        tables = ", ".join(path.stem for path in evidence.steps.paths)
        fitted = format_count(evidence.steps.num_constants, "constant")
        source = _STEP_SOURCE.format(tables=tables, constants=fitted)
        found[STEP] = {"source": source, "deviation": round(deviation, 4)}
    return found


def _calls(
    calibrated: CalibratedProfile, evidence: Evidence
) -> tuple[Mapping[str, list[Erred]], Mapping[str, list[str]]]:
    """Return measured calls by family, and the sources of each family. Raises ScenarioError if none count."""
    calls, sources = defaultdict[str, list[Erred]](list), defaultdict[str, list[str]](list)

    def add(family: str, found: Sequence[Erred], source: str) -> None:
        calls[family] += found
        sources[family].append(source)

    node = calibrated.node_spec(load_node(calibrated.node))
    fitted = Fitted(calibrated.profile, node)
    held_out = held_out_calls(tuple(points_of(evidence.samples, fitted, HELD_OUT_TABLES)))
    if evidence.samples and not held_out:
        rule, remedy = "none of the tables' rows is held out of a fit", "name more rows"
        raise ScenarioError(Origin(option="spread"), "", rule, remedy)
    for family, found in held_out.items():
        add(family, found, SPREAD_SOURCE)
    if evidence.collectives:
        found = network_calls(calibrated, evidence.collectives)
        names = ", ".join(table.name for table in evidence.collectives)
        add(NETWORK, found, _NETWORK_SOURCE.format(calls=len(found), tables=names))
    if evidence.trace is not None:
        recorded_on = node if evidence.trace_node is None else _trace_node(evidence.trace_node, calibrated)
        source = _TRACE_SOURCE.format(trace=evidence.trace.name, node=recorded_on.name)
        add("elementwise", pointwise_calls(recorded_on, calibrated.profile, evidence.trace), source)
    return calls, sources


def _trace_node(name: str, calibrated: CalibratedProfile) -> NodeSpec:
    """Return the node on which a trace was recorded. Raises ScenarioError for a node with other devices."""
    option = Origin(option=f"--recorded-on {name}")
    try:
        node = load_node(name)
    except CatalogueError as error:
        rule, _, remedy = str(error).rpartition("; ")
        raise ScenarioError(option, "", rule, remedy) from error
    if node.device.generation != load_node(calibrated.node).device.generation:
        rule = f"its devices are {node.device.name}, and the profile is one of {calibrated.node}"
        raise ScenarioError(option, "", rule, "take a trace of the profile's devices")
    return node


def pointwise_calls(node: NodeSpec, profile: Profile, trace: Path) -> list[Erred]:
    """Return memory-bound kernels of a recorded profile beside predictions with one fraction of the bandwidth for all.

    The profile's fraction was fitted to steps with another mix of operators. So it is refitted here to make the
    operators' mean error zero; the remaining errors are the differences between operators and sizes. Calls of one
    operator and size count once, by their median.
    ``node``: the node on which the trace was recorded.

    Raises TraceError for a trace without such kernels, and for a trace of other devices.
    """
    seconds: dict[tuple[str, int], list[float]] = defaultdict(list)
    for kernel in pointwise_kernels(trace, node.device.generation):
        seconds[kernel.operator, kernel.num_bytes].append(kernel.seconds)
    if not seconds:
        raise TraceError(str(trace), "no kernel has an operator with shapes", "record with record_shapes=True")
    if len({operator for operator, _ in seconds}) == 1:
        raise TraceError(str(trace), "one operator does not show how operators differ", "name a folder of more traces")
    samples = [
        KernelSample(
            key=f"{operator} {num_bytes}", family="elementwise", dtype="float32", kernel=operator,
            work=Work(0.0, 0.0, num_bytes, 0), seconds=median(found),
        )
        for (operator, num_bytes), found in seconds.items()
    ]  # fmt: skip

    def calls(log_fraction: float) -> list[Erred]:
        stream = replace(profile.elementwise, memory_fraction=exp(log_fraction))
        predicted = predict_kernels(samples, node, replace(profile, elementwise=stream))
        places = (kernel_place("elementwise", sample.kernel, sample.work) for sample in samples)
        return [Erred(*found) for found in zip(places, predicted, (s.seconds for s in samples), strict=True)]

    if not _mean_error(calls(_FRACTIONS[0])) < 0.0 < _mean_error(calls(_FRACTIONS[1])):
        rule = "the kernels say nothing of the bandwidth: most end within the profile's fixed time"
        raise TraceError(str(trace), rule, "record larger tensors")
    return calls(brentq(lambda at: _mean_error(calls(at)), *_FRACTIONS))


def _mean_error(calls: Sequence[Erred]) -> float:
    """Return the mean of log(measured/predicted), with equal weight for every series."""
    errors: dict[Hashable, list[float]] = defaultdict(list)
    for call in calls:
        errors[call.place.series].append(log(call.measured_s / call.predicted_s))
    return fmean(map(fmean, errors.values()))


def network_calls(calibrated: CalibratedProfile, tables: Sequence[PublishedTable]) -> list[Erred]:
    """Return measured collectives and messages of tables beside a profile's predictions.

    A series is a kind and a group in one publication. Raises ScenarioError for rows of another machine, and for a table
    with its own network, whose rows cannot judge the profile's.
    """
    return [_network_call(calibrated, table, row) for table in tables for row in table.rows]


def _network_call(calibrated: CalibratedProfile, table: PublishedTable, row: PublishedRow) -> Erred:
    entry = entry_of(table, row)
    if "network" in entry:
        rule = "the table has a network of its own, so its rows cannot judge the profile's"
        raise ScenarioError(Origin(str(table.path)), "base.network", rule, "leave the table out")
    predicted_s = collective_time_s(entry, table.path, where_of(table, row), calibrated)
    refuse_other_machine(calibrated, str(entry["node"]), table, row)
    series = (table.citation, entry["collective"], entry["num_nodes"], entry["num_devices"])
    return Erred(transfer_place(series, int(entry["bytes"])), predicted_s, row.measured)


def step_spread(tables: StepTables, calibrated: CalibratedProfile | None = None) -> float:
    """Return the deviation of measured steps that kernels and network do not explain, 0 if they explain all of it.

    The variance of n steps with p constants fitted to them is the mean square of log(measured/predicted), times n / (n
    - p) for the fitted constants, times the widening for few steps (``widened``), less the mean variance that the
    models' errors explain to first order.
    ``calibrated``: a profile in place of the rows' own.

    Raises ScenarioError for no more steps than constants.
    """
    steps = [step for step in measured_steps(tables.paths, calibrated) if step.facts.fitted or tables.all_groups]
    freedom = len(steps) - tables.num_constants
    if freedom <= 0:
        constants = format_count(tables.num_constants, "constant")
        rule = f"{format_count(len(steps), 'step')} cannot show what {constants} leave"
        raise ScenarioError(Origin(option="--constants"), "", rule, "name more tables, or fewer constants")
    runs = [simulate(step.plan, step.pricing) for step in steps]
    errors = [log(step.facts.measured_s / run.iteration_time_s) for step, run in zip(steps, runs, strict=True)]
    explained = [
        step_deviation(critical_path(run), errors_of(step.pricing, step=0.0))
        for step, run in zip(steps, runs, strict=True)
    ]
    whole = widened(float(np.sqrt(np.sum(np.square(errors)) / freedom)), freedom)
    return float(np.sqrt(max(whole**2 - float(np.mean(np.square(explained))), 0.0)))
