"""Summaries of shipped steps, folded in time and with all micro-batches: ``python -m benchmarks.whole_steps [NAME]``.

Ranks are folded in both. A line per scenario says how many events each took, and in which values they differ by more
than 1e-9. Steps without a shorter form are one run, and are left out. All of them take some minutes.
"""

import sys
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from scenarios.library.shipped import found, scenario_names
from scenarios.summaries.as_json import as_json
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.findings.tensor_axes import tensor_axes_of
from scenarios.workloads.steps.intervals import errors_of
from scenarios.workloads.steps.running import plan_of
from scenarios.workloads.steps.scenario import StepScenario
from scenarios.workloads.steps.summarise import summarise
from sim.engine.findings.link_use import link_use
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.running.collector import collector_paused
from sim.engine.running.paced import MULTIPLE
from sim.engine.running.shorter import Shorter
from sim.engine.running.simulate import simulate
from sim.plan.words.program import Plan

NEAR = 1e-9
Difference = tuple[str, Any, Any]


@collector_paused()
def compared(scenario: StepScenario) -> tuple[int, int, list[Difference]] | None:
    """Return the events of a folded and of a whole run, and the differences of their summaries; None: one run."""
    scenario = scenario.decided()
    plan = plan_of(scenario)
    shorter = Shorter(plan)
    if not (shorter.times or shorter.section_forms(MULTIPLE)):
        return None
    folded, whole = (_summary(scenario, plan, repeat=repeat) for repeat in (True, False))
    events = folded.pop("engine")["events"], whole.pop("engine")["events"]
    return *events, list(_differences(folded, whole, whole["iteration_time_s"]))


def _summary(scenario: StepScenario, plan: Plan, *, repeat: bool) -> dict[str, Any]:
    """Return the summary of a step as its file holds it."""
    pricing = scenario.pricing()
    run = simulate(plan, pricing, repeat=repeat)
    links, errors = None, None
    if isinstance(pricing, ClusterPricing):
        links, errors = link_use(run, pricing), errors_of(pricing)
    said = scenario.with_findings(summarise(scenario, run, links, errors), plan)
    said = replace(said, tensor_axes=tensor_axes_of(run, pricing, said.roles))
    as_file: dict[str, Any] = as_json(said)
    return as_file


def _differences(one: Any, other: Any, step_s: float, path: str = "") -> Iterator[Difference]:
    """Yield where two parts of summaries differ; times and fractions by more than so small a part of the step, too."""
    if isinstance(one, Mapping) and isinstance(other, Mapping) and one.keys() == other.keys():
        yield from chain(*(_differences(one[key], other[key], step_s, f"{path}.{key}") for key in one))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        yield from chain(
            *(_differences(*pair, step_s, f"{path}[{n}]") for n, pair in enumerate(zip(one, other, strict=True)))
        )
    elif isinstance(one, float) and isinstance(other, float):
        of_step = 1.0 if "_fraction" in path else step_s if "_s" in path else 0.0
        scale = max(abs(one), abs(other), of_step)
        if abs(one - other) > NEAR * scale:
            yield path, one, other
    elif one != other:
        yield path, one, other


def main() -> int:
    """Print a line per scenario that has a shorter form; return 1 where some summaries differ."""
    num_differing = 0
    for name in sys.argv[1:] or scenario_names():
        scenario = load_scenario(found(Path(name)))
        result = compared(scenario) if isinstance(scenario, StepScenario) else None
        if result is not None:
            short, whole, differences = result
            num_differing += bool(differences)
            words = "; ".join(f"{path[1:]} {one} {other}" for path, one, other in differences) or "equal"
            print(f"{name}: {short:,} events, all micro-batches {whole:,}: {words}")
    return 1 if num_differing else 0


if __name__ == "__main__":
    sys.exit(main())
