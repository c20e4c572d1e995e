"""The summary of the study of a long run."""

from collections.abc import Callable
from operator import attrgetter

from msgspec.structs import asdict

from scenarios.summaries.steps.study import TIMES, Goodput, SavingSummary, StudySummary
from sim.reliability.expectation import Spread
from sim.reliability.run import Outcome
from sim.reliability.spec import ReliabilitySpec
from sim.reliability.study import Study


def summarise_study(spec: ReliabilitySpec, study: Study, saving: SavingSummary | None = None) -> StudySummary:
    """Return the summary of a study; ``saving``: the simulated checkpoint, None where times of saves are stated."""
    outcomes, cycle = study.outcomes, study.cycle

    def spread(value: Callable[[Outcome], float]) -> Spread:
        return study.spread([value(outcome) for outcome in outcomes])

    return StudySummary(
        mtbf_s=spec.mtbf_s,
        stall_s=cycle.stall_s,
        background_s=cycle.background_s,
        restart_s=spec.restart_s,
        interval_s=cycle.work_s,
        interval_steps=cycle.num_steps,
        best_interval_s=study.best_s,
        young_interval_s=study.young_s,
        daly_interval_s=study.daly_s,
        replications=len(outcomes),
        goodput=Goodput(**asdict(spread(lambda o: o.goodput)), standard_error=study.goodput_standard_error),
        elapsed_s=spread(lambda o: o.elapsed_s),
        steps=spread(lambda o: o.useful_s / cycle.step_s),
        interruptions=spread(lambda o: sum(o.interruptions)),
        interruptions_by_part={
            part.name: study.spread([o.interruptions[index] for o in outcomes]).mean
            for index, part in enumerate(spec.components)
        },
        time_s={name: spread(attrgetter(f"{name}_s")) for name in TIMES},
        expected=study.expected,
        saving=saving,
    )
