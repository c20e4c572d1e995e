"""One contract for both sessions: plans that change in every step, one policy, the same work, the same refusals."""

import os
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from backends.execution.errors import ExecutionError, RankError
from backends.simulated import SimulatedBackend
from backends.torch.backend import TorchBackend
from backends.torch.reference.dense import run_reference
from backends.torch.session import TorchSession
from costmodels.hardware import load_node
from costmodels.profile import load_profile
from sim.cluster.cluster import Cluster
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.prices.variation import Variation
from sim.plan.errors import RecordingError, SessionError
from sim.plan.facts.slices import buffer_slice
from sim.plan.session.driver import Turn, run_policy
from sim.plan.session.observations import SeededObservations, read_recording, recording_of
from sim.plan.session.protocol import Session
from sim.plan.words.program import Plan
from sim.training.steps.builder import build_dense_training
from tests.backends.jobs import training
from tests.backends.session.session_policies import (
    CHANGES,
    LAST_STAGE,
    NUM_RANKS,
    ChangesEverything,
    Strategy,
    build,
    build_and_see_all,
    job_of,
    simulated_backend,
)
from tests.processes import is_worker, needs_proc, started

BOUND_S = 30.0
TOLERANCE = 1e-9
BACKENDS = ("simulated", "torch")


@dataclass
class Outcome:
    """What a session of one backend came to. ``processes``: of the ranks, before and after the policy's steps."""

    turns: tuple[Turn[Strategy], ...]
    processes: tuple[list[int], list[int]]
    refusals: dict[str, str]


def refused(session: Session, plan: Plan) -> str:
    """Return why a session refuses a plan; it goes on."""
    with pytest.raises(SessionError) as caught:
        session.step(plan)
    return str(caught.value)


def refusals(session: Session) -> dict[str, str]:
    """Return what a session says of plans that do not go on from three-layer and one-layer stages on four ranks."""
    good = build(Strategy(layers=(3, 1)), session.residents)
    lost = replace(build_dense_training(job_of(Strategy(layers=(2, 2))), "lost"))
    wide = job_of(Strategy(layers=(3, 1)))
    wide = replace(wide, model=replace(wide.model, ffn_hidden_size=64))
    return {
        "owner": refused(session, lost),
        "shape": refused(session, build_dense_training(wide, "wide")),
        "slice": refused(session, replace(good, ranks=(2, 3, 0, 1))),
        "ranks": refused(session, replace(good, ranks=(0, 1, 2, 4))),
        "twice": refused(session, replace(good, ranks=(0, 1, 2, 2))),
        "leaver": refused(session, replace(good, leavers=frozenset({1}))),
        "unseen": refused(session, replace(good, observed=frozenset({"nothing"}))),
        "newcomer": refused(session, replace(good, ranks=(), leavers=frozenset({7}))),
    }


@pytest.fixture(scope="module")
def executed() -> Iterator[tuple[Outcome, TorchSession]]:
    """Yield what four started processes did, and their session, still open."""
    with TorchBackend().session(NUM_RANKS) as session:
        before = session.processes
        turns = run_policy(session, ChangesEverything(), build_and_see_all, len(CHANGES))
        yield Outcome(turns, (before, session.processes), refusals(session)), session


@pytest.fixture(scope="module")
def recorded(executed: tuple[Outcome, TorchSession], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file with what the executed policy saw."""
    path = tmp_path_factory.mktemp("recordings") / "seen.json"
    turns = executed[0].turns
    recording_of([turn.plan for turn in turns], [turn.result.seen for turn in turns]).write(path)
    return path


@pytest.fixture(scope="module")
def simulated(recorded: Path) -> Outcome:
    """Return what a simulated session did that replays what the executed one saw."""
    with simulated_backend(read_recording(recorded)).session(NUM_RANKS) as session:
        turns = run_policy(session, ChangesEverything(), build_and_see_all, len(CHANGES))
        return Outcome(turns, ([], []), refusals(session))


@pytest.fixture(scope="module", params=BACKENDS)
def outcome(request: pytest.FixtureRequest) -> Outcome:
    """Return what the session of each backend came to."""
    if request.param == "simulated":
        found = request.getfixturevalue("simulated")
    else:
        found, _ = request.getfixturevalue("executed")
    assert isinstance(found, Outcome)
    return found


# --- what both do -------------------------------------------------------------------------------------------


def test_every_step_has_another_plan(outcome: Outcome) -> None:
    """Schedule, layers and ranks change as decided, the ranks that idle do nothing, and time passes."""
    assert [turn.decision.schedule for turn in outcome.turns] == ["1f1b", "1f1b", *["gpipe"] * 3, *["1f1b"] * 2]
    assert [turn.decision.layers for turn in outcome.turns] == [*[(2, 2)] * 3, *[(1, 3)] * 3, (3, 1)]
    for turn in outcome.turns:
        assert tuple(turn.result.work) == turn.decision.ranks
        assert turn.result.duration_s > 0


def test_state_moves_as_ops_of_an_adjustment(outcome: Outcome) -> None:
    """A layer's move is messages, one that joins gets a broadcast, one that leaves moves nothing."""
    moves = [
        sorted(kind for kind in ("send", "recv", "broadcast") if any(kind in ops for ops in _adjusting(turn.plan)))
        for turn in outcome.turns
    ]
    assert moves == [[], [], [], ["recv", "send"], [], ["broadcast"], ["recv", "send"]]


def test_a_handed_layer_costs_the_bytes_of_its_parameters_and_moments(outcome: Outcome) -> None:
    """Three numbers of eight bytes per parameter travel per replica; gradients, which are cleared, do not."""
    job = job_of(Strategy())
    layer_bytes = 3 * 8 * job.model.layer_parameters
    [send] = [op for op in _adjustment(outcome.turns[3].plan, 0) if type(op).__name__ == "Send"]
    program = outcome.turns[3].plan.programs[0]
    assert sum(program.buffers[name].num_bytes for name in send.reads) == layer_bytes


def test_only_what_a_plan_asks_for_is_seen(outcome: Outcome) -> None:
    """The loss comes from the ranks that have it; the last plan sees every parameter and moment."""
    for turn in outcome.turns[:-1]:
        expected = tuple(rank for rank in LAST_STAGE if rank in turn.decision.ranks)
        assert {name: tuple(ranks) for name, ranks in turn.result.observed.items()} == {"loss": expected}
    assert len(outcome.turns[-1].result.observed) > 40


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("owner", r"rank 2 (role pp=1) reads 'layer2"),
        ("shape", "with shape (16, 64); an earlier plan left it there with (16, 32)"),
        ("slice", "rank 2 (role pp=0) reads"),
        ("ranks", "names rank 4; the session has 4 ranks"),
        ("twice", "lies on ranks (0, 1, 2, 2) of the session"),
        ("leaver", "rank 1 leaves, and takes part"),
        ("unseen", "asks to see 'nothing', which no op of it touches"),
        ("newcomer", "names rank 7; the session has 4 ranks"),
    ],
)
def test_a_plan_that_does_not_go_on_is_refused(outcome: Outcome, what: str, words: str) -> None:
    """Before anything runs, with the rank and the buffer; the session can go on."""
    assert words in outcome.refusals[what]


# --- both do the same ---------------------------------------------------------------------------------------


def test_decisions_are_the_same(executed: tuple[Outcome, TorchSession], simulated: Outcome) -> None:
    """On what execution saw, the policy decides in simulation as it did in execution, also by the loss."""
    decisions = [turn.decision for turn in executed[0].turns]
    assert [turn.decision for turn in simulated.turns] == decisions
    assert len(set(decisions)) > 5


def test_op_counts_and_bytes_are_the_same(executed: tuple[Outcome, TorchSession], simulated: Outcome) -> None:
    """Every rank of every step ran as many ops of each kind, and sent as many bytes, as simulated."""
    for real, made_up in zip(executed[0].turns, simulated.turns, strict=True):
        assert real.result.work == made_up.result.work
        assert all(work.sent_bytes > 0 and work.ops["compute"] > 0 for work in real.result.work.values())


def test_refusals_are_the_same(executed: tuple[Outcome, TorchSession], simulated: Outcome) -> None:
    """Both sessions refuse the same plans in the same words."""
    assert executed[0].refusals == simulated.refusals


# --- execution ----------------------------------------------------------------------------------------------


def test_parameters_equal_those_of_one_process(executed: tuple[Outcome, TorchSession]) -> None:
    """After all changes every rank's parameters are those of a dense float64 run of as many steps, to 1e-9."""
    turn = executed[0].turns[-1]
    reference = run_reference(job_of(Strategy()), len(CHANGES), torch.device("cpu"))
    compared = set()
    for name, expected in reference.parameters.items():
        for rank, values in turn.result.observed[name].items():
            plan_rank = turn.plan.session_ranks.index(rank)
            place = buffer_slice(turn.plan.program_of(plan_rank).buffers[name], turn.plan.mesh, plan_rank)
            assert place.sizes == tuple(expected.shape)
            error = np.abs(values - expected.numpy()).max() / float(expected.abs().max())
            assert error <= TOLERANCE, (name, rank, error)
            compared.add((name, rank))
    assert {rank for _, rank in compared} == {0, 1, 2, 3}


def test_no_process_is_restarted(executed: tuple[Outcome, TorchSession]) -> None:
    """The four processes that began are those that end."""
    before, after = executed[0].processes
    assert before == after
    assert len(set(before)) == NUM_RANKS


# --- observations -------------------------------------------------------------------------------------------


def test_seeded_observations_repeat() -> None:
    """Two simulations with one seed decide alike and see the same; another seed sees something else."""

    def losses(seed: int) -> list[float]:
        observations = SeededObservations(seed, lambda generator, name, rank, shape: generator.uniform(size=shape))
        with simulated_backend(observations).session(NUM_RANKS) as session:
            turns = run_policy(session, ChangesEverything(), build, 3)
        return [float(turn.result.observed["loss"][2][0]) for turn in turns]

    assert losses(1) == losses(1) != losses(2)


def test_a_recording_of_other_plans_is_refused(recorded: Path) -> None:
    """A recording is of its own plans: another name, other shapes, and one step more are refused."""
    backend: SimulatedBackend = simulated_backend(read_recording(recorded))
    plan = build(Strategy(), backend.session(NUM_RANKS).residents)
    for wrong, words in (
        (replace(plan, name="other"), "step 0 was recorded of plan 'step 0', and is now plan 'other'"),
        (replace(plan, observed=frozenset()), "the shapes of 'loss' by rank are {}, and were recorded as"),
    ):
        with backend.session(NUM_RANKS) as session, pytest.raises(RecordingError) as caught:
            session.step(wrong)
        assert words in str(caught.value)


def test_a_simulation_without_observations_sees_none() -> None:
    """A plan that asks to see a value is refused where nothing says what it is; a session that is not open, too."""
    session = simulated_backend().session(NUM_RANKS)
    plan = build(Strategy(), session.residents)
    with pytest.raises(SessionError, match="not open"):
        session.step(plan)
    with session, pytest.raises(SessionError, match="asks to see loss; a simulation knows no values"):
        session.step(plan)


# --- where ranks lie ----------------------------------------------------------------------------------------


def test_a_plan_is_priced_where_its_ranks_lie() -> None:
    """Two ranks of one node are nearer to each other than two of different nodes, and ranks may change places."""
    node = load_node("hgx-h100")
    prices = ClusterPricing(Cluster(node, 2, 2), load_profile(node.device.generation))
    plan = build_dense_training(training(data_degree=2, batch=(8, 1)), "two replicas")
    durations_s = {}
    for ranks in ((0, 1), (1, 0), (2, 3), (0, 2), (3, 1)):
        with SimulatedBackend(prices).session(4) as session:
            durations_s[ranks] = session.step(replace(plan, ranks=ranks)).duration_s
    assert durations_s[0, 1] == durations_s[1, 0] == durations_s[2, 3] < durations_s[0, 2] == durations_s[3, 1]


def test_a_device_is_as_fast_whichever_rank_lies_on_it() -> None:
    """A plan of one rank takes as long on a device as that device's own random speed says."""
    node = load_node("hgx-h100")
    jitter = Variation({"gemm": 0.3}, seed=5)
    prices = ClusterPricing(Cluster(node, 1, 4), load_profile(node.device.generation), variation=jitter)
    plan = build_dense_training(training(), "one rank")
    durations_s = []
    for rank in range(4):
        with SimulatedBackend(prices).session(4) as session:
            durations_s.append(session.step(replace(plan, ranks=(rank,))).duration_s)
    slowdowns = [jitter.slowdown("gemm", rank) for rank in range(4)]
    assert np.argsort(durations_s).tolist() == np.argsort(slowdowns).tolist()
    assert len(set(durations_s)) == 4


# --- a running job ------------------------------------------------------------------------------------------

IN_A_JOB = """
import os, pathlib, sys
from backends.torch.backend import TorchBackend
from sim.plan.session.driver import run_policy
from tests.backends.session.session_policies import AllSeeTheSame, build_small

with TorchBackend().session(2) as session:
    turns = run_policy(session, AllSeeTheSame(), build_small, 3)
results = [(turn.decision, turn.result.duration_s, sorted(turn.result.work.items())) for turn in turns]
pathlib.Path(sys.argv[1], os.environ["RANK"]).write_text(repr(results))
"""


def test_all_processes_of_a_job_see_and_decide_the_same(tmp_path: Path) -> None:
    """Each process runs the policy; durations, observations and work are the same in all of them.

    The job is two processes with the variables of one, as another launcher than torchrun sets them.
    """
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    with (
        started(IN_A_JOB, str(tmp_path), **shared, RANK="0", LOCAL_RANK="0") as one,
        started(IN_A_JOB, str(tmp_path), **shared, RANK="1", LOCAL_RANK="1") as other,
    ):
        errors = [process.communicate(timeout=120)[1] for process in (one, other)]
    assert (one.returncode, other.returncode) == (0, 0), errors
    first, second = ((tmp_path / rank).read_text() for rank in "01")
    assert first == second
    assert first.count("RankWork") == 1 + 2 + 1


# --- the end of a rank --------------------------------------------------------------------------------------


@needs_proc
def test_a_rank_killed_between_plans_is_named(executed: tuple[Outcome, TorchSession]) -> None:
    """Rank 2 is killed while nothing runs: the next step names it, all end in time, and the session stays ended."""
    found, session = executed
    plan, processes = build(found.turns[-1].decision, session.residents), found.processes[0]
    os.kill(processes[2], signal.SIGKILL)
    began_s = time.monotonic()
    with pytest.raises(RankError, match="rank 2 was ended by SIGKILL"):
        session.step(plan)
    assert time.monotonic() - began_s < BOUND_S
    assert not any(map(is_worker, processes))
    with pytest.raises(ExecutionError, match="the ranks have ended"):
        session.step(plan)


def _adjustment(plan: Plan, program: int) -> list[object]:
    task = plan.programs[program].tasks.get("adjustment")
    return [] if task is None else list(task.ops)


def _adjusting(plan: Plan) -> list[str]:
    """Return the kinds of the ops of all adjustments of a plan."""
    ops = [op for number in range(len(plan.programs)) for op in _adjustment(plan, number)]
    return [str(getattr(op, "kind", type(op).__name__.lower())) for op in ops]
