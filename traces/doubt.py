"""Doubts about a recording: facts to know before believing its figures; only this file puts them into words."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_BROKEN: Final = {
    "no_name": "without a name",
    "no_time": "without start or duration",
    "bad_start": "with a start that is no time in microseconds",
    "negative_duration": "with a negative duration",
    "endless": "longer than eleven days",
    "no_stream": "without a stream",
    "far": "more than eleven days from the others",
    "unknown": "of a category that is not known",
    "repeated": "with the number of an earlier one",
    "twice": "that name[s|] a step which another one names",
}
_TEXTS: Final[Mapping[str, str]] = {
    **{f"device_{kind}": f"{{count}} device activit[y|ies] {words}: left out" for kind, words in _BROKEN.items()},
    **{f"host_{kind}": f"{{count}} host call[|s] {words}: left out" for kind, words in _BROKEN.items()},
    "memory_incomplete": "{count} memory event[|s] without time or allocated bytes: left out",
    "no_launch": "{count} device activit[y has|ies have] no launch in the trace, so no step: left out",
    "rank_guessed": "{example}",
    "last_step": "{example}, the last, may not be whole and is left out: --steps all keeps it",
    "different_steps": "the ranks recorded different steps: {example} are kept, which all have whole",
    "steps_overlap": (
        "{count} step[ begins|s begin] before the one before is over (by up to {example}): what was launched meanwhile "
        "belongs to both"
    ),
    "no_steps": "{count} rank[|s] recorded no steps: all of [its|their] work is kept",
    "no_file": "{count} of {example}",
    "rank_beyond": "rank[ {example} is|s {example} are] more than the files say that the job has",
    "before_launch": (
        "{count} device activit[y begins|ies begin] before the host launched [it|them] (by up to {example}): clocks of "
        "host and device disagree"
    ),
    "busy_stream": (
        "{count} device activit[y begins before its|ies begin before their] stream is free (by up to {example}): "
        "seconds of both count once"
    ),
    "unequal_spans": ("the work of {count} rank[|s] spans {example}: are these the same steps, in one unit of time?"),
    "not_as_many": (
        "{count} collective[ is|s are] not as many on every rank of [its|their] group and step: not matched"
    ),
    "message_ends": (
        "{count} end[|s] of messages: one rank sends another more or fewer than that one receives: not matched"
    ),
    "message_size": "{count} end[|s] of messages [has|have] another size than the other end: not matched",
    "other_members": (
        "{count} collective[ is|s are] on ranks that [its group does not have|their groups do not have], "
        "or on more than [it has|they have]: not matched"
    ),
    "other_moment": (
        "{count} collective[ of a group|s of groups] whose ranks the trace does not list: [it ends|these, or most of "
        "their kind, end] on one rank before [it begins|they begin] on another, so other groups', or clocks disagree; "
        "not matched"
    ),
    "other_size": "{count} collective[ has|s have] another size on other ranks: not matched",
    "no_bytes": "{count} communication kernel[ does|s do] not say [its|their] bytes: 0 in the timeline, no bandwidth",
    "no_group": (
        "{count} communication kernel[ does|s do] not say [its|their] group: taken to be all ranks of the job, if it "
        "has as many"
    ),
    "no_common_clock": (
        "{count} rank[ shares|s share] no matched collective with the first rank, not even through others ({example}): "
        "[its own clock is|their own clocks are] used"
    ),
    "far_clock": "the clock[|s] of {count} rank[ is|s are] far from the first one's ({example}): is this one run?",
    "ends_apart": "after alignment the ends of collectives still lie apart on {count} rank[|s] ({example})",
    "drift": (
        "{count} clock[ runs|s run] faster or slower than the others, by more than clocks drift (or count[s|] in "
        "another unit), and so do [its|their] durations, which are kept: {example}"
    ),
    "early_ends": (
        "{count} collective[ ends|s end] on one rank before [it has|they have] begun on all (by up to {example}): the "
        "clocks agree no better than that"
    ),
    "no_duration": "{count} collective[ has|s have] no duration: taken to last no time",
    "other_node": (
        "{count} node[|s] of other types or collectives: [it is|they are] in no timeline, and only hold[s|] others up"
    ),
    "peer_absent": (
        "{count} message[ is sent to, or comes|s are sent to, or come] from, ranks without a file: "
        "[it waits|they wait] for nobody"
    ),
    "member_absent": (
        "{count} collective[ lacks ranks of its|s lack ranks of their] process group: [it does|they do] not wait for "
        "these"
    ),
    "rank_absent": "{count} rank[ has|s have] no file here ({example})",
    "not_reproduced": (
        "unchanged, the replay takes {example}: what waited for what cannot be read from this trace as well as it "
        "should"
    ),
    "unlaunched": (
        "{count} device activit[y has|ies have] no launch in the trace: [it comes|they come] after those before on the "
        "stream, whatever the host does"
    ),
    "inferred": (
        "{count} dependenc[y|ies] between streams [is|are] not in the trace: inferred from activities that start when "
        "others end"
    ),
    "others_absent": "{count} of {example} ranks [is|are] here: waiting for the others counts as communication",
    "one_size": "latency and bandwidth of {example} cannot be told apart (one size): all counts as bandwidth",
}
"""The text of every kind; [one|several] are the words for one case, and for several."""
_NUMBER: Final = re.compile(r"\[([^|\]]*)\|([^\]]*)\]")


@dataclass(frozen=True, slots=True)
class Doubt:
    """``kind``: of the doubt; ``count``: number of cases; ``example``: a case or an amount, or empty."""

    kind: str
    count: int
    example: str = ""

    @property
    def text(self) -> str:
        """Return the doubt in words, for one case or several."""
        words = _NUMBER.sub(r"\1" if self.count == 1 else r"\2", _TEXTS[self.kind])
        return words.format(count=f"{self.count:,}", example=self.example)


def counted(problems: Counter[str]) -> list[Doubt]:
    """Return a doubt per counted kind, sorted by kind."""
    return [Doubt(kind, count) for kind, count in sorted(problems.items()) if count]
