"""A run that cannot go on ends soon, says which rank and op, and leaves no process behind."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from queue import SimpleQueue

import pytest
from msgspec.structs import replace

from backends.execution.errors import ExecutionError, RankError
from backends.execution.request import ExecutionRequest
from backends.processes import BEAT, local_processes
from backends.torch.backend import TorchBackend
from backends.torch.launching.local import _cause, _Ended, _Failed
from backends.torch.session import execute
from sim.plan.errors import CheckError
from sim.plan.words.op import Compute, Recv
from sim.plan.words.program import Plan
from sim.training.steps.builder import build_dense_training
from tests.backends.jobs import training
from tests.backends.plans import ring_plan, textbook_plan
from tests.processes import ROOT, ended, needs_proc, started, until, workers

BOUND_S = 30.0
"""What the requirement allows between a rank's end and the run's."""

LAUNCHER = """
from backends.torch.session import execute
from backends.execution.request import ExecutionRequest
from tests.backends.plans import textbook_plan

execute([ExecutionRequest(plan=textbook_plan(60.0, ranks=2))])
"""


def with_broken_op(plan: Plan, task: str, kernel: str, **attributes: object) -> Plan:
    """Return a plan whose first op of a kernel in a task has other attributes."""
    programs = []
    for program in plan.programs:
        tasks = dict(program.tasks)
        if task in tasks:
            ops = list(tasks[task].ops)
            at = next(i for i, op in enumerate(ops) if isinstance(op, Compute) and op.kernel == kernel)
            ops[at] = replace(ops[at], attributes=attributes)
            tasks[task] = replace(tasks[task], ops=tuple(ops))
        programs.append(replace(program, tasks=tasks))
    return replace(plan, programs=tuple(programs))


@needs_proc
@pytest.mark.parametrize(
    ("signum", "message"),
    [
        (signal.SIGKILL, "rank 1 was ended by SIGKILL"),
        (signal.SIGSTOP, r"^rank 1 has not answered for 6 s and the run was ended: stopped"),
    ],
    ids=["killed", "stopped"],
)
def test_rank_that_is_gone_ends_the_run_and_is_named(signum: signal.Signals, message: str) -> None:
    """Rank 1 is killed or stopped in the middle of a long step: the error says so, in time, and both ranks are gone.

    Rank 0, in an op that is longer than the time in which ranks must answer, is not blamed.
    """
    signalled_at_s: list[float] = []

    def signal_second_rank() -> None:
        until(lambda: len(workers(os.getpid())) == 2, "there are no two ranks")
        time.sleep(4.0)
        signalled_at_s.append(time.monotonic())
        os.kill(workers(os.getpid())[1], signum)

    thread = threading.Thread(target=signal_second_rank, daemon=True)
    thread.start()
    with pytest.raises(RankError, match=message):
        execute([ExecutionRequest(plan=textbook_plan(20.0, ranks=2))], timeout_s=6.0)
    thread.join()
    assert time.monotonic() - signalled_at_s[0] < BOUND_S
    assert workers(os.getpid()) == []


@needs_proc
def test_a_rank_that_lost_its_peer_is_not_blamed_for_its_own_end() -> None:
    """Rank 0 says that it lost rank 1, and ends, before the end of rank 1 is heard of: that is still the cause."""
    inbox: SimpleQueue[tuple[int, object]] = SimpleQueue()
    for heard in ((0, _Ended()), (1, BEAT), (1, _Ended())):
        inbox.put(heard)
    with local_processes(2) as processes:
        processes[1].process.kill()
        found = _cause(0, _Failed("Connection closed by peer", lost_a_peer=True), processes, inbox)
    assert str(found) == "rank 1 was ended by SIGKILL; the other ranks were stopped"


@needs_proc
def test_killed_launcher_leaves_no_rank_behind() -> None:
    """The process that launched the ranks is killed while they compute: they end by themselves."""
    with started(LAUNCHER) as launcher:
        until(lambda: len(workers(launcher.pid)) == 2, "there are no two ranks")
        ranks = workers(launcher.pid)
        time.sleep(4.0)
        launcher.kill()
        ended(launcher, ranks)


@needs_proc
def test_failing_op_ends_the_run_and_is_named() -> None:
    """One rank's kernel fails while its peer waits for it: rank, stream, op, micro-batch and reason are told."""
    job = training(pipeline={"degree": 2}, batch=(2, 1))
    plan = with_broken_op(build_dense_training(job, "broken"), "forward.1", "matmul", contract=2, transposed=False)
    began_s = time.monotonic()
    message = r"rank 1 failed: rank 1, stream 'compute', op 'forward.1/layer2.qkv', micro-batch 0: RuntimeError: "
    with pytest.raises(RankError, match=message):
        execute([ExecutionRequest(plan=plan)])
    assert time.monotonic() - began_s < BOUND_S
    assert workers(os.getpid()) == []


def test_backend_refuses_a_plan_that_could_not_run() -> None:
    """The plan's own check comes first: a receive that nobody sends starts no process."""
    ring = ring_plan()
    program = ring.programs[0]
    task = program.tasks["work"]
    ops = tuple(op for op in task.ops if not isinstance(op, Recv))
    silent = replace(ring, programs=(replace(program, tasks={"work": replace(task, ops=ops)}),))
    with pytest.raises(CheckError, match="receives 0"):
        TorchBackend().run(silent)


def test_a_run_needs_an_iteration() -> None:
    """Zero iterations are refused."""
    with pytest.raises(ExecutionError, match="at least one iteration, got 0"):
        ExecutionRequest(plan=ring_plan(), iterations=0)


def test_more_ranks_than_devices_are_refused() -> None:
    """Ranks do not share a GPU; the message has both numbers."""
    plan = textbook_plan(0.1, ranks=4096)
    with pytest.raises(ExecutionError, match="the plan has 4096 ranks and this machine"):
        execute([ExecutionRequest(plan=plan)], "cuda")


def test_job_of_another_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under torchrun the plan must have as many ranks as the job."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ExecutionError, match=r"plan 'ring' has 2 ranks, the job has 3 \(WORLD_SIZE\)"):
        execute([ExecutionRequest(plan=ring_plan())])


def test_running_job_is_joined(tmp_path: Path) -> None:
    """Under torchrun the same call joins the job: rank 0 gets all ranks' results, the others nothing."""
    script = tmp_path / "join.py"
    script.write_text(
        textwrap.dedent("""
        import os, pathlib, sys
        from backends.torch.session import execute
        from backends.execution.request import ExecutionRequest
        from sim.training.steps.builder import build_dense_training
        from tests.backends.jobs import training

        job = training(tensor_degree=2, batch=(1, 1))
        executions = execute([ExecutionRequest(plan=build_dense_training(job, "joined"), check_against=job)])
        text = "none" if executions is None else f"{len(executions[0].ranks)} {executions[0].check.passed}"
        pathlib.Path(sys.argv[1], os.environ["RANK"]).write_text(text)
        """)
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    finished = subprocess.run(
        [*command, str(tmp_path)], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert finished.returncode == 0, finished.stderr
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["2 True", "none"]
