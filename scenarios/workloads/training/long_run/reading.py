"""The ``reliability`` section of a scenario as the specification of a long run."""

from scenarios.workloads.training.long_run.schema import ReliabilitySection
from sim.reliability.errors import ReliabilityError
from sim.reliability.spec import CheckpointSpec, Component, ReliabilitySpec, SpareNodes


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
