"""The shape of a task, against its definition: which ops wait for which by stream order and by buffers."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sim.engine.compiling.shape import TaskShape, analyse, shapes_of
from sim.plan.words.buffer import Buffer, Kind
from sim.plan.words.op import Compute
from sim.plan.words.program import Call, Phase, Program, Task

_NAMES = st.lists(st.sampled_from("abcd"), max_size=3, unique=True).map(tuple)
_OPS = st.lists(st.tuples(_NAMES, _NAMES, st.sampled_from(("compute", "tp", "dp"))), min_size=1, max_size=12)


def by_definition(ops: tuple[Compute, ...]) -> TaskShape:
    """Return the shape found from all pairs of ops."""
    touched = [({*op.reads, *op.writes}, {*op.writes}) for op in ops]
    ancestors: list[set[int]] = []
    predecessors = []
    for j, op in enumerate(ops):
        waits = [
            i
            for i in range(j)
            if ops[i].stream == op.stream or touched[i][1] & touched[j][0] or touched[i][0] & touched[j][1]
        ]
        reached = {above for i in waits for above in ancestors[i]}
        predecessors.append(tuple(i for i in waits if not any(i in ancestors[k] - {k} for k in waits)))
        ancestors.append(reached | {j})
    streams = [op.stream for op in ops]
    names = {name for op in ops for name in (*op.reads, *op.writes)}
    writers = {name: [j for j, op in enumerate(ops) if name in op.writes] for name in names}
    readers = {name: [j for j, op in enumerate(ops) if name in op.reads] for name in writers}
    before = {name: tuple(j for j in found if j <= min(writers[name], default=j)) for name, found in readers.items()}
    return TaskShape(
        streams=tuple(streams),
        predecessors=tuple(predecessors),
        ancestors=tuple(sum(1 << i for i in found) for found in ancestors),
        first={stream: streams.index(stream) for stream in streams},
        last={stream: j for j, stream in enumerate(streams)},
        reads={name: found for name, found in before.items() if found},
        overwrites={name: found[0] for name, found in writers.items() if found},
        leaves={
            name: (max(found, default=-1), tuple(j for j in readers[name] if j > max(found, default=-1)))
            for name, found in writers.items()
        },
    )


@given(_OPS)
def test_the_shape_of_a_task_is_that_of_its_definition(
    drawn: list[tuple[tuple[str, ...], tuple[str, ...], str]],
) -> None:
    """An op waits for the ops before it on its stream, and for those with which it shares a buffer that one writes.

    Of these it names those alone that no other one waits for.
    """
    ops = tuple(Compute(str(j), "delay", reads, writes, {}, stream) for j, (reads, writes, stream) in enumerate(drawn))
    assert analyse(Task("task", Phase.FORWARD, ops)) == by_definition(ops)


@given(st.lists(_OPS, min_size=1, max_size=3))
def test_a_programs_shapes_list_what_several_streams_touch(
    drawn: list[list[tuple[tuple[str, ...], tuple[str, ...], str]]],
) -> None:
    """Buffers that one stream alone touches in all of a program are left out, and nothing else changes."""
    tasks = {}
    for number, ops_of_task in enumerate(drawn):
        ops = tuple(
            Compute(str(j), "delay", reads, writes, {}, on) for j, (reads, writes, on) in enumerate(ops_of_task)
        )
        tasks[f"task{number}"] = Task(f"task{number}", Phase.FORWARD, ops)
    every = [op for task in tasks.values() for op in task.ops]
    streams = {name: {op.stream for op in every if name in op.reads + op.writes} for name in "abcd"}
    buffers = {name: Buffer(name, (8,), "float32", Kind.ACTIVATION) for name in "abcd"}
    found = shapes_of(Program({}, buffers, tasks, tuple(map(Call, tasks))))
    for name, task in tasks.items():
        whole = by_definition(task.ops)
        columns = {key: getattr(whole, key) for key in ("reads", "overwrites", "leaves")}
        listed = {key: {n: of for n, of in each.items() if len(streams[n]) > 1} for key, each in columns.items()}
        assert found[name] == replace(whole, **listed)
