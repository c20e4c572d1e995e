"""Jobs of a trace of Pollux whose trainings are measured tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from scenarios.errors import ScenarioError
from scenarios.reading.documents.named_file import named_file
from scenarios.reading.documents.yaml_tree import Document
from scenarios.workloads.job_mix.recorded import recorded_trainings
from scenarios.workloads.job_mix.schema import JobsSection
from sim.jobs.errors import JobsError
from sim.jobs.job import Job, elastic_job
from sim.jobs.placement import fewest_nodes
from sim.jobs.speed.measured import Application, ChosenBatch, FixedBatch
from sim.jobs.training import Training
from traces.errors import TraceError
from traces.job_trainings import SubmittedTraining
from traces.measured_trainings import FOLDER, read_trainings, training_names


def measured_jobs(document: Document, section: JobsSection, path: Path, gpus_per_node: Sequence[int]) -> Sequence[Job]:
    """Return the jobs of a trace. Raises ScenarioError, with the trace's line, for one that the tables do not allow."""
    if section.format != "pollux" or section.trainings:
        rule, remedy = "measured trainings are for a trace of Pollux alone", "write format: pollux, and no trainings"
        raise ScenarioError(document.origin(("jobs", "measured")), "jobs.measured", rule, remedy)
    applications = _applications(document, section.measured or "")
    found = []
    for row in recorded_trainings(document, path, section.format):
        try:
            found.append(_job(row, applications, section.batch, gpus_per_node))
        except JobsError as error:
            rule = f"{path}:{row.line}: {error.rule}"
            raise ScenarioError(document.origin(("jobs", "trace")), "jobs.trace", rule, error.remedy) from error
    return found


def _applications(document: Document, name: str) -> Mapping[str, Application]:
    """Return the applications of a packaged folder, or of one beside the scenario."""
    key = ("jobs", "measured")
    hint = f"name one that comes with the program ({', '.join(training_names())}), or a folder"
    folder = FOLDER / name if name in training_names() else named_file(document, key, name, hint)
    try:
        return {name: Application(recorded) for name, recorded in read_trainings(folder).items()}
    except TraceError as error:
        raise ScenarioError(document.origin(key), "jobs.measured", error.problem, error.remedy) from error


def _job(
    row: SubmittedTraining, applications: Mapping[str, Application], batch: str, gpus_per_node: Sequence[int]
) -> Job:
    """Return a job. Raises JobsError for one that the tables do not allow."""
    application = applications.get(row.application)
    if application is None:
        rule = f"{row.application} is not among the measured trainings"
        raise JobsError("trace", rule, f"measured are {', '.join(applications)}")
    if batch == "trace" and row.batch_size is None:
        raise JobsError("trace", "the trace has no batch_size", "add the column, or write batch: chosen")
    its = ChosenBatch(application) if batch == "chosen" else FixedBatch(application, row.batch_size or 0)
    ends = its.epoch_ends
    training = Training(
        samples_per_epoch=ends[-1] / len(ends),
        num_epochs=len(ends),
        speed=its,
        most_gpus=max(min(its.most_gpus, sum(gpus_per_node)), 1),
        epochwise=its,
    )
    num_nodes = fewest_nodes(gpus_per_node, row.num_gpus)
    return elastic_job(row.job_id, row.arrival_s, row.num_gpus, training, num_nodes)
