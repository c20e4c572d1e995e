"""Replayed profiles: as measured they come out as measured, and changed as a run with those speeds would have."""

import json
import re
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scenarios.cli import main
from scenarios.recorded.replay_again import profile_again
from sim.replay.changes import ChangeError, Changes, parse_changes
from sim.replay.host import read_host
from sim.replay.run import Replayer
from sim.replay.transfers import split_network
from tests.examples import examples
from tests.traces.kineto_traces import activity, all_reduce, document, launch, shared_trace, write
from traces.kineto.rank import StepWindow
from traces.kineto.trace import load

STREAMS = (7, 20)
REAL = (
    "alexnet_critical_path.json.gz", "ddp_a100_collective_arguments.json.gz", "dlrm_v100_8_ranks.tar.gz",
    "resnet_v100_ns_resolution.json.gz", "trace_diff_control.json.gz", "trace_diff_test.json.gz",
)  # fmt: skip


# --- an independent simulation of small programs ---------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """What a host does: think (us), then call: a kernel, a copy, an all_reduce, a stream's wait, or a wait itself."""

    what: str
    stream: int
    think_us: int
    lasting_us: int


@dataclass
class Run:
    """The times of a program in microseconds: longest paths through a graph of all that waits for anything."""

    ranks: list[list[Step]]
    compute: float = 1.0
    copies: float = 1.0
    network: float = 1.0
    host: float = 1.0
    graph: Any = field(default_factory=nx.DiGraph)
    time_us: dict[Any, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for rank in range(len(self.ranks)):
            self._add_rank(rank)
        for node in nx.topological_sort(self.graph):
            entering = self.graph.in_edges(node, data="us")
            self.time_us[node] = max((self.time_us[before] + us for before, _, us in entering), default=0.0)

    def _add_rank(self, rank: int) -> None:
        last: dict[int, Any] = {}
        moment, num_joint = ("begin", rank), 0
        self.graph.add_node(moment)
        for number, step in enumerate(self.ranks[rank]):
            call = ("call", rank, number)
            self.graph.add_edge(moment, call, us=step.think_us / self.host)
            moment = call
            start, end = ("start", rank, number), ("end", rank, number)
            if step.what in {"kernel", "copy", "all_reduce"}:
                for before in (call, *([last[step.stream]] if step.stream in last else [])):
                    self.graph.add_edge(before, start, us=0.0)
                num_joint = self._run(step, start, end, num_joint)
                last[step.stream] = end
            elif step.what == "stream waits":
                other = STREAMS[1 - STREAMS.index(step.stream)]
                gate = ("gate", rank, number)
                for before in (s for s in (step.stream, other) if s in last):
                    self.graph.add_edge(last[before], gate, us=0.0)
                if gate in self.graph:
                    last[step.stream] = gate
            else:
                moment = ("return", rank, number)
                self.graph.add_edge(call, moment, us=0.0)
                for before in last.values():
                    self.graph.add_edge(before, moment, us=0.0)

    def _run(self, step: Step, start: Any, end: Any, num_joint: int) -> int:
        if step.what == "all_reduce":
            came, over = ("came", num_joint), ("over", num_joint)
            self.graph.add_edge(start, came, us=0.0)
            self.graph.add_edge(came, over, us=step.lasting_us / self.network)
            self.graph.add_edge(over, end, us=0.0)
            return num_joint + 1
        self.graph.add_edge(start, end, us=step.lasting_us / (self.compute if step.what == "kernel" else self.copies))
        return num_joint

    @property
    def span_us(self) -> float:
        """Return the time from the first start to the last end on any device."""
        starts = [us for node, us in self.time_us.items() if node[0] == "start"]
        return max(us for node, us in self.time_us.items() if node[0] == "end") - min(starts)


def record(run: Run, folder: Path) -> Path:
    """Write what the profiler would have recorded of a run, a file per rank."""
    for rank, steps in enumerate(run.ranks):
        events: list[dict[str, Any]] = []
        num_joint = 0
        for number, step in enumerate(steps):
            correlation, called = 10 * number + 1, run.time_us["call", rank, number] + 100.0
            if step.what in {"kernel", "copy", "all_reduce"}:
                start, end = (run.time_us[edge, rank, number] + 100.0 for edge in ("start", "end"))
                own = {"stream": step.stream, "correlation": correlation}
                events.append(launch(correlation, called, dur=0.0))
                if step.what == "all_reduce":
                    ranks = range(len(run.ranks))
                    sized = {"elements": 100 * step.lasting_us, "Seq": num_joint, "ranks": ranks}
                    event = all_reduce(start, end - start, **sized)
                    event["args"] |= own
                    event["tid"] = step.stream
                    events.append(event)
                    num_joint += 1
                else:
                    category = {"kernel": "kernel", "copy": "gpu_memcpy"}[step.what]
                    events.append(activity(step.what, start, end - start, cat=category, **own))
            elif step.what == "stream waits":
                other = STREAMS[1 - STREAMS.index(step.stream)]
                events.append({**launch(correlation + 1, called, dur=0.0), "name": "cudaEventRecord"})
                events.append({**launch(correlation, called, dur=0.0), "name": "cudaStreamWaitEvent"})
                told = {"wait_on_stream": other, "wait_on_cuda_event_record_corr_id": correlation + 1}
                wait = activity("Stream Wait Event", called, 0.0, stream=step.stream, cat="cuda_sync")
                wait["args"] |= {**told, "correlation": correlation}
                events.append(wait)
            else:
                returned = run.time_us["return", rank, number] + 100.0
                waiting = launch(correlation, called, dur=returned - called)
                events.append({**waiting, "name": "cudaDeviceSynchronize"})
        write(folder / f"rank{rank}.json", document(events, rank=rank, world_size=len(run.ranks)))
    return folder


@st.composite
def programs(draw: st.DrawFn) -> list[list[Step]]:
    """Return what the hosts of one to three ranks do; all_reduces are the same on all of them."""
    num_ranks, num_joint = draw(st.integers(1, 3)), draw(st.integers(0, 3))
    lasting = draw(st.lists(st.integers(1, 90), min_size=num_joint, max_size=num_joint))
    others = st.builds(
        Step,
        what=st.sampled_from(("kernel", "kernel", "copy", "stream waits", "host waits")),
        stream=st.sampled_from(STREAMS),
        think_us=st.integers(1, 60),
        lasting_us=st.integers(1, 120),
    )
    ranks = []
    for _ in range(num_ranks):
        steps = [Step("kernel", STREAMS[0], 1, 5), *draw(st.lists(others, max_size=4))]
        for us in lasting:
            steps += [Step("all_reduce", STREAMS[1], draw(st.integers(1, 60)), us), *draw(st.lists(others, max_size=4))]
        ranks.append(steps)
    return ranks


@settings(max_examples=examples(24), deadline=None)
@given(ranks=programs(), compute=st.sampled_from((0.5, 1.0, 3.0)), host=st.sampled_from((0.5, 1.0, 4.0)))
def test_changed_speeds_give_the_times_of_a_run_with_those_speeds(
    tmp_path_factory: pytest.TempPathFactory, ranks: list[list[Step]], compute: float, host: float
) -> None:
    """A replay takes as long as the program would, whichever of host, streams, events and other ranks decides."""
    folder = record(Run(ranks), tmp_path_factory.mktemp("run"))
    replayer = Replayer(load(folder))
    assert replayer.run(Changes()).span_s * 1e6 == pytest.approx(Run(ranks).span_us, abs=1e-6)
    changed = replayer.run(Changes(compute=compute, host=host, copies=2.0))
    assert changed.span_s * 1e6 == pytest.approx(Run(ranks, compute=compute, host=host, copies=2.0).span_us, abs=1e-6)


@settings(max_examples=examples(16), deadline=None)
@given(ranks=programs(), network=st.sampled_from((0.25, 2.0, 8.0)))
def test_more_bandwidth_shortens_transfers_and_not_the_waiting_before_them(
    tmp_path_factory: pytest.TempPathFactory, ranks: list[list[Step]], network: float
) -> None:
    """Sizes in proportion to times leave no latency; a member that came early still waits for the last."""
    folder = record(Run(ranks), tmp_path_factory.mktemp("run"))
    changed = Replayer(load(folder)).run(Changes(bandwidth=network))
    assert changed.span_s * 1e6 == pytest.approx(Run(ranks, network=network).span_us, rel=1e-6, abs=1e-3)


@settings(max_examples=examples(12), deadline=None)
@given(ranks=programs(), part=st.sampled_from(("compute", "copies", "bandwidth", "host")))
def test_faster_is_never_slower_and_all_twice_as_fast_is_half(
    tmp_path_factory: pytest.TempPathFactory, ranks: list[list[Step]], part: str
) -> None:
    """The span falls as any one part gets faster; with everything twice as fast each run takes half as long."""
    replayer = Replayer(load(record(Run(ranks), tmp_path_factory.mktemp("run"))))
    spans_s = [replayer.run(Changes(**{part: factor})).span_s for factor in (0.5, 1.0, 3.0, 1e9)]
    assert all(later_s <= before_s + 1e-12 for before_s, later_s in pairwise(spans_s))
    twice = Changes(compute=2.0, copies=2.0, bandwidth=2.0, latency=0.5, host=2.0)
    assert replayer.run(twice).span_s == pytest.approx(spans_s[1] / 2, rel=1e-9)
    nothing = parse_changes(("kernels[.]=1000000000x", "cluster.host.speed=1000000000x"))
    assert 0.0 <= replayer.run(nothing).span_s <= 1e-6 * spans_s[1]


def test_a_stream_that_starts_when_another_ends_is_taken_to_have_waited_for_it(tmp_path: Path) -> None:
    """Without records of event waits, the kernel that follows another stream's by 1 us moves with it."""
    events = [
        launch(1, 100.0), launch(2, 102.0),
        activity("first", 110.0, 200.0, stream=7, correlation=1),
        activity("second", 311.0, 50.0, stream=20, correlation=2),
    ]  # fmt: skip
    replayer = Replayer(load(write(tmp_path / "t.json", document(events))))
    assert replayer.num_inferred == 1
    assert replayer.run(Changes(compute=2.0)).span_s * 1e6 == pytest.approx(100 + 1 + 25)


def test_a_kernel_launched_late_waits_for_its_launch_only(tmp_path: Path) -> None:
    """What the launch explains needs no other reason: faster kernels on another stream do not move it."""
    events = [
        launch(1, 100.0), launch(2, 305.0),
        activity("first", 110.0, 200.0, stream=7, correlation=1),
        activity("second", 311.0, 50.0, stream=20, correlation=2),
    ]  # fmt: skip
    replayer = Replayer(load(write(tmp_path / "t.json", document(events))))
    assert replayer.num_inferred == 0
    assert replayer.run(Changes(compute=2.0)).span_s * 1e6 == pytest.approx(201 + 25)


@cache
def real(name: str) -> Replayer:
    """Return the replayer of a whole real profile."""
    return Replayer(load(shared_trace(name)))


@pytest.mark.parametrize("name", REAL)
def test_real_profiles_are_reproduced(name: str) -> None:
    """Unchanged, a replay takes as long as the measured run, to a thousandth."""
    for replayer in (Replayer(load(shared_trace(name), StepWindow())), real(name)):
        assert replayer.run(Changes()).span_s == pytest.approx(replayer.measured_s, rel=1e-3)


@pytest.mark.parametrize("name", REAL)
def test_nothing_faster_makes_a_real_run_slower(name: str) -> None:
    """More of anything shortens a run or leaves it; all doubled halve it, but for when ranks and launches begin."""
    replayer = real(name)
    measured_s = replayer.measured_s
    for part in ("compute", "copies", "bandwidth", "host"):
        assert replayer.run(Changes(**{part: 2.0})).span_s <= measured_s * 1.001
    twice_s = replayer.run(Changes(compute=2.0, copies=2.0, bandwidth=2.0, latency=0.5, host=2.0)).span_s
    assert measured_s * 0.4 < twice_s < measured_s * 0.75


def test_latency_and_bandwidth_are_told_apart_by_sizes() -> None:
    """Times that are exactly latency plus bytes over a rate give that latency; one size alone gives none."""
    points = [(size, 20e-6 + size / 50e9) for size in (1 << 10, 1 << 20, 1 << 26)]
    split = split_network({"all_reduce": points, "broadcast": points[:1], "barrier": [(-1, 1e-5)]})
    assert split.latency_s == pytest.approx({"all_reduce": 20e-6})
    assert split.changed_s("all_reduce", 120e-6, Changes(bandwidth=2.0)) == pytest.approx(70e-6)
    assert split.changed_s("broadcast", 120e-6, Changes(bandwidth=2.0)) == pytest.approx(60e-6)
    assert split.changed_s("all_reduce", 120e-6, Changes(latency=0.5)) == pytest.approx(110e-6)


@settings(max_examples=examples(12), deadline=None)
@given(
    ranks=programs(), chosen=st.integers(0, 2), part=st.sampled_from(("device.compute", "device.copies", "host.speed"))
)
def test_a_change_of_some_ranks_is_between_that_of_none_and_of_all(
    tmp_path_factory: pytest.TempPathFactory, ranks: list[list[Step]], chosen: int, part: str
) -> None:
    """A faster part of one rank makes no run slower, nor faster than of all ranks; to name all is to mean all."""
    replayer = Replayer(load(record(Run(ranks), tmp_path_factory.mktemp("run"))))
    keys = (f"ranks[{chosen % len(ranks)}].{part}=3x", f"ranks[0-{len(ranks) - 1}].{part}=3x", f"cluster.{part}=3x")
    one_s, named_s, all_s = (replayer.run(parse_changes((key,))).span_s for key in keys)
    assert named_s == all_s
    assert all_s - 1e-12 <= one_s <= replayer.measured_s + 1e-12


def test_a_straggler_that_is_healed_frees_the_ranks_that_waited(tmp_path: Path) -> None:
    """Of two ranks that meet in an all_reduce one computes for 300 us, the other for 100: three times as fast, both
    meet 200 us earlier; a faster other rank changes nothing.
    """
    for rank, lasting in enumerate((100.0, 300.0)):
        events = [
            launch(1, 100.0), activity("gemm", 100.0, lasting, correlation=1), launch(2, 101.0),
            all_reduce(100.0 + lasting, 350.0 - lasting, correlation=2),
        ]  # fmt: skip
        events[-1]["args"]["stream"] = 7
        write(tmp_path / f"rank{rank}.json", document(events, rank=rank, world_size=2))
    replayer = Replayer(load(tmp_path))
    healed, other = (replayer.run(parse_changes((f"ranks[{rank}].device.compute=3x",))) for rank in (1, 0))
    assert replayer.measured_s * 1e6 == pytest.approx(350.0)
    assert healed.span_s * 1e6 == pytest.approx(150.0)
    assert other.span_s * 1e6 == pytest.approx(350.0)


def test_launches_of_an_idle_device_take_longer_than_those_of_a_busy_one(tmp_path: Path) -> None:
    """Ten kernels that were waiting on their stream start 1 us after each other, so the ten that started 9 us after
    their launches do so, too, once these come in time: as a captured graph's would.
    """
    events: list[dict[str, Any]] = []
    for number in range(20):
        queued = number < 10
        called = 100.0 + number if queued else 100.0 + 40.0 * number
        start = 200.0 + 21.0 * number if queued else called + 9.0
        events += [launch(number + 1, called, dur=1.0), activity("k", start, 20.0, correlation=number + 1)]
    replayer = Replayer(load(write(tmp_path / "t.json", document(events))))
    assert replayer.run(Changes()).span_s == pytest.approx(replayer.measured_s)
    at_once = replayer.run(parse_changes(("cluster.host.speed=1000000x",)))
    assert at_once.span_s * 1e6 == pytest.approx(20 * 20.0 + 19 * 1.0, abs=0.01)


def test_changes_of_what_is_not_there_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rank without a file, or a pattern that no kernel's name holds, would change nothing: both leave with 2."""
    path = write(tmp_path / "t.json", document([launch(1, 100.0), activity("gemm", 110.0, 200.0, correlation=1)]))
    for key, words in (
        ("ranks[0-7].host.speed", "there is no rank 1 here"),
        ("kernels[gem+a]", "no kernel of this run"),
    ):
        with pytest.raises(SystemExit) as done:
            main(["replay", str(path), "--set", f"{key}=2x"])
        assert done.value.code == 2
        assert f"{key.split('.')[0]}: {words}" in capsys.readouterr().err


def test_patterns_choose_kernels(tmp_path: Path) -> None:
    """A speed for some kernels leaves the others as they were."""
    events = [
        launch(1, 100.0), launch(2, 101.0),
        activity("ampere_gemm", 110.0, 200.0, correlation=1), activity("softmax", 310.0, 50.0, correlation=2),
    ]  # fmt: skip
    replayer = Replayer(load(write(tmp_path / "t.json", document(events))))
    assert replayer.run(parse_changes(("kernels[gemm]=4x",))).span_s * 1e6 == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cluster.network.bandwith=2x", "did you mean cluster.network.bandwidth"),
        ("cluster.network.bandwidth=0x", "no factor above 0"),
        ("cluster.network.bandwidth=2", "write a multiple"),
        ("cluster.network.bandwidth=-1x", "no factor above 0"),
        ("cluster.network.bandwidth=1e999x", "no factor above 0"),
        ("cluster.network.bandwidth=1e-320x", "no factor from 1e-09 to"),
        ("kernels[(]=2x", "no regular expression"),
        ("ranks[1-]=2x", "a measured run has no part of this name"),
        ("ranks[].host.speed=2x", "is no choice of ranks"),
        ("ranks[3-1].host.speed=2x", "is no choice of ranks"),
        ("ranks[-1].host.speed=2x", "is no choice of ranks"),
        ("ranks[3].device.speed=2x", r"did you mean ranks\[3\].device.copies|did you mean ranks\[3\].host.speed"),
        ("twice", "write KEY=2x"),
    ],
)
def test_changes_that_make_no_sense_are_refused(text: str, words: str) -> None:
    """Each says what is wrong and what to write."""
    with pytest.raises(ChangeError, match=words.replace("(", r"\(")):
        parse_changes((text,))


def test_the_command_says_measured_and_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON holds both spans, the changes and the doubts; the files are those of a timeline; bad keys leave with 2."""
    events = [launch(1, 100.0), activity("k", 110.0, 200.0, correlation=1)]
    path = write(tmp_path / "t.json", document(events, world_size=2))
    arguments = ["replay", str(path), "--set", "cluster.device.compute=2x", "--out", str(tmp_path / "out"), "--json"]
    with pytest.raises(SystemExit) as done:
        main(arguments)
    summary = json.loads(capsys.readouterr().out)
    assert done.value.code == 0
    assert summary["span_ratio"] == pytest.approx(0.5)
    assert summary["changes"] == {"cluster.device.compute": 2.0}
    assert {file.name for file in (tmp_path / "out").iterdir()} >= {"summary.json", "timeline.parquet"}
    with pytest.raises(SystemExit) as refused:
        main(["replay", str(path), "--set", "x=2x"])
    assert refused.value.code == 2


def test_rounding_is_no_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unchanged replay differs by how times were added up: that is shown as no change."""
    events = [launch(n, 100.0 + n / 3) for n in range(1, 4)]
    events += [activity(f"k{n}", 110.0 + 70.1 * n, 200.0 / 3, correlation=n) for n in range(1, 4)]
    with pytest.raises(SystemExit):
        main(["replay", str(write(tmp_path / "t.json", document(events)))])
    shown = capsys.readouterr().out
    assert "(+0.00 %)" in shown
    assert not re.search(r"e-\d+ ns", shown)


def test_a_replay_that_does_not_reproduce_the_run_says_so(tmp_path: Path) -> None:
    """A kernel that begins before its launch makes no sense to a replay: the answer is doubtful, and says so."""
    events = [
        launch(1, 1100.0), launch(2, 1105.0), activity("early", 10.0, 5.0, correlation=2),
        activity("k", 1110.0, 50.0, correlation=1), activity("alone", 1160.0, 5.0, correlation=3),
    ]  # fmt: skip
    path = write(tmp_path / "t.json", document(events))
    summary = profile_again(path, Changes(), None).summary
    assert summary.replayed_s < 0.9 * summary.measured_s
    assert any(warning.text.startswith("a replay without changes takes") for warning in summary.warnings)
    assert any(warning.text.startswith("1 device activity has no launch") for warning in summary.warnings)


@pytest.mark.parametrize("name", ["cudaStreamSynchronize", "cudaDeviceSynchronize"])
def test_many_waiting_calls_take_no_longer_each(tmp_path: Path, name: str) -> None:
    """Work of the replay grows as the trace does, also where the host waits for the device at every kernel."""
    rows = rows_that_calls_wait_for(tmp_path, name, 3000)
    assert rows == [(row,) for row in range(2999)]  # nothing is launched after the last


def rows_that_calls_wait_for(folder: Path, name: str, count: int) -> list[tuple[int, ...]]:
    """Return the rows that each waiting call waits for, of kernels that are each waited for."""
    events = []
    for number in range(count):
        at = 100.0 * number
        events += [launch(2 * number + 1, at), activity("k", at + 5, 30, correlation=2 * number + 1)]
        events.append({**launch(2 * number + 2, at + 10, dur=40), "name": name})
    [rank] = load(write(folder / "t.json", document(events))).ranks
    return [call.rows for call in read_host(rank, 0.0).calls if call.rows]
