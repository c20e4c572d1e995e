"""Work out the parallel degrees of a scenario: ``auto`` ones, and whether all of them fill the cluster."""

from math import prod

from scenarios.errors import ScenarioError
from scenarios.reading.documents.yaml_tree import Document
from scenarios.reading.schema.parallel import ParallelSection, TensorSection
from scenarios.reading.schema.values import MAX_WORLD_SIZE
from scenarios.reading.sections.section import written_keys

AXES = ("tensor", "context", "pipeline", "data")
_OPTIONAL = frozenset({"context"})
"""Axes that messages name only where they are used."""


def resolve_degrees(
    document: Document, section: ParallelSection, num_nodes: int, devices_per_node: int
) -> dict[str, int]:
    """Return the degree of every axis; ``auto`` becomes the world size over the other degrees.

    Raises ScenarioError where two degrees are ``auto`` or the product is not the world size.
    """
    world_size = num_nodes * devices_per_node
    given = {axis: getattr(section, axis).degree for axis in AXES} | {
        "tensor": _tensor_degree(document, section.tensor)
    }
    fixed = {axis: degree for axis, degree in given.items() if degree != "auto"}
    open_axes = [axis for axis in AXES if axis not in fixed]
    if len(open_axes) > 1:
        key = f"parallel.{open_axes[-1]}.degree"
        rule = f"only one degree may be auto, here are {len(open_axes)}: {', '.join(open_axes)}"
        raise ScenarioError(document.origin(key.split(".")), key, rule, "write numbers for the others")
    product = prod(fixed.values())
    nodes, devices = (
        f"{num_nodes} node{'s' * (num_nodes > 1)}",
        f"{devices_per_node} device{'s' * (devices_per_node > 1)}",
    )
    machine = f"{nodes} x {devices} = {world_size}"
    if not open_axes and product == world_size:
        return fixed
    if open_axes and world_size % product == 0:
        return {axis: fixed.get(axis, world_size // product) for axis in AXES}
    named = {axis: degree for axis, degree in fixed.items() if degree > 1 or axis not in _OPTIONAL}
    worked_out = f"{' x '.join(f'{axis} {degree}' for axis, degree in named.items())} = {product}"
    verb = "does not divide" if open_axes else "but"
    axis, remedy = _remedy(fixed, num_nodes, devices_per_node)
    key = f"parallel.{axis}.degree"
    rule = f"{worked_out}{' ' if open_axes else ', '}{verb} {machine}"
    raise ScenarioError(document.origin(key.split(".")), key, rule, remedy)


def _tensor_degree(document: Document, section: TensorSection) -> int | str:
    """Return the degree of tensor parallelism: that of its mesh, if there is one.

    Raises ScenarioError for a stated degree that is another.
    """
    num_ranks = prod(section.mesh)
    if not section.mesh:
        return section.degree
    if "degree" in written_keys(section) and section.degree not in {num_ranks, "auto"}:
        key = "parallel.tensor.degree"
        rule = f"{section.degree} is not the number of ranks of mesh {list(section.mesh)}, which is {num_ranks}"
        raise ScenarioError(document.origin(key.split(".")), key, rule, f"leave it out, or write degree: {num_ranks}")
    return num_ranks


def _remedy(fixed: dict[str, int], num_nodes: int, devices_per_node: int) -> tuple[str, str]:
    """Return the axis to change and how: the first single change that fills the cluster."""
    world_size, product = num_nodes * devices_per_node, prod(fixed.values())
    for axis in ("data", "pipeline", "tensor"):
        others = product // fixed[axis] if axis in fixed else 0
        if others and len(fixed) == len(AXES) and world_size % others == 0:
            return axis, f"write {axis}.degree: {world_size // others} or auto{_more_nodes(product, devices_per_node)}"
    first = next(axis for axis in reversed(AXES) if axis in fixed)
    return first, f"choose degrees whose product is {world_size}{_more_nodes(product, devices_per_node)}"


def _more_nodes(product: int, devices_per_node: int) -> str:
    """Return the number of nodes that would fit the degrees, as one more remedy, if there is one."""
    fits = product % devices_per_node == 0 and product <= MAX_WORLD_SIZE
    return f", or num_nodes: {product // devices_per_node}" if fits else ""
