"""What is kept from the fit has no say in it: not in parameters, not in what is measured next."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from backends.execution.measuring.benchmarks import Benchmark, WindowBenchmark
from backends.execution.measuring.cases import kernel_sample
from backends.execution.measuring.rounds import Measured, Run
from backends.execution.measuring.steps import StepKernels
from costmodels.calibration.document import parse_calibrated
from costmodels.calibration.kernels import predict_kernels
from costmodels.calibration.samples import is_held_out
from costmodels.hardware import load_node
from costmodels.profile import load_profile
from scenarios.calibration import machine
from scenarios.calibration.calibration import Calibration
from scenarios.calibration.tables import HELD_OUT_TABLES, MeasuredTables, calibrate_tables

CPU = load_node("local-cpu")
REACHED = 24


def fitted_part(calibration: Calibration) -> dict[str, Any]:
    """Return all of a profile's file that a fit decides: not the errors on held-out rows, nor the words about them."""
    entry = {name: part for name, part in calibration.entry.items() if name not in {"spread", "calibration"}}
    numbers = {
        name: {key: value for key, value in part.items() if key != "source"} if isinstance(part, Mapping) else part
        for name, part in entry.items()
    }
    about = calibration.entry["calibration"]
    own = {family: {k: v for k, v in row.items() if "held" not in k} for family, row in about["residuals"].items()}
    return numbers | {key: about[key] for key in ("standard_errors", "without_standard_error")} | {"residuals": own}


def wild(key: str, seconds: float, one_in: int) -> float:
    """Return a time that is absurd where it is held out."""
    return seconds * 10 ** random.Random(key).uniform(-4, 4) if is_held_out(key, one_in) else seconds


def test_tables_are_fitted_without_their_other_half(tmp_path: Path) -> None:
    """However absurd the held-out half of a table, the profile is the same but for the errors that it is told."""
    rows = [(m, n, k) for m in (256, 512, 1024, 2048, 4096) for n in (512, 2048, 8192) for k in (256, 1024, 4096, 8192)]
    found = []
    for name, changed in (("true", False), ("wild", True)):
        times = [10e-6 + 2.0 * m * n * k / 156e12 for m, n, k in rows]
        if changed:
            times = [wild("gemm {} {} {}".format(*row), t, HELD_OUT_TABLES) for row, t in zip(rows, times, strict=True)]
        path = tmp_path / f"{name}.parquet"
        pd.DataFrame(rows, columns=["m", "n", "k"]).assign(time_s=times).to_parquet(path)
        found.append(calibrate_tables(load_node("dgx-a100-80g"), MeasuredTables(tables=(path,))))
    true, absurd = found
    assert fitted_part(true) == fitted_part(absurd)
    one, other = (
        parse_calibrated("made", dict(found.entry)).profile.spread["gemm"].at(1e-4) for found in (true, absurd)
    )
    assert other > 10 * one


class MadeUpMachine:
    """Takes the place of the torch backend: its times are the packaged profile's, each off by a factor of its own."""

    def __init__(self, *, is_wild: bool) -> None:
        self._is_wild = is_wild
        self.asked: list[tuple[str, ...]] = []

    def measure(self, benchmarks: Sequence[Benchmark], **_: object) -> Measured:
        """Return one run of the first benchmarks, as where the budget is over then."""
        self.asked.append(tuple(benchmark.key for benchmark in benchmarks))
        return Measured([Run(benchmark.key, self._figures(benchmark), 1.0) for benchmark in benchmarks[:REACHED]], [])

    def copy_bandwidths(self) -> Mapping[str, float]:
        """Return what calibration asks for besides."""
        return {"host_to_host": 5e9}

    def _figures(self, benchmark: Benchmark) -> dict[str, float]:
        if isinstance(benchmark, WindowBenchmark):
            size = getattr(benchmark, "num_bytes", 0)
            return {benchmark.key: self._seconds(benchmark.key, 1e-4 + size / 2e9), benchmark.share_key: 0.5}
        assert isinstance(benchmark, StepKernels)
        samples = [kernel_sample(call, 1.0) for call in benchmark.calls().values()]
        times = predict_kernels(samples, CPU, load_profile("cpu"))
        return {s.key: self._seconds(s.key, seconds) for s, seconds in zip(samples, times, strict=True)}

    def _seconds(self, key: str, seconds: float) -> float:
        noisy = seconds * random.Random(f"noise {key}").lognormvariate(0.0, 0.2)
        return wild(key, noisy, machine.HELD_OUT_MEASURED) if self._is_wild else noisy


def test_a_machine_is_fitted_without_what_is_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """However absurd the held-out measurements, the same is measured in the same order and the profile is the same."""
    request = machine.MachineRequest(device="cpu", budget_s=2.0, processes=2, precisions=("fp32",))
    found, asked = [], []
    for is_wild in (False, True):
        made_up = MadeUpMachine(is_wild=is_wild)
        monkeypatch.setattr(machine, "load_torch_backend", lambda made_up=made_up: made_up)
        found.append(machine.calibrate_machine(CPU, request))
        asked.append(made_up.asked)
    assert asked[0] == asked[1]
    assert len(asked[0]) == request.sessions
    assert fitted_part(found[0]) == fitted_part(found[1])
    residuals = [calibration.entry["calibration"]["residuals"]["gemm"] for calibration in found]
    assert residuals[1]["held_out_sigma"] > 3 * residuals[0]["held_out_sigma"]
