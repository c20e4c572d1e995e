"""Prices of a scenario's cluster."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from msgspec.structs import replace

from costmodels.errors import AlgorithmError
from costmodels.hardware import load_node
from costmodels.profile import Profile, load_profile
from costmodels.software import Software
from scenarios.errors import ScenarioError
from scenarios.reading.clusters.machine import ClusterSpec
from scenarios.reading.documents.yaml_tree import Document
from sim.cluster.cluster import Cluster
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.prices.variation import Variation


def cluster_pricing(
    spec: ClusterSpec, algorithms: Mapping[str, str], seed: int, software: Software, *, sustained: bool = True
) -> ClusterPricing:
    """Return the prices of ops on a cluster, with the algorithms that the scenario forces.

    ``sustained``: at the clock that devices sustain under a long load; else at that of the profiles' measurements.
    """
    cluster = cluster_of(spec)
    device = cluster.node.device
    profile = load_profile(device.profile) if spec.calibrated is None else spec.calibrated.profile
    profiles = {device.generation: load_profile(device.profile) for device in cluster.device_types}
    profiles[device.generation] = profile
    if not sustained:
        profile = _in_bursts(profile)
        profiles = {generation: _in_bursts(of_device) for generation, of_device in profiles.items()}
    return ClusterPricing(cluster, profile, profiles, algorithms, Variation(dict(spec.jitter), seed), software)


def _in_bursts(profile: Profile) -> Profile:
    return replace(profile, sustained=replace(profile.sustained, clock_fraction=1.0))


def cluster_of(spec: ClusterSpec) -> Cluster:
    """Return the simulated hardware of a scenario."""
    devices = tuple((load_node(name).device, count) for name, count in spec.node_types)
    return Cluster(spec.node_spec, spec.num_nodes, spec.devices_per_node, spec.wiring, devices)


@contextmanager
def locating_algorithms(document: Document, algorithms: Mapping[str, str]) -> Iterator[None]:
    """Give an algorithm that cannot serve a group of the plan the origin of the key that names it."""
    try:
        yield
    except AlgorithmError as error:
        if error.kind not in algorithms:
            raise
        key = f"network.algorithm.{error.kind}"
        remedy = "write auto, or an algorithm that serves all groups that do so"
        raise ScenarioError(document.origin(key.split(".")), key, str(error), remedy) from error
