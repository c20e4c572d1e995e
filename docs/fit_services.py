"""The constants of frameworks in sim/serving/prices/software.py, from the fitted halves of the tables of services.

.venv/bin/python docs/fit_services.py

Times per token are nearly linear in the constants, so each is moved once, and the best point of the linear model is
taken. The loss is soft l1 of log(predicted / measured). One latency of collectives stands for all frameworks.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import click
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray
from scipy.optimize import least_squares

from scenarios.fitting.measured_steps import FITTED
from scenarios.validation.published import entry_of, where_of
from scenarios.workloads.loading import scenario_from_mapping
from scenarios.workloads.service.reading import ServiceScenario
from scenarios.workloads.service.summary import summarise
from sim.serving.prices.software import ServingSoftware
from sim.serving.service import serve
from traces.published import FOLDER, load_table

Floats = NDArray[np.float64]

LATENCIES_S: Final = (5e-6, 8e-6, 12e-6)
START: Final = ServingSoftware(iteration_s=0.4e-3, sequence_s=15e-6, request_s=10e-3)
STEPS: Final = {"iteration_s": 1e-3, "sequence_s": 100e-6}
SOFT_L1: Final = 0.02


@dataclass(frozen=True, slots=True)
class Row:
    """A measured service of the fitted half."""

    framework: str
    scenario: ServiceScenario
    measured_s: float

    def times_s(self, software: ServingSoftware) -> tuple[float, float]:
        """Return the predicted mean time to the first token, and per token after it."""
        scenario = self.scenario
        cost = dataclasses.replace(scenario.cost, software=software)
        served = serve(replace(scenario.spec, request_s=software.request_s), scenario.requests, cost)
        found = summarise(scenario, served)
        assert found.ttft_s is not None
        assert found.tpot_s is not None
        return found.ttft_s.mean, found.tpot_s.mean


def fitted_rows(name: str) -> Iterator[Row]:
    """Yield the rows of a table to which constants are fitted."""
    table = load_table(FOLDER / f"{name}.yaml")
    for row in table.rows:
        if row.group == FITTED:
            scenario = scenario_from_mapping(entry_of(table, row), table.path, where_of(table, row))
            assert isinstance(scenario, ServiceScenario)
            yield Row(str(row.overrides["service.framework"]), scenario, row.measured)


def per_token_fit(rows: Sequence[Row], start: ServingSoftware) -> tuple[ServingSoftware, float]:
    """Return the constants of iterations and sequences that fit best, and the loss."""
    measured = np.array([row.measured_s for row in rows])

    def predicted(software: ServingSoftware) -> Floats:
        return np.array([row.times_s(software)[1] for row in rows])

    at_start = predicted(start)
    begin = np.array([getattr(start, name) for name in STEPS])
    slopes = [
        (predicted(replace(start, **{name: first + step})) - at_start) / step
        for first, (name, step) in zip(begin, STEPS.items(), strict=True)
    ]

    def residuals(units: Floats) -> Floats:
        away = units * np.array(list(STEPS.values())) - begin
        return np.log((at_start + np.array(slopes).T @ away) / measured)

    best = least_squares(
        residuals, begin / np.array(list(STEPS.values())), bounds=(0.0, np.inf), loss="soft_l1", f_scale=SOFT_L1
    )
    found = dict(zip(STEPS, (best.x * np.array(list(STEPS.values()))).tolist(), strict=True))
    return replace(start, **found), float(best.cost)


def before_the_queue_s(rows: Sequence[Row], software: ServingSoftware) -> float:
    """Return the time of a request before the queue that fits first tokens best."""
    measured = np.array([row.measured_s for row in rows])
    at_once = np.array([row.times_s(replace(software, request_s=0.0))[0] for row in rows])
    best = least_squares(
        lambda late: np.log((at_once + late * START.request_s) / measured),
        1.0, bounds=(0.0, np.inf), loss="soft_l1", f_scale=SOFT_L1,
    )  # fmt: skip
    return float(best.x[0]) * START.request_s


def main() -> None:
    """Print the constants of each framework."""
    rows = list(fitted_rows("services_tpot"))
    frameworks = dict.fromkeys(row.framework for row in rows)
    tried = []
    for latency_s in LATENCIES_S:
        start = replace(START, all_reduce_s=latency_s)
        fits = {name: per_token_fit([row for row in rows if row.framework == name], start) for name in frameworks}
        tried.append((sum(cost for _, cost in fits.values()), fits))
        click.echo(f"collectives {latency_s:.0e} s: loss {tried[-1][0]:.4f}")
    _, fits = min(tried, key=lambda found: found[0])
    first = list(fitted_rows("services_ttft"))
    late = {name: [row for row in first if row.framework == name] for name in frameworks}
    for name, (software, _) in fits.items():
        found = replace(software, request_s=before_the_queue_s(late[name], software)) if late[name] else software
        click.echo(f"{name}: {found}")


if __name__ == "__main__":
    main()
