"""``sequence_parallel: auto``: on where tensor-parallel ranks can share the sequence."""

import pytest

from scenarios.report.words import detail_rows
from scenarios.sweep.run import prepare, run
from scenarios.sweep.settings import read_settings
from scenarios.sweep.workers import local_workers
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.running import simulate

SCENARIO = """\
name: small
cluster: {node: dgx-a100-80g, num_nodes: 1}
model: {family: gpt, num_layers: 4, hidden_size: 256, num_heads: 8, sequence_length: 128, vocab_size: 1024,
        attention: flash}
training: {global_batch_size: 16, microbatch_size: 1}
parallel: {tensor: {degree: 4, sequence_parallel: auto}, data: {degree: auto}}
"""
LLAMA = ("family: gpt", "family: llama, ffn_hidden_size: 1024")
AUTO, KEY = "sequence_parallel: auto", "parallel.tensor.sequence_parallel"


@pytest.mark.parametrize(
    ("overrides", "on"),
    [
        ((), True),
        (("parallel.tensor.degree=1",), False),
        (("model.sequence_length=126",), False),
        (("parallel.context.degree=2",), True),
        (("model.sequence_length=12", "parallel.context.degree=2"), False),
        (("parallel.pipeline={degree: 2, schedule: terapipe, token_slices: [64, 60, 4]}",), True),
        (("parallel.pipeline={degree: 2, schedule: terapipe, token_slices: [64, 61, 3]}",), False),
        (("parallel.pipeline={degree: 2, schedule: terapipe, token_slices: 33}",), False),
        (("parallel.pipeline={degree: 2, schedule: seq_1f1b, token_slices: 32}",), True),
        (("parallel.pipeline={degree: 2, schedule: terapipe, slice_granularity: 2}",), False),
    ],
)
def test_auto_is_on_where_the_ranks_divide_every_task(write, overrides: tuple[str, ...], on: bool) -> None:
    """The resolved job is the one with the value written out; where it is off, true would have been refused."""
    path = write(SCENARIO, LLAMA)
    chosen = load_scenario(path, overrides).job
    assert chosen.parallel.tensor.cuts_residual is on
    assert chosen == load_scenario(path, [*overrides, f"{KEY}={str(on).lower()}"]).job
    if not on:
        with pytest.raises(ValueError, match=r"degree|granularity|slices"):
            load_scenario(path, [*overrides, f"{KEY}=true"]).decided()


def test_result_names_what_was_chosen(write) -> None:
    """Summary and report name the resolved value of ``auto``, as they do a stated one."""
    path = write(SCENARIO)
    on, off = (simulate(load_scenario(path, overrides)) for overrides in ([], ["parallel.tensor.degree=1"]))
    stated = simulate(load_scenario(path, [f"{KEY}=true"]))
    assert [found.as_json()["resolved"]["sequence_parallel"] for found in (on, off, stated)] == [True, False, True]
    assert "tensor 4 with sequence parallelism" in dict(detail_rows(on.summary))["strategy"]
    assert "sequence parallelism" not in dict(detail_rows(off.summary))["strategy"]
    assert stated.run.makespan_s == on.run.makespan_s


def test_sweep_over_degrees_refuses_no_point(write) -> None:
    """A degree of 1 is a point of the sweep like the others; with true it is refused."""
    settings = read_settings(["parallel.tensor.degree=1,2,4"])
    found = run(prepare(write(SCENARIO), settings), local_workers, 1, tick=lambda: None).summary
    assert (len(found.points), len(found.refused)) == (3, 0)
    true = prepare(write(SCENARIO, (AUTO, "sequence_parallel: true")), settings)
    assert len(run(true, local_workers, 1, tick=lambda: None).summary.refused) == 1
