"""Tensor parallelism on meshes: bytes per rank, FLOP and memory against closed forms; wrong meshes.

The bytes are those of a prototype in numpy whose ranks passed real messages: one pre-norm GPT layer, forward and
backward, in float64, against a dense layer. Formulas: Xu et al. 2021 (Optimus); Wang et al. 2021 (Tesseract); Bian et
al. 2021 (3D), their costs with pipelined rings, by which a rank sends (g-1)/g of what is broadcast, on the mean.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from sim.engine.findings.breakdown import breakdowns
from sim.engine.folding.folding import fold, no_fold
from sim.engine.running.memory import memory_use
from sim.engine.running.simulate import simulate
from sim.plan.facts.description import collective_bytes, kernel_work
from sim.plan.words.op import Collective, CollectiveKind, Compute
from sim.plan.words.program import Phase, Plan
from sim.training.errors import SpecError
from sim.training.tensor.registry import TensorMethodName, tensor_method
from tests.sim.jobs import GPT, LLAMA, as_array, dense_job, dense_plan, op_times, pricing_on

PRODUCTS = ("qkv", "projection", "fc1", "fc2")
SIZES = {"small": (16, 8, 32, 4), "large": (64, 16, 64, 8)}
"""Batch, sequence length, hidden size and heads."""


class Row(NamedTuple):
    """Bytes that a rank sends for one layer."""

    forward: int
    backward: int
    depth: int
    small_forward: int
    small_backward: int


ROWS: dict[tuple[str, str, tuple[int, ...]], Row] = {
    ("small", "2d", (2, 2)): Row(81920, 163840, 0, 2048, 3712),
    ("small", "2d", (4, 4)): Row(61440, 122880, 0, 1536, 2784),
    ("small", "2.5d", (2, 2, 2)): Row(53248, 106496, 24576, 1024, 3520),
    ("small", "2.5d", (2, 2, 4)): Row(38912, 77824, 36864, 512, 3424),
    ("small", "2.5d", (4, 4, 2)): Row(39936, 79872, 6144, 768, 2224),
    ("small", "2.5d", (4, 4, 4)): Row(29184, 58368, 9216, 384, 2304),
    ("small", "3d", (2, 2, 2)): Row(77824, 77824, 0, 1024, 3520),
    ("small", "3d", (4, 4, 4)): Row(29184, 29184, 0, 384, 2304),
    ("large", "2d", (8, 8)): Row(444416, 888832, 0, 7168, 8624),
    ("large", "2.5d", (4, 4, 4)): Row(245760, 491520, 36864, 3072, 6192),
    ("large", "3d", (4, 4, 4)): Row(411648, 411648, 0, 3072, 6192),
}


def ranks_of(mesh: tuple[int, ...]) -> int:
    """Return the number of ranks of a mesh."""
    total = 1
    for side in mesh:
        total *= side
    return total


def layer_plan(size: str, method: str, mesh: tuple[int, ...], count: int = 1, **keys: Any) -> Plan:
    """Return the plan of a model of one layer, or of ``count`` layers, in float64."""
    b, s, h, heads = SIZES[size]
    model = GPT | {
        "num_layers": count, "hidden_size": h, "num_heads": heads, "num_kv_heads": heads, "ffn_hidden_size": 4 * h,
        "sequence_length": s, "vocab_size": 128, "dropout": 0.0,
    }  # fmt: skip
    keys = {"precision": "fp64", "b": b, "model": model, "tp": ranks_of(mesh)} | keys
    return dense_plan(tensor_method=method, **({"mesh": mesh} if mesh else {}), **keys)


def sent_bytes(plan: Plan, op: Collective, num_bytes: float) -> float:
    """Return the bytes that the mean rank sends by pipelined rings."""
    group = op.group_size(plan.mesh)
    passes = 2 if op.kind is CollectiveKind.ALL_REDUCE else 1
    return passes * (group - 1) / group * num_bytes


def sent_for_products(plan: Plan, phase: Phase) -> Iterator[tuple[Collective, float]]:
    """Yield the collectives of the layer's products in a phase, with what the mean rank sends."""
    (program,) = plan.programs
    for task in program.tasks.values():
        for op in task.ops:
            of_product = any(op.name.startswith(f"layer0.{name}") for name in PRODUCTS)
            if task.phase is phase and isinstance(op, Collective) and of_product:
                yield op, sent_bytes(plan, op, collective_bytes(program, op))


SMALL = {"qkv.bias", "projection.bias", "fc1.bias", "fc2.bias", "norm1.", "norm2."}
"""The beginnings of the names of small parameters, each of them one tensor of the prototype."""


def sent_beside(plan: Plan, phase: Phase) -> float:
    """Return what a rank sends for the layer's norms in a phase, and in backward for gradients of norms and biases.

    The prototype sent tensor by tensor, each padded to as many equal pieces as there are ranks.
    """
    (program,) = plan.programs
    total = 0.0
    for task in program.tasks.values():
        for op in (op for op in task.ops if isinstance(op, Collective)):
            if task.phase is phase and op.name.startswith("layer0.norm"):
                total += sent_bytes(plan, op, collective_bytes(program, op))
            elif phase is Phase.BACKWARD and task.phase is Phase.GRADIENT_SYNC:
                piece = 8 * op.group_size(plan.mesh)
                for tensor in SMALL:
                    names = [name for name in op.reads if name.startswith(f"layer0.{tensor}")]
                    own = sum(program.buffers[name].num_bytes for name in names)
                    total += sent_bytes(plan, op, -(-own // piece) * piece)
    return total


def is_depth_sum(op: Collective) -> bool:
    """Return whether an op sums the gradient of a weight over its copies."""
    return op.kind is CollectiveKind.ALL_REDUCE


@pytest.mark.parametrize(("size", "method", "mesh"), ROWS)
@pytest.mark.parametrize("overlap", ["none", "prefetch"])
def test_a_layer_sends_the_bytes_of_the_closed_form(
    size: str, method: str, mesh: tuple[int, ...], overlap: str
) -> None:
    """Products, sums over depth, norms and small gradients send, forward and backward, what real messages took."""
    options: dict[str, Any] = {} if method == "3d" else {"overlap": overlap}
    plan = layer_plan(size, method, mesh, **options)
    forward = sum(sent for _, sent in sent_for_products(plan, Phase.FORWARD))
    backward = list(sent_for_products(plan, Phase.BACKWARD))
    depth = sum(sent for op, sent in backward if is_depth_sum(op))
    others = sum(sent for op, sent in backward if not is_depth_sum(op))
    beside = [sent_beside(plan, phase) for phase in (Phase.FORWARD, Phase.BACKWARD)]
    assert (forward, others, depth, *beside) == ROWS[size, method, mesh]


ONE_AXIS = {
    ("small", 4, False): (98304, 98304), ("small", 4, True): (98304, 147456),
    ("large", 8, False): (1835008, 1835008), ("large", 8, True): (1835008, 2752512),
}  # fmt: skip
"""Bytes of products forward and backward, by size, ranks and sequence parallelism."""


@pytest.mark.parametrize(("size", "ranks", "sequence_parallel"), ONE_AXIS)
def test_one_more_layer_of_one_dimension_sends_the_bytes_of_the_closed_form(
    size: str, ranks: int, *, sequence_parallel: bool
) -> None:
    """1D sends 4(t-1)/t of an activation either way; with sequence parallelism half as much more in backward."""
    sent = []
    for count in (1, 2):
        plan = layer_plan(size, "1d", (), tp=ranks, sequence_parallel=sequence_parallel, count=count)
        (program,) = plan.programs
        of_phase = {Phase.FORWARD: 0.0, Phase.BACKWARD: 0.0}
        for task in program.tasks.values():
            if task.phase in of_phase:
                ops = [op for op in task.ops if isinstance(op, Collective)]
                of_phase[task.phase] += sum(sent_bytes(plan, op, collective_bytes(program, op)) for op in ops)
        sent.append(of_phase)
    added = tuple(sent[1][phase] - sent[0][phase] for phase in (Phase.FORWARD, Phase.BACKWARD))
    assert added == ONE_AXIS[size, ranks, sequence_parallel]


def test_gathering_again_sends_inputs_and_weights_once_more() -> None:
    """Without gathered inputs and weights kept, backward sends (p-1)/p^3 of both more: 7A + 12h^2 of a layer."""
    b, s, h, _ = SIZES["small"]
    plan = layer_plan("small", "3d", (2, 2, 2), save_gathered=False)
    assert sum(sent for _, sent in sent_for_products(plan, Phase.FORWARD)) == 77824
    again = (7 * b * s * h + 12 * h * h) * 8 // 8
    assert sum(sent for _, sent in sent_for_products(plan, Phase.BACKWARD)) == 77824 + again


def test_an_output_layer_in_blocks_sends_its_table_and_the_logits() -> None:
    """(q-1)/q^2 (Vh + TV) elements: 2,560 bytes for 24 tokens, 32 words and 16 channels on [2, 2]."""
    model = GPT | {
        "num_layers": 1, "hidden_size": 16, "num_heads": 2, "num_kv_heads": 2, "ffn_hidden_size": 64,
        "sequence_length": 6, "vocab_size": 32, "dropout": 0.0, "tied_embeddings": False,
    }  # fmt: skip
    plan = dense_plan(tensor_method="2d", tp=4, mesh=(2, 2), model=model, b=4, precision="fp64")
    (program,) = plan.programs
    ops = [op for op in program.tasks["forward.0"].ops if isinstance(op, Collective) and op.name.startswith("head.")]
    assert sum(sent_bytes(plan, op, collective_bytes(program, op)) for op in ops) == 2560


@pytest.mark.parametrize(("size", "mesh"), [("small", (2, 2, 2)), ("large", (4, 4, 4))])
def test_sums_over_depth_once_a_step_are_those_of_one_backward(size: str, mesh: tuple[int, ...]) -> None:
    """Left to the end of the step, the sums take the same bytes, however many micro-batches there are."""
    plan = layer_plan(size, "2.5d", mesh, depth_sync="per_step", m=3)
    assert not [op for op, _ in sent_for_products(plan, Phase.BACKWARD) if is_depth_sum(op)]
    (program,) = plan.programs
    sums = [
        sent_bytes(plan, op, sum(program.buffers[n].num_bytes for n in op.reads if n.endswith(".weight.gradient")))
        for _, _, task, op in program.instances()
        if isinstance(op, Collective) and op.axes == ("tp_depth",) and task.phase is Phase.GRADIENT_SYNC
    ]
    h = SIZES[size][2]
    per_weight = 2 * (mesh[2] - 1) / mesh[2] * 12 * h * h / mesh[0] ** 2 * 8
    assert sum(sums) == per_weight == ROWS[size, "2.5d", mesh].depth


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize(
    ("method", "mesh"),
    [("2d", (2, 2)), ("2d", (4, 4)), ("2.5d", (2, 2, 2)), ("2.5d", (2, 2, 4)), ("3d", (2, 2, 2)), ("3d", (4, 4, 4))],
)
def test_every_rank_has_its_part_of_the_flop(method: str, mesh: tuple[int, ...], recompute: str) -> None:
    """Products and attention of the whole model, forward and backward, are shared out evenly."""
    flop = []
    for plan in (layer_plan("small", method, mesh, recompute=recompute), dense_plan(**_dense(recompute))):
        (program,) = plan.programs
        ops = [op for _, _, _, op in program.instances() if isinstance(op, Compute)]
        flop.append(sum(kernel_work(program, op).flop for op in ops))
    assert flop[0] == flop[1] / ranks_of(mesh)


def _dense(recompute: str) -> dict[str, Any]:
    b, s, h, heads = SIZES["small"]
    model = GPT | {
        "num_layers": 1, "hidden_size": h, "num_heads": heads, "num_kv_heads": heads, "ffn_hidden_size": 4 * h,
        "sequence_length": s, "vocab_size": 128, "dropout": 0.0,
    }  # fmt: skip
    return {"precision": "fp64", "b": b, "model": model, "recompute": recompute}


def held_bytes(plan: Plan) -> int:
    """Return what a rank holds for its one micro-batch between forward and backward."""
    (program,) = plan.programs
    use = memory_use(program)
    at = {call.task: index for index, call in enumerate(program.calls)}
    return int(use.before_bytes[at["backward.0"]] - use.before_bytes[at["forward.0"]])


def large_model(num_layers: int, **keys: Any) -> dict[str, Any]:
    """Return a model so large that norms' statistics and allocator rounding are a rounding error."""
    return GPT | {
        "hidden_size": 6144, "num_heads": 64, "num_kv_heads": 64, "ffn_hidden_size": 4 * 6144, "sequence_length": 2048,
        "vocab_size": 51200, "num_layers": num_layers, **keys,
    }  # fmt: skip


def bytes_of_one_more_layer(method: str, mesh: tuple[int, ...], **keys: Any) -> int:
    """Return what one more layer makes a rank hold between forward and backward."""
    less, more = (
        held_bytes(dense_plan(tensor_method=method, tp=ranks_of(mesh), mesh=mesh, model=large_model(n), **keys))
        for n in (2, 3)
    )
    return more - less


PLAIN, SCORES = 2048 * 16 * 6144, 5 * 64 * 2048 / 6144
"""Elements sbh of an activation of the large model, and R of Korthikanti et al. 2022."""


@pytest.mark.parametrize(
    ("method", "mesh", "keys"),
    [
        ("2d", (2, 2), {}), ("2d", (4, 4), {}), ("2.5d", (2, 2, 2), {}), ("2.5d", (2, 2, 4), {}),
        ("3d", (2, 2, 2), {"save_gathered": False}), ("3d", (4, 4, 4), {"save_gathered": False}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_activations_in_blocks_are_shared_out_whole(
    method: str, mesh: tuple[int, ...], keys: dict[str, Any], recompute: str
) -> None:
    """A layer keeps sbh (34 + 5as/h) over the number of ranks, or its input alone: nothing is replicated."""
    held = bytes_of_one_more_layer(method, mesh, recompute=recompute, b=16, precision="fp16", **keys)
    expected = PLAIN * (2 if recompute == "full" else 34 + SCORES) / ranks_of(mesh)
    assert held == pytest.approx(expected, rel=1.5e-3)


@pytest.mark.parametrize("side", [2, 4])
def test_what_a_cube_gathers_and_keeps_grows_with_its_face(side: int) -> None:
    """Kept gathered, the inputs of products take 14sbh/p^2, weights 2 x 12h^2/p^2, the others sbh (20 + R)/p^3."""
    held = bytes_of_one_more_layer("3d", (side,) * 3, b=16, precision="fp16")
    expected = PLAIN * ((20 + SCORES) / side**3 + 14 / side**2) + 2 * 12 * 6144**2 / side**2
    assert held == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("method", "mesh", "parts"),
    [
        ("2d", (2, 2), 4), ("2d", (4, 4), 16), ("2.5d", (2, 2, 2), 4), ("2.5d", (4, 4, 2), 16), ("3d", (2, 2, 2), 8),
        ("3d", (4, 4, 4), 64),
    ],
)  # fmt: skip
def test_weights_are_cut_over_the_mesh(method: str, mesh: tuple[int, ...], parts: int) -> None:
    """A layer's four weights are 12 h^2 over the ranks that share them out."""
    (program,) = layer_plan("small", method, mesh).programs
    names = [f"layer0.{name}.weight" for name in PRODUCTS]
    assert sum(program.buffers[name].num_elements for name in names) == 12 * 32**2 // parts


@pytest.mark.parametrize("overlap", ["none", "prefetch"])
def test_the_workspace_of_summa_is_one_step_or_two(overlap: str) -> None:
    """Blocks of both operands, or one and a term of the sum; twice with prefetching (section 3.2.3 of the paper)."""
    q, (b, s, h, _) = 2, SIZES["small"]
    (program,) = layer_plan("small", "2d", (q, q), overlap=overlap).programs
    x, w, y = b * s * h // q**2, 4 * h * h // q**2, b * s * 4 * h // q**2
    expected = {"fc1": x + w, "fc1.input_gradient": w + x, "fc1.weight_gradient": x + w, "fc2": y + w}
    for name, elements in expected.items():
        found = [b for n, b in program.buffers.items() if n.startswith((f"layer0.{name}.block", f"layer0.{name}.term"))]
        assert sum(buffer.num_elements for buffer in found) == elements * (2 if overlap == "prefetch" else 1)


@pytest.mark.parametrize(
    ("method", "mesh", "keys", "key", "words"),
    [
        ("2d", (), {}, "mesh", r"needs a mesh \[q, q\], got \[\]; write \[2, 2\]"),
        ("2d", (2, 2, 2), {}, "mesh", r"needs a mesh \[q, q\], got \[2, 2, 2\]; write \[2, 2\]"),
        ("2d", (2, 8), {}, "mesh", r"needs a mesh \[q, q\], got \[2, 8\]; write \[4, 4\]"),
        ("2d", (1, 1), {}, "mesh", r"mesh \[1, 1\] cuts no matrix; write \[2, 2\], or method: 1d instead"),
        ("2d", (3, 3), {}, "mesh", r"num_heads 8 does not divide by 3.*write model.num_heads: 9"),
        ("2d", (8, 8), {"model": LLAMA}, "mesh", r"num_kv_heads 4 does not divide by 8"),
        ("2d", (2, 2), {"b": 3}, "mesh", r"microbatch_size 3 does not divide by 2.*training.microbatch_size: 4"),
        ("2.5d", (2, 2), {}, "mesh", r"needs a mesh \[q, q, d\], got \[2, 2\]; write \[2, 2, 1\]"),
        ("2.5d", (2, 2, 5), {}, "mesh", r"microbatch_size 24 does not divide by 10.*training.microbatch_size: 20"),
        ("2.5d", (1, 1, 4), {}, "mesh", r"cuts no matrix; write \[2, 2, 4\], or parallel.data.degree: 4 instead"),
        ("3d", (4, 4, 2), {}, "mesh", r"needs a mesh \[p, p, p\], got \[4, 4, 2\]; write \[3, 3, 3\]"),
        ("3d", (2, 2, 2), {"model": GPT | {"ffn_hidden_size": 254}}, "mesh", r"ffn_hidden_size 254.*by 4.*: 256"),
        ("3d", (2, 2, 2), {"tensor_axis_order": ("row",)}, "axis_order", "has the axes output, input, weight"),
        ("2d", (4, 4), {"node_block": (2, 3)}, "node_block", r"\[2, 3\] do not tile mesh \[4, 4\]; write \[2, 2\]"),
        ("2.5d", (2, 2, 2), {"node_block": (2, 2)}, "node_block", r"do not tile mesh \[2, 2, 2\]; write \[2, 2, 1\]"),
        ("2d", (2, 2), {"save_gathered": False}, "save_gathered", "method 2d has no such option"),
        ("1d", (2, 2), {}, "mesh", "method 1d has no such option"),
        ("2d", (2, 2), {"sequence_parallel": True}, "sequence_parallel", "method 2d has no such option"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(
    method: str, mesh: tuple[int, ...], keys: dict[str, Any], key: str, words: str
) -> None:
    """The error names the key, both numbers, and the nearest choice that fits."""
    with pytest.raises(SpecError, match=words) as caught:
        dense_job(tensor_method=method, tp=ranks_of(mesh), mesh=mesh, **{"b": 24, **keys})
    assert caught.value.key == f"parallel.tensor.{key}"


ORDERS: tuple[tuple[TensorMethodName, tuple[str, ...]], ...] = (
    ("2.5d", ()), ("3d", ()), ("3d", ("weight", "input", "output")),
)  # fmt: skip


def test_the_order_of_axes_says_which_ranks_are_neighbours() -> None:
    """The last axis varies fastest; left out, the order is the method's own."""
    axes = {
        (name, order): [axis for axis, _ in tensor_method(name, 8, {"mesh": (2, 2, 2), "axis_order": order}).axes]
        for name, order in ORDERS
    }
    assert list(axes.values()) == [
        ["tp_depth", "tp_row", "tp_column"], ["tp_output", "tp_input", "tp_weight"],
        ["tp_weight", "tp_input", "tp_output"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "mesh", "keys"),
    [
        ("2d", (2, 2), {"overlap": "prefetch", "dp": 4}),
        ("2.5d", (2, 2, 2), {"dp": 2}),
        ("3d", (2, 2, 2), {"dp": 2, "zero_stage": 1}),
    ],
)
def test_folded_is_unfolded_on_a_mesh(method: str, mesh: tuple[int, ...], keys: dict[str, Any]) -> None:
    """Fewer ranks are simulated than there are, and no op's time changes."""
    plan = layer_plan("small", method, mesh, **keys)
    pricing = pricing_on("dgx-a100-80g", plan.mesh.size)
    folded, whole = (simulate(plan, pricing, fold=how) for how in (fold, no_fold))
    assert len(folded.programs) < len(whole.programs) == plan.mesh.size
    assert folded.makespan_s == pytest.approx(whole.makespan_s, rel=1e-12)
    times, expected = op_times(folded), op_times(whole)
    assert as_array(times, list(times)) == pytest.approx(as_array(expected, list(times)), rel=1e-9, abs=1e-15)


def test_inside_a_node_an_axis_costs_less_than_between_nodes() -> None:
    """The axis that varies fastest lies inside the node; with the order turned round the other one waits for less."""
    waiting = {}
    for order in (("row", "column"), ("column", "row")):
        plan = layer_plan("large", "2d", (8, 8), tensor_axis_order=order)
        run = simulate(plan, pricing_on("dgx-a100-80g", 64))
        waiting[order] = breakdowns(run)[0].exposed_s
    first, second = waiting.values()
    assert first["tp_column"] < second["tp_column"]
    assert second["tp_row"] < first["tp_row"]


def test_a_node_holds_a_block_of_the_mesh() -> None:
    """With blocks of 2 x 2 the four ranks of a node share rows and columns by two (Optimus' ``--rank-rearrange``)."""
    mesh = layer_plan("large", "2d", (8, 8), node_block=(2, 2)).mesh
    for node in range(16):
        places = [mesh.coordinates(rank) for rank in range(4 * node, 4 * node + 4)]
        assert [len({place[axis] for place in places}) for axis in ("tp_row", "tp_column")] == [2, 2]
    assert [mesh.coordinates(rank)["tp_row"] for rank in range(4)] == [0, 0, 1, 1]
