"""Parse the description of a network between nodes."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from sim.cluster.topology.build import FabricOf
from sim.cluster.topology.errors import TopologyError, quoted
from sim.cluster.topology.fabrics.clos import ClosSpec, build_clos
from sim.cluster.topology.fabrics.dragonfly import DragonflySpec, build_dragonfly
from sim.cluster.topology.fabrics.fabric import Fabric, Ports
from sim.cluster.topology.fabrics.torus import TorusSpec, build_torus
from sim.cluster.topology.links import Cable
from sim.cluster.topology.reading import MOST, Section

_REDUCES: Final = "in_network_reduction"
_LEVELS: Final = ("oversubscription", "uplink", "core_oversubscription", "core_link", "cores_per_spine")


def fabric_of(description: object) -> FabricOf:
    """Return the builder of the network. Keys are checked here; whether the ports fit is checked when it is built."""
    kind = Section.of(description, "fabric", fabric_keys()).word("kind", tuple(_FABRICS))
    keys, read = _FABRICS[kind]
    return read(Section.of(description, "fabric", ("kind", *keys)))


def fabric_keys() -> tuple[str, ...]:
    """Return the keys of networks of all kinds."""
    return ("kind", *dict.fromkeys(key for keys, _ in _FABRICS.values() for key in keys))


def _indirect(make: Callable[[Ports], Fabric], ports: Ports, direct: bool) -> Fabric:
    if direct:
        raise TopologyError("nodes.nics", "only a torus joins devices without adapters", "write nics: 1 or more")
    return make(ports)


def _clos(spec: ClosSpec) -> FabricOf:
    def make(ports: Ports) -> Fabric:
        return build_clos(spec, ports)

    return partial(_indirect, make)


def _switch(section: Section) -> FabricOf:
    return _clos(ClosSpec(reduces=section.flag(_REDUCES)))


def _leaf_spine(section: Section) -> FabricOf:
    uplink, over = _level(section, "uplink", "oversubscription")
    spines, leaf_ports = section.count("spines"), section.count("leaf_ports")
    return _clos(
        ClosSpec(
            leaf_ports=leaf_ports,
            spines=spines,
            uplink=uplink,
            oversubscription=over,
            reduces=section.flag(_REDUCES),
        )
    )


def _fat_tree(section: Section) -> FabricOf:
    uplink, over = _level(section, "uplink", "oversubscription")
    core_link, core_over = _level(section, "core_link", "core_oversubscription")
    sizes = ("leaf_ports", "leaves_per_pod", "spines_per_pod", "cores_per_spine")
    radix = section.count("radix", 0, least=0)
    if radix % 2:
        raise TopologyError(section.key("radix"), f"half of {radix} ports cannot go up", "write an even number")
    half = radix // 2 if radix else None
    leaf_ports, leaves_per_pod, spines, cores = (section.count(size, half) for size in sizes)
    return _clos(
        ClosSpec(
            leaf_ports=leaf_ports,
            leaves_per_pod=leaves_per_pod,
            spines=spines,
            cores_per_spine=cores,
            uplink=uplink,
            oversubscription=over,
            core_link=core_link,
            core_oversubscription=core_over,
            most_pods=radix,
            reduces=section.flag(_REDUCES),
        )
    )


def _rail_optimised(section: Section) -> FabricOf:
    uplink, over = _level(section, "uplink", "oversubscription")
    core_link, core_over = _level(section, "core_link", "core_oversubscription")
    cross = section.word("cross_rail", ("nvlink", "spine"), "nvlink")
    spines = section.count("spines", 0, least=0)
    if cross == "spine" and not spines:
        raise TopologyError(section.key("cross_rail"), "there are no spines", "write spines: 1 or more")
    return _clos(
        ClosSpec(
            leaf_ports=section.count("nodes_per_leaf", 0),
            nodes_per_pod=section.count("nodes_per_pod", 0),
            spines=spines,
            cores_per_spine=section.count("cores_per_spine", 0),
            uplink=uplink,
            oversubscription=over,
            core_link=core_link,
            core_oversubscription=core_over,
            rails=True,
            cross_rail="spine" if cross == "spine" else "nvlink",
            reduces=section.flag(_REDUCES),
        )
    )


def _level(section: Section, link: str, oversubscription: str) -> tuple[Cable | None, float]:
    """Return the links up from a level and the level's oversubscription; only one of the two may fix the bandwidth."""
    cable = section.cable(link, sized=False)
    if cable and cable.bandwidth_bytes_per_s and oversubscription in section:
        rule = f"{link}.bandwidth already says how much goes up"
        raise TopologyError(section.key(oversubscription), rule, "keep one of the two")
    return cable, section.factor(oversubscription, 1.0)


def _torus(section: Section) -> FabricOf:
    shape: Any = section.get("shape")
    if not (isinstance(shape, list) and 1 <= len(shape) <= 8 and all(type(k) is int and 1 <= k <= MOST for k in shape)):
        rule = f"{quoted(shape)} is not a list of 1 to 8 sizes"
        raise TopologyError(section.key("shape"), rule, "write the routers of each dimension, as in [8, 8, 4]")
    spec = TorusSpec(shape=tuple(shape), link=section.needed_cable("link"))

    def make(ports: Ports, direct: bool) -> Fabric:
        return build_torus(spec, ports, direct=direct)

    return make


def _dragonfly(section: Section) -> FabricOf:
    spec = DragonflySpec(
        routers_per_group=section.count("routers_per_group"),
        ports_per_router=section.count("ports_per_router"),
        global_links_per_router=section.count("global_links_per_router"),
        local_link=section.needed_cable("local_link"),
        global_link=section.needed_cable("global_link"),
    )

    def make(ports: Ports) -> Fabric:
        return build_dragonfly(spec, ports)

    return partial(_indirect, make)


_FABRICS: Final[Mapping[str, tuple[tuple[str, ...], Callable[[Section], FabricOf]]]] = MappingProxyType(
    {
        "switch": ((_REDUCES,), _switch),
        "leaf-spine": (("leaf_ports", "spines", "oversubscription", "uplink", _REDUCES), _leaf_spine),
        "fat-tree": (
            ("radix", "leaf_ports", "leaves_per_pod", "spines_per_pod", *_LEVELS, _REDUCES),
            _fat_tree,
        ),
        "rail-optimised": (
            ("nodes_per_leaf", "nodes_per_pod", "spines", "cross_rail", *_LEVELS, _REDUCES),
            _rail_optimised,
        ),
        "torus": (("shape", "link"), _torus),
        "dragonfly": (
            ("routers_per_group", "ports_per_router", "global_links_per_router", "local_link", "global_link"),
            _dragonfly,
        ),
    }
)
"""Every kind of network: its keys, and the function that reads them."""
