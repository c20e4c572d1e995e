"""The use of every link: the bytes that it carries in a step, and their times.

A link is busy by the seconds of exclusive use that the transfers over it demand; at 100 % of the step nothing more
fits. Links that carry the same at the same time are one row, so a folded run has few of them. Links that folding left
out, because they can never be full, are looked up group by group: ranks that cannot differ may use them unequally.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.digest import blake2b
from sim.cluster.link_use import LinkUse as NetworkUse
from sim.cluster.topology.topology import Topology
from sim.engine.findings.transfers import Transfers, transfers
from sim.engine.folding.folding import NEVER_BINDS
from sim.engine.prices.numbering import in_order_of_first, numbered
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.prices.traffic import Exchange, exchanges, signature
from sim.engine.running.period import Repeated, Times
from sim.engine.running.run import SimulatedRun
from sim.plan.facts.description import collective_bytes
from sim.plan.words.op import Collective
from sim.sorting import distinct, distinct_values, first_places, in_ranges, run_begins

Ints = NDArray[np.int64]

IDLE = -1


class LinkUse(Struct, frozen=True, eq=False, dict=True):
    """``row_of[l]``: the row of link l, -1 where it carries nothing in the whole step.

    Per row: ``example``, its first link; ``count``, how many links are like it; ``num_bytes``, the payload that each
    carries; ``busy_s``, seconds of exclusive use. Flow ``flows[i]`` uses each link of row ``rows[i]`` for
    ``seconds[i]`` per transfer, sorted by row. Of a plan of ``num_steps``, bytes and busy seconds are a mean.
    """

    topology: Topology
    iteration_time_s: float
    makespan_s: float
    transfers: Transfers
    row_of: Ints
    example: Ints
    count: Ints
    num_bytes: Times
    busy_s: Times
    flows: Ints
    rows: Ints
    seconds: Times
    num_steps: int = 1
    repeated: Repeated | None = None

    @property
    def busy_fraction(self) -> Times:
        """Return the part of the step that each row's links are busy."""
        return self.busy_s / self.iteration_time_s if self.iteration_time_s else np.zeros_like(self.busy_s)

    @property
    def kind(self) -> NDArray[np.int8]:
        """Return the kind of each row's links: a LinkKind."""
        return self.topology.kind[self.example]

    @cached_property
    def first_span(self) -> Ints:
        """Return where each flow's spans begin, and at last where all end."""
        moved = self.transfers
        return np.searchsorted(moved.flow_of, np.arange(len(moved.flows) + 1))

    def curve(self, row: int) -> Callable[[Times], Times]:
        """Return a function of moments: how many seconds of the run until then a row's links have been in use."""
        moved, (first, last) = self.transfers, self._bounds[row : row + 2].tolist()
        of_flow, spans = self._spans(first, last)
        places, passes = moved.passes(spans)
        of_flow, spans = of_flow[places], spans[places]
        counts = np.bincount(of_flow, minlength=last - first)
        begins = 1 + np.arange(len(spans)) + (np.cumsum(counts) - counts)[of_flow]  # a flow's begins, then its ends
        ends = begins + counts[of_flow]
        turns, slopes = np.zeros(1 + 2 * len(spans)), np.zeros(1 + 2 * len(spans))
        turns[begins], turns[ends] = moved.times_of(spans, passes)
        slopes[begins] = moved.speed[spans] * self.seconds[first:last][of_flow]
        slopes[ends] = -slopes[begins]
        order = np.argsort(turns, kind="stable")
        turns, rates = turns[order], np.cumsum(slopes[order])
        busy_s = np.append(0.0, np.cumsum(np.diff(turns) * rates[:-1]))
        return lambda moments_s: np.interp(moments_s, turns, busy_s)

    def spans(self, row: int) -> Ints:
        """Return the spans of all flows over a row's links, flow by flow."""
        return self._spans(*self._bounds[row : row + 2].tolist())[1]

    def _spans(self, first: int, last: int) -> tuple[Ints, Ints]:
        """Return the spans of the flows of some cells, flow by flow, and before them which of the cells each is of."""
        flows = self.flows[first:last]
        return in_ranges(self.first_span[flows], self._num_spans[flows])

    @cached_property
    def _num_spans(self) -> Ints:
        return np.diff(self.first_span)

    def meeting(self) -> "Meeting":
        """Return the spans that meet others on links. What one stream of a rank moves comes one after the other.

        Rows of the same flows, such as those of the links along a ring, are looked at once.
        """
        moved, like, begins = self.transfers, self._like, self._bounds
        cells = np.flatnonzero(self._is_of_several[self.rows] & (like[self.rows] == self.rows))
        of_spans, spans = in_ranges(self.first_span[self.flows[cells]], self._num_spans[self.flows[cells]])
        places, passes = moved.passes(spans)
        cells, spans = cells[of_spans[places]], spans[places]
        begins_s, ends_s = moved.times_of(spans, passes)
        meet = np.flatnonzero(_overlap(self.rows[cells], begins_s, ends_s))
        by_like, num_alike = np.argsort(like, kind="stable"), np.bincount(like, minlength=len(like))
        firsts = self.rows[cells[meet]]
        each, places = in_ranges((num_alike.cumsum() - num_alike)[firsts], num_alike[firsts])
        meet, rows = meet[each], by_like[places]
        rates = self.seconds[cells[meet] - begins[firsts[each]] + begins[rows]] * moved.speed[spans[meet]]
        return Meeting(rows, spans[meet], passes[meet], _shares(rows, begins_s[meet], ends_s[meet], rates))

    @cached_property
    def _bounds(self) -> Ints:
        """Return where the cells of each row begin, and at last where all end."""
        return np.searchsorted(self.rows, np.arange(len(self.example) + 1))

    @property
    def _like(self) -> Ints:
        """Return for each row the first one that the same flows use."""
        firsts = dict[bytes, int]()
        sets = (self.flows[first:last].tobytes() for first, last in pairwise(self._bounds.tolist()))
        return np.array([firsts.setdefault(flows, row) for row, flows in enumerate(sets)], np.int64)

    @property
    def _is_of_several(self) -> NDArray[np.bool_]:
        """Return which rows have links that several streams use."""
        numbers = dict[tuple[int, str], int]()
        streams = [numbers.setdefault((flow.rank, flow.op.stream), len(numbers)) for flow in self.transfers.flows]
        of_cells, first = np.array(streams)[self.flows], self._bounds[:-1]
        several: NDArray[np.bool_] = np.minimum.reduceat(of_cells, first) < np.maximum.reduceat(of_cells, first)
        return several

    def over_time(self, row: int, num_parts: int) -> Times:
        """Return how busy a row's links are in each of equally long parts of the step, as a fraction."""
        edges, curve = np.linspace(0.0, self.makespan_s, num_parts + 1), self.curve(row)
        if self.repeated is not None:
            curve = self.repeated.stretched(curve)
        parts: Times = np.diff(curve(edges)) / (self.makespan_s / num_parts)
        return np.maximum(parts, 0.0).round(12)


class Meeting(Struct, frozen=True, eq=False):
    """Spans that overlap with others on the links of rows, and which of their times in the step they do so.

    ``shares``: which part of a link is in use by all transfers meanwhile, on average.
    """

    rows: Ints
    spans: Ints
    passes: Ints
    shares: Times


def _overlap(rows: Ints, begins_s: Times, ends_s: Times) -> NDArray[np.bool_]:
    """Return which spans overlap with another one of their row. ``rows``: sorted."""
    is_first = run_begins(rows)
    bounds = [*np.flatnonzero(is_first).tolist(), len(rows)]
    order, reach_s = np.arange(len(rows)), np.empty(len(rows))
    for own in map(slice, bounds, bounds[1:]):
        order[own] = order[own][begins_s[own].argsort(kind="stable")]
        np.maximum.accumulate(ends_s[order[own]], out=reach_s[own])
    begins_s, ends_s = begins_s[order], ends_s[order]
    found = np.zeros(len(rows), np.bool_)
    found[order[1:]] = (reach_s[:-1] > begins_s[1:]) & ~is_first[1:]
    found[order[:-1]] |= (ends_s[:-1] > begins_s[1:]) & ~is_first[1:]
    return found


def _shares(rows: Ints, begins_s: Times, ends_s: Times, rates: Times) -> Times:
    """Return the sum of the rates of all spans of a row during each of them, on average."""
    turns_s = np.concatenate([begins_s, ends_s])
    order = np.lexsort((turns_s, np.concatenate([rows, rows])))
    begins, ends = np.argsort(order).reshape(2, -1)
    changes = np.concatenate([rates, -rates])[order]
    gaps_s = np.append(np.diff(turns_s[order]), 0.0)  # between rows nothing is in use
    return _sums_between(changes.cumsum() * gaps_s, begins, ends) / np.maximum(ends_s - begins_s, 1e-300)


def _sums_between(values: Times, begins: Ints, ends: Ints) -> Times:
    """Return the sum of the values from each begin to its end, which is a later place.

    What the sums up to both differ by would have few digits where little lies between. The last begin comes first, as
    ``reduceat`` also sums from each end to the begin after it, unless that comes before.
    """
    order = np.argsort(-begins)
    edges, found = np.stack([begins[order], ends[order]], axis=1).ravel(), np.empty(len(begins))
    found[order] = np.add.reduceat(values, edges)[::2] if len(edges) else 0.0
    return found


def link_use(run: SimulatedRun, pricing: ClusterPricing) -> LinkUse:
    """Return how full every link is in a run, priced by ``pricing``."""
    moved = transfers(run)
    loads = _Loads(run, pricing)
    cells = loads.cells(moved)
    row_of_column = _alike(cells, loads.kinds)
    row_of = row_of_column[loads.columns]
    places = row_of_column[cells.columns] * max(len(moved.flows), 1) + cells.flows
    kept = np.unique(places, return_index=True)[1]
    flows, rows = cells.flows[kept], row_of_column[cells.columns[kept]]
    carrying = np.flatnonzero(row_of != IDLE)
    example = carrying[first_places(row_of[carrying], int(row_of.max(initial=IDLE)) + 1)]
    times = moved.num_transfers[flows]
    return LinkUse(
        topology=pricing.cluster.topology,
        iteration_time_s=run.iteration_time_s,
        makespan_s=run.makespan_s,
        transfers=moved,
        row_of=row_of,
        example=example,
        count=np.bincount(row_of[carrying], minlength=len(example)),
        num_bytes=_sums(rows, cells.num_bytes[kept] * times / run.plan.num_steps, len(example)),
        busy_s=_sums(rows, cells.seconds[kept] * times / run.plan.num_steps, len(example)),
        flows=flows,
        rows=rows,
        seconds=cells.seconds[kept],
        num_steps=run.plan.num_steps,
        repeated=run.repeated,
    )


class _Cells(Struct, frozen=True, eq=False):
    """One transfer of flow ``flows[i]`` brings each link of column ``columns[i]`` so many seconds and bytes."""

    flows: Ints
    columns: Ints
    seconds: Times
    num_bytes: Times


_NOTHING: Final = _Cells(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros(0))


class _Loads:
    """What groups put on columns of links.

    A column is a class of links; one link that folding left out, or its orbit, of whose groups one is looked up; or of
    a class that roots load in turns, the links that carry the same in every turn. Only classes need no look at groups.
    """

    def __init__(self, run: SimulatedRun, pricing: ClusterPricing) -> None:
        self.run, self.pricing = run, pricing
        cluster, folding = pricing.cluster, run.folding
        self.columns = np.arange(cluster.topology.num_links)
        self.num_classes = len(self.columns)
        if folding.link_class is not None:
            self.num_classes = int(folding.link_class.max(initial=-1)) + 1
            alone = self.num_classes + (self.columns if folding.orbits is None else folding.orbits.link)
            self.columns = np.where(folding.link_class == NEVER_BINDS, alone, folding.link_class)
        self.some_left_out = bool((pricing.network_links() & (self.columns >= self.num_classes)).any())
        self.in_turns = folding.carries_alike is not None
        if folding.carries_alike is not None:
            uneven = np.flatnonzero(folding.carries_alike != NEVER_BINDS)
            first, where = np.unique(folding.carries_alike[uneven], return_index=True, return_inverse=True)[1:]
            self.columns[uneven] = self.num_classes + uneven[first][where]
        self.size = np.bincount(self.columns, minlength=1)
        self.kinds = np.zeros(len(self.size), np.int64)
        self.kinds[self.columns] = pricing.link_kinds()
        self.island = cluster.topology.device_island[cluster.devices]
        self.stands_for = np.array(folding.stands_for, dtype=np.int64)
        self._known: dict[tuple[object, ...], _Cells] = {}

    def cells(self, moved: Transfers) -> _Cells:
        """Return the loads of all flows, each pair of flow and column once."""
        numbers: dict[tuple[object, ...], list[int]] = {}
        for number, flow in enumerate(moved.flows):
            numbers.setdefault((flow.rank, flow.signature), []).append(number)
        found, orbits = [_NOTHING], self.run.folding.orbits
        for exchange in exchanges(self.run.plan, None if orbits is None else orbits.first):
            found += self._of_exchange(exchange, numbers)
        return _Cells(
            flows=np.concatenate([part.flows for part in found]),
            columns=np.concatenate([part.columns for part in found]),
            seconds=np.concatenate([part.seconds for part in found]),
            num_bytes=np.concatenate([part.num_bytes for part in found]),
        )

    def _of_exchange(self, exchange: Exchange, numbers: Mapping[tuple[object, ...], list[int]]) -> Iterator[_Cells]:
        """Yield the loads of an exchange's groups, by the flow of the simulated rank that stands for them."""
        owners, own = self._owners(exchange)
        use = self.pricing.use_of(_only(exchange, own))
        if not len(use.links):
            return
        alike = signature(exchange.program, exchange.op)
        for part in (self._to_classes(exchange, use, owners[own]), self._to_left_out(exchange, use, owners)):
            for rank in distinct_values(part.flows).tolist():
                mine = slice(*np.searchsorted(part.flows, [rank, rank + 1]))
                for number in numbers.get((rank, alike), ()):
                    flows = np.full(mine.stop - mine.start, number)
                    yield _Cells(flows, part.columns[mine], part.seconds[mine], part.num_bytes[mine])

    def _to_classes(self, exchange: Exchange, use: NetworkUse, owners: Ints) -> _Cells:
        """Return what owners bring to classes of links: each its own group's, times the groups that it answers for."""
        columns = self.columns[use.links]
        kept = columns < self.num_classes
        rows, columns = use.rows[kept], columns[kept]
        share = self._num_alike(exchange, owners)[rows] / self.size[columns]
        return self._summed(owners[rows], columns, use.seconds[kept] * share, use.num_bytes[kept] * share)

    def _to_left_out(self, exchange: Exchange, own: NetworkUse, owners: Ints) -> _Cells:
        """Return what all groups of owners bring to each link of columns that are looked up group by group.

        Exchanges of the same groups by the same algorithms, whose owners use links in the same proportions, differ by a
        factor.
        """
        far = self._reaches_left_out(exchange)
        if not far.any():
            return _NOTHING
        most = own.seconds.max(), own.num_bytes.max()
        key = (*self._algorithms(exchange), *_digests(exchange, own))
        if key not in self._known:
            use = self.pricing.use_of(exchange if far.all() else _only(exchange, far))
            columns = self.columns[use.links]
            kept = columns >= self.num_classes
            users, columns = owners[far][use.rows[kept]], columns[kept]
            each = self.size[columns] / self._num_in_orbit(exchange)
            most_of_column = [most_of * each for most_of in most]
            self._known[key] = self._summed(
                users, columns, use.seconds[kept] / most_of_column[0], use.num_bytes[kept] / most_of_column[1]
            )
        unit = self._known[key]
        return _Cells(unit.flows, unit.columns, unit.seconds * most[0], unit.num_bytes * most[1])

    def _algorithms(self, exchange: Exchange) -> tuple[object, ...]:
        """Return what is the same for exchanges of the same groups by the same algorithms."""
        op = exchange.op
        if not isinstance(op, Collective) or op.sizes:
            return type(op), getattr(op, "root", 0)
        return self.pricing.proportions_of(exchange) or (op.kind, collective_bytes(exchange.program, op), op.root)

    def _summed(self, owners: Ints, columns: Ints, seconds: Times, num_bytes: Times) -> _Cells:
        """Return the sums per owner and column, sorted; ``flows`` are the owners still."""
        pairs, where = distinct(owners * len(self.size) + columns)
        sums = (_sums(where, values, len(pairs)) for values in (seconds, num_bytes))
        return _Cells(*np.divmod(pairs, len(self.size)), *sums)

    def _owners(self, exchange: Exchange) -> tuple[Ints, NDArray[np.bool_]]:
        """Return the simulated rank that answers for each group, and whether it is in this one."""
        groups = exchange.groups if isinstance(exchange.op, Collective) else exchange.groups[:, :1]
        owners = self.stands_for[groups].min(axis=1)
        return owners, (groups == owners[:, None]).any(axis=1)

    def _reaches_left_out(self, exchange: Exchange) -> NDArray[np.bool_]:
        """Return which groups may use links that are looked up: all in turns, else those that the network joins."""
        if self.in_turns:
            return np.ones(len(exchange.groups), np.bool_)
        if not self.some_left_out:
            return np.zeros(len(exchange.groups), np.bool_)
        lying = self.island[exchange.groups]
        far: NDArray[np.bool_] = (lying != lying[:, :1]).any(axis=1)
        return far

    def _num_in_orbit(self, exchange: Exchange) -> int:
        """Return for how many groups, or messages, each that is looked up stands."""
        orbits = self.run.folding.orbits
        return 1 if orbits is None else orbits.num_groups(exchange)

    def _num_alike(self, exchange: Exchange, owners: Ints) -> Ints:
        """Return for how many groups, or senders, the owner of each answers."""
        folding, op = self.run.folding, exchange.op
        counts = (
            folding.group_counts.get((op.axes, op.members), {}) if isinstance(op, Collective) else folding.multiplicity
        )
        of = np.ones(len(folding.stands_for), np.int64)
        of[list(counts)] = list(counts.values())
        return of[owners]


def _only(exchange: Exchange, chosen: NDArray[np.bool_]) -> Exchange:
    return replace(exchange, groups=exchange.groups[chosen])


def _digests(exchange: Exchange, use: NetworkUse) -> tuple[bytes, ...]:
    """Return digests of the groups, and of the proportions in which they use links."""
    shares = (np.round(values / values.max(), 10) for values in (use.seconds, use.num_bytes))
    return exchange.digest, *(blake2b(part.tobytes()).digest() for part in (use.rows, use.links, *shares))


def _alike(cells: _Cells, kinds: Ints) -> Ints:
    """Return a row per column, the same for columns of one kind of links that carry the same; -1: carries nothing.

    Columns are compared cell by cell, all of them together: those that were alike so far and have the same next cell
    stay alike.
    """
    num_flows = int(cells.flows.max(initial=0)) + 1
    order = np.argsort(cells.columns * num_flows + cells.flows, kind="stable")
    seconds = numbered(np.round(cells.seconds[order] / cells.seconds.max(initial=1e-300), 13))[1]
    codes = numbered(seconds * num_flows + cells.flows[order])[1]
    names, begins, lengths = np.unique(cells.columns[order], return_index=True, return_counts=True)
    so_far, num_codes = kinds[names], int(codes.max(initial=0)) + 1
    used, place, longer = int(kinds.max(initial=0)) + 1, 0, np.arange(len(names))
    while longer.size:
        different, numbers = numbered(so_far[longer] * num_codes + codes[begins[longer] + place])
        so_far[longer] = used + numbers
        used, place = used + len(different), place + 1
        longer = longer[lengths[longer] > place]
    rows = np.full(len(kinds), IDLE)
    rows[names] = in_order_of_first(so_far)
    return rows


def _sums(numbers: Ints, values: Times, count: int) -> Times:
    """Return the sum of the values of each number."""
    return np.bincount(numbers, values, minlength=count).astype(np.float64)
