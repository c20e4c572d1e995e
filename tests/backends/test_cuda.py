"""The same plans on GPUs, where there are any."""

import pytest
import torch

from backends.execution.request import ExecutionRequest, ExplicitCollectives
from backends.torch.launching.timeline import timeline
from backends.torch.session import execute
from sim.engine.running.memory import memory_use
from sim.training.steps.builder import build_dense_training
from tests.backends.collective_plans import KEPT, every_collective
from tests.backends.communication.test_collectives import differing, expected
from tests.backends.jobs import GPT, LLAMA, training

JOBS = {
    "one": training(model={**GPT, "hidden_size": 64, "ffn_hidden_size": 256}, precision="fp64"),
    "one bf16": training(model={**LLAMA, "hidden_size": 64}, precision="bf16"),
    "tp2": training(tensor_degree=2, sequence_parallel=True, precision="fp64"),
    "pp2": training(pipeline={"degree": 2}, precision="fp64"),
    "dp2": training(data_degree=2, zero_stage=1, precision="fp32"),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", JOBS)
def test_plan_reproduces_the_reference_on_gpus(name: str) -> None:
    """Streams, events and NCCL give the reference's numbers, and the account of memory holds."""
    job = JOBS[name]
    if torch.cuda.device_count() < job.parallel.world_size:
        pytest.skip(f"needs {job.parallel.world_size} CUDA devices, this machine has {torch.cuda.device_count()}")
    plan = build_dense_training(job, name)
    executions = execute([ExecutionRequest(plan=plan, check_against=job, iterations=2)], "cuda")
    assert executions is not None
    report = executions[0].check
    assert report is not None
    assert report.passed, report.worst
    timeline(plan, executions[0].ranks).check_streams(1e-5)
    for result in executions[0].ranks:
        assert result.memory.peak_bytes == memory_use(plan.program_of(result.rank)).peak_bytes


@pytest.mark.gpu
@pytest.mark.parametrize("explicit", [None, ExplicitCollectives()], ids=["native", "explicit"])
def test_every_collective_on_gpus(explicit: ExplicitCollectives | None) -> None:
    """NCCL's own collectives, and step lists over NCCL's messages, give what their names say."""
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs 2 CUDA devices, this machine has {torch.cuda.device_count()}")
    executions = execute([ExecutionRequest(plan=every_collective(2), keep=KEPT, explicit=explicit)], "cuda")
    assert executions is not None
    assert differing(executions[0], expected(2)) == set()
