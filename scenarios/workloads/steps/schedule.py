"""A scenario's pipeline schedule: its order as text, and its slots with the times of the simulated step."""

from typing import Any

from scenarios.report.slots.slot_diagram import SlotDiagram, choose_slots
from scenarios.workloads.steps.running import simulate, with_choices
from scenarios.workloads.steps.scenario import StepScenario
from sim.training.errors import SpecError
from sim.training.pipeline.actions import format_orders
from sim.training.pipeline.schedules import orders
from sim.training.pipeline.two_versions import NUM_STEPS
from sim.training.spec.method import LOCAL_SCHEDULE


def schedule_text(scenario: StepScenario) -> str:
    """Return the order of forwards and backwards as CSV. Raises SpecError where the format has no words for it."""
    scenario = with_choices(scenario)
    pipeline = scenario.pipeline
    if pipeline.schedule == LOCAL_SCHEDULE:
        rule = "local updates send no gradient through the model, for which the format has no words"
        raise SpecError("parallel.pipeline.schedule", rule, "draw it with --out FILE.svg")
    if pipeline.gradient_delay:
        rule = f"{pipeline.schedule} has two versions of the weights, for which the format has no words"
        raise SpecError("parallel.pipeline.schedule", rule, "draw it with --out FILE.svg")
    if pipeline.num_copies > 1:
        rule = f"{pipeline.schedule} trains two copies of the model, for which the format has no words"
        raise SpecError("parallel.pipeline.schedule", rule, "choose another schedule, or draw it with --out FILE.svg")
    return format_orders(orders(pipeline, scenario.job.num_microbatches, scenario.stage_times))


def slots_of(scenario: StepScenario) -> SlotDiagram:
    """Return the slots of a scenario's simulated step, a lane per class of ranks that are alike."""
    return choose_slots(simulate(scenario, detail="task").timeline)


def schedule_words(scenario: StepScenario) -> str:
    """Return the schedule and its numbers in words."""
    pipeline, job = scenario.pipeline, scenario.job
    ranks = f"{pipeline.degree} pipeline rank{'s' if pipeline.degree > 1 else ''}"
    stages = f", {pipeline.virtual_stages} virtual stages each" if pipeline.virtual_stages > 1 else ""
    return f"{pipeline.schedule}, {ranks}{stages}, {job.num_microbatches:,} micro-batches"


def run_words(scenario: StepScenario) -> str:
    """Return what the slots are of: a step, or several in a row."""
    return f"{NUM_STEPS} steps" if scenario.pipeline.gradient_delay else "step"


def schedule_summary(scenario: StepScenario, diagram: SlotDiagram) -> dict[str, Any]:
    """Return schedule and slots as JSON has them; ``slots`` holds what is drawn, rank by rank."""
    pipeline = scenario.pipeline
    return {
        "name": pipeline.schedule,
        "num_microbatches": scenario.job.num_microbatches,
        "virtual_stages": pipeline.virtual_stages,
        "duration_s": diagram.end_s,
        "idle_fraction": diagram.idle_fraction,
        "slots": [
            {
                "role": name,
                "tasks": [
                    {"task": s.task, "microbatch": s.microbatch, "start_s": s.start_s, "end_s": s.end_s}
                    for s in (*diagram.boxes, *diagram.lines)
                    if s.lane == lane
                ],
            }
            for lane, name in enumerate(diagram.ranks)
        ],
    }
