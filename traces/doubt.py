"""Doubts about a recording: problems that may make its figures wrong. All their texts are in this file."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

_BROKEN: Final = {
    "no_name": "without a name",
    "no_time": "without start or duration",
    "bad_start": "with a start that is no time in microseconds",
    "negative_duration": "with a negative duration",
    "endless": "longer than eleven days",
    "no_stream": "without a stream",
    "far": "more than eleven days from the others",
    "unknown": "of an unknown category",
    "repeated": "with the number of an earlier one",
    "twice": "for a step that another one already names",
}
_TEXTS: Final[Mapping[str, str]] = {
    **{f"device_{kind}": f"{{count}} device activit[y|ies] {words}: left out" for kind, words in _BROKEN.items()},
    **{f"host_{kind}": f"{{count}} host call[|s] {words}: left out" for kind, words in _BROKEN.items()},
    "memory_incomplete": "{count} memory event[|s] without time or allocated bytes: left out",
    "no_launch": "{count} device activit[y has|ies have] no launch in the trace, so no step: left out",
    "rank_guessed": "{example}",
    "last_step": "{example}, the last, may be incomplete and is left out: --steps all keeps it",
    "different_steps": "the ranks recorded different steps: {example} are kept, the complete steps of all ranks",
    "steps_overlap": (
        "{count} step[ begins|s begin] before the previous step has ended (by up to {example}): work launched in "
        "between belongs to both steps"
    ),
    "no_steps": "{count} rank[|s] recorded no steps: all of [its|their] work is kept",
    "no_file": "{count} of {example}",
    "rank_beyond": "rank[ {example} is|s {example} are] beyond the number of ranks that the files state",
    "before_launch": (
        "{count} device activit[y begins|ies begin] before the host launched [it|them] (by up to {example}): clocks of "
        "host and device disagree"
    ),
    "busy_stream": (
        "{count} device activit[y begins before its|ies begin before their] stream is free (by up to {example}): "
        "seconds in which both run count once"
    ),
    "unequal_spans": ("the work of {count} rank[|s] spans {example}: are these the same steps, in one unit of time?"),
    "not_as_many": (
        "{count} collective[|s]: the ranks of the group have different numbers of them in the step: not matched"
    ),
    "message_ends": (
        "{count} end[|s] of messages: a rank sends another number of messages than its peer receives: not matched"
    ),
    "message_size": "{count} end[|s] of messages [has|have] another size than the other end: not matched",
    "other_members": (
        "{count} collective[ is|s are] on ranks outside [its group|their groups], or on more ranks than the group has: "
        "not matched"
    ),
    "other_moment": (
        "{count} collective[ of a group|s of groups] without a list of ranks in the trace: [it ends|these, or most of "
        "their kind, end] on one rank before [it begins|they begin] on another, so several groups share the name, or "
        "clocks disagree: not matched"
    ),
    "other_size": "{count} collective[ has|s have] another size on other ranks: not matched",
    "no_bytes": "{count} communication kernel[|s] without bytes in the trace: 0 in the timeline, no bandwidth",
    "no_group": (
        "{count} communication kernel[|s] without a group in the trace: counted as of all ranks of the job, if the "
        "number of ranks is equal"
    ),
    "no_common_clock": (
        "{count} rank[ shares|s share] no matched collective with the first rank, directly or through other ranks "
        "({example}): [its own clock is|their own clocks are] used"
    ),
    "far_clock": "the clock[|s] of {count} rank[ is|s are] far from the first rank's ({example}): is this one run?",
    "ends_apart": "after alignment the ends of collectives still differ on {count} rank[|s] ({example})",
    "drift": (
        "{count} clock[ drifts|s drift] more than a real clock can, or [has|have] another unit of time; [its|their] "
        "durations have the same error and are kept: {example}"
    ),
    "early_ends": (
        "{count} collective[ ends|s end] on one rank before [it has|they have] begun on all (by up to {example}): the "
        "clocks disagree by as much"
    ),
    "no_duration": "{count} collective[ has|s have] no duration: counted as 0 s",
    "other_node": (
        "{count} node[|s] of other types or collectives: not in the timeline; other nodes still wait for [it|them]"
    ),
    "peer_absent": (
        "{count} message[|s] to or from ranks without a file: [it does|they do] not wait for the other end"
    ),
    "member_absent": (
        "{count} collective[ lacks ranks of its|s lack ranks of their] process group: [it does|they do] not wait for "
        "these ranks"
    ),
    "rank_absent": "{count} rank[ has|s have] no file here ({example})",
    "not_reproduced": (
        "a replay without changes takes {example}: this trace does not state all dependencies between activities"
    ),
    "unlaunched": (
        "{count} device activit[y has|ies have] no launch in the trace: [it follows|they follow] the previous activity "
        "of the stream and [does|do] not wait for the host"
    ),
    "inferred": (
        "{count} dependenc[y|ies] between streams [is|are] not in the trace: inferred from activities that start when "
        "others end"
    ),
    "others_absent": "{count} of {example} ranks [is|are] here: waiting for the others counts as communication",
    "one_size": "{example}: one size only, so latency and bandwidth cannot be separated; all time counts as bandwidth",
}
"""The text of every kind; [one|several] are the words for one case, and for several."""
_NUMBER: Final = re.compile(r"\[([^|\]]*)\|([^\]]*)\]")


class Doubt(Struct, frozen=True):
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
