"""Packs: a job alone on its GPUs, or two that share them (Gandiva, Xiao et al., OSDI 2018).

Two jobs share GPUs where both ran before, so that what they use of a GPU is measured, ask for equally many, and fit
into the memory together. The least busy ones are packed first. A pair whose speeds, each relative to that alone, add up
to less than one parts for good.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from sim.jobs.active import ActiveJob
from sim.jobs.policy import Change, View

ROUNDING: Final = 1e-9
"""Relative error of sums of fractions."""
Pack = tuple[ActiveJob, ...]
"""One job, or a host and its guest."""
Pair = tuple[int, int]
"""The indices of two jobs, the lower one first."""


def pair_of(one: ActiveJob, other: ActiveJob) -> Pair:
    """Return the pair of two jobs."""
    return min(one.index, other.index), max(one.index, other.index)


def packs_of(view: View, least: float) -> list[Pack]:
    """Return all jobs, in order of arrival: partners whose speeds add up to at least ``least``, all others alone."""
    found: list[Pack] = []
    for each in view.active:
        other = each.partner
        if other is None or _speeds(view, each, other) < least - ROUNDING:
            found.append((each,))
        elif not each.is_guest:
            found.append((each, other))
    return found


def failed(view: View) -> set[Pair]:
    """Return the pairs that are slower together than one of them alone."""
    pairs = [(each, each.partner) for each in view.running.values() if each.partner is not None]
    return {pair_of(*pair) for pair in pairs if _speeds(view, *pair) < 1.0 - ROUNDING}


def _speeds(view: View, one: ActiveJob, other: ActiveJob) -> float:
    """Return the sum of two partners' speeds, each relative to that alone; 2 until both have made progress."""
    measured = all(view.now_s > each.ready_s for each in (one, other))
    return one.fraction + other.fraction if measured else 2.0


def guests_of(
    hosts: Iterable[ActiveJob], waiting: Iterable[ActiveJob], apart: Collection[Pair], now_s: float
) -> Mapping[int, ActiveJob]:
    """Return the guests, by the index of their host; the least busy jobs come first, on the least busy hosts."""
    left = sorted((each for each in hosts if each.useful_gpu_s(now_s) > 0.0), key=_busy)
    found: dict[int, ActiveJob] = {}
    for each in sorted((each for each in waiting if each.useful_gpu_s(now_s) > 0.0), key=_busy):
        host = next((host for host in left if _fit(each, host) and pair_of(each, host) not in apart), None)
        if host is not None:
            left.remove(host)
            found[host.index] = each
    return found


def changes_to(view: View, packs: Sequence[Pack], sizes: Mapping[int, int]) -> list[Change]:
    """Return the changes after which these packs run, and nobody else. ``sizes``: GPUs of each, by its first job.

    Hosts stay where they are, and of two that part the one that came first.
    """
    wanted = {each.index: pack for pack in packs for each in pack}
    moves = {each.index for each in view.active if _moves(each, wanted.get(each.index, ()), sizes)}
    parting = {
        each.index
        for each in view.active
        if each.is_guest and each.partner is not None and each.partner not in wanted.get(each.index, (each.partner,))
        if each.partner.index not in moves
    }
    order = sorted(view.active, key=lambda each: (each is not wanted.get(each.index, (each,))[0], each.index))
    return [_change(each, wanted.get(each.index, ()), sizes) for each in order if each.index in moves | parting]


def _moves(each: ActiveJob, pack: Pack, sizes: Mapping[int, int]) -> bool:
    """Return whether a job gets other GPUs: it stops, starts, grows, shrinks, or becomes a guest."""
    if not pack:
        return each.is_running
    host = pack[0]
    if each is host:
        return each.num_gpus != sizes[each.index]
    return each.partner is not host or host.num_gpus != sizes[host.index]


def _change(each: ActiveJob, pack: Pack, sizes: Mapping[int, int]) -> Change:
    if not pack:
        return Change(each, 0, "its slice has ended")
    host = pack[0]
    if each is host:
        return Change(each, sizes[each.index], "its slice begins")
    return Change(each, sizes[host.index], f"shares the GPUs of job {host.job.id}", beside=host)


def _fit(one: ActiveJob, other: ActiveJob) -> bool:
    """Return whether two jobs may share GPUs, and might gain by it."""
    uses = one.job.gpu_use, other.job.gpu_use
    memory, time = sum(use.memory for use in uses), sum(use.time for use in uses)
    return one.job.num_gpus == other.job.num_gpus and memory <= 1.0 + ROUNDING and time < 2.0


def _busy(each: ActiveJob) -> tuple[float, int]:
    return each.job.gpu_use.time, each.index
