"""What is done to gradients beside adding them up: what it moves, and where it is not done."""

from math import prod
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from costmodels.software import Software
from sim.engine.running.simulate import simulate
from sim.plan.checking.check import check
from sim.plan.facts.description import kernel_work
from sim.plan.words.buffer import Kind
from sim.plan.words.op import Collective, Compute
from sim.plan.words.program import Program
from tests.examples import examples
from tests.sim.jobs import GPT, LLAMA, dense_plan, pricing_on


def program_of(**keys: Any) -> Program:
    """Return the program of the first rank of a checked plan."""
    plan = dense_plan(overlap_gradient_sync=False, **keys)
    check(plan)
    return plan.programs[0]


def moved_bytes(program: Program, kernel: str) -> int:
    """Return what all calls of a kernel read and write in a step."""
    ops = [op for *_, op in program.instances() if isinstance(op, Compute) and op.kernel == kernel]
    return sum(kernel_work(program, op).num_bytes for op in ops)


def gradient_bytes(program: Program) -> int:
    """Return the bytes of all gradients."""
    return sum(buffer.num_bytes for buffer in program.buffers.values() if buffer.kind is Kind.GRADIENT)


@pytest.mark.parametrize("zero_stage", [0, 1])
@pytest.mark.parametrize("bucket_bytes", [0, 20_000])
def test_passes_read_every_gradient_and_scaling_writes_it(zero_stage: int, bucket_bytes: int) -> None:
    """Per step and gradient of four bytes: eight to divide it, four to check it, and a few of loss and norms beside."""
    keys = {"dp": 2, "zero_stage": zero_stage, "bucket_bytes": bucket_bytes, "model": LLAMA}
    program = program_of(prescale_gradients=True, check_gradients=True, **keys)
    assert moved_bytes(program, "scale") == 2 * gradient_bytes(program) + 8
    num_checks = sum(isinstance(op, Compute) and op.kernel == "squared_norm" for *_, op in program.instances())
    assert moved_bytes(program, "squared_norm") == gradient_bytes(program) + 4 * num_checks
    assert num_checks == (1 if bucket_bytes == 0 else num_checks) >= 1


def test_gradients_are_checked_and_divided_before_they_are_summed() -> None:
    """No collective on gradients runs before the passes over them."""
    program = program_of(dp=2, prescale_gradients=True, check_gradients=True)
    kinds = [op.kernel if isinstance(op, Compute) else str(op.kind) for op in program.tasks["gradient_sync.0"].ops
             if isinstance(op, Compute | Collective)]  # fmt: skip
    assert kinds == ["squared_norm", "delay", "scale", "all_reduce"]  # the host waits for the norm


def test_one_replica_divides_nothing_and_sharers_of_a_sequence_divide_as_replicas_do() -> None:
    """The divisor is the number of ranks whose gradients are summed."""
    assert moved_bytes(program_of(prescale_gradients=True), "scale") == 0
    program = program_of(prescale_gradients=True, dp=2, context_degree=2, model=LLAMA)
    factors = {
        op.attributes["factor"] for *_, op in program.instances() if isinstance(op, Compute) and op.kernel == "scale"
    }
    assert factors == {0.25}


@pytest.mark.parametrize("tp", [1, 2])
def test_a_whole_embedding_gradient_is_made_and_added(tp: int) -> None:
    """Per micro-batch: 2 bytes per element cleared, the tokens' rows added to, 2 read and 8 accumulated."""
    plain, whole = (program_of(tp=tp, m=3, model=LLAMA, whole_embedding_gradient=made) for made in (False, True))
    elements = prod(whole.buffers["embedding.word"].shape)
    assert elements == GPT["vocab_size"] * GPT["hidden_size"] // tp
    tokens, width = GPT["sequence_length"], GPT["hidden_size"]
    given_and_rows = tokens * 8 + tokens * width * 2 + 2 * tokens * width * 2
    assert moved_bytes(whole, "zeros") == 3 * 2 * elements
    assert moved_bytes(whole, "embedding_backward") == 3 * given_and_rows
    assert moved_bytes(whole, "add") - moved_bytes(plain, "add") == 3 * (2 + 4 + 4) * elements


@settings(max_examples=examples(12), deadline=None)
@given(
    node=st.sampled_from(["dgx-1-v100-16g", "dgx-a100-80g", "hgx-h100", "dgx-b200"]),
    sizes=st.tuples(
        st.sampled_from([32, 128, 1024, 16384]), st.sampled_from([64, 256, 1024]), st.sampled_from([32, 256, 2048])
    ),
    keys=st.fixed_dictionaries({
        "tp": st.sampled_from([1, 2]), "m": st.integers(1, 2), "b": st.sampled_from([1, 4]),
        "precision": st.sampled_from(["bf16", "fp32"]), "set_gradients_to_none": st.booleans(),
    }),
    launch_s=st.sampled_from([0.0, 5e-6]),
)  # fmt: skip
def test_a_whole_embedding_gradient_is_never_cheaper_than_adding_rows(
    node: str, sizes: tuple[int, int, int], keys: dict[str, Any], launch_s: float
) -> None:
    """Whatever the table, the tokens, the device and the framework: a step takes as long at least."""
    vocabulary, width, length = sizes
    model = LLAMA | {
        "vocab_size": vocabulary, "hidden_size": width, "sequence_length": length, "num_layers": 1
    }  # fmt: skip
    prices = replace(pricing_on(node, keys["tp"]), software=Software(launch_s=launch_s))
    low = keys["set_gradients_to_none"]
    rows_s, whole_s = (
        simulate(
            dense_plan(model=model, whole_embedding_gradient=made, low_precision_gradients=low, **keys), prices
        ).iteration_time_s
        for made in (False, True)
    )
    assert whole_s >= rows_s * (1 - 1e-12)
