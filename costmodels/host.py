"""Times of a host: copies between its memory and a device's, and kernels on its own cores.

A copy follows the alpha-beta model, like a message. The optimizer on the host's cores is bound by memory: an Adam step
streams through its states once (Ren et al. 2021, ZeRO-Offload, arXiv 2101.06840, section 5). The ranks of a node have
equal shares of its memory bandwidth, as if a launcher binds the cores to them evenly.
"""

from costmodels.hardware import HostSpec


def copy_s(num_bytes: float, host: HostSpec) -> float:
    """Return the seconds of a copy alone on its device's link, in one direction, without latency."""
    return num_bytes / (host.device_bandwidth_bytes_per_s * host.device_attained)


def streaming_s(num_bytes: float, host: HostSpec, num_ranks: int) -> float:
    """Return the seconds for a rank to read or write bytes of host memory; ``num_ranks`` share it evenly."""
    return num_bytes * num_ranks / (host.memory_bandwidth_bytes_per_s * host.memory_attained)
