"""Job mixes in CSV files are read, or refused with their line."""

from pathlib import Path

import pytest

from traces.errors import TraceError
from traces.jobs import RecordedJob, read_jobs

JOBS = "user,job_id,duration_s,num_gpus,arrival_s\nann,b,20,4,110\nbob,a,1e2,2,100.5\n"
HEAD = "job_id,arrival_s,num_gpus,duration_s"


def test_rows_are_jobs(tmp_path: Path) -> None:
    """Arrivals count from the first; other columns and their order do not matter."""
    path = tmp_path / "jobs.csv"
    path.write_text(JOBS)
    assert read_jobs(path) == [RecordedJob("b", 9.5, 4, 20.0), RecordedJob("a", 0.0, 2, 100.0)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("job_id,arrival_s,num_gpus\n1,0,1\n", "jobs.csv:1: the column duration_s is missing"),
        (f"{HEAD},job_id\n", "jobs.csv:1: the column job_id is there twice"),
        (f"{HEAD}\n1,0,1,5\n2,0,1\n", "jobs.csv:3: 3 cells, where there are 4 columns"),
        (f"{HEAD}\n1,0,1,5\n2,x,1,5\n", "jobs.csv:3: arrival_s: 'x' is no number from 0"),
        (f"{HEAD}\n1,0,1.5,5\n", "jobs.csv:2: num_gpus: 1.5 is no whole number from 1"),
        (f"{HEAD}\n1,0,0,5\n", "jobs.csv:2: num_gpus: '0' is no number from 1"),
        (f"{HEAD}\n1,0,1,nan\n", "jobs.csv:2: duration_s: 'nan' is no number from 0.001"),
        (f"{HEAD}\n1,-1,1,5\n", "jobs.csv:2: arrival_s: '-1' is no number from 0"),
        (f"{HEAD}\n1,0,1,5\n1,0,1,5\n", "jobs.csv:3: the job 1 has an earlier row"),
        (f"{HEAD}\n ,0,1,5\n", "jobs.csv:2: job_id: the job has no name"),
        (f"{HEAD}\n", "jobs.csv: the file has no jobs"),
        ("", "jobs.csv:1: the column job_id is missing"),
    ],
)
def test_wrong_lines_are_named(tmp_path: Path, text: str, words: str) -> None:
    """The first wrong line is refused, with its column and the rule."""
    path = tmp_path / "jobs.csv"
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        read_jobs(path)
    assert words in str(caught.value)
