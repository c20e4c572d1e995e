"""The torch backend: it runs plans on real devices."""

from dataclasses import dataclass

from backends.torch.errors import ExecutionError
from backends.torch.launch import Execution, execute
from backends.torch.measuring.session import copy_bandwidths, measure
from backends.torch.silence import SILENCE_S
from backends.torch.timeline import timeline
from backends.torch.worker import DeviceKind, ExecutionRequest
from sim.plan.check import check
from sim.plan.program import Plan
from sim.plan.steps import longest_lag
from traces.timeline import Timeline

__all__ = ["Execution", "ExecutionRequest", "TorchBackend", "copy_bandwidths", "measure", "timeline"]


@dataclass(frozen=True, slots=True)
class TorchBackend:
    """Runs plans with torch: gloo and threads on CPUs, NCCL and CUDA streams on GPUs.

    ``timeout_s``: how long a rank may not answer; it answers while it computes, too.
    """

    device: DeviceKind = "cpu"
    timeout_s: float = SILENCE_S

    def execute(self, request: ExecutionRequest) -> Execution | None:
        """Return what all ranks found out; None on the ranks of a running job that do not report.

        Raises CheckError for a plan that could not run, ExecutionError where the run fails.
        """
        check(request.plan)
        executions = execute([request], self.device, timeout_s=self.timeout_s)
        return None if executions is None else executions[0]

    def run(self, plan: Plan) -> Timeline:
        """Return the timeline of one step of ``plan``.

        Raises ExecutionError on a rank of a running job that does not report; call ``execute`` there.
        """
        fewest = 1 + max(longest_lag(program) for program in plan.programs)
        execution = self.execute(ExecutionRequest(plan=plan, iterations=fewest))
        if execution is None:
            raise ExecutionError("only rank 0 of a running job has the timeline")
        return timeline(plan, execution.ranks)
