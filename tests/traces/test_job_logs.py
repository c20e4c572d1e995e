"""Published logs of jobs are read, or refused with the line or the job that is wrong."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from traces.errors import TraceError
from traces.job_logs import read_alibaba, read_philly
from traces.job_trainings import SubmittedTraining, read_ones, read_pollux
from traces.jobs import RecordedJob


def attempt(start: str | None, end: str | None, *gpus: int) -> dict[str, Any]:
    """Return an attempt of Philly on nodes with so many GPUs."""
    detail = [{"ip": f"m{n}", "gpus": [f"gpu{g}" for g in range(count)]} for n, count in enumerate(gpus)]
    return {"start_time": start, "end_time": end, "detail": detail}


PHILLY_JOBS = [
    {"jobid": "a", "status": "Pass", "user": "u", "vc": "v", "submitted_time": "2017-10-03 23:59:00",
     "attempts": [attempt("2017-10-04 00:00:00", "2017-10-04 00:01:00", 2),
                  attempt("2017-10-04 00:02:00", "2017-10-04 00:02:30", 4, 4),
                  attempt("2017-10-04 00:02:00", "2017-10-04 00:01:00", 16)]},
    {"jobid": "b", "submitted_time": "2017-10-03 23:58:30", "attempts": [attempt("2017-10-04 00:00:00", None, 1)]},
    {"jobid": "c", "submitted_time": "2017-10-04 00:00:00", "attempts": []},
    {"jobid": "d", "submitted_time": "2017-10-03 23:58:00",
     "attempts": [attempt("2017-10-03 23:58:10", "2017-10-03 23:59:10", 1)]},
]  # fmt: skip
PHILLY = json.dumps(PHILLY_JOBS)
ALIBABA = """\
j1,worker,4,Terminated,100.0,160.0,600,29.3,25.0,MISC
j1,ps,1,Terminated,90.0,150.0,600,29.3,,
j2,tensorflow,2,Failed,50.0,70.0,600,29.3,100.0,P100
j1,evaluator,1,Terminated,95.0,170.0,600,29.3,50.0,T4
j3,xx,1,Running,60.0,,600,29.3,100.0,T4
"""
POLLUX = "name,time,application,num_replicas,batch_size\ncifar10-1,20,cifar10,2,512\nbert-2,5,bert,4,48\n"
ONES_HEAD = "time,model,task,epoch_size,patience,batch_size,lr,max_lr,target_acc,num_gpus\n"
ONES = f"{ONES_HEAD}3,resnet18,cifar,20000,10,256,0.005,0.08,0.7,4\n9,bert,cola,5000,5,16,5e-6,2e-5,0.8,2\n"


def test_logs_of_philly_are_read(tmp_path: Path) -> None:
    """Attempts add up, the largest one counts; jobs that never ended, and an attempt that ends too early, do not."""
    path = tmp_path / "log.json"
    path.write_text(PHILLY)
    assert read_philly(path) == [RecordedJob("a", 60.0, 8, 90.0), RecordedJob("d", 0.0, 1, 60.0)]


def test_tasks_of_alibaba_are_put_together(tmp_path: Path) -> None:
    """Four quarters and a half of a GPU are two GPUs; tasks without GPUs, and those that still run, do not count."""
    path = tmp_path / "pai_task_table.csv"
    path.write_text(ALIBABA)
    assert read_alibaba(path) == [RecordedJob("j1", 45.0, 2, 75.0), RecordedJob("j2", 0.0, 2, 20.0)]


def test_trainings_are_read(tmp_path: Path) -> None:
    """Pollux's arrivals are the file's, those of ONES count from the first; ONES names model and task, and no jobs."""
    (tmp_path / "pollux.csv").write_text(POLLUX)
    assert read_pollux(tmp_path / "pollux.csv") == [
        SubmittedTraining(2, "cifar10-1", 20.0, 2, "cifar10", batch_size=512),
        SubmittedTraining(3, "bert-2", 5.0, 4, "bert", batch_size=48),
    ]  # fmt: skip
    (tmp_path / "ones.csv").write_text(ONES)
    assert read_ones(tmp_path / "ones.csv") == [
        SubmittedTraining(2, "0", 0.0, 4, "resnet18/cifar", 20000.0),
        SubmittedTraining(3, "1", 6.0, 2, "bert/cola", 5000.0),
    ]


@pytest.mark.parametrize(
    ("read", "text", "words"),
    [
        (read_alibaba, "j1,w,4,T,1,2,6,2,25\n", "a.csv:1: 9 cells, where there are 10 columns"),
        (read_alibaba, "j1,w,4,T,1,2,6,2,25,\nj1,w,x,T,1,2,6,2,25,\n", "a.csv:2: inst_num: 'x' is no number from 1"),
        (read_alibaba, "j1,w,4,T,5,2,6,2,25,\n", "a.csv:1: end_time: '2' is no number from 5"),
        (read_alibaba, "j1,w,4,T,5,6,6,2,much,\n", "a.csv:1: plan_gpu: 'much' is no number from 0"),
        (read_alibaba, "j1,w,4,T,5,6,6,2,0,\n", "the file has no jobs"),
        (read_pollux, "name,time,application\nx,1,y\n", "a.csv:1: the column num_replicas is missing"),
        (
            read_pollux,
            "name,time,application,num_replicas\nx,1,y,2\nx,2,y,2\n",
            "a.csv:3: the job x has an earlier row",
        ),
        (read_pollux, "name,time,application,num_replicas\nx,1,,2\n", "a.csv:2: application: the job has no name"),
        (read_ones, f"{ONES_HEAD}1,bert,cola,5000,5,16,5e-6,2e-5,0.8\n", "a.csv:2: 9 cells, where there are 10"),
        (read_ones, f"{ONES_HEAD}1,bert,cola,never,5,16,5e-6,2e-5,0.8,2\n", "a.csv:2: epoch_size: 'never'"),
        (read_ones, "", "the file has no jobs"),
        (read_philly, "{", "the file is no JSON"),
        (read_philly, "{}", "this is no list of at most"),
        (read_philly, '[{"jobid": "a", "attempts": []}]', "job 0 of the list: there is no 'submitted_time'"),
        (read_philly, json.dumps([PHILLY_JOBS[0] | {"submitted_time": "yesterday"}]), "job 0 of the list: time data"),
        (read_philly, json.dumps([PHILLY_JOBS[0] | {"jobid": None}]), "job 0 of the list: its jobid is no name"),
        (read_philly, PHILLY.replace('"gpus": [', '"gpus": "abc", "more": [', 1), "the gpus of a node are no list"),
        (read_philly, json.dumps(PHILLY_JOBS[:1] * 2), "job 1 of the list is there twice"),
        (read_philly, "[1]", "job 0 of the list: it is no object with attempts"),
    ],
)
def test_wrong_rows_are_named(tmp_path: Path, read: Callable[[Path], list[Any]], text: str, words: str) -> None:
    """The first wrong row is refused, with its line or its place, and the rule."""
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        read(path)
    assert words in str(caught.value)
