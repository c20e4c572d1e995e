"""Everything that reads what a user hands over."""

import random
import re
from pathlib import Path
from typing import Final

import yaml

from costmodels.hardware import parse_device, parse_node
from scenarios.here.plan_set import read_plan_set
from scenarios.reading.actions import read_actions
from scenarios.reading.models.model_presets import load_presets
from scenarios.sweep.run import prepare
from scenarios.sweep.settings import read_settings
from scenarios.validation.published import entry_of, where_of
from scenarios.workloads.job_mix.recorded import JOBS, TRAININGS
from scenarios.workloads.loading import load_scenario, scenario_from_mapping
from scenarios.workloads.registry import KINDS
from scenarios.workloads.steps.scenario import StepScenario
from sim.jobs.errors import JobsError
from sim.jobs.speed.measured import Adaptive, Application, FixedBatch
from sim.moe.errors import RoutingError
from sim.moe.routing_file import read_routing
from sim.plan.errors import RecordingError
from sim.plan.session.observations import read_recording
from sim.training.spec.job import TrainingJob
from tests.fuzz import seeds
from tests.fuzz.grown import grown, leaves
from tests.fuzz.mutate import Case
from tests.fuzz.target import Target, run
from traces.errors import TraceError
from traces.lookups import read_lookups
from traces.measured_trainings import read_trainings
from traces.published import load_table
from traces.recorded_drafts import read_drafts
from traces.requests import read_requests

MOST_CALLS: Final = 64
SELDOM: Final = 4
"""One of so many inputs, by its size, is also taken where that takes longer."""
MOST_ACTIONS_BYTES: Final = 1_000
MOST_POINTS: Final = 12
MOST_RANKS: Final = 64
MOST_LAYERS: Final = 8
"""Valid scenarios that are larger are not simulated: they are no error, but take their time."""


def is_small(scenario: StepScenario) -> bool:
    """Return whether a scenario is simulated at once."""
    job = scenario.job
    if not isinstance(job, TrainingJob):
        pipeline = job.pipeline
        return pipeline.degree * pipeline.virtual_stages * job.num_microbatches * pipeline.num_slices <= MOST_CALLS
    assert scenario.cluster is not None
    calls = (
        job.parallel.pipeline.num_virtual_stages
        * job.num_microbatches
        * max(1, len(job.parallel.pipeline.token_slices))
    )
    experts = 0 if job.model.experts is None else job.model.experts.num_experts
    return (
        calls <= MOST_CALLS
        and scenario.cluster.world_size <= MOST_RANKS
        and job.model.num_layers <= MOST_LAYERS
        and experts <= MOST_RANKS
    )


def scenario(folder: Path) -> int:
    """Load a scenario, and where it is small simulate it and write all files."""
    if not is_small(load_scenario(folder / "a.yaml")):
        return 0
    with_files = (folder / "a.yaml").stat().st_size % SELDOM == 0
    return run(folder / "a.yaml", *(("--out", folder / "out") if with_files else ("--json",)))


def grow(rng: random.Random, case: Case) -> Case:
    """Return a scenario with further keys that the schema knows."""
    try:
        data = yaml.load(case["a.yaml"], Loader=yaml.CSafeLoader)
        kind = next((kind for kind in KINDS if kind.name == data.get("workload") or kind.claims(data)), KINDS[0])
        known = leaves(kind.workload.schema.__name__)
        text = yaml.dump(grown(rng, data, known), Dumper=yaml.CSafeDumper, sort_keys=False)
    except Exception:  # a change before has left no scenario
        return case
    return {**case, "a.yaml": text.encode()}


def other_kind(folder: Path) -> int:
    """Read a scenario of a kind of work without a training step, unless it draws very many things."""
    text = (folder / "a.yaml").read_text(encoding="utf-8", errors="replace")
    if not re.search(r"\d{5}", text):
        load_scenario(folder / "a.yaml")
    return 0


def actions(folder: Path) -> int:
    """Read a schedule of actions, and simulate it."""
    read_actions(folder / "actions.csv")
    (folder / "a.yaml").write_text(seeds.CUSTOM)
    return run("show", folder / "a.yaml") if (folder / "actions.csv").stat().st_size < MOST_ACTIONS_BYTES else 0


def cluster(folder: Path) -> int:
    """Show a cluster."""
    return run("show", folder / "a.yaml")


def profile(folder: Path) -> int:
    """Simulate with a profile."""
    (folder / "a.yaml").write_text(seeds.PROFILED)
    return run(folder / "a.yaml", "--json")


def restated(folder: Path) -> int:
    """State the errors of a profile anew, from measured collectives."""
    (folder / "table.csv").write_text(seeds.COLLECTIVES_CSV)
    return run("spread", folder / "profile.yaml", folder / "table.csv", "--out", folder / "out.yaml")


def config(folder: Path) -> int:
    """Simulate a model from its configuration."""
    (folder / "a.yaml").write_text(seeds.FROM_CONFIG)
    return run(folder / "a.yaml", "--json") if is_small(load_scenario(folder / "a.yaml")) else 0


def catalogue(folder: Path) -> int:
    """Parse an entry of the hardware catalogue."""
    try:
        entries = yaml.safe_load((folder / "a.yaml").read_bytes())
    except (yaml.YAMLError, ValueError, RecursionError, TypeError):  # packaged files are read as they are
        return 0
    if isinstance(entries, dict):
        for kind, parse in (("device", parse_device), ("node", parse_node)):
            if kind in entries:
                parse("a", entries[kind])
    return 0


def presets(folder: Path) -> int:
    """Read the presets of a folder."""
    load_presets(folder)
    return 0


def sweep(folder: Path) -> int:
    """Sweep over options."""
    (folder / "a.yaml").write_text(seeds.DENSE)
    options = (folder / "options.txt").read_text(encoding="utf-8", errors="replace").split("\n")
    if sum(option.count(",") for option in options) > MOST_POINTS:
        return 0
    settings = [word for option in options for word in ("--set", option)]
    if not all(is_small(one) for _, one in prepare(folder / "a.yaml", read_settings(options)).points):
        return 0
    return run("sweep", folder / "a.yaml", *settings, "--jobs", 1, "--out", folder / "out")


def points(folder: Path) -> int:
    """Go on with a sweep from the points of a folder."""
    return run("sweep", seeds.PIPELINE, *seeds.SWEPT, "--jobs", 1, "--resume", folder / "kept")


def validate(folder: Path) -> int:
    """Predict a table of measurements."""
    return run("validate", folder / "steps.yaml") if _has_small_steps(folder) else 0


def fit(folder: Path) -> int:
    """Fit a constant to a table of steps."""
    if not _has_small_steps(folder):
        return 0
    return run("fit", folder / "steps.yaml", "--constant", "software.launch", "--jobs", 1)


def _has_small_steps(folder: Path) -> bool:
    """Return whether all rows of a table are simulated at once."""
    table = load_table(folder / "steps.yaml")
    if table.prediction == "collective_time_s":
        return True
    entries = (scenario_from_mapping(entry_of(table, row), table.path, where_of(table, row)) for row in table.rows)
    return all(is_small(entry) for entry in entries)


def residuals(folder: Path) -> int:
    """Judge a profile by measured tables."""
    return run("residuals", *sorted(folder.glob("table.*")), "--node", "hgx-h100")


def plans(folder: Path) -> int:
    """Read a set of plans."""
    read_plan_set(folder / "plans.yaml")
    return 0


def recording(folder: Path) -> int:
    """Read what a session has seen."""
    try:
        read_recording(folder / "recording.json")
    except RecordingError:
        return 2
    return 0


def routing(folder: Path) -> int:
    """Read a recorded routing, and force it."""
    path = next(entry for entry in sorted(folder.iterdir()) if entry.name.startswith("routing"))
    try:
        recorded = read_routing(path)
        recorded.at(int(recorded.steps[0])).routing(seeds.ROUTED)
    except (TraceError, RoutingError):
        return 2
    return 0


def jobs(folder: Path) -> int:
    """Read recorded jobs of a cluster, in the format that the file's name ends with."""
    path = next(entry for entry in sorted(folder.iterdir()) if entry.name.startswith("jobs"))
    try:
        {**JOBS, **TRAININGS}[path.suffix[1:]](path)
    except TraceError:
        return 2
    return 0


def trainings(folder: Path) -> int:
    """Read measured trainings, and train each of them on two nodes with the least batch."""
    try:
        for recorded in read_trainings(folder).values():
            training = Application(recorded)
            FixedBatch(training, training.limits.least).pace((1, 1), 0.0)
            Adaptive(training).pace((1,), 0.0)
    except (TraceError, JobsError):
        return 2
    return 0


def requests(folder: Path) -> int:
    """Read recorded requests to a service."""
    path = next(entry for entry in sorted(folder.iterdir()) if entry.name.startswith("requests"))
    try:
        read_requests(path)
    except TraceError:
        return 2
    return 0


def drafts(folder: Path) -> int:
    """Read recorded hit rates of drafts."""
    try:
        read_drafts(folder / "drafts.yaml")
    except TraceError:
        return 2
    return 0


def lookups(folder: Path) -> int:
    """Read recorded lookups of embedding tables."""
    path = next(entry for entry in sorted(folder.iterdir()) if entry.name.startswith("lookups"))
    try:
        read_lookups(path, {"users": 9, "items": 5} if path.suffix == ".csv" else {"C1": 7, "C26": 3})
    except TraceError:
        return 2
    return 0


def compare(folder: Path) -> int:
    """Lay two results beside each other."""
    return run("compare", folder / "one", folder / "two", "--out", folder / "out")


def trace(folder: Path) -> int:
    """Show a profile of the PyTorch profiler, run it again, and lay it beside itself."""
    path = next(entry for entry in sorted(folder.iterdir()) if entry.name.startswith("profile"))
    codes = [run("trace", path)]
    codes.append(run("replay", path, "--set", "cluster.network.bandwidth=2x", "--out", folder / "out" / "replay"))
    if path.stat().st_size % SELDOM == 0:
        codes.append(run("compare", path, path, "--out", folder / "out" / "compare"))
    return max(codes)


def chakra(folder: Path) -> int:
    """Run Chakra traces again."""
    return run("replay", folder / "chakra", "--set", "cluster.device.compute=2x", "--out", folder / "out")


TARGETS: Final = (
    Target("scenario", seeds.scenarios, scenario, grow),
    Target("kinds", seeds.kinds, other_kind, grow),
    Target("actions", seeds.actions, actions),
    Target("cluster", seeds.clusters, cluster),
    Target("profile", seeds.profiles, profile),
    Target("restated", seeds.profiles, restated),
    Target("config", seeds.configs, config),
    Target("catalogue", seeds.entries, catalogue),
    Target("presets", seeds.presets, presets),
    Target("sweep", seeds.options, sweep),
    Target("points", seeds.points, points),
    Target("validate", seeds.tables, validate),
    Target("fit", seeds.steps, fit),
    Target("residuals", seeds.measured, residuals),
    Target("plans", seeds.plans, plans),
    Target("recording", seeds.recordings, recording),
    Target("routing", seeds.routings, routing),
    Target("jobs", seeds.jobs, jobs),
    Target("requests", seeds.requests, requests),
    Target("drafts", seeds.drafts, drafts),
    Target("trainings", seeds.trainings, trainings),
    Target("lookups", seeds.lookups, lookups),
    Target("compare", seeds.results, compare),
    Target("trace", seeds.traces, trace),
    Target("chakra", seeds.chakra, chakra),
)
