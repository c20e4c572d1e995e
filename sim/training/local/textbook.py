"""Local updates with stated times: the cost of their order alone."""

from dataclasses import dataclass

from sim.plan.functions.token_slices import TokenSlice
from sim.plan.words.buffer import Kind
from sim.plan.words.mesh import Mesh
from sim.plan.words.program import Phase, Plan
from sim.training.local.order import local_calls
from sim.training.pipeline.actions import Action, Order
from sim.training.pipeline.schedules import placement
from sim.training.spec.job import TextbookTraining
from sim.training.spec.parallelism.mesh_axes import PIPELINE_AXIS
from sim.training.steps.textbook import RankWriter


def build_local_textbook(job: TextbookTraining, name: str) -> Plan:
    """Return the plan of one step; the blocks of a rank divide the stated times of a stage.

    With greedy updates a step takes (P-1) tF + m (tF + tA + tB + tW) without message times, where tA is the time of the
    auxiliary heads. A rank waits only for its first micro-batch.
    """
    degree, place, m = job.pipeline.degree, placement(job.pipeline), job.num_microbatches
    programs = []
    for rank, stages in enumerate(place.stages):
        order = Order.of(Action("B", stage, i) for i in range(m) for stage in reversed(stages))
        writer = LocalRankWriter(job, place, stages, set())
        calls = local_calls(stages, place.num_stages, m, job.update)
        programs.append(writer.write({PIPELINE_AXIS: rank} if degree > 1 else {}, order, calls))
    mesh = Mesh(((PIPELINE_AXIS, degree),))
    return Plan(name, mesh, tuple(programs), job.seed, barrier=job.pipeline.has_barrier)


@dataclass(slots=True)
class LocalRankWriter(RankWriter):
    """Writes one rank's program: its blocks, each with its own head."""

    def _write_stage(self, stage: int, part: TokenSlice | None = None) -> None:
        assert part is None, "blocks that train locally take sequences whole"
        times, place = self.job.times, self.place
        overlapping = self.job.update == "overlapping"
        inputs, output = self._inputs(stage), self._buffer(f"output.{stage}", Kind.ACTIVATION)
        saved, own = self._buffer(f"saved.{stage}", Kind.ACTIVATION), self._buffer(f"own.{stage}", Kind.WORKSPACE)
        back = self._buffer(f"input_gradient.{stage}", Kind.WORKSPACE)
        next_one = self._output_gradient(stage) if overlapping else ()
        sums, whole_s = self._accumulated(stage), times.input_s + times.weight_s
        read = inputs + self._weights(stage)
        self._delay(f"forward.{stage}", Phase.FORWARD, read, output + saved, times.forward_s)
        self._delay(f"head.{stage}", Phase.HEAD, output, own, self.job.auxiliary_s)
        self._delay(f"backward_input.{stage}", Phase.BACKWARD_INPUT, saved + own, back, times.input_s)
        goes_back = back if overlapping and place.is_last(stage) else ()
        self._delay(f"backward.{stage}", Phase.BACKWARD, saved + own + next_one + sums, goes_back + sums, whole_s)
        if not place.is_first(stage) and place.hop(stage - 1):
            self._message("recv", "forward", f"{stage}", -1, inputs)
            self._message("send", "backward", f"{stage}", -1, back)
        if not place.is_last(stage) and place.hop(stage):
            self._message("send", "forward", f"{stage}", 1, output)
            self._message("recv", "backward", f"{stage}", 1, next_one)
