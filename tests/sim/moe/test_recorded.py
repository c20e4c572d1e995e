"""Recorded routing: what is written is read, and what is wrong is told with its line."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sim.moe.errors import RoutingError
from sim.moe.recorded import RecordedRouting
from sim.moe.routing import RoutingShape
from sim.moe.routing_file import COLUMNS, read_routing, write_routing
from sim.moe.skew import Skew
from traces.errors import TraceError

SHAPE = RoutingShape(num_layers=2, num_sources=3, num_experts=4, num_tokens=32, top_k=2)
HEAD = ",".join(COLUMNS) + "\n"


@pytest.mark.parametrize("name", ["routing.csv", "routing.parquet"])
def test_what_is_written_is_read_again(tmp_path: Path, name: str) -> None:
    """All steps, layers, source ranks and experts come back, also those without tokens; equal steps are equal."""
    walk = Skew(zipf=2.0).steps(SHAPE)
    steps = [next(walk) for _ in range(3)]
    write_routing(tmp_path / name, RecordedRouting.of(name, steps, first_layer=5))
    found = read_routing(tmp_path / name)
    assert found.steps.tolist() == [0, 1, 2]
    for number, routing in enumerate(steps):
        assert np.array_equal(found.at(number).routing(SHAPE).counts, routing.counts)
    assert found.at(1) == read_routing(tmp_path / name).at(1)
    assert found.at(1) != found.at(2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("step,layer\n0,0\n", ":1: the column source_rank is missing"),
        (HEAD, "no rows"),
        (HEAD + "0,0,0,0,5\n0,0,0,x,5\n", ":3: expert: 'x' is no whole number"),
        (HEAD + "0,0,0,0,5\n0,0,0,1\n", ":3: 4 cells"),
        (HEAD + "0,0,0,0,5\n0,0,0,1,-1\n", ":3: tokens: -1 is not a number from 0"),
        (HEAD + "0,0,0,0,5\n0,0,0,1,3\n0,0,0,0,2\n", ":4: step 0, layer 0, source rank 0, expert 0 stands here again"),
        (HEAD + "0,0,0,0,99999999999999999999999\n", ":2: tokens: 99999999999999999999999 is too large"),
        ("\0\1\2", "missing"),
    ],
)
def test_a_wrong_file_is_told_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    """Every rule that a file breaks has its line, its column and a remedy."""
    path = tmp_path / "routing.csv"
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        read_routing(path)
    assert says in str(caught.value)


def test_what_is_no_file_of_routing_is_refused(tmp_path: Path) -> None:
    """A folder, nothing at all, text that calls itself Parquet, and Parquet of other columns."""
    (tmp_path / "text.parquet").write_text("no parquet")
    pq.write_table(pa.table({"step": [0]}), tmp_path / "other.parquet")
    for name in ("", "nothing.csv", "text.parquet", "other.parquet"):
        with pytest.raises(TraceError):
            read_routing(tmp_path / name)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ("0,0,0,0,64\n", "has 1 layers in step 0, and the model 2"),
        ("0,0,0,7,64\n0,1,0,0,64\n", "has an expert 7"),
        ("0,0,0,0,32\n0,1,0,0,32\n", "makes 32 choices"),
    ],
)
def test_a_recording_of_another_model_is_refused(tmp_path: Path, rows: str, says: str) -> None:
    """Layers, experts and choices must be those of the model."""
    (tmp_path / "routing.csv").write_text(HEAD + rows)
    with pytest.raises(RoutingError, match=says):
        read_routing(tmp_path / "routing.csv").at(0).routing(SHAPE)
    with pytest.raises(RoutingError, match="no step 4"):
        read_routing(tmp_path / "routing.csv").at(4)
