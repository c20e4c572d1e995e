"""A run that cannot go on ends soon, says which rank and op, and leaves no process behind."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from backends.torch.backend import TorchBackend
from backends.torch.errors import ExecutionError, RankError
from backends.torch.launch import execute
from backends.torch.worker import ExecutionRequest
from sim.plan.errors import CheckError
from sim.plan.op import Compute, Recv
from sim.plan.program import Plan
from sim.training.builder import build_dense_training
from tests.backends.jobs import training
from tests.backends.plans import ring_plan
from tests.backends.runs import textbook_plan

BOUND_S = 30.0
"""What the requirement allows between a rank's end and the run's."""

ROOT = Path(__file__).parents[2]

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds child processes in /proc")


def children() -> list[int]:
    """Return the ranks' processes that this process has started, oldest first."""
    return sorted(pid for pid in _processes() if _parent(pid) == os.getpid() and "spawn_main" in _command(pid))


def _processes() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return -1


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


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
def test_killed_rank_ends_the_run_and_is_named() -> None:
    """Rank 1 is killed in the middle of a long step: the error says so, in time, and rank 0 is gone too."""
    killed_at_s: list[float] = []

    def kill_second_rank() -> None:
        while len(children()) < 2:
            time.sleep(0.1)
        time.sleep(4.0)
        killed_at_s.append(time.monotonic())
        os.kill(children()[1], signal.SIGKILL)

    thread = threading.Thread(target=kill_second_rank, daemon=True)
    thread.start()
    with pytest.raises(RankError, match="rank 1 was ended by SIGKILL"):
        execute([ExecutionRequest(plan=textbook_plan(20.0, ranks=2))])
    thread.join()
    assert time.monotonic() - killed_at_s[0] < BOUND_S
    assert children() == []


@needs_proc
def test_killed_launcher_leaves_no_rank_behind() -> None:
    """The process that launched the ranks is killed while they compute: they end by themselves."""
    code = textwrap.dedent("""
        from backends.torch.launch import execute
        from backends.torch.worker import ExecutionRequest
        from tests.backends.runs import textbook_plan

        if __name__ == "__main__":
            execute([ExecutionRequest(plan=textbook_plan(60.0, ranks=2))])
    """)
    launcher = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
    began_s, ranks = time.monotonic(), list[int]()
    while len(ranks) < 2 and time.monotonic() - began_s < BOUND_S:
        time.sleep(0.1)
        ranks = [pid for pid in _processes() if _parent(pid) == launcher.pid and "spawn_main" in _command(pid)]
    time.sleep(4.0)
    launcher.kill()
    launcher.wait()
    killed_at_s = time.monotonic()
    while any("spawn_main" in _command(pid) for pid in ranks) and time.monotonic() - killed_at_s < BOUND_S:
        time.sleep(0.1)
    assert len(ranks) == 2
    assert not any("spawn_main" in _command(pid) for pid in ranks)


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
    assert children() == []


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
        from backends.torch.launch import execute
        from backends.torch.worker import ExecutionRequest
        from sim.training.builder import build_dense_training
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
