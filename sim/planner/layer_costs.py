"""What a layer, or an end of the model, costs a rank under each strategy of its own: replicated or sharded, and kept or
computed again."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from sim.planner.prices import Floats, Line, Prices, ReplicaLinks
from sim.planner.probing import Costs, Probe
from sim.planner.space import RECOMPUTE


class LayerStrategy(NamedTuple):
    """A strategy of one layer beside the degrees that all layers share.

    ``sharded``: over the replicas, as ZeRO 3 does; else every replica holds it. ``recomputed``: whole, in backward.
    """

    sharded: bool
    recomputed: bool


class Frame(NamedTuple):
    """What all layers of a plan share: degrees, and sequences of a micro-batch."""

    tensor: int
    pipeline: int
    data: int
    microbatch_size: int
    num_microbatches: int


class PartCosts(Struct, frozen=True):
    """Costs of parts in columns: an element per strategy, or one number.

    ``forward_s``, ``backward_s``: of a micro-batch. ``once_s``: of a step, beside these. ``state_bytes``: held all the
    time; ``kept_bytes``: by every micro-batch under way but the computing one, which needs ``peak_bytes``.
    """

    forward_s: Floats
    backward_s: Floats
    once_s: Floats
    state_bytes: Floats
    kept_bytes: Floats
    peak_bytes: Floats

    @property
    def pass_s(self) -> Floats:
        """Return the seconds of a micro-batch, there and back."""
        return self.forward_s + self.backward_s

    def memory_bytes(self, num_live: int) -> Floats:
        """Return the bytes on a rank with so many micro-batches under way."""
        return self.state_bytes + (num_live - 1) * self.kept_bytes + self.peak_bytes


class FrameCosts(Struct, frozen=True):
    """The costs of a frame under some strategies of layers.

    ``layer``: a column per strategy. ``ends``: of the first and the last stage, or of the only one, and of an inner
    stage, which has what one recomputed layer computes with. ``gathered_bytes``: of parameters that are whole for a
    while.
    """

    layer: PartCosts
    first: PartCosts
    inner: PartCosts
    last: PartCosts
    gathered_bytes: float
    hop_s: float
    tie_s: float

    def end(self, stage: int, num_stages: int) -> PartCosts:
        """Return what a stage has beside its layers."""
        return self.first if stage == 0 else self.last if stage == num_stages - 1 else self.inner


def frame_costs(
    frame: Frame, strategies: Sequence[LayerStrategy], prices: Prices, shares: Sequence[float], *, ends_sharded: bool
) -> FrameCosts | None:
    """Return the costs of a frame, None where a probe that it needs was refused; ``shares``: as in ``_part``."""
    probes: dict[bool, Probe] = {}
    for recomputed in {strategy.recomputed for strategy in strategies}:
        mode = RECOMPUTE.index("full" if recomputed else "none")
        found = prices.probes.get((frame.tensor, 1, 1, frame.microbatch_size, mode))
        if found is None:
            return None
        probes[recomputed] = found
    links = prices.links[frame.tensor, frame.data]
    probe = probes[max(probes)]
    columns = [
        _part(probes[s.recomputed].layer, links, frame.data, sharded=s.sharded, shares=shares) for s in strategies
    ]
    ends = [_widest([getattr(found, name) for found in probes.values()]) for name in ("first", "last", "only")]
    first, last, only = (_part(end, links, frame.data, sharded=ends_sharded) for end in ends)
    alone = frame.pipeline == 1
    inner = _working(ends[0] if probe.hop_bytes else ends[2], is_needed=True in probes)
    whole = [_whole_bytes(probe.layer, max(shares))] if any(s.sharded for s in strategies) else []
    whole += [_whole_bytes(end, 1.0) for end in ends] if ends_sharded else []
    return FrameCosts(
        layer=PartCosts(*(np.concatenate(values) for values in zip(*map(_values, columns), strict=True))),
        first=only if alone else first,
        inner=inner,
        last=last,
        gathered_bytes=max(whole, default=0.0) + (max(shares) * probe.layer.parameter_bytes if whole else 0.0),
        hop_s=_seconds(prices.hops[frame.pipeline], probe.hop_bytes),
        tie_s=_seconds(prices.ties[frame.pipeline], probe.tied_bytes),
    )


def _part(
    part: Costs, links: ReplicaLinks, replicas: int, *, sharded: bool, shares: Sequence[float] = (1.0,)
) -> PartCosts:
    """Return the costs of a part, replicated or sharded.

    ``shares``: of its operators in its parameters, in the order of forward; each has its own collectives. Sharded, an
    operator is gathered beside the computing of the one before it, and its gradient scattered beside the next backward.
    Replicated, gradients are summed once, beside the backward of the last micro-batch (Galvatron, but without a
    slowdown of what overlaps).
    """
    state = part.parameter_bytes + part.gradient_bytes + part.optimizer_bytes
    forward_s, backward_s, once_s = part.forward_s, part.backward_s, part.update_s
    if sharded and replicas > 1:
        gather_s = [_seconds(links.all_gather, share * part.parameter_bytes) for share in shares]
        scatter_s = [_seconds(links.reduce_scatter, share * part.gradient_bytes) for share in shares]
        after = [*range(1, len(shares)), 0]
        forward_s = sum(max(forward_s * share, gather_s[then]) for share, then in zip(shares, after, strict=True))
        backward_s = sum(
            max(backward_s * shares[now], gather_s[now - 1] + scatter_s[then]) for now, then in enumerate(after)
        )
        once_s, state = once_s / replicas, state / replicas
    elif replicas > 1:
        reduce_s = sum(_seconds(links.all_reduce, share * part.gradient_bytes) for share in shares)
        once_s += max(0.0, reduce_s - part.backward_s)
    values = (forward_s, backward_s, once_s, state, part.kept_bytes, part.peak_bytes)
    return PartCosts(*(np.array([value]) for value in values))


def _values(part: PartCosts) -> tuple[Floats, ...]:
    return part.forward_s, part.backward_s, part.once_s, part.state_bytes, part.kept_bytes, part.peak_bytes


def _widest(ends: Sequence[Costs]) -> Costs:
    """Return an end that needs the memory of the one that needs most; all take the same time."""
    return max(ends, key=lambda end: end.peak_bytes)


def _working(end: Costs, *, is_needed: bool) -> PartCosts:
    """Return what a stage without an end needs while it computes a layer again."""
    peak = end.peak_bytes if is_needed else 0.0
    return PartCosts(*(np.array([value]) for value in (0.0, 0.0, 0.0, 0.0, 0.0, peak)))


def _whole_bytes(part: Costs, largest: float) -> float:
    """Return the bytes of parameters and gradient of a sharded part's largest operator, which has so much of it."""
    return largest * (part.parameter_bytes + part.gradient_bytes)


def _seconds(line: Line, num_bytes: float) -> float:
    return line.latency_s + line.s_per_byte * num_bytes if num_bytes else 0.0
