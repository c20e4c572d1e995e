"""What is measured: valid plans that cover every kernel, and sessions that answer within their budget."""

import pytest

from backends.torch.measuring.benchmarks import Benchmark, HandoffBenchmark, KernelBenchmark
from backends.torch.measuring.cases import kernel_benchmarks, network_benchmarks, sample_of
from backends.torch.measuring.session import measure
from costmodels.calibration.samples import CollectiveSample, KernelSample
from costmodels.kernels import KERNELS
from sim.plan.check import check

CPU_KERNELS = kernel_benchmarks("cpu")


def one_of_each() -> list[KernelBenchmark]:
    """Return the smallest benchmark of every kernel."""
    found: dict[str, KernelBenchmark] = {}
    for benchmark in CPU_KERNELS:
        found.setdefault(benchmark.op.kernel, benchmark)
    return list(found.values())


def test_every_family_and_type_is_measured() -> None:
    """Benchmarks cover all families that training plans use and that have an efficiency, in three types, none twice."""
    samples = [sample_of(benchmark, 1.0, 0.0) for benchmark in CPU_KERNELS]
    assert all(isinstance(sample, KernelSample) for sample in samples)
    families = {s.family for s in samples if isinstance(s, KernelSample)}
    assert families == {k.family for k in KERNELS.values()} - {"delay", "none", "decode"}
    assert {s.dtype for s in samples if isinstance(s, KernelSample)} == {"float32", "float64", "bfloat16"}
    assert len({benchmark.key for benchmark in CPU_KERNELS}) == len(CPU_KERNELS)


@pytest.mark.parametrize("processes", [2, 3, 4])
def test_plans_are_valid(processes: int) -> None:
    """Every benchmark gives a plan that passes all checks, on no more ranks than there are processes."""
    benchmarks: list[Benchmark] = [*one_of_each(), *network_benchmarks("cpu", processes)]
    for benchmark in benchmarks:
        plan = benchmark.plan(processes, 3)
        check(plan)
        assert plan.mesh.size <= processes


def test_collectives_are_charged_two_handoffs() -> None:
    """A collective's time has the two changes of thread around it added; a handoff alone is no sample."""
    for benchmark in network_benchmarks("cpu", 2):
        sample = sample_of(benchmark, 1e-3, 1e-5)
        if isinstance(benchmark, HandoffBenchmark):
            assert sample is None
        else:
            assert isinstance(sample, CollectiveSample)
            assert sample.seconds == pytest.approx(1e-3 if sample.kind == "send_recv" else 1.02e-3)


def test_session_measures_every_kernel_that_it_reaches() -> None:
    """Two processes measure kernels, a collective and messages together; every figure is a possible time."""
    kernels = one_of_each()
    network = network_benchmarks("cpu", 2)[:5]
    benchmarks: list[Benchmark] = [*network, *kernels]
    figures = measure(benchmarks, processes=2, budget_s=2.0, seed=1)
    assert set(figures) <= {benchmark.key for benchmark in benchmarks}
    assert {b.key for b in network[:2]} <= set(figures)
    assert all(0 < value < 10 for values in figures.values() for value in values)
    assert all(values for values in figures.values())
