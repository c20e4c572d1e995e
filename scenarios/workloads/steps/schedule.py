"""A scenario's pipeline schedule: its order as text, and its slots with the times of the simulated step."""

from scenarios.reading.documents.located import located
from scenarios.report.slots.shown_schedule import ShownSchedule
from scenarios.report.slots.slot_diagram import choose_slots
from scenarios.workloads.steps.running import simulate
from scenarios.workloads.steps.scenario import StepScenario
from sim.training.errors import SpecError
from sim.training.pipeline.actions import format_orders
from sim.training.pipeline.schedules import orders
from sim.training.pipeline.two_versions import NUM_STEPS
from sim.training.spec.method import LOCAL_SCHEDULE


def schedule_text(scenario: StepScenario) -> str:
    """Return the order of forwards and backwards as CSV. Raises ScenarioError where the format has no words for it."""
    with located(scenario.document):
        return _text(scenario.decided())


def _text(scenario: StepScenario) -> str:
    pipeline = scenario.pipeline
    if pipeline.schedule == LOCAL_SCHEDULE:
        rule = "local updates send no gradient through the model, and the format cannot express that"
        raise SpecError("parallel.pipeline.schedule", rule, "draw it with --out FILE.svg")
    if pipeline.gradient_delay:
        rule = f"{pipeline.schedule} has two versions of the weights, and the format cannot express that"
        raise SpecError("parallel.pipeline.schedule", rule, "draw it with --out FILE.svg")
    if pipeline.num_copies > 1:
        rule = f"{pipeline.schedule} trains two copies of the model, and the format cannot express that"
        raise SpecError("parallel.pipeline.schedule", rule, "choose another schedule, or draw it with --out FILE.svg")
    return format_orders(orders(pipeline, scenario.job.num_microbatches, scenario.stage_times))


def schedule_of(scenario: StepScenario) -> ShownSchedule:
    """Return a scenario's schedule with the slots of its simulated step, a lane per class of ranks that are alike."""
    pipeline = scenario.pipeline
    return ShownSchedule(
        name=pipeline.schedule,
        num_microbatches=scenario.job.num_microbatches,
        virtual_stages=pipeline.virtual_stages,
        words=_words(scenario),
        what=f"{NUM_STEPS} steps" if pipeline.gradient_delay else "step",
        slots=choose_slots(simulate(scenario, detail="task").timeline),
    )


def _words(scenario: StepScenario) -> str:
    pipeline = scenario.pipeline
    ranks = f"{pipeline.degree} pipeline rank{'s' if pipeline.degree > 1 else ''}"
    stages = f", {pipeline.virtual_stages} virtual stages each" if pipeline.virtual_stages > 1 else ""
    return f"{pipeline.schedule}, {ranks}{stages}, {scenario.job.num_microbatches:,} micro-batches"
