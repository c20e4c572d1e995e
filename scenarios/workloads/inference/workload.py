"""Inference: prompts that are answered together, as a plan."""

from backends.simulated import SimulatedBackend
from costmodels.units import format_bytes, format_time, format_tokens_rate
from scenarios.reading.documents.yaml_tree import Document
from scenarios.workloads.effort import Announce
from scenarios.workloads.executing import Executed, ExecutionOptions
from scenarios.workloads.inference.outcome import InferenceOutcome, InferenceRow
from scenarios.workloads.inference.scenario import InferenceScenario, read_inference
from scenarios.workloads.inference.schema import UNREAD, InferenceScenarioFile
from scenarios.workloads.inference.starter import STARTER
from scenarios.workloads.inference.summary import summarise
from scenarios.workloads.steps.effort import effort_of
from scenarios.workloads.steps.executing.registry import load_execution_of
from scenarios.workloads.workload import Column, Detail, Workload
from sim.engine.folding.folding import Folding
from sim.engine.running.shorter import Shorter


class Inference(Workload[InferenceScenario]):
    """Times to the first token and per token of a batch, what they wait for, and memory."""

    name = "inference"
    what = "prompts that are answered together: one pass over all of them, then step after step of decoding"
    schema = InferenceScenarioFile
    starter = STARTER
    row_type = InferenceRow
    columns = (
        Column("first token", "prefill_time_s", format_time),
        Column("per token", "time_per_output_token_s", format_time),
        Column("all", "total_time_s", format_time),
        Column("output", "output_tokens_per_s", format_tokens_rate),
        Column("memory", "peak_memory_bytes", format_bytes),
    )
    order, ordered_by = "total_time_s", "time of all tokens"
    point = "simulated inference"
    unread = UNREAD

    def read(self, document: Document, overrides: tuple[str, ...]) -> InferenceScenario:
        """Return the scenario of a document."""
        return read_inference(document, overrides, self)

    def simulate(
        self,
        scenario: InferenceScenario,
        *,
        detail: Detail | None = None,
        fold: bool = True,
        announce: Announce | None = None,
    ) -> InferenceOutcome:
        """Return the simulated passes."""

        def notice(shorter: Shorter, folding: Folding, *, whole: bool) -> None:
            if announce is not None:
                announce(effort_of(shorter, folding, "", whole=whole))

        backend = SimulatedBackend(scenario.pricing(), fold, notice=None if announce is None else notice)
        run = backend.simulate(scenario.build())
        return InferenceOutcome(scenario, run, summarise(scenario, run), detail)

    def execute(self, scenario: InferenceScenario, options: ExecutionOptions) -> Executed | None:
        """Return the executed plan, beside its simulation."""
        return load_execution_of(self.name)(scenario, options)

    def is_possible(self, row: object) -> bool:
        """Return whether weights, keys and values fit into memory."""
        return not isinstance(row, InferenceRow) or row.fits_memory

    def has_lanes(self, scenario: InferenceScenario) -> bool:
        """Return whether there is a pipeline."""
        return scenario.job.parallel.pipeline.degree > 1
