"""What a summary says of algorithms that are not synchronous backpropagation, and that it counts per step."""

import json
from pathlib import Path

import pytest

from scenarios.cli import main
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.running import simulate

SCENARIOS = Path(__file__).parents[3] / "scenarios" / "library"
TRAINING = "training={global_batch_size: 8, microbatch_size: 1, precision: fp64}"


def summary_of(*overrides: str) -> dict:
    """Return the summary of the tiny Llama on four pipeline ranks, with what its sweep would say."""
    result = simulate(load_scenario(SCENARIOS / "tiny-llama-local-updates.yaml", overrides))
    return result.as_json() | {"sent": result.row().sent_bytes_per_rank}


def test_run_of_several_steps_counts_per_step() -> None:
    """PipeDream-2BW does the work and sends the bytes of 1F1B per step, in less time."""
    late = summary_of(TRAINING, "parallel.pipeline.schedule=pipedream_2bw")
    soon = summary_of(TRAINING, "parallel.pipeline.schedule=1f1b")
    assert late["sent"] == pytest.approx(soon["sent"])
    assert late["iteration_time_s"] < soon["iteration_time_s"] < late["makespan_s"]
    flop = [s["hardware_flop_per_s_per_device"] * s["iteration_time_s"] for s in (late, soon)]
    assert flop[0] == pytest.approx(flop[1])
    bytes_of = [{entry["kind"]: entry["bytes"] for entry in s["links"]} for s in (late, soon)]
    assert bytes_of[0] == pytest.approx(bytes_of[1])


@pytest.mark.parametrize("update", ["greedy", "overlapping"])
def test_local_updates_compute_nothing_twice(update: str) -> None:
    """Heads, and the gradient that goes back, are needed: without recomputation MFU and HFU are the same."""
    summary = summary_of(f"training.local_update={update}")
    assert summary["mfu"] == pytest.approx(summary["hfu"])
    assert summary["algorithm"] == f"local updates, {update}"


def test_console_and_json_name_the_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    """Staleness and other gradients are said aloud; synchronous backpropagation only in the JSON."""
    for name, said in (("pipedream-2bw", "staleness 1; NOT"), ("local-updates", "its own loss; NOT"), ("1f1b", "")):
        path = str(SCENARIOS / f"textbook-{name}.yaml")
        with pytest.raises(SystemExit):
            main([path])
        shown = " ".join(capsys.readouterr().out.split())
        assert said in shown
        assert ("algorithm" in shown) == bool(said)
        with pytest.raises(SystemExit):
            main([path, "--json"])
        algorithm = json.loads(capsys.readouterr().out)["algorithm"]
        assert (algorithm == "backpropagation") == (not said)
