"""The notebooks run from top to bottom, hold no outputs, and the pictures that docs show are theirs.

A Jupyter kernel would take ten seconds of processor time for each, so their cells run in a namespace of this process.
"""

import json
import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
import nbformat
import pytest
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from docs.run_notebooks import PICTURES, picture_path, run_notebook
from scenarios import api

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
"""What a notebook says of its kernel: no version and no path of a machine."""


@pytest.fixture(autouse=True)
def _without_a_screen() -> Any:
    """Draw in memory alone."""
    mpl.use("agg")
    yield
    plt.close("all")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_hold_no_outputs(path: Path) -> None:
    """A notebook is valid, and git has neither outputs, nor counts of runs, nor anything of one machine in it."""
    book = json.loads(path.read_text(encoding="utf-8"))
    nbformat.validate(book)
    assert book["metadata"] == METADATA
    assert [cell["id"] for cell in book["cells"] if cell["metadata"]] == []
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert [cell["id"] for cell in code if cell["outputs"] or cell["execution_count"] is not None] == []


def test_first_steps_run(capsys: pytest.CaptureFixture[str]) -> None:
    """The first notebook runs without torch; what its words say of the curves holds."""
    found = run_notebook(ROOT / "notebooks" / "01-first-steps.ipynb")
    assert isinstance(found["answer"], api.Simulated)
    step_s = found["network-steps"].sum(axis=1)
    assert step_s.is_monotonic_decreasing
    assert step_s.diff().abs().dropna().is_monotonic_decreasing
    assert found["batch-sweep"].tokens_per_s.is_monotonic_increasing
    assert found["batch-sweep"].bubble_fraction.is_monotonic_decreasing
    assert all(isinstance(found[cell], Figure) for cell in PICTURES["01-first-steps"])
    printed = capsys.readouterr().out
    assert "In memory it fits: True" in printed
    assert "nan" not in printed


def test_simulated_against_executed_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The second notebook runs with torch: the same work and the same memory, other times."""
    pytest.importorskip("torch", reason="torch is not installed: pip install 'meshtwin[torch]'")
    found = run_notebook(ROOT / "notebooks" / "02-simulated-against-executed.ipynb")
    assert set(found["kinds"].index) == {"all_reduce", "compute", "recv", "send"}
    assert found["differ"].share_fraction.sum() == pytest.approx(1.0, abs=1e-3)
    assert all(isinstance(found[cell], Figure) for cell in PICTURES["02-simulated-against-executed"])
    printed = capsys.readouterr().out
    assert "the same work: True\nthe same peak memory: True\n" in printed
    assert "nan" not in printed


def test_tensor_dimensions_run(capsys: pytest.CaptureFixture[str]) -> None:
    """The third notebook runs: counted bytes are the formula's, and the fastest method is not everywhere the same."""
    found = run_notebook(ROOT / "notebooks" / "03-tensor-dimensions.ipynb")
    fastest = found["grid"].idxmin(axis=1)
    assert set(fastest[fastest.index.get_level_values("tokens") == 4096]) == {"3d"}
    assert set(fastest[:, 4096, 65536]) == {"2.5d"}
    assert all(isinstance(found[cell], Figure) for cell in PICTURES["03-tensor-dimensions"])
    assert "A layer sends 259.5 MB in blocks; the formula says 259.5 MB." in capsys.readouterr().out


def test_moe_imbalance_runs() -> None:
    """More skew means more waiting; from the third step on copies make the busiest rank and the step lighter."""
    found = run_notebook(ROOT / "notebooks" / "04-moe-imbalance.ipynb")
    assert found["skews"]["waiting [%]"].is_monotonic_increasing
    assert found["skews"]["step [ms]"].is_monotonic_increasing
    later = found["placement"].iloc[2:]
    assert (later["busiest rank"] < 0.6 * later["busiest rank, experts that stay"]).all()
    assert (later["step [ms]"] < found["placement"]["step [ms]"].iloc[0]).all()
    assert all(isinstance(found[cell], Figure) for cell in PICTURES["04-moe-imbalance"])


def test_planning_runs() -> None:
    """The best plan comes first and fits; more memory is no worse, a slower network no better; estimates are near."""
    found = run_notebook(ROOT / "notebooks" / "05-planning.ipynb")
    plans, conditions = found["search"].table, found["conditions"]["fastest [s]"]
    assert plans.iteration_time_s.is_monotonic_increasing
    assert plans.on_front.iloc[0]
    best_s = plans.iteration_time_s.iloc[0]
    assert conditions["memory 1.25x"] <= round(best_s, 3) <= conditions["memory 0.75x"]
    assert conditions["network bandwidth 2x"] < best_s < conditions["network bandwidth 0.5x"]
    assert abs(found["estimates"].loc["50%", "time"]) < 5
    assert all(isinstance(found[cell], Figure) for cell in PICTURES["05-planning"])
    again = api.simulate("llama-2-13b-fsdp-64-a100", [*found["keys"], *found["search"].best])
    assert again.summary.iteration_time_s == best_s


def test_ones_elasticity_runs() -> None:
    """Jobs begin on one GPU and at most double; only elastic policies change the GPUs of running jobs."""
    found = run_notebook(ROOT / "notebooks" / "08-ones-elasticity.ipynb")
    most = dict[str, int]()
    for made in found["ones"].summary.decisions:
        assert made.num_gpus <= 2 * most.get(made.job_id, 0.5)
        most[made.job_id] = max(made.num_gpus, most.get(made.job_id, 1))
    assert max(most.values()) == 16
    assert sorted(job.num_preemptions for job in found["ones"].summary.jobs)[-2] >= 4
    assert (found["policies"].rescales > 0).to_dict() == {
        "ones": True, "tiresias": False, "optimus": True, "optimus, predicted": True, "srtf": False, "learned": True,
    }  # fmt: skip
    assert all(isinstance(found[cell], Figure) for cell in PICTURES["08-ones-elasticity"])


def test_clover_runs() -> None:
    """Clover yields more than Medusa everywhere, wider trees yield more, and predictions follow the paper's rows."""
    found = run_notebook(ROOT / "notebooks" / "09-clover.ipynb")
    assert (found["nodes"].clover > found["nodes"].medusa).all()
    assert found["nodes"].clover.is_monotonic_increasing
    assert (found["cells"].predicted / found["cells"].measured - 1).abs().mean() < 0.12
    assert all(isinstance(found[cell], Figure) for cell in PICTURES["09-clover"])


def test_cache_hit_rates_run() -> None:
    """Larger caches fetch less under every policy, none less than belady, and lru more than dataset_frequency."""
    found = run_notebook(ROOT / "notebooks" / "06-cache-hit-rates.ipynb")
    fetched = found["table"]
    assert (fetched.diff(axis=1).drop("belady").iloc[:, 1:] < 0).all(axis=None)
    assert (fetched >= fetched.loc["belady"]).all(axis=None)
    assert (fetched.loc["lru"] > fetched.loc["dataset_frequency"]).all()
    assert all(isinstance(found[cell], Figure) for cell in PICTURES["06-cache-hit-rates"])


def test_hierarchical_memory_runs() -> None:
    """Each manager of the list is faster than the one before, and a bound of s lets s + 1 steps share an update."""
    found = run_notebook(ROOT / "notebooks" / "07-hierarchical-memory.ipynb")
    assert found["steps"].is_monotonic_decreasing
    assert found["bounds"]["step, s"].is_monotonic_decreasing
    assert found["bounds"]["steps per update"].loc[[0, 1, 4]].round(1).tolist() == [1, 2, 5]
    assert isinstance(found["trade"], Figure)


def test_capacity_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """Waits grow with the rate, and the fewest replicas meet the objective while one fewer do not."""
    found = run_notebook(ROOT / "notebooks" / "10-capacity.ipynb")
    assert found["rates"]["first token, 99 %"].is_monotonic_increasing
    met = found["tried"].met
    fewest = met[met >= 0.99].index[0]
    assert met[fewest - 1] < 0.99
    assert f"100 requests per second need {fewest} of 8 replicas" in capsys.readouterr().out
    assert isinstance(found["load"], Figure)


def test_kept_pictures_are_those_of_cells() -> None:
    """Each picture is small, is of a cell that a notebook has, and stands on the page; there are no others."""
    cells = {(path.stem, cell["id"]) for path in NOTEBOOKS for cell in json.loads(path.read_text("utf-8"))["cells"]}
    named = {(name, cell) for name, chosen in PICTURES.items() for cell in chosen}
    assert named <= cells
    pictures = {picture_path(*each) for each in named}
    folder = ROOT / "docs" / "notebooks"
    assert set(folder.iterdir()) == pictures
    assert [path.name for path in pictures if path.stat().st_size > 200_000] == []
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\]\((notebooks/.*?\.png)\)", page)) == sorted(f"notebooks/{p.name}" for p in pictures)
