"""The name of a stream says what it is for."""

import pytest

from sim.plan.words.stream import Purpose, Stream, stream_of
from tests.sim.jobs import GPT, dense_plan


@pytest.mark.parametrize(
    ("name", "stream"),
    [
        ("compute", Stream("compute", Purpose.COMPUTE)),
        ("dp_replicas", Stream("dp_replicas", Purpose.DATA)),
        ("pp_send_forward", Stream("pp_send_forward", Purpose.PIPELINE, "forward")),
        ("pp_recv_backward_up", Stream("pp_recv_backward_up", Purpose.PIPELINE, "backward")),
        ("tp_row", Stream("tp_row", Purpose.TENSOR, axis="row")),
        ("tp_send", Stream("tp_send", Purpose.TENSOR)),
        ("stream 7", Stream("stream 7", None)),
        ("computer", Stream("computer", None)),
        ("tpu_send", Stream("tpu_send", None)),
        ("", Stream("", None)),
    ],
)
def test_purpose_is_the_first_word_of_a_name(name: str, stream: Stream) -> None:
    """A stream is for what its whole first word says; others, of recorded profiles too, are for nothing known."""
    assert stream_of(name) == stream


def test_streams_of_a_plan_are_for_something() -> None:
    """Every stream of a step with tensor, pipeline and data parallelism states its purpose, and messages their way."""
    plan = dense_plan(model=GPT, tp=2, pp=2, dp=2, m=4)
    streams = {stream_of(op.stream) for program in plan.programs for task in program.tasks.values() for op in task.ops}
    found = {stream.purpose for stream in streams}
    assert {Purpose.COMPUTE, Purpose.PIPELINE, Purpose.DATA} <= found
    assert None not in found
    assert all(stream.direction for stream in streams if stream.purpose == Purpose.PIPELINE)
