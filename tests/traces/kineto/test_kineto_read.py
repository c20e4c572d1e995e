"""From a profiler's file to columns: kinds, bytes, groups, launches, steps and memory, however the trace says them."""

from pathlib import Path

import numpy as np
import pytest

from tests.traces.kineto_traces import (
    ALL_REDUCE,
    SEND_RECV,
    activity,
    all_reduce,
    annotation,
    document,
    launch,
    memory,
    shared_trace,
    texts_of,
    write,
)
from traces.errors import TraceError
from traces.kineto.collective import group_of, kind_of
from traces.kineto.rank import StepWindow
from traces.kineto.trace import load, to_timeline
from traces.parquet import read_timeline, write_timeline


def test_every_activity_becomes_a_row(tmp_path: Path) -> None:
    """Kernels, copies, fills and collectives become rows: seconds from the first start, stream, kind and bytes."""
    events = [
        activity("gemm", 1000.5, 10.25, correlation=1),
        activity("Memcpy DtoH (Device -> Pinned)", 1011, 2, cat="gpu_memcpy", stream=9, bytes=4096, correlation=2),
        activity("Memset (Device)", 1013, 1, cat="gpu_memset", bytes=64, correlation=3),
        all_reduce(1020, 30, elements=1000, correlation=4),
    ]
    timeline = to_timeline(load(write(tmp_path / "rank0.json.gz", document(events, world_size=2))))
    assert [timeline.kind.at(row) for row in range(4)] == ["compute", "memcpy", "memset", "all_reduce"]
    assert [timeline.stream.at(row) for row in range(4)] == ["stream 7", "stream 9", "stream 7", "stream 20"]
    assert timeline.bytes.tolist() == [0, 4096, 64, 4000]
    assert timeline.group.at(3) == "0,1"
    assert timeline.start_s * 1e6 == pytest.approx([0.0, 10.5, 12.5, 19.5])
    assert (timeline.end_s - timeline.start_s) * 1e6 == pytest.approx([10.25, 2.0, 1.0, 30.0])
    assert timeline.source == "executed"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("allreduce", "all_reduce"),
        ("allreduce_coalesced", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("all_gather_into_tensor_coalesced", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("reduce", "reduce"),
        ("_broadcast_oop", "broadcast"),
        ("all_to_allv", "all_to_all"),
        ("nccl:all_to_all", "all_to_all"),
        ("nccl:send 0->1", "send"),
        ("recv", "recv"),
        ("barrier", "barrier"),
        ("wait", ""),
        ("init", ""),
    ],
)
def test_names_of_collectives(name: str, kind: str) -> None:
    """Torch's many names of one collective are one kind; what is no collective has none."""
    assert kind_of(name) == kind


@pytest.mark.parametrize(
    ("collective", "sent", "received", "dtype", "num_bytes"),
    [
        ("_allgather_base", 10, 40, "BFloat16", 80),
        ("_reduce_scatter_base", 40, 10, "Half", 80),
        ("all_to_all", 30, 50, "Float", 120),
        ("broadcast", 7, 7, "Long", 56),
        ("recv", 0, 9, "Byte", 9),
        ("allreduce", 16, 16, "c10::BFloat16", 32),
    ],
)
def test_bytes_are_those_of_the_cost_models(
    tmp_path: Path, collective: str, sent: int, received: int, dtype: str, num_bytes: int
) -> None:
    """all_gather counts its output, reduce_scatter its input, all_to_all what a rank sends, in bytes of the type."""
    others = {"Collective_name": collective, "In_msg_nelems": sent, "Out_msg_nelems": received, "dtype": dtype}
    path = write(tmp_path / "rank0.json", document([all_reduce(0, 5, correlation=1, **others)], world_size=2))
    assert to_timeline(load(path)).bytes.tolist() == [num_bytes]


def test_unknown_type_has_no_bytes_and_is_counted(tmp_path: Path) -> None:
    """A type that nobody knows the size of gives no bytes, and a warning with the count."""
    trace = load(write(tmp_path / "rank0.json", document([all_reduce(0, 5, dtype="Octonion")], world_size=1)))
    assert trace.ranks[0].rows.facts[0].num_bytes == -1
    assert [
        warning
        for warning in texts_of(trace.warnings)
        if warning.startswith("1 communication kernel without bytes in the trace")
    ]


def test_call_says_what_the_kernel_does_not(tmp_path: Path) -> None:
    """Without arguments on the kernel those of the call that launched it count, on the same thread alone."""
    arguments = all_reduce(0, 1, elements=500)["args"]
    call = {**annotation("record_param_comms", 0, 20), "cat": "cpu_op", "args": arguments}
    elsewhere = {**annotation("nccl:broadcast", 0, 20, tid=5), "tid": 5}
    events = [call, elsewhere, launch(8, 10), activity(ALL_REDUCE, 30, 5, stream=20, correlation=8)]
    [facts] = load(write(tmp_path / "rank0.json", document(events))).ranks[0].rows.facts.values()
    assert (facts.kind, facts.num_bytes, facts.dtype, facts.group.ranks) == ("all_reduce", 2000, "fp32", (0, 1))


def test_annotation_says_what_a_send_and_receive_kernel_is(tmp_path: Path) -> None:
    """Old traces name an all_to_all, its shape and type only in an annotation around the launch."""
    said = annotation("nccl:all_to_all", 0, 20, Input_Dims=[[6144]], Input_type=["float"])
    events = [said, launch(8, 10), activity(SEND_RECV, 30, 5, stream=20, correlation=8)]
    [facts] = load(write(tmp_path / "rank0.json", document(events))).ranks[0].rows.facts.values()
    assert (facts.kind, facts.num_bytes, facts.dtype) == ("all_to_all", 24576, "fp32")


def test_name_of_a_kernel_is_the_last_resort(tmp_path: Path) -> None:
    """A kernel that nothing else describes has the kind of its name, no bytes and no group; warnings count them."""
    events = [activity(SEND_RECV, 0, 5, correlation=1), activity("ncclDevKernel_Generic(x)", 9, 5, correlation=2)]
    trace = load(write(tmp_path / "rank0.json", document([*events, activity(ALL_REDUCE, 20, 5, correlation=3)])))
    assert [trace.ranks[0].rows.kind.at(row) for row in range(3)] == ["send_recv", "communication", "all_reduce"]
    assert (
        len([warning for warning in texts_of(trace.warnings) if warning.startswith("3 communication kernels without")])
        == 2
    )


def test_group_comes_from_the_list_of_groups_where_ranks_are_cut_short(tmp_path: Path) -> None:
    """Torch abbreviates long lists of ranks with dots; then the group of that name in the file's list counts."""
    listed = {"pg_name": "0", "pg_size": 40, "ranks": list(range(40))}
    event = all_reduce(0, 5, Process_Group_Ranks="[0, 1, ..., 39]", Group_size=40)
    content = document([event], world_size=40)
    content["distributedInfo"]["pg_config"] = [listed]
    [facts] = load(write(tmp_path / "rank0.json", content)).ranks[0].rows.facts.values()
    assert facts.group == group_of(tuple(range(40)))
    assert facts.group.label == "0-39"


def test_memory_is_that_of_the_device(tmp_path: Path) -> None:
    """Records of torch's allocator become the memory curve; those of the host do not."""
    events = [
        activity("gemm", 100, 10, correlation=1),
        memory(90, 512),
        memory(104, 4096),
        memory(105, 9, device_type=0),
    ]
    timeline = to_timeline(load(write(tmp_path / "rank0.json", document(events))))
    times_s, held = timeline.memory.of(0)
    assert held.tolist() == [512, 4096]
    assert times_s * 1e6 == pytest.approx([-10.0, 4.0])
    assert timeline.memory.peak_bytes(0) == 4096


def test_two_devices_in_one_file_keep_their_streams(tmp_path: Path) -> None:
    """Streams of the same number on two devices are two streams."""
    events = [activity("gemm", 0, 10, correlation=1), activity("gemm", 0, 10, correlation=2)]
    events[1]["args"]["device"] = 1
    timeline = to_timeline(load(write(tmp_path / "rank0.json", document(events))))
    assert sorted(timeline.stream.values) == ["device 0 stream 7", "device 1 stream 7"]


def steps_of_three(tmp_path: Path) -> Path:
    """Return a trace of three steps; each launches a kernel that runs during the next one, one kernel has no launch."""
    events = [activity("orphan", 5, 1, correlation=99)]
    for number in range(3):
        at = 100 * number
        events += [annotation(f"ProfilerStep#{number + 4}", at, 100), launch(number + 1, at + 50)]
        events.append(activity(f"kernel{number + 4}", at + 120, 10, correlation=number + 1))
    return write(tmp_path / "rank0.json", document(events))


@pytest.mark.parametrize(
    ("window", "names"),
    [
        (None, ["orphan", "kernel4", "kernel5", "kernel6"]),
        (StepWindow(), ["kernel4", "kernel5"]),
        (StepWindow(5, 5), ["kernel5"]),
        (StepWindow(5, 6), ["kernel5", "kernel6"]),
    ],
)
def test_work_belongs_to_the_step_that_launched_it(tmp_path: Path, window: StepWindow | None, names: list[str]) -> None:
    """Not when a kernel runs, but when the host launched it, decides on its step; what has no launch is counted."""
    trace = load(steps_of_three(tmp_path), window)
    rows = trace.ranks[0].rows
    assert [rows.name.at(row) for row in range(len(rows))] == names
    assert any("1 device activity has no launch" in warning for warning in texts_of(trace.warnings)) == (
        window is not None
    )


def test_unknown_step_is_refused(tmp_path: Path) -> None:
    """The refusal of a step names those that there are."""
    with pytest.raises(TraceError, match="there is no step 9 here: steps 4, 5, 6"):
        load(steps_of_three(tmp_path), StepWindow(9, 9))


def test_launches_are_kept(tmp_path: Path) -> None:
    """Each row knows when the host launched it, and NaN says that the trace does not tell."""
    trace = load(steps_of_three(tmp_path))
    rows, host = trace.ranks[0].rows, trace.ranks[0].launches
    assert np.isnan(rows.launch_s[0])
    assert (rows.start_s[1:] - rows.launch_s[1:]) * 1e6 == pytest.approx([70.0, 70.0, 70.0])
    assert host.correlation.tolist() == [1, 2, 3]


def test_timeline_survives_its_file(tmp_path: Path) -> None:
    """What is written as timeline.parquet reads back the same: rows, words and memory."""
    events = [all_reduce(0, 5, correlation=1), activity("gemm", 3, 9, correlation=2), memory(4, 77)]
    timeline = to_timeline(load(write(tmp_path / "rank0.json", document(events, world_size=2))))
    write_timeline(timeline, tmp_path / "timeline.parquet")
    again = read_timeline(tmp_path / "timeline.parquet")
    for column in ("start_s", "end_s", "bytes"):
        assert np.array_equal(getattr(again, column), getattr(timeline, column))
    assert [again.name.at(row) for row in range(2)] == [timeline.name.at(row) for row in range(2)]
    assert again.memory.peak_bytes(0) == 77


def test_collectives_of_a_real_trace_say_all() -> None:
    """On DDP with collective arguments every kernel has kind, group, type and the bytes of ResNet-50's buckets."""
    trace = load(shared_trace("ddp_a100_collective_arguments.json.gz"), StepWindow())
    facts = list(trace.ranks[0].rows.facts.values())
    assert {fact.group.ranks for fact in facts} == {(0, 1)}
    assert {fact.dtype for fact in facts} == {"fp32", "int64"}
    per_step = sum(fact.num_bytes for fact in facts if fact.kind == "all_reduce") / 2
    assert per_step == 4 * 25_557_032  # the parameters of torchvision's resnet50


def test_real_archive_is_read_as_a_folder() -> None:
    """Eight ranks of DLRM share eight collectives, agree on the clock to microseconds, and keep all their work."""
    trace = load(shared_trace("dlrm_v100_8_ranks.tar.gz"))
    assert [rank.rank for rank in trace.ranks] == list(range(8))
    assert [len(collective.members) for collective in trace.matches.collectives] == [8] * 8
    assert np.abs(trace.alignment.offset_s).max() < 5e-6
    assert trace.alignment.residual_s.max() < 2e-6
    timeline = to_timeline(trace)
    assert len(timeline) == sum(len(rank.rows) for rank in trace.ranks)
    assert len(timeline.messages.member) == 64
    assert set(timeline.kind.values) == {"all_reduce", "all_to_all", "compute", "memcpy", "memset"}
