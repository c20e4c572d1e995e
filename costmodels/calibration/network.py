"""Fit the network part of a profile to collectives and messages. The predictions are the simulator's own."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from costmodels.calibration.fitting import CalibrationError, Parameter, fit, values_of
from costmodels.calibration.kernels import Fitted
from costmodels.calibration.samples import CollectiveSample
from costmodels.collectives.cost import collective_cost, exclusive_seconds, point_to_point_cost
from costmodels.collectives.network import COLLNET, NetworkParameters, Protocol
from costmodels.collectives.traffic import TRAFFIC
from costmodels.hardware import NodeSpec
from costmodels.profile import Profile, network_parameters

MESSAGE: Final = "send_recv"
_BANDWIDTH, _LATENCY = "measured.intra_bandwidth", "measured.intra_latency"
_LEAST_S, _MOST_S = 1e-9, 0.1
_LEAST_OF_KIND: Final = 3
"""Fewest measurements for a protocol per kind of collective: one more than its parameters."""


def predict_collectives(samples: Sequence[CollectiveSample], node: NodeSpec, profile: Profile) -> list[float]:
    """Return the simulator's seconds for each collective or message alone on its links."""
    network = network_parameters(node, profile)
    return [_alone_s(sample, network) for sample in samples]


def _alone_s(sample: CollectiveSample, network: NetworkParameters) -> float:
    group = sample.ranks_per_node
    if sample.kind != MESSAGE:
        cost = collective_cost(sample.kind, sample.num_bytes, group, network)
        return exclusive_seconds(cost, group, network)
    cost = point_to_point_cost(sample.num_bytes, same_node=len(group) == 1, network=network)
    ports_s = cost.port_bytes / network.intra_bandwidth_bytes_per_s
    return cost.latency_s + ports_s + cost.nic_bytes / network.inter_bandwidth_bytes_per_s


def fit_network(samples: Sequence[CollectiveSample], start: Fitted, *, fit_rates: bool) -> Fitted:
    """Return ``start`` with its network section fitted.

    ``fit_rates``: bandwidth and latency of the link between two devices are unknown too. The fraction is then 1, each
        kind of collective with enough measurements has a protocol of its own, and the processor share that a collective
        takes from its ranks is known. Parameters without relevant samples stay: nothing between nodes is fitted without
        a sample of several nodes.

    Raises CalibrationError for too few samples.
    """
    if fit_rates:
        start = _with_kinds(samples, start)
    parameters = _parameters(samples, start, fit_rates=fit_rates)

    def predict(values: Mapping[str, float]) -> list[float]:
        trial = _fitted(values, start)
        return predict_collectives(samples, trial.node, trial.profile)

    try:
        found = fit(parameters, predict, [s.seconds for s in samples], by_length=fit_rates)
    except CalibrationError as error:
        raise CalibrationError(f"network: {error}") from None
    return _fitted(values_of(found), start).with_section("network", found)


def _with_kinds(samples: Sequence[CollectiveSample], start: Fitted) -> Fitted:
    """Return ``start`` with a protocol per kind of collective, and the mean processor share over all seconds.

    Kinds with fewer than _LEAST_OF_KIND measurements share the protocol of all_gather, which reduces nothing, or the
    first.
    """
    collectives = [s for s in samples if s.kind != MESSAGE]
    kinds = sorted(kind for kind, number in Counter(s.kind for s in collectives).items() if number >= _LEAST_OF_KIND)
    if not kinds:
        return start
    template, usual = start.profile.network.protocols[0], "all_gather" if "all_gather" in kinds else kinds[0]
    others = tuple(sorted(set(TRAFFIC) - set(kinds)))
    protocols = tuple(
        replace(template, name=kind, kinds=(kind, *others) if kind == usual else (kind,)) for kind in kinds
    )
    known = [(s.compute_share, s.seconds) for s in collectives if s.compute_share is not None]
    taken_s = sum(share * seconds for share, seconds in known)
    share = min(taken_s / sum(seconds for _, seconds in known), 1.0) if known else 0.0
    network = replace(start.profile.network, protocols=protocols, compute_share=share)
    return replace(start, profile=replace(start.profile, network=network))


def _parameters(samples: Sequence[CollectiveSample], start: Fitted, *, fit_rates: bool) -> list[Parameter]:
    network, found = start.profile.network, []
    collectives = [s for s in samples if s.kind != MESSAGE]
    inside = [s for s in samples if len(s.ranks_per_node) == 1]
    if len(collectives) < len(samples):
        found.append(_time("network.point_to_point_latency", network.point_to_point_latency_s))
    if inside and fit_rates:
        best = max(s.num_bytes / s.seconds for s in inside)
        found.append(Parameter(_BANDWIDTH, best, best / 10, best * 20))
        found.append(_time(_LATENCY, start.node.intra.latency_s))
    elif inside:
        found.append(Parameter("network.intra_fraction", network.intra_fraction, 0.01, 1.0))
    if len(inside) < len(samples):
        found.append(Parameter("network.inter_fraction", network.inter_fraction, 0.01, 1.0))
    for protocol in network.protocols if collectives else ():
        if COLLNET.issuperset(protocol.algorithms):  # no sample states whether switches reduced
            continue
        found.append(_time(_of(protocol, "base_latency"), protocol.base_latency_s))
        if fit_rates:
            found.append(Parameter(_of(protocol, "wire_overhead"), protocol.wire_overhead, 1.0, 30.0))
        elif inside:
            found.append(_time(_of(protocol, "intra_hop"), protocol.intra_hop_s))
        if any(len(s.ranks_per_node) > 1 for s in collectives):
            found.append(_time(_of(protocol, "inter_hop"), protocol.inter_hop_s))
    return found


def _fitted(values: Mapping[str, float], start: Fitted) -> Fitted:
    """Return ``start`` with the values; a fitted link includes the protocols' own hops inside a node."""
    network, node, fits_link = start.profile.network, start.node, _BANDWIDTH in values
    protocols = tuple(
        replace(
            protocol,
            base_latency_s=values.get(_of(protocol, "base_latency"), protocol.base_latency_s),
            wire_overhead=values.get(_of(protocol, "wire_overhead"), protocol.wire_overhead),
            intra_hop_s=0.0 if fits_link else values.get(_of(protocol, "intra_hop"), protocol.intra_hop_s),
            inter_hop_s=values.get(_of(protocol, "inter_hop"), protocol.inter_hop_s),
        )
        for protocol in network.protocols
    )
    found = replace(
        network,
        intra_fraction=1.0 if fits_link else values.get("network.intra_fraction", network.intra_fraction),
        inter_fraction=values.get("network.inter_fraction", network.inter_fraction),
        point_to_point_latency_s=values.get("network.point_to_point_latency", network.point_to_point_latency_s),
        protocols=protocols,
    )
    if fits_link:
        intra = replace(node.intra, bandwidth_bytes_per_s=values[_BANDWIDTH], latency_s=values[_LATENCY])
        node = replace(node, intra=intra)
    return replace(start, node=node, profile=replace(start.profile, network=found))


def _of(protocol: Protocol, parameter: str) -> str:
    """Return the path of a protocol's parameter."""
    return f"network.protocols.{protocol.name}.{parameter}"


def _time(name: str, start_s: float) -> Parameter:
    return Parameter(name, max(start_s, 1e-7), _LEAST_S, _MOST_S)
