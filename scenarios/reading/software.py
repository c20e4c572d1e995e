"""The framework of a scenario."""

from costmodels.software import Software
from scenarios.reading.schema.cluster import SoftwareSection


def software_of(section: SoftwareSection) -> Software:
    """Return what the framework adds to the times of the device and the network."""
    return Software(
        launch_s=section.launch,
        native_launch_s=section.native_launch,
        task_launch_s=section.task_launch,
        rank_skew_s=section.rank_skew,
        product_slowdown=section.product_slowdown,
        unaligned_slowdown=section.unaligned_slowdown,
        memory_bound_slowdown=section.memory_bound_slowdown,
        optimizer_slowdown=section.optimizer_slowdown,
        step_spread=section.step_spread,
        fused_softmax=section.fused_softmax,
    )
