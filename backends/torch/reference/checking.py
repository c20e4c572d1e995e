"""The check of what a rank has run, by the kind of job that its plan must reproduce."""

from backends.execution.request import ExecutionRequest
from backends.execution.result import CheckReport
from backends.torch.reference.check import check_rank, kept_for_check
from backends.torch.reference.generation import check_generation, kept_for_generation
from backends.torch.reference.references import References
from backends.torch.running.interpreter import Interpreter
from sim.inference.spec import InferenceJob


def kept_by(request: ExecutionRequest, rank: int) -> frozenset[str]:
    """Return the buffers of a rank that the check reads after the last step."""
    job, program = request.check_against, request.plan.program_of(rank)
    if job is None:
        return frozenset()
    return kept_for_generation(program) if isinstance(job, InferenceJob) else kept_for_check(program)


def checked(interpreter: Interpreter, request: ExecutionRequest, references: References) -> CheckReport | None:
    """Return a rank's comparison with the dense model after the last step; None where no check was asked for."""
    job = request.check_against
    if job is None:
        return None
    before = 0 if request.after is None else request.after.steps
    num_steps = before + request.iterations * request.plan.num_steps
    if isinstance(job, InferenceJob):
        return check_generation(interpreter, job, num_steps - 1)
    return check_rank(interpreter, references.of(job, num_steps), job.training.precision)
