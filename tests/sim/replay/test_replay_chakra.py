"""Plans as Chakra traces, and what the engine makes of these."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from scenarios.command_line import group
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.running import plan_of
from sim.engine.running.simulate import simulate
from sim.plan.errors import PlanError
from sim.plan.facts.dependencies import dependencies
from sim.replay.chakra_plan import chakra_trace
from sim.replay.chakra_run import replay_chakra
from sim.replay.changes import Changes, parse_changes
from tests.sim.engine.reference import hazards
from traces.chakra.file import write_trace
from traces.chakra.node import ChakraTrace, Node
from traces.errors import TraceError
from traces.kineto.breakdown import break_down

SCENARIOS = Path(__file__).parents[3] / "scenarios" / "library"
TINY = "tiny-gpt-2x2"
NO_PIPELINE = "parallel.pipeline.degree=1"


def exported(name: str, *settings: str) -> tuple[ChakraTrace, float]:
    """Return the trace of a scenario's plan, and how long its step takes."""
    scenario = load_scenario(SCENARIOS / f"{name}.yaml", settings).decided()
    plan, pricing = plan_of(scenario), scenario.pricing()
    return chakra_trace(plan, pricing), simulate(plan, pricing).makespan_s


@pytest.mark.parametrize(("name", "settings"), [
    ("textbook-1f1b", ()), ("textbook-zero-bubble", ()), (TINY, ()),
    (TINY, ("parallel.tensor.sequence_parallel=true",)),
    (TINY, (NO_PIPELINE, "parallel.data={degree: 2, zero_stage: 3}")),
])  # fmt: skip
def test_a_plan_takes_as_long_after_export_and_replay(name: str, settings: tuple[str, ...]) -> None:
    """Where nothing shares a link or a device, the trace's dependencies and durations give the plan's step time."""
    trace, step_s = exported(name, *settings)
    timeline = replay_chakra(trace, Changes())
    assert timeline.duration_s == pytest.approx(step_s, rel=1e-12)
    timeline.check_streams()


def test_shared_links_make_a_plan_slower_than_its_trace() -> None:
    """Chakra does not say what ops share: with messages that meet, the replay is a lower bound."""
    keys = ("parallel.pipeline.schedule=interleaved_1f1b", "parallel.pipeline.virtual_stages=2")
    trace, step_s = exported(TINY, *keys)
    assert 0.999 * step_s < replay_chakra(trace, Changes()).duration_s < step_s


@pytest.mark.parametrize("settings", [(), (NO_PIPELINE, "parallel.data={degree: 2, zero_stage: 3}")])
def test_dependencies_are_those_of_the_reference(settings: tuple[str, ...]) -> None:
    """Every op waits for what the tests' own engine makes it wait for."""
    plan = plan_of(load_scenario(SCENARIOS / f"{TINY}.yaml", settings))
    for program in plan.programs:
        expected = hazards(program)
        keys = list(expected)
        places = {key: place for place, key in enumerate(keys)}
        found = list(dependencies(program))
        assert found == [tuple(sorted(places[other] for other in expected[key])) for key in keys]


@given(st.floats(0.25, 4.0))
def test_changes_act_on_their_part(factor: float) -> None:
    """Compute, copies and the network are each as many times as fast as asked for."""
    nodes = [
        Node(id=0, name="a", kind="compute", duration_s=1.0),
        Node(id=1, name="b", kind="copy", duration_s=2.0, after=(0,)),
        Node(id=2, name="c", kind="all_reduce", duration_s=4.0, num_bytes=8, after=(1,)),
    ]
    trace = ChakraTrace({0: tuple(nodes), 1: tuple(nodes)}, {})
    for changes, lasting_s in (
        (Changes(compute=factor), 1 / factor + 6), (Changes(copies=factor), 2 / factor + 5),
        (Changes(bandwidth=factor), 4 / factor + 3),
    ):  # fmt: skip
        assert replay_chakra(trace, changes).duration_s == pytest.approx(lasting_s)


def test_collectives_wait_for_all_and_messages_for_their_sender() -> None:
    """The late rank decides when a collective begins, and a receive ends when its message has come."""
    late = (Node(id=7, name="late", kind="compute", duration_s=3.0),
            Node(id=8, name="sum", kind="all_reduce", after=(7,), duration_s=1.0),
            Node(id=9, name="to", kind="send", peer=0, duration_s=0.5, after=(8,)))  # fmt: skip
    early = (Node(id=1, name="sum", kind="all_reduce", duration_s=1.0),
             Node(id=2, name="from", kind="recv", peer=1, duration_s=0.25))  # fmt: skip
    timeline = replay_chakra(ChakraTrace({0: early, 1: late}, {}), Changes())
    ends = {(int(timeline.rank[row]), timeline.name.at(row)): timeline.end_s[row] for row in range(len(timeline))}
    assert ends == {(0, "sum"): 4.0, (1, "sum"): 4.0, (1, "late"): 3.0, (1, "to"): 4.5, (0, "from"): 4.75}
    assert len(timeline.messages.send) == 1
    assert len(timeline.messages.member) == 2


GEMM = Node(id=0, name="gemm", kind="compute", duration_s=1.0)
SUM = Node(id=1, name="sum", kind="all_reduce", duration_s=1.0)


@pytest.mark.parametrize(("ranks", "words"), [
    ({0: (replace(GEMM, after=(5,)),)}, "waits for node 5, which is not there"),
    ({0: (replace(GEMM, after=(1,)), replace(SUM, after=(0,)))}, "2 nodes wait for each other in a circle"),
    ({0: (GEMM, SUM), 1: (GEMM, SUM, replace(SUM, id=2))}, "1 to 2 collectives"),
    ({0: (SUM,), 1: (replace(SUM, kind="all_gather"),)}, "a collective is all_gather here and all_reduce there"),
    ({0: (SUM,), 1: (replace(SUM, group="2"),), 2: (replace(SUM, group="2"),)},
     "process group 2: rank 1 issues its collectives, and is none of its ranks"),
    ({0: (Node(id=0, name="s", kind="send", peer=1),), 1: (GEMM,)}, "to rank 1, which receives 0"),
])  # fmt: skip
def test_traces_that_do_not_fit_together_are_refused(ranks: dict[int, tuple[Node, ...]], words: str) -> None:
    """Unknown nodes, circles, and ranks that do not do the same are named."""
    with pytest.raises(TraceError, match=words):
        replay_chakra(ChakraTrace(ranks, {"2": (2, 3)}), Changes())


def test_steps_that_run_into_each_other_are_refused() -> None:
    """A plan without a barrier between steps is none that Chakra can express."""
    plan = plan_of(load_scenario(SCENARIOS / "textbook-1f1b.yaml"))
    with pytest.raises(PlanError, match="run into each other"):
        chakra_trace(replace(plan, barrier=False), load_scenario(SCENARIOS / "textbook-1f1b.yaml").pricing())


def test_nodes_that_only_hold_others_up_last_as_long_whatever_the_device() -> None:
    """A node of no kind of work keeps its time where the device is faster; a pattern of its name changes it."""
    trace = ChakraTrace({0: (GEMM, Node(id=1, name="other", kind="", duration_s=5.0, after=(0,)),
                             replace(GEMM, id=2, after=(1,)))}, {})  # fmt: skip
    own_s = GEMM.duration_s
    expected = (((), 2 * own_s + 5), (("cluster.device.compute=2x",), own_s + 5), (("kernels[oth]=5x",), 2 * own_s + 1))
    for changes, duration_s in expected:
        assert replay_chakra(trace, parse_changes(changes)).duration_s == pytest.approx(duration_s)


def test_ops_of_the_host_are_no_work_of_the_device() -> None:
    """They hold the device up at the host's speed, whatever the device's, and are in no timeline."""
    nodes = (replace(GEMM, name="first"), Node(id=1, name="aten::mm", kind="host", after=(0,), duration_s=4.0),
             replace(GEMM, id=2, after=(1,)))  # fmt: skip
    trace = ChakraTrace({0: nodes}, {})
    for changes, duration_s in ((Changes(), 6.0), (Changes(compute=2.0), 5.0), (Changes(host=4.0), 3.0)):
        timeline = replay_chakra(trace, changes)
        assert timeline.duration_s == pytest.approx(duration_s)
        parts = break_down(timeline.spans(timeline.select(rank=0)))
        assert parts.compute_s == pytest.approx(2.0 / changes.compute)
        assert parts.idle_s == pytest.approx(4.0 / changes.host)


@pytest.mark.parametrize("key", ["cluster.host.speed", "ranks[0].host.speed"])
def test_a_faster_host_is_refused_where_no_node_is_its(tmp_path: Path, key: str) -> None:
    """A change of the host's speed would silently do nothing; where a rank has nodes of the host it is made."""
    pytest.importorskip("google.protobuf", reason="protobuf is not installed: pip install 'meshtwin[chakra]'")
    on_host = replace(GEMM, id=5, kind="host", duration_s=4.0)
    arguments = ["replay", str(tmp_path), "--set", f"{key}=2x", "--json"]
    write_trace(ChakraTrace({0: (on_host, replace(GEMM, after=(5,))), 1: (GEMM,)}, {}), tmp_path, "job")
    done = CliRunner().invoke(group, arguments)
    assert json.loads(done.stdout)["replayed_s"] == pytest.approx(3.0)
    write_trace(ChakraTrace({0: (GEMM,), 1: (on_host, replace(GEMM, after=(5,)))}, {}), tmp_path, "job")
    assert CliRunner().invoke(group, arguments).exit_code == (2 if "ranks" in key else 0)
    write_trace(ChakraTrace({0: (GEMM,), 1: (GEMM,)}, {}), tmp_path, "job")
    done = CliRunner().invoke(group, ["replay", str(tmp_path), "--set", f"{key}=2x"])
    assert done.exit_code == 2
    assert f"--set {key}: no node of these ranks is the host's" in done.stderr


def test_command_line_exports_and_replays(tmp_path: Path) -> None:
    """``export`` writes a file per rank, ``replay`` runs them, with changes, and writes a timeline."""
    pytest.importorskip("google.protobuf", reason="protobuf is not installed: pip install 'meshtwin[chakra]'")
    runner, out = CliRunner(), str(tmp_path / "et")
    done = runner.invoke(group, ["export", str(SCENARIOS / "textbook-1f1b.yaml"), "--out", out])
    assert done.exit_code == 0
    assert len(list(Path(out).glob("textbook-1f1b.*.et"))) == 4
    again = ["replay", out, "--set", "cluster.device.compute=2x", "--json", "--out", str(tmp_path / "run")]
    done = runner.invoke(group, again)
    assert done.exit_code == 0
    assert '"measured_s": 33.0' in done.stdout
    assert '"replayed_s": 16.5' in done.stdout
    assert (tmp_path / "run" / "timeline.parquet").exists()


def test_without_protobuf_there_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the extra is not installed both commands say what to install, and write nothing."""
    monkeypatch.setattr("traces.chakra.schema.descriptor_pb2", None)
    (tmp_path / "et").mkdir()
    (tmp_path / "et" / "job.0.et").touch()
    export = ["export", str(SCENARIOS / "textbook-1f1b.yaml"), "--out", str(tmp_path / "out")]
    for arguments in (export, ["replay", str(tmp_path / "et")]):
        done = CliRunner().invoke(group, arguments)
        assert done.exit_code == 2
        assert "pip install 'meshtwin[chakra]'" in done.stderr
    assert not (tmp_path / "out").exists()
