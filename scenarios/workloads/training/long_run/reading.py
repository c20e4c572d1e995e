"""The ``reliability`` section of a scenario as the specification of a long run."""

from typing import Any

from scenarios.workloads.training.long_run.schema import CheckpointSection, ReliabilitySection
from sim.reliability.errors import ReliabilityError
from sim.reliability.spec import CheckpointSpec, Component, OpenReliability, ReliabilitySpec, SpareNodes

_KEY = "reliability.checkpoint"


def reliability_spec(
    section: ReliabilitySection, *, num_devices: int, num_nics: int, num_nodes: int, has_drives: bool
) -> ReliabilitySpec | OpenReliability:
    """Return the long run that a section describes, on a machine of so many parts.

    ``has_drives``: nodes have drives that checkpoints can go to. Raises ReliabilityError, naming the key, for rules
    between keys.
    """
    parts = (
        ("device", num_devices, section.mtbf_per_device, True),
        ("nic", num_nics, section.mtbf_per_nic, True),
        ("node", num_nodes, section.mtbf_per_node, True),
        ("job", 1, section.mtbf_of_job, False),
    )
    checkpoint, spares = section.checkpoint, section.spares
    run: dict[str, Any] = {
        "components": tuple(
            Component(name=name, num_units=number, mtbf_s=mtbf_s, takes_node=takes_node)
            for name, number, mtbf_s, takes_node in parts
            if mtbf_s is not None
        ),
        "restart_s": section.restart,
        "duration_s": section.duration,
        "num_steps": section.steps,
        "spares": SpareNodes(num_nodes=spares.num_nodes, repair_s=spares.repair) if spares else None,
        "num_replications": section.replications,
    }
    interval_s = None if checkpoint.interval == "auto" else checkpoint.interval
    if checkpoint.save is not None:
        return ReliabilitySpec(checkpoint=_stated(checkpoint, checkpoint.save, interval_s), **run)
    if checkpoint.over_steps is None:
        raise ReliabilityError(_KEY, "nothing says how long a save takes", "write save: 10 s, or over_steps: auto")
    if checkpoint.stall is not None:
        rule, remedy = "the simulation says how long training stands still", "leave it out, or write save"
        raise ReliabilityError(f"{_KEY}.stall", rule, remedy)
    if not has_drives:
        rule, remedy = (
            "no drives are stated that the state could go to",
            "write drives: {capacity: 11 TB, ...} beside it",
        )
        raise ReliabilityError(f"{_KEY}.over_steps", rule, remedy)
    over_steps = None if checkpoint.over_steps == "auto" else checkpoint.over_steps
    return OpenReliability(interval_s=interval_s, over_steps=over_steps, **run)


def _stated(section: CheckpointSection, save_s: float, interval_s: float | None) -> CheckpointSpec:
    """Return checkpoints that take a stated time."""
    if section.over_steps is not None or section.drives is not None:
        key = "over_steps" if section.over_steps is not None else "drives"
        rule, remedy = "save states how long a save takes, and it is not simulated", f"leave save or {key} out"
        raise ReliabilityError(f"{_KEY}.{key}", rule, remedy)
    stall_s = save_s if section.stall is None else section.stall
    if stall_s > save_s:
        rule = f"training stands still for {stall_s:g} s of a save that takes {save_s:g} s"
        raise ReliabilityError(f"{_KEY}.stall", rule, f"write at most {save_s:g} s")
    return CheckpointSpec(stall_s=stall_s, background_s=save_s - stall_s, interval_s=interval_s)
