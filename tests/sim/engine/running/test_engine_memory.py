"""Liveness and memory, against a walk over every instance of every buffer."""

from collections import Counter
from itertools import accumulate

from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.findings.timeline import timeline
from sim.engine.running.memory import KnownMemory, memory_use, peak_live_chunks
from sim.engine.running.simulate import simulate
from sim.plan.facts.liveness import lifetimes
from sim.plan.words.buffer import Buffer, Kind, Scope
from sim.plan.words.op import Compute
from sim.plan.words.program import Call, Phase, Plan, Program, Task
from tests.examples import examples
from tests.sim.jobs import dense_plan, pricing_on, textbook_plan
from tests.sim.strategies import dense_plans

Instance = tuple[str, int | None]


def rounded(num_bytes: int) -> int:
    """Return the bytes of 512-byte blocks that hold so many."""
    blocks, rest = divmod(num_bytes, 512)
    return 512 * (blocks + (rest > 0))


def walk(program: Program) -> tuple[list[tuple[int, Counter[str]]], dict[Instance, tuple[int, int]]]:
    """Return what lives while each op runs (bytes, and by kind), and each instance's first and last op."""
    touched: dict[Instance, list[int]] = {}
    issued = 0
    for _, call, _, op in program.instances():
        for name in {*op.reads, *op.writes}:
            scope = program.buffers[name].scope
            if scope is not Scope.PERSISTENT:
                touched.setdefault((name, call.microbatch if scope is Scope.MICROBATCH else None), []).append(issued)
        issued += 1
    spans = {instance: (min(ops), max(ops)) for instance, ops in touched.items()}
    changes: list[Counter[str]] = [Counter() for _ in range(issued + 1)]
    for (name, _), (first, last) in spans.items():
        buffer = program.buffers[name]
        changes[first][str(buffer.kind)] += rounded(buffer.num_bytes)
        changes[last + 1][str(buffer.kind)] -= rounded(buffer.num_bytes)
    alive = Counter({str(kind): 0 for kind in Kind})
    for buffer in program.buffers.values():
        if buffer.scope is Scope.PERSISTENT:
            alive[str(buffer.kind)] += rounded(buffer.num_bytes)
    curve = []
    for change in changes[:issued]:
        alive.update(change)
        curve.append((alive.total(), Counter(alive)))
    return curve, spans


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Draw a program of up to four tasks of up to four ops, called in any order for up to three micro-batches."""
    buffers = {
        f"b{k}": Buffer(
            f"b{k}", (draw(st.integers(0, 400)),), "float32",
            draw(st.sampled_from(list(Kind))), draw(st.sampled_from(list(Scope))),
        )
        for k in range(draw(st.integers(1, 6)))
    }  # fmt: skip
    names = st.lists(st.sampled_from(sorted(buffers)), max_size=3, unique=True).map(tuple)
    tasks = {}
    for k in range(draw(st.integers(1, 4))):
        ops = tuple(
            Compute(f"op{j}", "delay", draw(names), draw(names), {"duration_s": 1.0})
            for j in range(draw(st.integers(1, 4)))
        )
        tasks[f"t{k}"] = Task(f"t{k}", draw(st.sampled_from([Phase.FORWARD, Phase.BACKWARD])), ops)
    one_call = st.builds(Call, st.sampled_from(sorted(tasks)), st.sampled_from([None, 0, 1, 2]), lag=st.just(0))
    return Program({}, buffers, tasks, tuple(draw(st.lists(one_call, min_size=1, max_size=10))))


@settings(max_examples=examples(100), deadline=None)
@given(program=programs())
def test_lifetimes_equal_a_walk_over_all_instances(program: Program) -> None:
    """Every instance is born at the first op that touches it and dies after the last, in every call order."""
    _, spans = walk(program)
    first_op = [0, *accumulate(len(program.tasks[call.task].ops) for call in program.calls)]
    born, died = {}, {}
    for index, (call, life) in enumerate(zip(program.calls, lifetimes(program), strict=True)):
        for found, changes in ((born, life.births), (died, life.deaths)):
            for op, name in changes:
                scope = program.buffers[name].scope
                instance = (name, call.microbatch if scope is Scope.MICROBATCH else None)
                assert instance not in found
                found[instance] = first_op[index] + op
    assert born == {instance: first for instance, (first, _) in spans.items()}
    assert died == {instance: last for instance, (_, last) in spans.items()}


@settings(max_examples=examples(100), deadline=None)
@given(program=programs())
def test_memory_equals_a_walk_over_all_instances(program: Program) -> None:
    """Peak, peak by kind, and what lives at each call equal what the walk adds up, in 512-byte blocks."""
    curve, _ = walk(program)
    use = memory_use(program)
    most = max(total for total, _ in curve)
    assert use.peak_bytes == most
    assert sum(use.peak_by_kind_bytes.values()) == most
    assert any(total == most and by_kind == Counter(use.peak_by_kind_bytes) for total, by_kind in curve)
    begin = 0
    for index, call in enumerate(program.calls):
        end = begin + len(program.tasks[call.task].ops)
        inside = [total for total, _ in curve[begin:end]]
        assert use.peak_bytes_of[index] >= max(inside)
        assert use.before_bytes[index] <= use.peak_bytes_of[index]
        begin = end
    assert use.after_bytes == sum(rounded(b.num_bytes) for b in program.buffers.values() if b.scope is Scope.PERSISTENT)


@settings(max_examples=examples(6), deadline=None)
@given(plan=dense_plans(4))
def test_peak_of_real_plans_equals_the_walk(plan: Plan) -> None:
    """The peak of every role of random dense jobs, and of its timeline's curve, equals the walk's."""
    run = simulate(plan, pricing_on("dgx-a100-80g", plan.mesh.size))
    memory = timeline(run).memory
    for program in plan.programs:
        use = memory_use(program)
        curve, _ = walk(program)
        assert use.peak_bytes == max(total for total, _ in curve)
        assert memory.peak_bytes(plan.ranks_of(program)[0]) == use.peak_bytes


def test_programs_that_share_tasks_may_have_other_buffers() -> None:
    """What was found of one program holds for another with its tasks only if the buffers are the same."""
    tasks = {
        "a": Task("a", Phase.PREPARE, (Compute("fill", "delay", (), ("x",)), Compute("use", "delay", ("x",), ("y",))))
    }
    x, y = (Buffer(name, (size,), "float32", Kind.ACTIVATION, Scope.STEP) for name, size in (("x", 2**16), ("y", 4)))
    weight = Buffer("w", (2**20,), "float32", Kind.PARAMETER, Scope.PERSISTENT)
    programs = [Program({}, {b.name: b for b in buffers}, tasks, [Call("a")]) for buffers in ((x, y), (weight, x, y))]
    known = KnownMemory()
    peaks = [memory_use(program, known=known).peak_bytes for program in programs]
    assert peaks == [4 * 2**16 + 512, 4 * 2**20 + 4 * 2**16 + 512]
    assert peaks == [memory_use(program).peak_bytes for program in programs]


def test_peak_live_chunks_counts_forwards_without_their_backward() -> None:
    """A chunk is live from the start of its forward to the end of its backward."""
    programs = textbook_plan("1f1b", 3, 5).programs
    assert [peak_live_chunks(program) for program in programs] == [3, 2, 1]


def test_parameters_gradients_and_optimizer_state_take_eighteen_bytes_each() -> None:
    """Mixed precision: 2 (parameter) + 4 (gradient) + 12 (master and moments) bytes per parameter; fp32: 16."""
    for precision, expected in (("bf16", 18), ("fp32", 16)):
        (program,) = dense_plan(m=1, precision=precision).programs
        kinds: Counter[str] = Counter()
        for buffer in program.buffers.values():
            kinds[str(buffer.kind)] += buffer.num_bytes
        parameters = sum(b.num_elements for b in program.buffers.values() if b.kind is Kind.PARAMETER)
        assert kinds["parameter"] + kinds["gradient"] + kinds["optimizer"] == expected * parameters
