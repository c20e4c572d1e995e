"""Times of a host: copies between its memory and a device's, and kernels on its own cores.

A copy follows the alpha-beta model, like a message. The optimizer on the host's cores is bound by memory: an Adam step
streams through its states once (Ren et al. 2021, ZeRO-Offload, arXiv 2101.06840, section 5).
"""

from costmodels.hardware import HostSpec


def copy_s(num_bytes: float, host: HostSpec) -> float:
    """Return the seconds of a copy alone on its device's link, in one direction, without latency."""
    return num_bytes / (host.device_bandwidth_bytes_per_s * host.device_attained)


def memory_bytes_per_s(host: HostSpec) -> float:
    """Return the rate at which a host's memory is read and written by all of its cores and devices together."""
    return host.memory_bandwidth_bytes_per_s * host.memory_attained
