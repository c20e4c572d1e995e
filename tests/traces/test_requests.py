"""Readers of recorded requests: the published forms, and errors with their line."""

from pathlib import Path

import pytest

from traces.errors import TraceError
from traces.requests import read_requests

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""
MOONCAKE = """{"timestamp": 3000, "input_length": 1030, "output_length": 26, "hash_ids": [0, 1, 2]}
{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 7]}
"""


def written(folder: Path, name: str, text: str) -> Path:
    """Return a file with a text."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_azure_trace_is_read(tmp_path: Path) -> None:
    """Instants have seven digits of a second, and count from the first request."""
    found = read_requests(written(tmp_path, "azure.csv", AZURE))
    assert found.arrival_s == pytest.approx((0.0, 4.314579))
    assert (found.prompt_tokens, found.output_tokens, found.prefixes) == ((374, 396), (44, 109), ())


def test_mooncake_trace_is_read_in_order_of_arrival(tmp_path: Path) -> None:
    """Milliseconds become seconds, and the names of blocks are kept."""
    found = read_requests(written(tmp_path, "mooncake.jsonl", MOONCAKE))
    assert found.arrival_s == (0.0, 3.0)
    assert found.prefixes == ((0, 7), (0, 1, 2))


@pytest.mark.parametrize(
    ("name", "text", "line", "said"),
    [
        ("a.csv", AZURE + "soon,1,1\n", 4, "'soon' is neither a number of seconds nor a date"),
        ("a.csv", AZURE + "2023-11-16 18:16:00,0,1\n", 4, "ContextTokens: '0' is not a number of tokens"),
        ("a.csv", AZURE + "2023-11-16 18:16:00,3\n", 4, "the row has 2 cells"),
        ("a.csv", "TIMESTAMP,Context\n", 1, "there is no column ContextTokens or prompt_tokens"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n", 0, "the file has no requests"),
        ("a.jsonl", MOONCAKE.replace('"timestamp": 0', '"timestamp": "0"'), 2, "'0' is no number of milliseconds"),
        ("a.jsonl", MOONCAKE + "{\n", 3, "this is not JSON"),
        ("a.jsonl", MOONCAKE + '{"timestamp": 1}\n', 3, "a request needs the keys timestamp"),
        ("a.jsonl", MOONCAKE.replace("[0, 7]", '["x"]'), 2, "hash_ids: this is no list of whole numbers"),
    ],
)
def test_errors_name_the_line(tmp_path: Path, name: str, text: str, line: int, said: str) -> None:
    """What is wrong with a trace is said with its line."""
    with pytest.raises(TraceError) as caught:
        read_requests(written(tmp_path, name, text))
    assert caught.value.line == line
    assert said in str(caught.value)
