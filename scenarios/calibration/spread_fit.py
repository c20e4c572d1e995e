"""What packaged profiles say of their errors: estimated from measured tables, without fitting anything else."""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import exp, log
from pathlib import Path
from statistics import fmean, median

import numpy as np
from scipy.optimize import brentq

from costmodels.calibration.kernels import Fitted, predict_kernels
from costmodels.calibration.samples import KernelSample, Sample
from costmodels.calibration.spread import Erred, spread_of
from costmodels.hardware import NodeSpec, load_node
from costmodels.kernels.tensor import Work
from costmodels.profile import load_profile
from costmodels.spread import Spread, kernel_place, transfer_place
from scenarios.calibration.calibration import measured_spreads, points_of
from scenarios.calibration.step_fit import measured_steps
from scenarios.calibration.tables import HELD_OUT_TABLES, read_samples
from scenarios.running.intervals import errors_of
from scenarios.validation.published import entry_of, predicted
from sim.engine.critical_path import critical_path
from sim.engine.simulate import simulate
from sim.engine.uncertainty.interval import step_deviation
from traces.errors import TraceError
from traces.kineto.pointwise import pointwise_kernels
from traces.published import load_table, published_tables


def kernel_spreads(node: NodeSpec, tables: Sequence[Path]) -> Mapping[str, Spread]:
    """Return by family how far the packaged profile of a node is from the half of tables that it was not fitted to."""
    samples: list[Sample] = list(chain.from_iterable(read_samples(path, None) for path in tables))
    packaged = Fitted(load_profile(node.device.generation), node)
    return measured_spreads(tuple(points_of(samples, packaged, HELD_OUT_TABLES)))


def pointwise_spread(node: NodeSpec, trace: Path) -> Spread:
    """Return how far memory-bound kernels of a profile lie from any one fraction of a device's bandwidth for all.

    The fraction, fitted to steps, stands for those of another mix: so it is chosen anew, such that operators' mean
    error is none, and what is left is how operators and sizes differ. Calls of one operator and size count once, by
    their median. ``node``: what the trace was recorded on. Raises TraceError for a trace without such kernels.
    """
    seconds: dict[tuple[str, int], list[float]] = defaultdict(list)
    for kernel in pointwise_kernels(trace):
        seconds[kernel.operator, kernel.num_bytes].append(kernel.seconds)
    if not seconds:
        raise TraceError(str(trace), "no kernel has an operator with shapes", "record with record_shapes=True")
    samples = [
        KernelSample(
            key=f"{operator} {num_bytes}", family="elementwise", dtype="float32", kernel=operator,
            work=Work(0.0, 0.0, num_bytes, 0), seconds=median(found),
        )
        for (operator, num_bytes), found in seconds.items()
    ]  # fmt: skip
    profile = load_profile(node.device.generation)

    def calls(log_fraction: float) -> list[Erred]:
        stream = replace(profile.elementwise, memory_fraction=exp(log_fraction))
        predicted = predict_kernels(samples, node, replace(profile, elementwise=stream))
        places = (kernel_place("elementwise", sample.kernel, sample.work) for sample in samples)
        return [Erred(*found) for found in zip(places, predicted, (s.seconds for s in samples), strict=True)]

    return spread_of(calls(brentq(lambda at: _mean_error(calls(at)), log(0.01), log(100.0))))


def _mean_error(calls: Sequence[Erred]) -> float:
    """Return the mean of log(measured/predicted), every series counting alike."""
    errors: dict[Hashable, list[float]] = defaultdict(list)
    for call in calls:
        errors[call.place.series].append(log(call.measured_s / call.predicted_s))
    return fmean(map(fmean, errors.values()))


def network_calls(generation: str) -> list[Erred]:
    """Return the published collectives and messages of a generation's nodes under its packaged profile.

    A series is a kind and a group in one publication. Tables with a network of their own say nothing of the profile's.
    """
    found = []
    for table in map(load_table, published_tables()):
        for row in table.rows if table.prediction == "collective_time_s" else ():
            entry = entry_of(table, row)
            if load_node(str(entry["node"])).device.generation != generation or "network" in entry:
                continue
            series = (table.citation, entry["collective"], entry["num_nodes"], entry["num_devices"])
            place = transfer_place(series, int(entry["bytes"]))
            found.append(Erred(place, predicted(table, row).value, row.measured))
    return found


def network_spread(generation: str) -> Spread | None:
    """Return the errors of a packaged profile's network, None where no publication has measured it."""
    calls = network_calls(generation)
    return spread_of(calls) if calls else None


def step_spread(tables: Sequence[Path], num_fitted: int, *, fitted_only: bool = False) -> float:
    """Return what of published steps' deviation is left beside what kernels and network explain, 0 where nothing is.

    The variance of n steps with p constants fitted to them is the mean square of log(measured/predicted) times
    n / (n - p), for what the fit has taken away, less the mean of the variances that the models' errors explain to
    first order. ``fitted_only``: take the rows of the group that constants are fitted to.
    Raises ValueError where there are no more steps than constants.
    """
    errors, explained = list[float](), list[float]()
    for step in measured_steps(tables):
        if step.fitted or not fitted_only:
            run = simulate(step.plan, step.pricing)
            errors.append(log(step.measured_s / run.iteration_time_s))
            explained.append(step_deviation(critical_path(run), errors_of(step.pricing, step=0.0)))
    count = len(errors)
    if count <= num_fitted:
        message = f"{count} steps cannot show what {num_fitted} constants leave"
        raise ValueError(message)
    left = float(np.mean(np.square(errors))) * count / (count - num_fitted) - float(np.mean(np.square(explained)))
    return float(np.sqrt(max(left, 0.0)))
