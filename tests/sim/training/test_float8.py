"""Plans whose layers' products multiply eight bits: what is cast, when, what it costs and what it takes."""

from typing import Any

import pytest

from costmodels.hardware import load_device
from costmodels.kernels import GemmShape, Work
from costmodels.profile import load_profile
from costmodels.roofline import kernel_time
from sim.engine.running.memory import memory_use
from sim.engine.running.simulate import simulate
from sim.plan.checking.check import check
from sim.plan.facts.description import collective_bytes
from sim.plan.words.buffer import Kind, Scope
from sim.plan.words.op import Collective, Compute
from sim.plan.words.program import Phase, Program
from sim.training.errors import SpecError
from sim.training.spec.parallelism.sharding import OsdpSpec
from tests.sim.jobs import GPT, LLAMA, dense_job, dense_plan, pricing_on

E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"


def computes(program: Program, *phases: Phase) -> list[Compute]:
    """Return the kernels of a program's tasks, of some phases or of all."""
    tasks = [task for task in program.tasks.values() if not phases or task.phase in phases]
    return [op for task in tasks for op in task.ops if isinstance(op, Compute)]


@pytest.mark.parametrize("model", [GPT, LLAMA])
def test_products_of_the_layers_and_no_others_multiply_eight_bits(model: dict[str, object]) -> None:
    """Four products per layer, forward E4M3 x E4M3, gradients E5M2 with E4M3; the head's stay as they are."""
    plan = dense_plan(precision="fp8", model=model, tp=2)
    (program,) = plan.programs
    products = [op for op in computes(program) if "matmul" in op.kernel]
    narrow = [op for op in products if op.kernel.startswith("float8_")]
    assert {op.name.split(".")[0] for op in products if op not in narrow} == {"head"}
    assert len(narrow) == 3 * 4 * 4
    for op in narrow:
        first, second = program.buffers[op.reads[0]].dtype, program.buffers[op.reads[2]].dtype
        expected = {"float8_matmul": (E4M3, E4M3), "float8_matmul_input_gradient": (E5M2, E4M3)}
        assert (first, second) == expected.get(op.kernel, (E4M3, E5M2))


def test_weights_are_cast_once_per_step_and_before_they_are_used() -> None:
    """However many micro-batches: one call per virtual stage, right before its first forward."""
    plan = dense_plan(precision="fp8", pp=2, m=4, schedule="interleaved_1f1b", virtual_stages=2)
    for program in plan.programs:
        names = [call.task for call in program.calls]
        for stage in {task.stage for task in program.tasks.values() if task.phase is Phase.FORWARD}:
            assert names.count(f"cast_weights.{stage}") == 1
            assert names[names.index(f"forward.{stage}") - 1] == f"cast_weights.{stage}"
        casts = [op for op in computes(program, Phase.PREPARE) if op.kernel == "cast_float8"]
        assert len(casts) == 2 * 4


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved_1f1b"])
def test_stages_without_layers_cast_nothing(schedule: str) -> None:
    """Llama 3's ends, the embedding and the head alone, have no task of casts; the stages between have one each."""
    ranks, stages = (4, 1) if schedule == "1f1b" else (2, 2)
    plan = dense_plan(
        precision="fp8", pp=ranks, m=4, schedule=schedule, virtual_stages=stages, model=LLAMA | {"num_layers": 2}
    )
    check(plan)
    casts = {name for program in plan.programs for name in program.tasks if name.startswith("cast_weights")}
    assert casts == {"cast_weights.1", "cast_weights.2"}
    assert simulate(plan, pricing_on("hgx-h100", ranks)).makespan_s > 0.0


def test_backward_keeps_a_byte_per_element_of_an_input() -> None:
    """Of what a linear layer reads, 16 bits wide before, its cast is kept, half as large, in the order of backward."""
    activations = {}
    for precision in ("bf16", "fp8"):
        (program,) = dense_plan(precision=precision, model=LLAMA).programs
        written = {name for op in computes(program, Phase.FORWARD) for name in op.writes}
        read = {name for op in computes(program, Phase.BACKWARD) for name in op.reads}
        activations[precision] = written & read
    assert not any(name.endswith("input.cast") for name in activations["fp8"])
    assert sum(name.endswith("input.cast.transposed") for name in activations["fp8"]) == 4 * LLAMA["num_layers"]
    gone = activations["bf16"] - activations["fp8"]
    assert {name.split(".", 1)[1] for name in gone} == {"norm1", "norm2", "swiglu"}


def test_copies_of_weights_take_two_bytes_each_while_they_are_used() -> None:
    """One copy per order and one scale per tensor, from the cast to the last product that reads them."""
    (program,) = dense_plan(precision="fp8", m=3).programs
    copies = [b for b in program.buffers.values() if b.kind is Kind.PARAMETER and b.scope is Scope.STEP]
    weights = 4 * (3 * 64 * 64 + 64 * 64 + 2 * 64 * 256)
    assert sum(buffer.num_bytes for buffer in copies) == 2 * weights + 4 * 4 * 4
    (wide,) = dense_plan(precision="bf16", m=3).programs
    assert memory_use(program).after_bytes == memory_use(wide).after_bytes


@pytest.mark.parametrize(("recompute", "copies"), [("none", 1), ("full", 2)])
def test_passes_cast_what_they_gather(recompute: str, copies: int) -> None:
    """With ZeRO 3 each forward casts a weight for its product, each backward in the orders of its own; nothing before.

    The cast comes after the gather of the weight's layer, and reads what was gathered, in 16 bits.
    """
    keys = {"dp": 4, "m": 2, "model": LLAMA, "zero_stage": 3, "recompute": recompute}
    plan = dense_plan(precision="fp8", **keys)
    check(plan)
    (program,) = plan.programs
    assert not [op for op in computes(program, Phase.PREPARE) if op.kernel == "cast_float8"]
    for phase, num_copies in ((Phase.FORWARD, 1), (Phase.BACKWARD, copies)):
        (task,) = (task for task in program.tasks.values() if task.phase is phase)
        gathered: set[str] = set()
        casts = []
        for op in task.ops:
            if isinstance(op, Collective):
                gathered.update(op.writes)
            elif isinstance(op, Compute) and ".weight.cast" in op.name:
                casts.append(op)
                assert gathered.issuperset(op.reads)
                assert {program.buffers[name].dtype for name in op.reads} == {"bfloat16"}
        assert len(casts) == 4 * LLAMA["num_layers"]
        assert {op.attributes["copies"] for op in casts} == {num_copies}


@pytest.mark.parametrize("zero_stage", [2, 3])
def test_gathers_and_sums_are_those_of_16_bits(zero_stage: int) -> None:
    """What data parallelism sends and what outlives a step are the same, collective by collective and byte by byte."""
    found = []
    for precision in ("bf16", "fp8"):
        keys = {"dp": 4, "m": 2, "model": LLAMA, "zero_stage": zero_stage}
        (program,) = dense_plan(precision=precision, **keys).programs
        sent = [
            (op.name, collective_bytes(program, op)) for *_, op in program.instances() if isinstance(op, Collective)
        ]
        kept = {name: b.num_bytes for name, b in program.buffers.items() if b.scope is Scope.PERSISTENT}
        found.append((sent, kept))
    assert found[0] == found[1]


def test_no_copy_outlives_what_was_gathered() -> None:
    """ZeRO 3 has no copies for a step, so its peak in eight bits is not above that in 16, as it is where they stay."""
    for zero_stage, is_higher in ((1, True), (2, True), (3, False)):
        keys = {"dp": 4, "m": 2, "model": LLAMA, "zero_stage": zero_stage}
        wide, narrow = (
            memory_use(dense_plan(precision=precision, **keys).programs[0]).peak_bytes for precision in ("bf16", "fp8")
        )
        assert (narrow > wide) is is_higher


def test_large_products_take_half_the_time_over_what_eight_bits_attain() -> None:
    """On H100 the same model at twice the peak, times the fraction that the profile states."""
    device, profile = load_device("h100-sxm5-80gb"), load_profile("h100")
    n = 8192
    wide, narrow = (Work(2.0 * n**3, 2.0 * n**3, 2 * size * n * n, 2 * n * n, GemmShape(n, n, n)) for size in (2, 1))
    bf16 = kernel_time(wide, "gemm", "bfloat16", device, profile).alone_s
    fp8 = kernel_time(narrow, "gemm", E4M3, device, profile).alone_s
    assert fp8 * 2.0 * profile.float8.peak_fraction == pytest.approx(bf16, rel=0.05)


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"dp": 2, "osdp": OsdpSpec(choices=())}, "parallel.data.osdp"),
        ({"pp": 2, "schedule": "pipedream_2bw", "model": LLAMA, "m": 4}, "parallel.pipeline.schedule"),
    ],
)
def test_weights_that_are_not_whole_for_a_step_are_refused(keys: dict[str, Any], key: str) -> None:
    """Operators sharded by need, and two versions of weights; the error names the key and what to write."""
    with pytest.raises(SpecError, match="precision: bf16") as caught:
        dense_job(precision="fp8", **keys)
    assert caught.value.key == key
