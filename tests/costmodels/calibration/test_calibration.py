"""Fitting a profile: known parameters come back from noisy measurements, and errors on held-out rows are honest."""

import random
from collections.abc import Sequence
from math import e, log, sqrt

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from costmodels.calibration.document import parse_calibrated, profile_entry
from costmodels.calibration.fitting import CalibrationError, Parameter, Residuals, fit
from costmodels.calibration.jitter import device_jitter
from costmodels.calibration.kernels import Fitted, fit_kernels, predict_kernels
from costmodels.calibration.measured import catalogue_rates
from costmodels.calibration.network import fit_network, predict_collectives
from costmodels.calibration.samples import CollectiveSample, KernelSample, is_held_out
from costmodels.collectives.traffic import TRAFFIC
from costmodels.errors import CatalogueError
from costmodels.hardware import load_node
from costmodels.kernels.tensor import Family, GemmShape, Work
from costmodels.profile import SECTIONS, SPREAD, STEP, Profile, load_profile

CPU, GPU = load_node("local-cpu"), load_node("dgx-a100-80g")


def stream(num_bytes: int, family: Family = "elementwise") -> KernelSample:
    """Return a memory-bound call without a time yet."""
    work = Work(0.0, 0.0, num_bytes // 2, num_bytes // 2)
    return KernelSample(key=f"{family} {num_bytes}", family=family, dtype="float32", work=work, seconds=1.0)


def product(m: int, n: int, k: int, dtype: str) -> KernelSample:
    """Return a matrix product without a time yet."""
    flop = 2.0 * m * n * k
    work = Work(flop, flop, 4 * (m * k + k * n), 4 * m * n, GemmShape(m, n, k))
    return KernelSample(key=f"{dtype} {m} {n} {k}", family="gemm", dtype=dtype, work=work, seconds=1.0)


def measured(samples: Sequence[KernelSample], truth: Fitted, noise: float) -> list[KernelSample]:
    """Return the samples with the times of a profile, each off by a random factor of about 1 + noise."""
    shuffler = random.Random(7)
    times = predict_kernels(samples, truth.node, truth.profile)
    return [replace(s, seconds=t * shuffler.lognormvariate(0.0, noise)) for s, t in zip(samples, times, strict=True)]


def cpu_truth() -> Fitted:
    """Return a made-up CPU whose rates are not the catalogue's."""
    profile = load_profile("cpu")
    profile = replace(
        profile,
        gemm=replace(
            profile.gemm, peak_fraction=1.0, cache_bandwidth_bytes_per_s=60e9, k_overhead=60.0, latency_s=20e-6
        ),
        elementwise=replace(profile.elementwise, memory_fraction=0.5, latency_s=30e-6),
        optimizer=replace(profile.optimizer, memory_fraction=0.25, latency_s=70e-6),
    )
    device = replace(
        CPU.device,
        peak_flop_per_s={**CPU.device.peak_flop_per_s, "float32": 120e9, "float64": 50e9},
        memory_bandwidth_bytes_per_s=20e9,
    )
    return Fitted(profile, replace(CPU, device=device))


def cpu_samples() -> list[KernelSample]:
    """Return calls over several powers of two."""
    streams = [stream(1 << power, family) for family in ("elementwise", "optimizer") for power in range(10, 27)]
    sizes = (32, 64, 128, 256, 512, 1024)
    products = [
        product(m, n, k, d) for m in sizes for n in sizes for k in (32, 256, 2048) for d in ("float32", "float64")
    ]
    return [*streams, *products]


def test_cpu_parameters_come_back_from_noisy_times() -> None:
    """Peaks, latencies and bandwidths of a made-up CPU are found again within a few per cent, from 5 % of noise."""
    truth = cpu_truth()
    found = fit_kernels(measured(cpu_samples(), truth, 0.05), Fitted(load_profile("cpu"), CPU), fit_rates=True)
    for dtype in ("float32", "float64"):
        assert found.node.device.peak(dtype) == pytest.approx(truth.node.device.peak(dtype), rel=0.06)
    for section in ("elementwise", "optimizer"):
        ours, theirs = getattr(found.profile, section), getattr(truth.profile, section)
        assert ours.latency_s == pytest.approx(theirs.latency_s, rel=0.06)
        rate = ours.memory_fraction * found.node.device.memory_bandwidth_bytes_per_s
        assert rate == pytest.approx(theirs.memory_fraction * 20e9, rel=0.06)
    assert found.profile.gemm.latency_s == pytest.approx(20e-6, rel=0.15)
    peak = found.estimates["measured.peak.float32"]
    assert peak.value == found.node.device.peak("float32")
    assert peak.standard_error is not None
    assert abs(log(peak.value / 120e9)) < 3 * peak.standard_error < 0.1
    assert {path.split(".")[0] for path in found.estimates} == {"measured", "gemm", "elementwise", "optimizer"}
    assert found.sections == ("gemm", "elementwise", "optimizer")


def test_held_out_errors_show_the_noise_and_no_less() -> None:
    """What was kept from the fit is predicted as badly as its noise makes it: the figure is not the fit's own."""
    truth, noise = cpu_truth(), 0.2
    samples = measured(cpu_samples(), truth, noise)
    kept = [s for s in samples if is_held_out(s.key, 3)]
    found = fit_kernels([s for s in samples if s not in kept], Fitted(load_profile("cpu"), CPU), fit_rates=True)
    errors = Residuals.of(predict_kernels(kept, found.node, found.profile), [s.seconds for s in kept])
    exact = Residuals.of(predict_kernels(kept, truth.node, truth.profile), [s.seconds for s in kept])
    assert errors.num_points == len(kept) > 30
    assert exact.mean * 0.9 < errors.mean < exact.mean * 1.3
    assert errors.p50 < errors.p90


def test_gpu_fractions_come_back_under_the_data_sheet() -> None:
    """On a GPU the data sheet's peak stays, and the fraction of it is found."""
    profile = load_profile("a100")
    truth = Fitted(replace(profile, gemm=replace(profile.gemm, peak_fraction=0.6, latency_s=9e-6)), GPU)
    samples = [
        product(m, n, k, "bfloat16")
        for m in (64, 256, 1024, 4096)
        for n in (512, 1024, 2048, 4096)
        for k in (256, 1024, 4096, 16384)
    ]
    found = fit_kernels(measured(samples, truth, 0.02), Fitted(profile, GPU), fit_rates=False)
    assert found.node == GPU
    assert found.profile.gemm.peak_fraction == pytest.approx(0.6, rel=0.1)
    assert found.profile.gemm.latency_s == pytest.approx(9e-6, rel=0.2)


def attention(family: Family, tokens: int, head: int, heads: int) -> KernelSample:
    """Return causal attention of float32 without a time yet."""
    flop, size = 4.0 * heads * tokens**2 * head, 4 * heads * tokens * head
    work = Work(flop, flop / 2, 3 * size, size, GemmShape(tokens, tokens, head, heads))
    return KernelSample(
        key=f"{family} {tokens} {head} {heads}", family=family, dtype="float32", work=work, seconds=1.0
    )  # fmt: skip


def test_few_products_of_a_gpu_leave_their_section_and_settle_the_kernel() -> None:
    """Twelve products cannot settle the parameters of a library: the kernel gets a slowdown of its own, here 2."""
    profile = load_profile("a100")
    samples = [replace(product(2048 * i, 4096, 4096, "bfloat16"), kernel="matmul") for i in range(1, 13)]
    slow = [replace(s, seconds=2.0 * s.seconds) for s in measured(samples, Fitted(profile, GPU), 0.0)]
    found = fit_kernels(slow, Fitted(profile, GPU), fit_rates=False)
    assert found.profile.gemm == profile.gemm
    assert set(found.sections) == {"kernels"}
    times = predict_kernels(samples, found.node, found.profile)
    assert times == pytest.approx([s.seconds for s in slow], rel=0.02)


def test_softmax_and_products_of_attention_are_told_apart() -> None:
    """On a CPU the time per score and the rate of the products come back from heads of several sizes; a GPU has no such
    term, and keeps the tiles of its library.
    """
    profile = load_profile("cpu")
    truth = replace(profile.attention, peak_fraction=0.6, score_s=2e-9, latency_s=10e-6, backward_ratio=0.9)
    samples = [
        attention(family, tokens, head, heads)
        for family in ("attention", "attention_backward")
        for tokens in (32, 128, 512) for head in (16, 32, 64, 128) for heads in (2, 8)
    ]  # fmt: skip
    noisy = measured(samples, Fitted(replace(profile, attention=truth), CPU), 0.03)
    found = fit_kernels(noisy, Fitted(profile, CPU), fit_rates=True)
    assert found.profile.attention.score_s == pytest.approx(2e-9, rel=0.1)
    assert found.profile.attention.peak_fraction == pytest.approx(0.6, rel=0.05)
    assert found.profile.attention.backward_ratio == pytest.approx(0.9, rel=0.05)
    assert found.estimates["attention.score"].standard_error is not None
    for name in ("a100", "h100", "h200", "b200"):
        assert (load_profile(name).attention.score_s, load_profile(name).attention.key_tile) == (0.0, 64)


def test_network_parameters_come_back() -> None:
    """Link, message and collective times of a made-up machine are predicted again within the noise."""
    profile = load_profile("cpu")
    tcp = replace(profile.network.protocols[0], base_latency_s=400e-6, intra_hop_s=0.0, port_fraction=0.4)
    network = replace(profile.network, intra_fraction=1.0, point_to_point_latency_s=90e-6, protocols=(tcp,))
    intra = replace(CPU.intra, bandwidth_bytes_per_s=5e9, latency_s=50e-6)
    truth = Fitted(replace(profile, network=network), replace(CPU, intra=intra))
    blank = [
        CollectiveSample(key=f"{kind} {size} {g}", kind=kind, num_bytes=size, ranks_per_node=(g,), seconds=1.0)
        for kind in ("all_reduce", "all_gather", "reduce_scatter", "send_recv")
        for size in (1 << p for p in range(10, 25, 2))
        for g in ((2,) if kind == "send_recv" else (2, 4))
    ]
    shuffler, times = random.Random(3), predict_collectives(blank, truth.node, truth.profile)
    samples = [replace(s, seconds=t * shuffler.lognormvariate(0, 0.03)) for s, t in zip(blank, times, strict=True)]
    found = fit_network(samples, Fitted(profile, CPU), fit_rates=True)
    assert found.node.intra.bandwidth_bytes_per_s == pytest.approx(5e9, rel=0.1)
    assert found.profile.network.protocols[0].base_latency_s == pytest.approx(400e-6, rel=0.1)
    errors = Residuals.of(predict_collectives(blank, found.node, found.profile), times)
    assert errors.p90 < 0.05
    assert {"measured.intra_bandwidth", "network.protocols.all_reduce.base_latency"} <= found.estimates.keys()


@pytest.mark.parametrize(
    ("numbers", "own"),
    [
        ({"all_reduce": 2, "all_gather": 2, "reduce_scatter": 2, "broadcast": 2, "send_recv": 2}, set()),
        ({"all_reduce": 3, "all_gather": 2, "reduce_scatter": 2, "broadcast": 3}, {"all_reduce", "broadcast"}),
        (dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter", "broadcast"), 3), "all"),
    ],
)
def test_few_collectives_settle_what_they_can(numbers: dict[str, int], own: set[str] | str) -> None:
    """However few of each kind there are, ten are fitted: kinds of less than three have no protocol of their own."""
    profile = load_profile("cpu")
    samples = [
        CollectiveSample(
            key=f"{kind} {place}", kind=kind, num_bytes=1 << (12 + 4 * place), ranks_per_node=(2,),
            seconds=1e-4 * 2**place,
        )
        for kind, number in numbers.items() for place in range(number)
    ]  # fmt: skip
    found = fit_network(samples, Fitted(profile, CPU), fit_rates=True).profile.network.protocols
    assert {p.name for p in found} == (
        {p.name for p in profile.network.protocols} if not own else set(numbers) if own == "all" else own
    )


def test_kinds_of_collectives_have_protocols_of_their_own() -> None:
    """On a CPU each kind's own fixed time and overhead are found, and the share of the processor, long calls first."""
    profile = load_profile("cpu")
    template = replace(profile.network.protocols[0], intra_hop_s=0.0)
    own = tuple(
        replace(template, name=kind, kinds=(kind,), base_latency_s=base_s, wire_overhead=overhead)
        for kind, base_s, overhead in (("all_reduce", 300e-6, 1.5), ("reduce_scatter", 800e-6, 4.0))
    )
    network = replace(profile.network, intra_fraction=1.0, point_to_point_latency_s=90e-6, protocols=own)
    intra = replace(CPU.intra, bandwidth_bytes_per_s=5e9, latency_s=0.0)
    truth = Fitted(replace(profile, network=network), replace(CPU, intra=intra))
    blank = [
        CollectiveSample(
            key=f"{kind} {size}", kind=kind, num_bytes=size, ranks_per_node=(2,), seconds=1.0,
            compute_share=0.1 if size < 1 << 20 else 0.9,
        )
        for kind in ("all_reduce", "reduce_scatter", "send_recv")
        for size in (1 << p for p in range(10, 25, 2))
    ]  # fmt: skip
    times = predict_collectives(blank, truth.node, truth.profile)
    samples = [replace(s, seconds=t) for s, t in zip(blank, times, strict=True)]
    found = fit_network(samples, Fitted(profile, CPU), fit_rates=True).profile.network
    assert {p.name: p.wire_overhead for p in found.protocols} == pytest.approx(
        {p.name: p.wire_overhead for p in own}, rel=0.1
    )
    assert 0.6 < found.compute_share < 0.9
    assert sorted(kind for p in found.protocols for kind in p.kinds) == sorted(TRAFFIC)


def test_fit_by_length_leans_to_long_calls() -> None:
    """Where no parameter fits all, weighing by length comes nearer to the long measurements, and farther from short."""
    sizes = [1.0] * 5 + [100.0] * 5
    seconds = [2.0] * 5 + [100.0] * 5
    factors = [
        fit([Parameter("factor", 1.0, 0.1, 10)], lambda p: [p["factor"] * x for x in sizes], seconds, by_length=by)[
            "factor"
        ].value
        for by in (False, True)
    ]
    assert factors[0] == pytest.approx(2**0.5, rel=1e-3)
    assert 1 < factors[1] < factors[0]


@given(rate=st.floats(0.1, 1e3), fixed=st.floats(1e-3, 1e2))
def test_fit_finds_a_line_exactly(rate: float, fixed: float) -> None:
    """Without noise, time = fixed + size/rate gives both numbers back."""
    sizes = [10.0**power for power in range(-4, 6)]
    parameters = [Parameter("rate", 1.0, 1e-2, 1e4), Parameter("fixed", 1.0, 1e-4, 1e3)]
    found = fit(
        parameters, lambda p: [p["fixed"] + x / p["rate"] for x in sizes], [fixed + x / rate for x in sizes],
        num_evaluations=200,
    )  # fmt: skip
    assert found["rate"].value == pytest.approx(rate, rel=1e-3)
    assert found["fixed"].value == pytest.approx(fixed, rel=1e-3)


def test_one_wild_measurement_moves_little() -> None:
    """A measurement a hundred times too long (somebody else had the core) does not carry the fit away."""
    sizes = [2.0**power for power in range(16)]
    times = [1.0 + size for size in sizes]
    times[3] *= 100
    (found,) = fit([Parameter("fixed", 0.5, 1e-3, 1e3)], lambda p: [p["fixed"] + x for x in sizes], times).values()
    assert found.value == pytest.approx(1.0, rel=0.25)
    assert found.standard_error == pytest.approx(0.0, abs=0.3)


def test_a_call_during_which_the_machine_stood_still_weighs_by_its_work() -> None:
    """Among six calls of a kernel, one a thousand times too long does not become the law of all."""
    sizes = [1.0, 1.2, 1.5, 1.9, 2.4, 3.0]
    times = [70e-6 * size for size in sizes]
    times[3] *= 1000
    parameters = [Parameter("slowdown", 1.0, 0.02, 50.0), Parameter("fixed", 60e-6, 1e-8, 0.1)]
    found = fit(parameters, lambda p: [p["fixed"] + p["slowdown"] * 50e-6 * x for x in sizes], times, by_length=True)
    predicted = [found["fixed"].value + found["slowdown"].value * 50e-6 * size for size in sizes]
    assert [predicted[i] for i in (0, 1, 2, 4, 5)] == pytest.approx([times[i] for i in (0, 1, 2, 4, 5)], rel=0.5)


@pytest.mark.parametrize(
    ("seconds", "problem"), [([1.0], "1 measurements cannot settle 2 parameters (a, b)"), ([1.0, 0.0], "more than 0 s")]
)
def test_impossible_measurements_are_refused(seconds: list[float], problem: str) -> None:
    """Fewer measurements than parameters, and times of nothing, are refused with the reason."""
    parameters = [Parameter("a", 1.0, 0.1, 10.0), Parameter("b", 1.0, 0.1, 10.0)]
    with pytest.raises(CalibrationError) as raised:
        fit(parameters, lambda p: [p["a"]] * len(seconds), seconds)
    assert problem in str(raised.value)


def test_split_by_hash_keeps_its_share_and_its_rows() -> None:
    """One key in two is held out, the same ones every time."""
    keys = [f"row {i}" for i in range(2000)]
    chosen = [key for key in keys if is_held_out(key, 2)]
    assert 900 < len(chosen) < 1100
    assert chosen == [key for key in keys if is_held_out(key, 2)]


def test_jitter_is_what_devices_differ_by_at_the_same_time() -> None:
    """Drawn factors per device come back; what slows all devices of a round, and a device by itself, say nothing."""
    random = np.random.default_rng(0)
    rounds = [
        {"gemm": np.exp(random.normal(place, 0.03, 4)).tolist(), "optimizer": [float(1 + place)]}
        for place in range(400)
    ]
    assert device_jitter(rounds) == {"gemm": pytest.approx(0.03, rel=0.06)}
    assert device_jitter([{"gemm": [1.0, e]}]) == {"gemm": pytest.approx(sqrt(0.5))}


def entry_of(profile: Profile, *, is_measured: bool) -> dict[str, object]:
    """Return a profile's mapping as its file would hold it."""
    families = (f"spread.{family}" for family in (*SPREAD, STEP))
    sources = dict.fromkeys((*SECTIONS, "kernels", "jitter", *families), "made up")
    entry = profile_entry(profile, GPU, sources=sources, measured=is_measured, calibration={"seed": 0})
    loaded: dict[str, object] = yaml.safe_load(yaml.safe_dump(entry))
    return loaded


@pytest.mark.parametrize("name", ["a100", "h100", "b200", "v100", "cpu"])
def test_profile_round_trips_through_yaml(name: str) -> None:
    """Every number of a packaged profile is the same, to six digits, after being written and read."""
    profile = replace(load_profile(name), jitter={"gemm": 0.02})
    found = parse_calibrated(name, entry_of(profile, is_measured=True))
    assert found.node == GPU.name
    again = parse_calibrated(name, entry_of(found.profile, is_measured=True))
    assert again.profile.network == found.profile.network
    assert found.profile.jitter == {"gemm": 0.02}
    for section in (*SECTIONS[:-1], "kernels", "step_spread"):
        assert getattr(again.profile, section) == getattr(found.profile, section)
    assert found.profile.gemm.latency_s == pytest.approx(profile.gemm.latency_s, rel=1e-5)
    for family in SPREAD:
        stated, written = profile.spread[family], found.profile.spread[family]
        assert written.at(1e-4) == pytest.approx(stated.at(1e-4), rel=0.01)
        assert (written.common, written.near) == pytest.approx((stated.common, stated.near))
    assert found.profile.gemm.tiles == profile.gemm.tiles
    assert found.measured == catalogue_rates(GPU)
    assert found.node_spec(GPU) == GPU


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"schema": "other/1"}, "'schema' is 'other/1'"),
        ({"node": 3}, "'node' must name"),
        ({"gem": {}}, "no section 'gem'"),
        ({"gemm": 5}, "'gemm' must be a mapping"),
        ({"measured": {"peak": {}}}, "'measured' needs 'memory_bandwidth'"),
        ({"network": {"source": "x"}}, "no 'intra_fraction'"),
    ],
)
def test_damaged_profile_is_refused(change: dict[str, object], problem: str) -> None:
    """A profile with a wrong schema, an unknown section or a missing key says which."""
    entry = entry_of(load_profile("a100"), is_measured=False) | change
    with pytest.raises(CatalogueError) as raised:
        parse_calibrated("mine", entry)
    assert problem in str(raised.value)


def test_a_profile_may_begin_from_a_packaged_one() -> None:
    """What it leaves out is as packaged, whole sections and single keys; a section that it changes says why."""
    entry: dict[str, object] = {"schema": "meshtwin.profile/1", "node": GPU.name, "packaged": "a100"}
    changed = parse_calibrated("mine", entry | {"network": {"source": "fitted to rows", "inter_fraction": 0.5}}).profile
    assert changed.network == replace(load_profile("a100").network, inter_fraction=0.5)
    assert changed.gemm == load_profile("a100").gemm
    with pytest.raises(CatalogueError, match="section 'network' needs a source"):
        parse_calibrated("mine", entry | {"network": {"inter_fraction": 0.5}})
    with pytest.raises(CatalogueError, match="there is no profile 'a200'"):
        parse_calibrated("mine", entry | {"packaged": "a200"})
