"""Prices of a scenario's cluster."""

from collections.abc import Mapping

from costmodels.hardware import load_node
from costmodels.profile import load_profile
from costmodels.software import Software
from scenarios.reading.machine import ClusterSpec
from sim.cluster.cluster import Cluster
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.prices.variation import Variation


def cluster_pricing(spec: ClusterSpec, algorithms: Mapping[str, str], seed: int, software: Software) -> ClusterPricing:
    """Return what ops demand on a cluster, with the algorithms that are not left to the library."""
    cluster = cluster_of(spec)
    generation = cluster.node.device.generation
    profile = load_profile(generation) if spec.calibrated is None else spec.calibrated.profile
    profiles = {device.generation: load_profile(device.generation) for device in cluster.device_types}
    profiles[generation] = profile
    return ClusterPricing(cluster, profile, profiles, algorithms, Variation(dict(spec.jitter), seed), software)


def cluster_of(spec: ClusterSpec) -> Cluster:
    """Return the simulated hardware of a scenario."""
    devices = tuple((load_node(name).device, count) for name, count in spec.node_types)
    return Cluster(spec.node_spec, spec.num_nodes, spec.devices_per_node, spec.wiring, devices)
