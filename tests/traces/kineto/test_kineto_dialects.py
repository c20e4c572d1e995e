"""What other profilers, devices and versions of torch write is read as what it is, or left out with a count."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from sim.replay.changes import Changes
from sim.replay.run import Replayer
from tests.traces.kineto_traces import activity, all_reduce, annotation, document, launch, memory, texts_of, write
from traces.errors import TraceError
from traces.kineto.breakdown import break_down
from traces.kineto.document import Source, decode, whole
from traces.kineto.rank import StepWindow
from traces.kineto.trace import KinetoTrace, load

KERNEL = activity("gemm", 100, 10, correlation=1)


def loaded(folder: Path, *events: dict[str, Any], window: StepWindow | None = None, **others: Any) -> KinetoTrace:
    """Return the profile of one rank with these events."""
    return load(write(folder / "rank0.json", document(events, **others)), window)


# --- files ---------------------------------------------------------------------------------------------------------


def test_a_list_of_events_is_a_trace(tmp_path: Path) -> None:
    """Chrome's format may be nothing but the list; then the name says the rank."""
    (tmp_path / "rank5.json").write_text(json.dumps([KERNEL, launch(1, 90)]), encoding="utf-8")
    trace = load(tmp_path)
    assert (trace.ranks[0].rank, len(trace.ranks[0].rows)) == (5, 1)


def test_windows_files_are_read(tmp_path: Path) -> None:
    """A byte order mark, gzipped or not, and line ends of two characters change nothing."""
    raw = json.dumps(document([KERNEL]), indent=1).replace("\n", "\r\n").encode("utf-8-sig")
    for name, content in (("rank0.json", raw), ("rank1.json.gz", gzip.compress(raw))):
        assert decode(Source(name, lambda content=content: content)).events


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ((b'"dur": 10', b'"dur": 1e999'), r"too large for a file of JSON, at `\$\.traceEvents\[0\]\.dur`"),
        ((b"gemm", "Größe".encode("latin1")), r"rank0\.json:2: this is not text of UTF-8 \(byte"),
        ((b"gemm", b"\\ud83d"), "this is not JSON"),
    ],
)
def test_what_no_json_can_hold_is_refused_with_its_place(damage: tuple[bytes, bytes], words: str) -> None:
    """A number past all numbers and text of another encoding are refused as such, not as some other format."""
    raw = b"\n" + json.dumps(document([KERNEL])).encode().replace(*damage, 1)
    with pytest.raises(TraceError, match=words):
        decode(Source("rank0.json", lambda: raw))


@pytest.mark.parametrize(
    ("value", "number"),
    [(7, 7), ("7", 7), ("0", 0), (8, -1), ("8", -1), (-1, -1), ("-1", -1), (7.0, -1), (True, -1), (None, -1),
     ("7.0", -1), ("٣", -1), ("9" * 5000, -1), ("", -1)],
)  # fmt: skip
def test_whole_numbers_may_be_text(value: object, number: int) -> None:
    """What passed through other tools may have numbers as text; anything but a small whole number is none."""
    assert whole(value, 7) == number


def test_ranks_as_text_are_ranks(tmp_path: Path) -> None:
    """Rank, size and correlation count as text, too."""
    events = [launch(1, 90), {**KERNEL, "args": {**KERNEL["args"], "correlation": "1"}}]
    distributed = {"rank": "3", "world_size": "4"}
    trace = loaded(tmp_path, *events, distributedInfo=distributed)
    assert (trace.ranks[0].rank, trace.ranks[0].world_size) == (3, 4)
    assert trace.ranks[0].rows.launch_s.tolist() == [pytest.approx(-10e-6)]


# --- devices -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("category", "call"),
    [("xpu_runtime", "urEnqueueKernelLaunch"), ("cuda_runtime", "hipExtModuleLaunchKernel"),
     ("cuda_driver", "cuLaunchKernelEx"), ("privateuse1_runtime", "launch"), ("mlu_runtime", "cnInvokeKernel")],
)  # fmt: skip
def test_launches_of_any_vendor_are_launches(tmp_path: Path, category: str, call: str) -> None:
    """Whatever the runtime is called, its calls launch what shares their number."""
    trace = loaded(tmp_path, {**launch(1, 90), "cat": category, "name": call}, KERNEL)
    assert trace.ranks[0].rows.launch_s.tolist() == [pytest.approx(-10e-6)]


def test_intel_devices_have_queues(tmp_path: Path) -> None:
    """Kernels of Intel's devices say a queue where others say a stream."""
    kernel = activity("gemm", 100, 10, correlation=1)
    del kernel["args"]["stream"]
    kernel["args"] |= {"sycl queue": 3, "l0 queue": "0x55"}
    assert loaded(tmp_path, kernel).ranks[0].rows.stream.values == ("stream 3",)


@pytest.mark.parametrize(("device_type", "kept"), [(0, 0), (1, 1), (12, 1), (20, 1), ("1", 1), (None, 0), (-1, 0)])
def test_memory_of_any_device_counts(tmp_path: Path, device_type: object, kept: int) -> None:
    """Of torch's types of devices all but the host (0) hold the memory that the curve shows."""
    record = memory(101, 512)
    record["args"]["Device Type"] = device_type
    assert len(loaded(tmp_path, KERNEL, record).ranks[0].allocated[1]) == kept


def test_memory_of_several_devices_adds_up(tmp_path: Path) -> None:
    """Each device's records say what it holds itself: a rank with two holds the sum, from moment to moment."""
    records = [memory(at, held) for at, held in ((101, 10), (102, 5), (103, 20), (104, 1))]
    for record, device in zip(records, (0, 1, 0, 1), strict=True):
        record["args"]["Device Id"] = device
    assert loaded(tmp_path, KERNEL, *records[::-1]).ranks[0].allocated[1].tolist() == [10, 15, 25, 21]


def test_categories_that_are_not_known_are_counted(tmp_path: Path) -> None:
    """Work on a stream in a category of its own is counted; spans and records of events, which are no work, are not."""
    others = [activity("x", 100, 5, cat=name) for name in ("mtia_ccp_events", "gpu_user_annotation", "cuda_event")]
    flow = {"ph": "s", "id": 1, "cat": "ac2g", "name": "ac2g", "ts": 1, "pid": 1, "tid": 1}
    mark = {"name": "Iteration Start: PyTorch Profiler", "ph": "i", "s": "g", "pid": "Traces", "tid": "Trace", "ts": 0}
    trace = loaded(tmp_path, KERNEL, *others, flow, mark)
    assert texts_of(trace.warnings) == ["1 device activity of an unknown category: left out"]
    assert len(trace.ranks[0].rows) == 1


# --- communication -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "all_reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce_scatter"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "communication"),
        ("ncclSymkDevKernel_AllGather_LLMC(ncclSymkDevWorkArgs)", "all_gather"),
        ("rcclGenericKernel<7, false>(ncclDevKernelArgsStorage<4096ul>)", "communication"),
        ("mscclKernel_Sum_half_Simple(ncclDevComm*)", "communication"),
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)", "all_reduce"),
        ("void c10d::one_shot_all_reduce_kernel<float, 16, 8>(float**)", "all_reduce"),
        ("multimem_one_shot_all_reduce_kernel", "all_reduce"),
        ("two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 8>", "all_reduce"),
        ("multimem_all_gather_kernel<16>", "all_gather"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", "all_reduce"),
        ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*)", "communication"),
        ("void deep_ep::internode_ll::combine<false, 7168>(int)", "communication"),
        ("void deep_ep::layout::get_dispatch_layout<256>(long const*)", "compute"),
        ("nvshmemi_barrier_threadgroup", "communication"),
        ("void at::native::reduce_kernel<512, 1>(at::native::ReduceOp)", "compute"),
        ("triton_red_fused_all_gather_like_0", "compute"),
        ("void cub::DeviceReduceKernel<int>(int*)", "compute"),
    ],
)
def test_kernels_that_communicate_are_told_by_their_names(tmp_path: Path, name: str, kind: str) -> None:
    """NCCL's and RCCL's kernels, and those that communicate without them; what computes only is compute."""
    rows = loaded(tmp_path, activity(name, 100, 10)).ranks[0].rows
    assert rows.kind.at(0) == kind
    assert break_down(rows).compute_s == pytest.approx(10e-6 * (kind == "compute"))


@pytest.mark.parametrize(
    ("said", "label"),
    [((8, 1), "8-71"), ((0, 2), ",".join(map(str, range(0, 128, 2)))), ((3, 0), "group 0"), ((-1, -1), "group 0"),
     ((None, None), "group 0")],
)  # fmt: skip
def test_ranks_that_are_cut_short_follow_from_first_and_stride(
    tmp_path: Path, said: tuple[object, object], label: str
) -> None:
    """Of large groups torch writes some ranks and dots, but also the first and the stride, where there is one."""
    strided = {"Global_rank_start": said[0], "Global_rank_stride": said[1]}
    event = all_reduce(0, 5, Process_Group_Ranks="[8, 9, ..., 71]", Group_size=64, **strided)
    [facts] = loaded(tmp_path, event, world_size=256).ranks[0].rows.facts.values()
    assert facts.group.label == label
    assert facts.group.size == 64


@pytest.mark.parametrize(
    ("listed", "label"),
    [
        (["0", "1", "10", "2"], "0,1,2,10"),
        ([2, 0, 1], "0-2"),
        ([0, 0], "group 7"),
        ([0, "x"], "group 7"),
        ("01", "group 7"),
    ],
)
def test_groups_that_a_file_lists_are_of_different_numbers(tmp_path: Path, listed: object, label: str) -> None:
    """Numbers of ranks may stand there as text; a list with one twice, or with another word, is no group."""
    said = {"rank": 0, "world_size": 16, "pg_config": [{"pg_name": "7", "ranks": listed}]}
    event = all_reduce(0, 5, Process_Group_Ranks="", Process_Group_Name="7", Group_size=0)
    path = write(tmp_path / "rank0.json", {**document([event]), "distributedInfo": said})
    [facts] = load(path).ranks[0].rows.facts.values()
    assert facts.group.label == label
    assert all(type(rank) is int for rank in facts.group.ranks)


# --- captured graphs and steps -------------------------------------------------------------------------------------


def graph_of(num_kernels: int) -> list[dict[str, Any]]:
    """Return one launch of a captured graph, and its kernels with the launch's number."""
    kernels = [activity(f"k{place}", 150 + 10 * place, 8, correlation=7) for place in range(num_kernels)]
    return [{**launch(7, 100, dur=40), "name": "cudaGraphLaunch"}, *kernels, annotation("ProfilerStep#1", 90, 100)]


def test_one_launch_of_a_graph_launches_all_its_kernels(tmp_path: Path) -> None:
    """Kernels that share a number belong to the step of its one launch, and a replay runs them as measured."""
    trace = loaded(tmp_path, *graph_of(5), window=StepWindow(1, 1))
    assert len(trace.ranks[0].rows) == 5
    assert not trace.warnings
    replayer = Replayer(trace)
    assert replayer.run(Changes()).span_s == pytest.approx(replayer.measured_s)
    assert replayer.run(Changes(compute=2.0)).span_s == pytest.approx(replayer.measured_s - 5 * 4e-6)


def test_of_calls_of_one_number_the_earlier_counts(tmp_path: Path) -> None:
    """Which of two calls launched what has their number cannot be told: the earlier is no later than either."""
    calls = [launch(1, 95), launch(1, 300), launch(1, 200)]
    trace = loaded(tmp_path, *calls[1:], calls[0], KERNEL)
    assert trace.ranks[0].rows.launch_s.tolist() == [pytest.approx(-5e-6)]
    assert texts_of(trace.warnings) == ["2 host calls with the number of an earlier one: left out"]


def test_a_step_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    """Of a profiler within another the longer step counts, and the other is counted as left out."""
    events = [launch(1, 95), KERNEL, annotation("ProfilerStep#4", 90, 50), annotation("ProfilerStep#4", 92, 1)]
    for order in (events, events[::-1]):
        trace = loaded(tmp_path, *order, window=StepWindow(4, 4))
        assert len(trace.ranks[0].rows) == 1
        said = "1 host call for a step that another one already names: left out"
        assert texts_of(trace.warnings) == [said]


def test_steps_that_overlap_are_said(tmp_path: Path) -> None:
    """What is launched while two steps last belongs to both; by how much they overlap is told."""
    steps = [annotation("ProfilerStep#1", 80, 60), annotation("ProfilerStep#2", 100, 60)]
    trace = loaded(tmp_path, launch(1, 110), activity("gemm", 120, 5, correlation=1), *steps, window=StepWindow(1, 2))
    assert [words.split(":")[0] for words in texts_of(trace.warnings)] == [
        "1 step begins before the previous step has ended (by up to 40 us)"
    ]
