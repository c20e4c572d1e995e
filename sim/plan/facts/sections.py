"""Sections of a program: stretches of calls that recur, of which a step may have several, such as all forwards first.

A program with fewer recurrences in every section is the program of a step with fewer micro-batches.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from sim.integers import Integers, narrowed, widened
from sim.plan.facts.repetition import MOST_CALLS, CodedCalls
from sim.plan.words.calls import NO_MICROBATCH, Calls
from sim.plan.words.op import Recv, Send
from sim.plan.words.program import Program
from sim.plan.words.steps import repeated
from sim.sorting import distinct_values

FEWEST_TIMES: Final = 6
"""Recurrences of a section at least; and at least half as many as the section with the most has."""

NO_SECTION: Final = -1

TAIL: Final = 2
"""The last recurrences, which do not count: what comes after them may wait for other ops of theirs than of others."""


Ints = NDArray[np.int64]


class Section(Struct, frozen=True):
    """From call ``first`` on, ``num_calls`` calls recur, ``num_times`` in all.

    Each time they are for micro-batches ``microbatches`` later, or earlier where it is negative.
    """

    first: int
    num_calls: int
    num_times: int
    microbatches: int

    @property
    def stop(self) -> int:
        """Return the first call after the section."""
        return self.first + self.num_calls * self.num_times

    def ended(self, earlier: int) -> "Section":
        """Return the section without its last recurrences, which are then calls after it."""
        return replace(self, num_times=self.num_times - earlier)


class Cut(Struct, frozen=True):
    """A program whose sections recur less often, these sections, and which of its calls keep their distance to the end.

    The micro-batches of calls that are ``is_moved`` count from the end: theirs in the whole program are so many later.
    """

    program: Program
    sections: tuple[Section, ...]
    is_moved: tuple[bool, ...]


def in_a_row(cut: Cut, num_steps: int, begun: int = 0) -> Cut:
    """Return so many steps of a cut program as one, each with its sections.

    ``begun``: after them come so many of the first calls of the next step, which are in no section.
    """
    num_calls = len(cut.program.calls)
    every = [replace(section, first=section.first + step * num_calls)
             for step in range(num_steps) for section in cut.sections]  # fmt: skip
    steps = repeated(cut.program, num_steps + 1) if begun else repeated(cut.program, num_steps)
    calls = Calls.of(steps.calls)[: num_steps * num_calls + begun]
    return Cut(steps.calling(calls), tuple(every), num_steps * cut.is_moved + begun * (False,))


def sections(programs: Sequence[Program], coded: Sequence[CodedCalls]) -> list[tuple[Section, ...]] | None:
    """Return the sections of every program, all by the same number of micro-batches; None if these do not go together.

    Of several possibilities it is the one of the fewest micro-batches. Every program has equally many sections, and a
    task that sends or receives recurs in one of them. ``coded``: the calls of the programs, the same record for
    programs that share tasks and have equal calls.
    """
    for size in _sizes(coded[0]) if coded else ():
        found, known = list[tuple[Section, ...]](), dict[int, tuple[Section, ...] | None]()
        for program, calls in zip(programs, coded, strict=True):
            if id(calls) not in known:
                known[id(calls)] = _of_program(program, calls, size)
            part = known[id(calls)]
            if part is None or (found and _shape(part) != _shape(found[0])):
                break
            found.append(part)
        else:
            return found
    return None


def _sizes(coded: CodedCalls) -> Iterator[int]:
    """Yield numbers of micro-batches by which a section may recur often enough, the fewest first."""
    num_microbatches = len(distinct_values(coded.microbatches[coded.microbatches != NO_MICROBATCH]))
    yield from (size for size in coded.distances() if FEWEST_TIMES * size <= num_microbatches)


def _shape(found: Sequence[Section]) -> tuple[int, ...]:
    return tuple(section.microbatches for section in found)


def without(program: Program, found: Sequence[Section], times: int) -> Cut | None:
    """Return a program with so many recurrences less at the end of every section.

    Calls that come later are for so many micro-batches earlier. None if the result is no program.
    """
    calls, kept = Calls.of(program.calls), _kept(program, found, times)
    owner = np.full(len(calls.names), NO_SECTION)
    for number, section in enumerate(found):
        owner[calls.tasks[section.first : section.first + section.num_calls]] = number
    is_late = _is_late(calls, kept, found, owner[calls.tasks])
    if is_late is None:
        return None
    taken = calls.taken(kept)
    microbatches = widened(taken.microbatches) - times * abs(found[0].microbatches) * is_late
    if microbatches[taken.microbatches != NO_MICROBATCH].min(initial=0) < 0:
        return None
    short = taken.with_columns(taken.tasks, narrowed(microbatches), taken.lags)
    if not short.are_different:
        return None
    return Cut(program.calling(short), tuple(_moved(found, times)), tuple(is_late.tolist()))


def _kept(program: Program, found: Sequence[Section], times: int) -> Ints:
    """Return the places of calls that are not among so many recurrences at the end of a section."""
    is_kept = np.ones(len(program.calls), np.bool_)
    for section in found:
        is_kept[section.stop - times * section.num_calls : section.stop] = False
    return np.flatnonzero(is_kept)


def _is_late(calls: Calls, kept: Ints, found: Sequence[Section], owner: Ints) -> NDArray[np.bool_] | None:
    """Return which of the calls that are kept count from the end; None where some call goes with no section.

    ``owner``: the section to which each call's task belongs. A call of another task goes with the nearest one of a
    section that is for the same micro-batch.
    """
    beside, numbered = kept.copy(), calls.microbatches[kept] != NO_MICROBATCH
    for at in np.flatnonzero((owner[kept] == NO_SECTION) & numbered).tolist():
        alike = np.flatnonzero((calls.microbatches == calls.microbatches[kept[at]]) & (owner != NO_SECTION))
        if not len(alike):
            return None
        beside[at] = alike[np.argmin(np.abs(alike - kept[at]))]
    stops, forward = np.array([(section.stop, section.microbatches > 0) for section in found]).T
    late: NDArray[np.bool_] = numbered & ((beside >= stops[owner[beside]]) == forward[owner[beside]])
    return late


def _moved(found: Sequence[Section], times: int) -> Iterator[Section]:
    """Yield the sections of a program with so many recurrences less in each."""
    before = 0
    for section in found:
        yield replace(section, first=section.first - before, num_times=section.num_times - times)
        before += times * section.num_calls


def _of_program(program: Program, coded: CodedCalls, size: int) -> tuple[Section, ...] | None:
    """Return the sections of a program; None where some message is in none of them, or a task is not in one alone."""
    every = _sections(coded, size)
    most = max((section.num_times for section in every), default=0)
    found = tuple(section for section in every if 2 * section.num_times >= most)
    if not found or not _recur_evenly(coded, found, size):
        return None
    called = set(coded.tasks[coded.microbatches != NO_MICROBATCH].tolist())
    called.difference_update(*[coded.tasks[section.first :][: section.num_calls].tolist() for section in found])
    others = [task for number, task in enumerate(program.tasks.values()) if number in called]
    messages = any(isinstance(op, Send | Recv) for task in others for op in task.ops)
    return None if messages else found


def _recur_evenly(coded: CodedCalls, found: Sequence[Section], size: int) -> bool:
    """Return whether each task of a section is in no other, and is called for every micro-batch there."""
    once = [slice(section.first, section.first + section.num_calls) for section in found]
    if any((coded.microbatches[calls] == NO_MICROBATCH).any() for calls in once):
        return False
    counts = np.bincount(np.concatenate([coded.tasks[calls] for calls in once]))
    return bool((counts[counts > 0] == size).all())


def _sections(coded: CodedCalls, size: int) -> list[Section]:
    """Return stretches of recurring calls, the first first, each as long as it gets."""
    directions = [(by, *_recurrences(coded, by)) for by in (size, -size)]
    begins = np.flatnonzero(np.any([times >= FEWEST_TIMES for _, _, times in directions], axis=0))
    found, place = list[Section](), 0
    while (at := int(np.searchsorted(begins, place))) < len(begins):
        first = int(begins[at])
        by, num_calls, times = next(one for one in directions if one[2][first] >= FEWEST_TIMES)
        later = _until_aligned(coded.microbatches[first : first + 2 * int(num_calls[first])])
        section = Section(first + later, int(num_calls[first]), int(times[first + later]) - TAIL, by)
        found.append(section)
        place = max(section.stop, first + 1)
    return found


def _until_aligned(microbatches: Integers) -> int:
    """Return after how many of the calls of two recurrences one begins whose micro-batches are nearest to each other.

    A receive may be issued with the forward before its own. Ranks that are cut at one micro-batch go on together.
    """
    once = len(microbatches) // 2
    rows = np.lib.stride_tricks.sliding_window_view(widened(microbatches), once)[:once]
    return int(np.argmin(np.ptp(rows, axis=1)))


def _recurrences(coded: CodedCalls, by: int) -> tuple[Ints, Ints]:
    """Return, for each call, after how many calls it recurs for ``by`` micro-batches later, and how often in a row.

    It recurs in a row while all calls from it on recur after as many calls; both are 0 where it does not.
    """
    places, num_calls = np.arange(len(coded.tasks)), np.zeros(len(coded.tasks), dtype=np.int64)
    numbered = coded.microbatches != NO_MICROBATCH
    span = 2 * int(coded.microbatches.max(initial=0)) + abs(by) + 1
    keys = widened(coded.tasks[numbered]) * span + coded.microbatches[numbered]
    order = np.argsort(keys, kind="stable")
    wanted = keys + by
    at = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
    later = np.where(keys[order][at] == wanted, places[numbered][order][at], -1) - places[numbered]
    num_calls[numbered] = np.where((later > 0) & (later <= MOST_CALLS), later, 0)
    changes = np.append(np.flatnonzero(np.diff(num_calls)) + 1, len(places))
    stops = changes[np.searchsorted(changes, places, side="right")]
    return num_calls, np.where(num_calls > 0, (stops + num_calls - places) // np.maximum(num_calls, 1), 0)
