"""Sections of a program: stretches of calls that recur, of which a step may have several, such as all forwards first.

A program with fewer recurrences in every section is the program of a step with fewer micro-batches.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import numpy as np

from sim.plan.facts.repetition import MOST_CALLS, NO_MICROBATCH, CodedCalls
from sim.plan.words.op import Recv, Send
from sim.plan.words.program import Call, Program

FEWEST_TIMES: Final = 6
"""Recurrences of a section at least; and at least half as many as the section with the most has."""

TAIL: Final = 2
"""The last recurrences, which do not count: what comes after them may wait for other ops of theirs than of others."""


@dataclass(frozen=True, slots=True)
class Section:
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


def sections(programs: Sequence[Program]) -> list[tuple[Section, ...]] | None:
    """Return the sections of every program, all by the same number of micro-batches; None if these do not go together.

    Of several possibilities it is the one of the fewest micro-batches. Every program has equally many sections, and a
    task that sends or receives recurs in one of them.
    """
    coded = [CodedCalls.of(program) for program in programs]
    for size in coded[0].distances() if coded else ():
        found = [_of_program(program, calls, size) for program, calls in zip(programs, coded, strict=True)]
        shapes = {tuple(section.microbatches for section in part) for part in found if part is not None}
        if len(shapes) == 1 and None not in found:
            return [part for part in found if part]
    return None


def without(program: Program, found: Sequence[Section], times: int) -> tuple[Program, tuple[Section, ...]] | None:
    """Return a program with so many recurrences less at the end of every section, and its sections.

    Calls that come later are for so many micro-batches earlier. None if the result is no program.
    """
    owner = {call.task: section for section in found for call in program.calls[section.first : section.stop]}
    by = times * abs(found[0].microbatches)
    removed = {section: section.stop - times * section.num_calls for section in found}
    moved = [
        None if (section := owner.get(call.task)) is None else (place >= section.stop) == (section.microbatches > 0)
        for place, call in enumerate(program.calls)
    ]

    def renumbered(place: int, call: Call) -> Call | None:
        if call.microbatch is None:
            return call
        is_moved = moved[place] if moved[place] is not None else _as_beside(program, place, moved)
        if is_moved is None:
            return None
        return Call(call.task, call.microbatch - by, call.lag) if is_moved else call

    gone = {place for section in found for place in range(removed[section], section.stop)}
    kept = [renumbered(place, call) for place, call in enumerate(program.calls) if place not in gone]
    calls = tuple(call for call in kept if call is not None)
    named = [(call.task, call.microbatch) for call in calls if call.microbatch is not None]
    if len(calls) < len(kept) or any(microbatch < 0 for _, microbatch in named) or len(set(named)) < len(named):
        return None
    return replace(program, calls=calls), tuple(_moved(found, times))


def _as_beside(program: Program, place: int, moved: Sequence[bool | None]) -> bool | None:
    """Return whether the call of a section that is nearest, for the same micro-batch, moves; None: there is none."""
    microbatch = program.calls[place].microbatch
    alike = [at for at, call in enumerate(program.calls) if call.microbatch == microbatch and moved[at] is not None]
    return moved[min(alike, key=lambda at: abs(at - place))] if alike else None


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
    if not found or not _recur_evenly(program, found, size):
        return None
    recurring = {call.task for section in found for call in program.calls[section.first : section.stop]}
    called = {call.task for call in program.calls if call.microbatch is not None} - recurring
    messages = any(isinstance(op, Send | Recv) for name in called for op in program.tasks[name].ops)
    return None if messages else found


def _recur_evenly(program: Program, found: Sequence[Section], size: int) -> bool:
    """Return whether each task of a section is in no other, and is called for every micro-batch there."""
    counts: Counter[str] = Counter()
    for section in found:
        once = program.calls[section.first : section.first + section.num_calls]
        if any(call.microbatch is None for call in once):
            return False
        counts.update(call.task for call in once)
    return set(counts.values()) == {size}


def _sections(coded: CodedCalls, size: int) -> list[Section]:
    """Return stretches of recurring calls, the first first, each as long as it gets."""
    tasks, microbatches = coded.tasks.tolist(), coded.microbatches.tolist()
    place_of = {key: place for place, key in enumerate(zip(tasks, microbatches, strict=True))}

    @cache
    def endings(num_calls: int, by: int) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], int]:
        recurring = coded.recurring(num_calls, by)
        return np.flatnonzero(~recurring), len(recurring)

    def section_at(place: int) -> Section | None:
        for by in (size, -size):
            num_calls = place_of.get((tasks[place], microbatches[place] + by), -1) - place
            if 0 < num_calls <= MOST_CALLS:
                ending, length = endings(num_calls, by)
                at = int(np.searchsorted(ending, place))
                stop = (int(ending[at]) if at < len(ending) else length) + num_calls
                if (stop - place) // num_calls >= FEWEST_TIMES:
                    return Section(place, num_calls, (stop - place) // num_calls - TAIL, by)
        return None

    found, place = list[Section](), 0
    while place < len(tasks):
        section = section_at(place) if microbatches[place] != NO_MICROBATCH else None
        if section is None:
            place += 1
        else:
            found.append(section)
            place = section.stop
    return found
