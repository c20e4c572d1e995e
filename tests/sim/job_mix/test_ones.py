"""ONES: its operators, limits, predictor and score worked out by hand, and its laws on random schedules."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.jobs.active import ActiveJob
from sim.jobs.job import elastic_job
from sim.jobs.metrics import measure
from sim.jobs.ones_mix import KINDS, OnesLike
from sim.jobs.placement import fewest_nodes
from sim.jobs.policies.ones import reorder
from sim.jobs.policies.ones.evolution import Prospects, evolved, score_gpu_s
from sim.jobs.policies.ones.genome import EMPTY, Genome, allocation_of, crossed, filled, placement_of, refreshed
from sim.jobs.policies.ones.limits import Limit, lowered, shrunk
from sim.jobs.policies.ones.policy import Ones
from sim.jobs.policies.ones.predictor import Network, drawn, expected_rest, features, fitted, minus_log_density
from sim.jobs.policies.ones.reorder import changed_slots, reordered
from sim.jobs.policy import View
from sim.jobs.simulator import Mix, simulate_jobs
from sim.jobs.speed.speed import MeasuredSpeed
from sim.jobs.training import Training
from tests.examples import examples

A, B, C, D = range(4)


def genome(text: str) -> Genome:
    """Return the genome of words such as ``A A B -``."""
    return tuple(EMPTY if word == "-" else "ABCD".index(word) for word in text.split())


LIVE = genome("A A B B - C C C")


def test_remaining_utilisation() -> None:
    """240 and 50 GPU-seconds, and their sum; a job without prediction adds nothing."""
    prospects = Prospects(
        caps={}, limits={}, young=[C], rests={A: 40_000 * (1 / 0.25 - 1), B: 10_000 * (1 / 0.5 - 1)},
        measured={A: {2: 1000.0}, B: {1: 200.0}},
    )  # fmt: skip
    assert score_gpu_s({A: 2}, prospects) == pytest.approx(240.0)
    assert score_gpu_s({B: 1}, prospects) == pytest.approx(50.0)
    assert score_gpu_s({A: 2, B: 1, C: 4}, prospects) == pytest.approx(290.0)


@pytest.mark.parametrize(
    ("held", "ratio", "new"),
    [(32, 3.0, 16), (8, 2.5, 4), (5, 1.2, 4), (6, 3.0, 4), (64, 1.5, 52), (3, 9.0, 2), (1, 4.0, 2)],
)
def test_long_jobs_shrink(held: int, ratio: float, new: int) -> None:
    """Hyperbolically, to an even number; a limit never grows by it."""
    assert shrunk(held, ratio) == new
    assert lowered(Limit(64, held), held, ratio, (1.0,), 7).granted == min(held, new)
    assert lowered(Limit(64, held), held, 1.0, (1.0,), 7) == Limit(64, held)


def test_limits_double_once_they_are_held() -> None:
    """Up to four times what the user asked for; a waiting job loses half."""
    limit = Limit(most=1, granted=1)
    assert limit.raised(1, 4, 64, 2) == Limit(2, 2, 2)
    assert Limit(2, 2, 2).raised(1, 4, 64, 4) == Limit(2, 2, 2)
    assert Limit(16, 16, 2).raised(16, 4, 64, 4) == Limit(32, 16, 4)
    assert Limit(6, 6, 2).waited() == Limit(3, 3, 2)


def test_children_inherit_slot_by_slot() -> None:
    """Swapped at the first and third slot; a gene above its job's cap stays empty."""
    children = crossed(genome("A A B B"), genome("C A A -"), [True, False, True, False], {A: 2, B: 2, C: 1})
    assert children == (genome("C A A B"), genome("A A B -"))


def test_done_jobs_and_slots_above_the_cap_are_dropped() -> None:
    """The first slot stays, even of a job that was granted none."""
    assert refreshed(genome("A A B C C D"), {A: 1, C: 0, D: 2}) == genome("A - - C - D")


def test_gpus_are_filled_in_order() -> None:
    """Young jobs get one GPU, ranked ones grow to their caps, then to their limits."""
    found = filled(genome("A - - - - - - -"), [C], [B, A], {A: 2, B: 2}, {A: 4, B: 8})
    assert found == {A: 2, C: 1, B: 5}


@pytest.mark.parametrize(
    ("allocation", "cost"),
    [({A: 3, B: 2, C: 1}, 1), ({A: 2, B: 2, C: 3, D: 1}, 0), ({B: 4, C: 3}, 1), ({C: 4, D: 4}, 4)],
)
def test_few_slots_change_hands(allocation: dict[int, int], cost: int) -> None:
    """The least number of changes."""
    found = reordered(LIVE, allocation)
    assert allocation_of(found) == allocation
    assert changed_slots(LIVE, found) == cost


@st.composite
def schedules(draw: st.DrawFn) -> tuple[Genome, dict[int, int]]:
    """Return a live genome and an allocation for as many GPUs."""
    live = tuple(draw(st.lists(st.integers(-1, 5), min_size=4, max_size=14)))
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    while sum(sizes) > len(live):
        sizes.pop()
    return live, dict(enumerate(sizes or [1]))


@settings(max_examples=examples(24), deadline=None)
@given(schedule=schedules())
def test_reordered_jobs_are_neighbours(schedule: tuple[Genome, dict[int, int]]) -> None:
    """Both programs keep the sizes and use neighbouring slots; exact is never worse, and neither worse than packing."""
    live, allocation = schedule
    jobs, sizes, costs = list(allocation), list(allocation.values()), []
    for program in (reorder._exact, reorder._by_number):
        starts = program(reorder._costs(live, jobs, sizes), sizes, len(live))
        found = reorder._genome(jobs, sizes, starts, len(live))
        assert allocation_of(found) == allocation
        costs.append(changed_slots(live, found))
    assert costs[0] <= costs[1]
    packed = reorder._genome(jobs, sizes, [sum(sizes[:place]) for place in range(len(sizes))], len(live))
    assert changed_slots(live, reordered(live, allocation)) == costs[0] <= changed_slots(live, packed)


@pytest.mark.parametrize(
    ("alpha", "beta", "progress", "loss", "rest"),
    [(5.0, 3.0, 0.6, -0.778076, 0.75), (10.0, 2.5, 0.9, -1.245715, 2.5 / 9), (0.5, 4.0, 0.05, -1.433598, np.inf)],
)
def test_densities_and_expected_rests(alpha: float, beta: float, progress: float, loss: float, rest: float) -> None:
    """Three Beta distributions; the second moment in question is also that of draws."""
    assert float(minus_log_density(np.array(alpha), np.array(beta), np.array(progress))) == pytest.approx(
        loss, abs=5e-7
    )
    assert expected_rest(alpha, beta) == pytest.approx(rest)
    if np.isfinite(rest):
        draws = np.random.default_rng(1).beta(alpha, beta, 100_000)
        assert (1.0 / draws - 1.0).mean() == pytest.approx(rest, rel=0.02)


def test_gradients_of_the_network_are_exact() -> None:
    """Against differences of the loss."""
    random = np.random.default_rng(3)
    rows, progress = random.uniform(0.5, 3.0, (6, 5)), random.uniform(0.1, 0.9, 6)
    network = drawn(random)

    def loss(weights: tuple) -> float:
        return float(minus_log_density(rows[:, 2], Network(weights).beta(rows), progress).mean())

    for place, gradient in enumerate(network.gradients(rows, progress)):
        spot = (0,) * gradient.ndim
        moved = []
        for step in (1e-6, -1e-6):
            weights = [each.copy() for each in network.weights]
            weights[place][spot] += step
            moved.append(loss(tuple(weights)))
        assert gradient[spot] == pytest.approx((moved[0] - moved[1]) / 2e-6, rel=1e-4, abs=1e-7)


def test_fit_lowers_the_loss() -> None:
    """Jobs of ten epochs: a fitted network is better than the one drawn, and fits of one seed are equal."""
    rows = np.array([[9.0, 2.8, float(k), k / 12, k / 11] for k in range(1, 10)] * 4)
    progress = rows[:, 2] / 10.0
    found = fitted(rows, progress, np.random.default_rng(5))
    before = drawn(np.random.default_rng(5))
    losses = [minus_log_density(rows[:, 2], each.beta(rows), progress).mean() for each in (before, found)]
    assert losses[1] < losses[0]
    assert (fitted(rows, progress, np.random.default_rng(5)).beta(rows) == found.beta(rows)).all()


def test_best_score_never_rises_while_nothing_changes() -> None:
    """With progress, speeds and limits frozen the best genomes stay in the pool."""
    random = np.random.default_rng(2)
    jobs = range(12)
    prospects = Prospects(
        caps={job: 1 + job for job in jobs}, limits=dict.fromkeys(jobs, 4), young=[],
        rests={job: 1000.0 * (1 + job % 5) for job in jobs}, measured={job: {1: 10.0, 4: 20.0 + job} for job in jobs},
    )  # fmt: skip
    live: Genome = (EMPTY,) * 20
    population = tuple(tuple(random.integers(0, 12, 20).tolist()) for _ in range(4))
    scores = []
    for _ in range(12):
        population = evolved(population, live, prospects, 4, random)
        scores.append(score_gpu_s(allocation_of(population[0]), prospects))
    assert scores == sorted(scores, reverse=True)
    assert scores[-1] < scores[0]


def test_slots_lie_on_their_nodes() -> None:
    """Slots 2 to 8 of nodes with four GPUs."""
    assert placement_of([2, 3, 4, 5, 6, 7, 8], (4, 4, 4)) == ((0, 2), (1, 4), (2, 1))


def test_drawn_jobs_have_the_measured_speed() -> None:
    """On the GPUs that they ask for; all kinds are equally frequent, and other numbers of GPUs are less efficient."""
    jobs = OnesLike().jobs((4,) * 16, seed=1)
    assert len(jobs) == 400
    assert sorted({sum(job.num_gpus == count for job in jobs) for count in (2, 4, 8, 16)}) == [40, 80, 120, 160]
    assert jobs[-1].arrival_s / 399 == pytest.approx(29.97, rel=0.1)
    for kind in KINDS:
        speed = kind.speed(4)
        nodes = fewest_nodes((4,) * 16, kind.num_gpus)
        assert speed.samples_per_s(kind.num_gpus, nodes) == pytest.approx(kind.samples_per_s)
        assert kind.speed(4, 2.0).samples_per_s(32, 8) == pytest.approx(2.0 * speed.samples_per_s(32, 8))
        fixed = kind.fixed_speed(4)
        assert fixed.samples_per_s(kind.num_gpus, nodes) == pytest.approx(kind.samples_per_s)
        assert fixed.samples_per_s(32, 8) < speed.samples_per_s(32, 8) * (1.0 + 1e-9)
        per_gpu = [speed.samples_per_s(count, -(-count // 4)) / count for count in (1, 4, 16, 32)]
        assert per_gpu == sorted(per_gpu, reverse=True)


def test_jobs_grow_while_they_train() -> None:
    """Five jobs of ten epochs on 16 GPUs: each starts on one GPU, at most doubles, and all are done."""
    jobs = []
    for place, samples in enumerate((100.0, 200.0, 400.0, 300.0, 100.0)):
        speed = MeasuredSpeed({1: 10.0, 16: 120.0})
        training = Training(samples_per_epoch=samples, num_epochs=10.0, speed=speed, most_gpus=16)
        jobs.append(elastic_job(str(place), 20.0 * place, 4, training, 1))
    mix = Mix(jobs=jobs, gpus_per_node=(4,) * 4, rescale_s=1.0)
    policy = Ones(generation_s=5.0, population_size=4)
    record = simulate_jobs(mix, policy)
    assert len(record.jobs) == 5
    held = dict[str, int]()
    for made in record.decisions:
        assert made.num_gpus <= 2 * held.get(made.job_id, 1)
        held[made.job_id] = max(held.get(made.job_id, 1), made.num_gpus)
    assert max(held.values()) >= 8
    assert measure(record).num_rescales >= 5
    assert simulate_jobs(mix, policy) == record


@pytest.mark.parametrize(("remembers", "epochs"), [(True, [2, 2, 2, 6]), (False, [2, 1, 1, 8])])
def test_a_job_alone_doubles_every_two_epochs_or_after_each(remembers: bool, epochs: list[int]) -> None:
    """Of 12 epochs, those on 1, 2, 4 and 8 GPUs: where the last change is forgotten, it doubles after each epoch."""
    speed = MeasuredSpeed({1: 10.0, 8: 80.0})
    training = Training(samples_per_epoch=1000.0, num_epochs=12.0, speed=speed, most_gpus=8)
    mix = Mix(jobs=[elastic_job("a", 0.0, 8, training, 1)], gpus_per_node=(8,))
    record = simulate_jobs(mix, Ones(generation_s=0.1, population_size=4, remembers=remembers))
    held = [(each.placement[0][1], each.end_s - each.start_s) for each in record.allocations]
    assert [count for count, _ in held] == [1, 2, 4, 8]
    assert [span_s * count / 100.0 for count, span_s in held] == pytest.approx(epochs, abs=0.05)


def test_past_jobs_are_what_the_history_begins_with() -> None:
    """Their epochs are its rows, and it is not fitted again before these have grown."""
    past = OnesLike(num_jobs=3).jobs((4,) * 4, 1)
    history = Ones(seed=0, past=past).start().history
    assert len(history.rows) == history.fitted_rows == sum(int(job.training.num_epochs) - 1 for job in past)
    assert history.caught_up([], 1.25, np.random.default_rng).network is history.network
    assert Ones(seed=0).start().history.rows == ()


def test_expected_progress_is_beta_epochs() -> None:
    """Without draws, what a job has left is beta times the samples of its epoch, the same in each generation."""
    speed = MeasuredSpeed({1: 10.0})
    training = Training(samples_per_epoch=50.0, num_epochs=9.0, speed=speed, most_gpus=1)
    job = ActiveJob(elastic_job("a", 0.0, 1, training, 1), 0, 0.0)
    job.start(0.0, ((0, 1),), 0.0)
    view = View(now_s=20.0, waiting=(), running={0: job}, free_gpus=0, waiting_gpus=0, gpus_per_node=(1,))
    policy = Ones(seed=3, draws=False)
    state, _ = policy.decide(policy.start(), view)
    beta = float(state.history.network.beta(np.array([features(job.job, 4.0)]))[0])
    for each in (state, policy.decide(state, view)[0]):
        assert policy._prospects(each, view).rests == {0: pytest.approx(50.0 * beta)}
