"""Mesh, layouts and clusters, against numpy's reshape."""

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.hardware import load_node
from sim.cluster.cluster import Cluster
from sim.cluster.errors import PlacementError
from sim.plan.errors import LayoutError, PlanError
from sim.plan.words.layout import PARTIAL, REPLICATED, Layout, Partial, Shard, sharded
from sim.plan.words.mesh import Mesh
from tests.sim.jobs import dense_plan

NAMES = ("pp", "dp", "tp", "cp")


@st.composite
def meshes(draw: st.DrawFn) -> Mesh:
    """Draw a mesh of one to four axes, some neighbours of which may lie in blocks."""
    names = draw(st.permutations(NAMES))[: draw(st.integers(1, 4))]
    axes = tuple((name, draw(st.integers(1, 4))) for name in names)
    first, last = sorted(draw(st.tuples(st.integers(0, len(axes)), st.integers(0, len(axes)))))
    sides = (
        (name, draw(st.sampled_from([n for n in (1, 2, 3) if degree % n == 0]))) for name, degree in axes[first:last]
    )
    return Mesh(axes, tuple(sides))


def grid(mesh: Mesh) -> np.ndarray:
    """Return the ranks as an array with one dimension per axis: blocks first laid out apart, then put together."""
    degrees, names = [degree for _, degree in mesh.axes], [name for name, _ in mesh.axes]
    if not mesh.blocks:
        return np.arange(mesh.size).reshape(degrees)
    first, count = names.index(mesh.blocks[0][0]), len(mesh.blocks)
    sides = [side for _, side in mesh.blocks]
    over = [degree // side for degree, side in zip(degrees[first:], sides, strict=False)]
    apart = np.arange(mesh.size).reshape([*degrees[:first], *over, *sides, *degrees[first + count :]])
    pairs = [place for i in range(count) for place in (first + i, first + count + i)]
    order = [*range(first), *pairs, *range(first + 2 * count, apart.ndim)]
    return apart.transpose(order).reshape(degrees)


@given(mesh=meshes())
def test_coordinates_are_those_of_a_reshaped_range(mesh: Mesh) -> None:
    """The last axis varies fastest; rank and coordinates are each other's inverse."""
    array = grid(mesh)
    for place in np.ndindex(array.shape):
        rank = int(array[place])
        coordinates = dict(zip((name for name, _ in mesh.axes), place, strict=True))
        assert mesh.coordinates(rank) == coordinates
        assert mesh.rank(coordinates) == rank
        assert all(mesh.coordinate(rank, name) == coordinates.get(name, 0) for name in NAMES)


@given(mesh=meshes(), names=st.permutations(NAMES), count=st.integers(0, 4), data=st.data())
def test_groups_are_slices_of_the_grid_in_the_order_of_their_axes(
    mesh: Mesh, names: list[str], count: int, data: st.DataObject
) -> None:
    """A group is the slice at the rank's other coordinates, its axes transposed into the order asked for."""
    wanted = tuple(names[:count])
    rank = data.draw(st.integers(0, mesh.size - 1))
    axes = [name for name, _ in mesh.axes]
    here = [slice(None) if name in wanted else mesh.coordinate(rank, name) for name in axes]
    kept = [name for name in axes if name in wanted]
    order = [kept.index(name) for name in wanted if name in kept]
    members = np.transpose(grid(mesh)[tuple(here)], order).ravel().tolist()
    assert list(mesh.group(rank, wanted)) == members
    assert mesh.group(rank, wanted)[mesh.index(rank, wanted)] == rank
    assert mesh.degree(*wanted) == len(members)


@given(mesh=meshes(), name=st.sampled_from(NAMES), offset=st.integers(-5, 5), data=st.data())
def test_shift_rolls_the_grid(mesh: Mesh, name: str, offset: int, data: st.DataObject) -> None:
    """A neighbour along an axis is the rank found by rolling the grid, wrapping around."""
    rank = data.draw(st.integers(0, mesh.size - 1))
    axes = [axis for axis, _ in mesh.axes]
    expected = rank
    if name in axes:
        rolled = np.roll(grid(mesh), -offset, axis=axes.index(name))
        expected = int(rolled[tuple(mesh.coordinates(rank).values())])
    assert mesh.shift(rank, name, offset) == expected
    assert mesh.shift(expected, name, -offset) == rank


def test_bad_meshes_are_refused() -> None:
    """Axis names are distinct and degrees at least one."""
    with pytest.raises(PlanError, match=r"distinct names, got \['tp', 'tp'\]"):
        Mesh((("tp", 2), ("tp", 2)))
    with pytest.raises(PlanError, match="'dp' must have degree 1 or more, got 0"):
        Mesh((("dp", 0),))
    with pytest.raises(PlanError, match="'dp' of degree 4 has no blocks of 3"):
        Mesh((("dp", 4), ("tp", 2)), (("dp", 3),))
    for names in (("dp", "tp"), ("pp", "dp"), ("ep",)):
        with pytest.raises(PlanError, match="blocks must be of neighbouring mesh axes in their order"):
            Mesh((("dp", 4), ("pp", 2), ("tp", 2)), tuple((name, 2) for name in names))


@given(mesh=meshes(), data=st.data())
def test_local_shapes_tile_the_global_tensor(mesh: Mesh, data: st.DataObject) -> None:
    """Slices over all sharding axes add up to the whole; replicated and partial axes do not cut."""
    placements = data.draw(
        st.lists(st.sampled_from([Shard(0), Shard(1), PARTIAL]), max_size=len(mesh.axes)).map(
            lambda drawn: tuple((name, p) for (name, _), p in zip(mesh.axes, drawn, strict=False))
        )
    )
    layout = Layout(placements)
    cuts = [prod(mesh.degree(a) for a, p in placements if p == Shard(dim)) for dim in (0, 1)]
    shape = (cuts[0] * data.draw(st.integers(1, 3)), cuts[1] * data.draw(st.integers(1, 3)))
    local = layout.local_shape(shape, mesh)
    assert [n * cut for n, cut in zip(local, cuts, strict=True)] == list(shape)
    if cuts[0] > 1:
        with pytest.raises(LayoutError, match="does not divide by"):
            layout.local_shape((shape[0] + 1, shape[1]), mesh)


def test_layouts_name_what_lies_where() -> None:
    """Axes that shard one dimension keep their order; replacing, removing and adding an axis do what they say."""
    layout = sharded(0, ("dp", "tp")).with_("cp", PARTIAL)
    assert layout.shard_axes(0) == ("dp", "tp")
    assert layout.partial_axes == ("cp",)
    assert layout.with_("dp", Shard(1)).placements == (("dp", Shard(1)), ("tp", Shard(0)), ("cp", Partial()))
    assert layout.with_("dp", None) == layout.without("dp")
    assert layout.without("dp", "tp", "cp") == REPLICATED
    assert layout.get("pp") is None


def test_programs_cover_every_rank_once() -> None:
    """Every rank runs the program of its pipeline coordinate, whatever the axis order."""
    for axis_order in (("pp", "dp", "tp"), ("dp", "tp", "pp"), ("tp", "pp", "dp")):
        plan = dense_plan(tp=2, pp=2, dp=3, axis_order=axis_order, m=2)
        assert sorted(r for program in plan.programs for r in plan.ranks_of(program)) == list(range(12))
        for rank in range(12):
            assert plan.program_of(rank).role == {"pp": plan.mesh.coordinate(rank, "pp")}
            assert rank in plan.ranks_of(plan.program_of(rank))


@pytest.mark.parametrize(
    ("node", "adapters"),
    [
        ("dgx-a100-80g", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("cloud-a100-100g", [0] * 8),
        ("dgx-1-v100-16g", [0, 0, 1, 1, 2, 2, 3, 3]),
    ],
)
def test_ranks_lie_on_nodes_in_order_and_near_adapters(node: str, adapters: list[int]) -> None:
    """Nodes fill in order; what leaves a device's node goes over its share of the adapters."""
    cluster = Cluster(load_node(node), 3, 8)
    topology = cluster.topology
    assert cluster.num_devices == 24
    assert topology.node_of(cluster.devices[[0, 7, 8, 23]]).tolist() == [0, 0, 1, 2]
    out = topology.routes(cluster.devices[8:16], cluster.devices[:8])
    names = [topology.name_of(int(link)) for route in range(8) for link in out[route]]
    assert [name for name in names if name.endswith(" out")] == [f"node 1 nic {adapter} out" for adapter in adapters]


def test_fewer_devices_than_a_node_has_are_its_first_ones() -> None:
    """With four devices of eight in use, rank 5 lies on the second device of the second node."""
    cluster = Cluster(load_node("dgx-a100-80g"), 2, 4)
    assert cluster.devices.tolist() == [0, 1, 2, 3, 8, 9, 10, 11]


def test_more_ranks_than_devices_are_refused() -> None:
    """The error works both sides out."""
    cluster = Cluster(load_node("dgx-a100-80g"), 2, 4)
    cluster.check_fits(8)
    with pytest.raises(PlacementError, match="9 ranks need as many devices, and 2 x 4 = 8 are there"):
        cluster.check_fits(9)
