"""Shorter forms of a plan: with fewer micro-batches, to be simulated in its place where the run repeats itself."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from sim.plan.facts.repetition import CodedCalls, KnownCalls, Repetition, repetitions, shortened
from sim.plan.facts.sections import Cut, Section, in_a_row, sections, without
from sim.plan.words.program import Plan, Program

FEWEST: Final = 3
"""Repetitions that even the shortest form makes, beside those in which a pipeline fills and drains."""

DEEP: Final = 32
"""Programs so many repetitions apart are first run with ``FEWEST_DEEP`` repetitions."""

FEWEST_DEEP: Final = 6
"""With 4 a pipeline of 1F1B is steady, whether it has 4 or 128 stages."""

LEAST_SAVED: Final = 2
"""The longest form has no more micro-batches, and one in sections no more calls, than one in so many of the plan's."""

KEPT_PER_SECTION: Final = 2
"""Recurrences that a form in sections keeps for each section: what begins unevenly is even so much later in each.

Of a step with 6, 10 and 14 sections all repeat themselves after 9, 17 to 20 and 21 to 26 recurrences.
"""


class Short(Struct, frozen=True):
    """Programs with fewer repetitions, and their repeated calls, by identity of the plan's own program."""

    programs: Mapping[int, Program]
    repetitions: Mapping[int, Repetition]


class SectionForm(Struct, frozen=True):
    """A step in which every section recurs ``left_out`` times less, before the last ``at_end`` of its recurrences."""

    left_out: int
    at_end: int

    def most_begun(self, cut: Cut) -> int:
        """Return how many calls of a step that is only begun are like those of the whole: all are in its first section.

        ``cut``: the program in this form.
        """
        first = cut.sections[0]
        return first.stop + self.at_end * first.num_calls


class Shorter(Struct, dict=True, eq=False):
    """The shorter forms of a plan, each made once."""

    plan: Plan
    _made: dict[int, Short | None] = {}
    _cut: dict[SectionForm, Mapping[int, Cut] | None] = {}
    _in_a_row: dict[tuple[int, int, int], Cut] = {}
    _with_equal_calls: dict[tuple[int, int, int], Cut] = {}

    @cached_property
    def times(self) -> list[int]:
        """Return how many repetitions the forms leave out, the shortest form first; empty: the plan has none.

        How long a pipeline takes until it is steady is not known. The first form has the micro-batches that do not
        repeat once more; each form is about twice as long as the one before. Of a deep pipeline one of half its length
        comes before it.
        """
        fewest, apart, kept = self._fewest, self._apart, [FEWEST_DEEP] if self._apart >= DEEP else []
        each = apart + FEWEST
        while LEAST_SAVED * (apart + each) <= apart + fewest:
            kept.append(each)
            each = 2 * each + apart
        return [fewest - number for number in kept if LEAST_SAVED * (apart + number) <= apart + fewest]

    def after_lead(self, times: int, lead: int, waiting: list[int]) -> list[int]:
        """Return what the next forms leave out, once the form without ``times`` repetitions has shown such a lead.

        Those that end before the lead is used up have no period. The first of the others is just long enough. The
        longest form is tried in any case. ``lead``: in repetitions; 0: none was shown.
        """
        if not lead:
            return waiting
        first = times - lead - FEWEST
        later = [left_out for left_out in waiting if left_out < first]
        return [first, *later] if later else waiting[-1:]

    def tells_paces(self, times: int) -> bool:
        """Return whether a form without so many repetitions goes on after its pipeline has filled."""
        return self._fewest - times > self._apart

    @cached_property
    def _fewest(self) -> int:
        """Return how many complete repetitions the program with the fewest makes; 0: programs do not repeat."""
        return min((repetition.num_times for repetition in self._repetitions), default=0)

    @cached_property
    def _apart(self) -> int:
        """Return for how many repetitions' micro-batches a program does not repeat: the pipeline fills and drains."""
        return self._coded[0].num_times(self._repetitions[0]) - self._fewest if self._repetitions else 0

    def without(self, times: int) -> Short | None:
        """Return the form without so many repetitions; None where that is no plan."""
        if times not in self._made:
            self._made[times] = self._short(times)
        return self._made[times]

    def section_forms(self, multiple: int) -> list[SectionForm]:
        """Return the forms in which every section recurs less often, the shortest first; empty: none.

        The first is for periods of one recurrence, and keeps as many as ``multiple``, or more where there are many
        sections. The second keeps twice as many, and leaves out a multiple of that number; where it does not repeat
        itself, a longer one seldom does. At the end of a section are kept as many more as stages run apart, where there
        is room: what comes after it may meet, on a link, what a stage behind still does in it. A stage is at most as
        many recurrences behind the first one as there are programs before its own. A form in sections is compiled once
        and run as often as there are sections, or more, so one with most of the calls takes longer than the whole step.
        """
        if self._num_microbatches < LEAST_SAVED * multiple:  # nothing recurs more often
            return []
        fewest = min((section.num_times for found in self._sections for section in found), default=0)
        most, forms = fewest // LEAST_SAVED, list[SectionForm]()
        least = max([multiple, *(KEPT_PER_SECTION * len(found) for found in self._sections)])
        for kept, of_period in ((least, 1), (2 * least, multiple)):
            at_end = min(len(self.plan.programs) - 1, most - kept)
            left_out = (fewest - kept - at_end) // of_period * of_period
            if at_end >= 0 and self._saves_enough(left_out):
                forms.append(SectionForm(left_out, at_end))
        return forms

    @property
    def _num_microbatches(self) -> int:
        """Return how many micro-batches the first program has at most."""
        return 1 + int(self._coded[0].microbatches.max(initial=-1)) if self._coded else 0

    def _saves_enough(self, left_out: int) -> bool:
        """Return whether so many recurrences of every section have enough of the plan's calls."""
        num_calls = sum(section.num_calls for found in self._sections for section in found)
        return 0 < sum(len(program.calls) for program in self.plan.programs) <= LEAST_SAVED * left_out * num_calls

    def in_sections(self, form: SectionForm) -> Mapping[int, Cut] | None:
        """Return the cut programs of a form, by identity of the plan's own program; None where that is no plan."""
        if form not in self._cut:
            found = {id(program): cut for program, cut in zip(self.plan.programs, self._cuts(form), strict=False)}
            self._cut[form] = found if len(found) == len(self.plan.programs) else None
        return self._cut[form]

    def _cuts(self, form: SectionForm) -> Iterator[Cut]:
        """Yield the cut programs of a form, up to one that is none. Equal calls are cut once."""
        known: dict[int, Cut] = {}
        for program, coded, found in zip(self.plan.programs, self._coded, self._sections, strict=True):
            cut = known.get(id(coded))
            if cut is not None:
                yield replace(cut, program=program.calling(cut.program.calls))
                continue
            cut = without(program, [section.ended(form.at_end) for section in found], form.left_out)
            if cut is None:
                return
            known[id(coded)] = cut
            yield cut

    def in_a_row(self, cut: Cut, num_steps: int, begun: int = 0) -> Cut:
        """Return so many steps of a cut program of a form, and so many calls of the next step.

        Ranks with one program share it, and so do runs. Programs with equal calls share these.
        """
        if num_steps == 1:
            return cut
        key, alike = ((id(of), num_steps, begun) for of in (cut, cut.program.calls))
        if key not in self._in_a_row:
            if alike not in self._with_equal_calls:
                self._with_equal_calls[alike] = in_a_row(cut, num_steps, begun)
            found = self._with_equal_calls[alike]
            self._in_a_row[key] = replace(found, program=cut.program.calling(found.program.calls))
        return self._in_a_row[key]

    @cached_property
    def _sections(self) -> list[tuple[Section, ...]]:
        """Return the sections of each program; empty if they do not go together, or the plan holds several steps."""
        if self.plan.num_steps > 1:
            return []
        return sections(self.plan.programs, self._coded) or []

    def _short(self, times: int) -> Short | None:
        plans, found = self.plan.programs, self._repetitions
        programs = [shortened(program, part, times) for program, part in zip(plans, found, strict=True)]
        short = [program for program in programs if program is not None]
        if len(short) < len(programs):
            return None
        keys = [id(program) for program in plans]
        left = [part.without(times) for part in found]
        return Short(dict(zip(keys, short, strict=True)), dict(zip(keys, left, strict=True)))

    @cached_property
    def _repetitions(self) -> list[Repetition]:
        """Return the repeated calls of each program; empty if programs do not repeat together, or steps overlap."""
        if not self.plan.barrier or self.plan.num_steps > 1:
            return []
        return repetitions(self._coded) or []

    @cached_property
    def _coded(self) -> list[CodedCalls]:
        """Return the calls of each program as numbers."""
        return list(map(KnownCalls().of, self.plan.programs))
