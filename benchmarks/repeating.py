"""Time saved if a compiled plan gets new prices, and if equal steps are requested again."""

import statistics
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.measuring import Row, interleaved_s
from costmodels.software import Software
from scenarios.workloads.loading import load_step
from scenarios.workloads.steps.running import plan_of
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.running.simulate import Simulation, simulate
from sim.engine.step_times import StepTimes

NUM_STEPS = 2000
NUM_JOBS = 10


def repricing_rows(library: Path) -> Iterator[Row]:
    """Yield the time to compile a plan under other prices: from nothing, and with its known structure."""
    for name, words in (("gpt-1t-3072", "GPT 1T on 3,072 GPUs"), ("quickstart", "GPT 145.6B on 1,536 GPUs")):
        scenario = load_step(library / f"{name}.yaml")
        plan, pricing = plan_of(scenario), scenario.pricing()
        assert isinstance(pricing, ClusterPricing)
        other, simulation = pricing.under(Software(launch_s=3e-6)), Simulation(plan)
        simulation.run(pricing)
        rounds_s = interleaved_s([partial(simulate, plan, other), partial(simulation.run, other)], 5)
        anew_s, again_s = map(statistics.median, rounds_s)
        yield Row(f"{words}: under other prices, compiled anew", f"{anew_s:.2f} s")
        yield Row("- with the structure that is there", f"{again_s:.2f} s", "less", again_s < anew_s)


def step_times_rows(library: Path) -> Iterator[Row]:
    """Yield the cost of thousands of steps of a few jobs whose plans are built again for every step."""
    scenarios = [
        load_step(library / "tiny-gpt-2x2.yaml", [f"training.global_batch_size={8 * (job + 1)}"])
        for job in range(NUM_JOBS)
    ]
    times, plans = StepTimes(), [plan_of(scenario) for scenario in scenarios]
    pricings = [scenario.pricing() for scenario in scenarios]

    def ask() -> None:
        for step in range(NUM_STEPS):
            job = step % NUM_JOBS
            times.step_time_s(plans[job], pricings[job])

    def ask_anew() -> None:
        for scenario in scenarios:
            times.step_time_s(plan_of(scenario), scenario.pricing())

    def engine() -> None:
        for plan, pricing in zip(plans, pricings, strict=True):
            simulate(plan, pricing)

    engine_s, asked_s, anew_s, planned_s = (
        statistics.median(part)
        for part in interleaved_s([engine, ask, ask_anew, lambda: [plan_of(each) for each in scenarios]], 5)
    )
    each_s, found_s = asked_s / NUM_STEPS, (anew_s - planned_s) / NUM_JOBS
    yield Row("tiny GPT: a step in the engine", f"{engine_s / NUM_JOBS * 1e3:.2f} ms")
    yield Row("- remembered, the same plan", f"{each_s * 1e6:.1f} us", "1 % of the engine", each_s <= engine_s / 1000)
    yield Row("- remembered, an equal plan", f"{found_s * 1e3:.2f} ms", "less", found_s < engine_s / NUM_JOBS)
    yield Row(f"- runs of the engine for {times.num_hits + times.num_misses:,} steps", f"{times.num_misses}",
              f"{NUM_JOBS}", times.num_misses == NUM_JOBS)  # fmt: skip
