"""What is doubtful of a recording: one record each, in words that fit one case and several."""

from collections import Counter

import pytest

from traces.doubt import Doubt, counted


@pytest.mark.parametrize(
    ("kind", "count", "text"),
    [
        ("no_launch", 1, "1 device activity has no launch in the trace, so no step: left out"),
        ("no_launch", 1200, "1,200 device activities have no launch in the trace, so no step: left out"),
        ("device_no_stream", 1, "1 device activity without a stream: left out"),
        ("host_negative_duration", 2, "2 host calls with a negative duration: left out"),
        ("no_bytes", 1, "1 communication kernel without bytes in the trace: 0 in the timeline, no bandwidth"),
        ("rank_absent", 2, "2 ranks have no file here (1, 3)"),
        ("far_clock", 1, "the clock of 1 rank is far from the first rank's (1, 3): is this one run?"),
    ],
)
def test_words_agree_with_the_number(kind: str, count: int, text: str) -> None:
    """One activity has, several have; thousands are set apart; what is named stands in brackets."""
    assert Doubt(kind, count, "1, 3").text == text


def test_counts_become_records_by_kind() -> None:
    """What never happened is no doubt."""
    found = counted(Counter(other_size=2, no_group=0, no_bytes=1))
    assert found == [Doubt("no_bytes", 1), Doubt("other_size", 2)]
