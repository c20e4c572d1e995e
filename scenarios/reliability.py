"""The ``reliability`` section of a scenario: into a specification, and from a study into summary.json."""

from collections.abc import Callable
from dataclasses import asdict
from operator import attrgetter
from typing import Any, Final

from scenarios.schema import ReliabilitySection
from sim.reliability.errors import ReliabilityError
from sim.reliability.run import Outcome
from sim.reliability.spec import CheckpointSpec, Component, ReliabilitySpec, SpareNodes
from sim.reliability.study import Study

TIMES: Final = ("useful", "lost", "checkpoint", "restart", "waiting")
"""What the time of a run is divided into; keys of ``time_s``."""


def reliability_spec(
    section: ReliabilitySection, *, num_devices: int, num_nics: int, num_nodes: int
) -> ReliabilitySpec:
    """Return the long run that a section describes, on a machine of so many parts.

    Raises ReliabilityError, naming the key, for rules between keys.
    """
    parts = (
        ("device", num_devices, section.mtbf_per_device, True),
        ("nic", num_nics, section.mtbf_per_nic, True),
        ("node", num_nodes, section.mtbf_per_node, True),
        ("job", 1, section.mtbf_of_job, False),
    )
    checkpoint, spares = section.checkpoint, section.spares
    stall_s = checkpoint.save if checkpoint.stall is None else checkpoint.stall
    if stall_s > checkpoint.save:
        rule = f"training stands still for {stall_s:g} s of a save that takes {checkpoint.save:g} s"
        raise ReliabilityError("reliability.checkpoint.stall", rule, f"write at most {checkpoint.save:g} s")
    return ReliabilitySpec(
        components=tuple(
            Component(name=name, num_units=number, mtbf_s=mtbf_s, takes_node=takes_node)
            for name, number, mtbf_s, takes_node in parts
            if mtbf_s is not None
        ),
        checkpoint=CheckpointSpec(
            stall_s=stall_s,
            background_s=checkpoint.save - stall_s,
            interval_s=None if checkpoint.interval == "auto" else checkpoint.interval,
        ),
        restart_s=section.restart,
        duration_s=section.duration,
        num_steps=section.steps,
        spares=SpareNodes(num_nodes=spares.num_nodes, repair_s=spares.repair) if spares else None,
        num_replications=section.replications,
    )


def summarise_study(spec: ReliabilitySpec, study: Study) -> dict[str, Any]:
    """Return the ``reliability`` object of summary.json; documented in docs/results.md."""
    outcomes, cycle = study.outcomes, study.cycle

    def spread(value: Callable[[Outcome], float]) -> dict[str, float]:
        return asdict(study.spread([value(outcome) for outcome in outcomes]))

    return {
        "mtbf_s": spec.mtbf_s,
        "stall_s": cycle.stall_s,
        "background_s": cycle.background_s,
        "restart_s": spec.restart_s,
        "interval_s": cycle.work_s,
        "interval_steps": cycle.num_steps,
        "best_interval_s": study.best_s,
        "young_interval_s": study.young_s,
        "daly_interval_s": study.daly_s,
        "replications": len(outcomes),
        "goodput": spread(lambda o: o.goodput) | {"standard_error": study.goodput_standard_error},
        "elapsed_s": spread(lambda o: o.elapsed_s),
        "steps": spread(lambda o: o.useful_s / cycle.step_s),
        "interruptions": spread(lambda o: sum(o.interruptions)),
        "interruptions_by_part": {
            part.name: study.spread([o.interruptions[index] for o in outcomes]).mean
            for index, part in enumerate(spec.components)
        },
        "time_s": {name: spread(attrgetter(f"{name}_s")) for name in TIMES},
        "expected": asdict(study.expected) if study.expected else None,
    }
