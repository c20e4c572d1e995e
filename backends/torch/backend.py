"""The torch backend: it runs plans on real devices."""

from dataclasses import dataclass

from backends.torch.errors import ExecutionError
from backends.torch.launching.launch import Execution, execute
from backends.torch.launching.silence import SILENCE_S
from backends.torch.launching.timeline import timeline
from backends.torch.launching.worker import DeviceKind, ExecutionRequest
from backends.torch.measuring.session import copy_bandwidths, measure
from sim.plan.checking.check import check
from sim.plan.words.program import Plan
from sim.plan.words.steps import longest_lag
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
