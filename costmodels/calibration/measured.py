"""Measured rates of a machine without a data sheet, in place of the catalogue's figures."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from costmodels.errors import CatalogueError
from costmodels.hardware import NodeSpec
from costmodels.units import Dimension, parse_quantity

_FASTEST: Final = 1e21
"""Largest accepted rate, in FLOP or bytes per second."""
_SLOWEST_S: Final = 3_600.0


class MeasuredNode(Struct, frozen=True, kw_only=True):
    """Rates of one device and of the link between two devices of a node; the profile's fractions refer to these rates.

    ``peak_flop_per_s``: by dtype; dtypes without a measurement keep the catalogue's rate.
    """

    peak_flop_per_s: Mapping[str, float]
    memory_bandwidth_bytes_per_s: float
    intra_bandwidth_bytes_per_s: float
    intra_latency_s: float

    def applied_to(self, node: NodeSpec) -> NodeSpec:
        """Return the node with these rates."""
        device = replace(
            node.device,
            peak_flop_per_s={**node.device.peak_flop_per_s, **self.peak_flop_per_s},
            memory_bandwidth_bytes_per_s=self.memory_bandwidth_bytes_per_s,
        )
        intra = replace(
            node.intra, bandwidth_bytes_per_s=self.intra_bandwidth_bytes_per_s, latency_s=self.intra_latency_s
        )
        return replace(node, device=device, intra=intra)


def catalogue_rates(node: NodeSpec) -> MeasuredNode:
    """Return the catalogue's own figures of a node."""
    return MeasuredNode(
        peak_flop_per_s=dict(node.device.peak_flop_per_s),
        memory_bandwidth_bytes_per_s=node.device.memory_bandwidth_bytes_per_s,
        intra_bandwidth_bytes_per_s=node.intra.bandwidth_bytes_per_s,
        intra_latency_s=node.intra.latency_s,
    )


def parse_measured(entry: Mapping[str, Any]) -> MeasuredNode:
    """Return the rates of a profile's ``measured`` section.

    Raises CatalogueError for a missing key or a bad value, UnitError for a value without its unit.
    """
    missing = [key for key in ("peak", "memory_bandwidth", "intra_bandwidth", "intra_latency") if key not in entry]
    if missing or not isinstance(entry["peak"], Mapping):
        raise CatalogueError(f"the section 'measured' needs {missing[0] if missing else 'a mapping'!r}")
    rates = {str(dtype): parse_quantity(rate, Dimension.FLOP_RATE) for dtype, rate in entry["peak"].items()}
    node = MeasuredNode(
        peak_flop_per_s=rates,
        memory_bandwidth_bytes_per_s=parse_quantity(entry["memory_bandwidth"], Dimension.BANDWIDTH),
        intra_bandwidth_bytes_per_s=parse_quantity(entry["intra_bandwidth"], Dimension.BANDWIDTH),
        intra_latency_s=parse_quantity(entry["intra_latency"], Dimension.TIME),
    )
    every = (*rates.values(), node.memory_bandwidth_bytes_per_s, node.intra_bandwidth_bytes_per_s)
    if not all(0 < rate <= _FASTEST for rate in every):
        raise CatalogueError(f"every rate of the section 'measured' must be more than 0 and at most {_FASTEST:g}")
    if node.intra_latency_s > _SLOWEST_S:
        raise CatalogueError(f"the latency of the section 'measured' must be at most {_SLOWEST_S:g} s")
    return node
