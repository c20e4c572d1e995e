"""Advice: the change that helps a step most among those that were tried, and the causes of lost time.

    advice = advise(simulate(scenario), "quick")
    advice.best.set, advice.best.gain            # (("training.recompute=selective",), 0.21)

No change alters the global batch, or what is computed. Those that are expected to remove the most time come first.
"""

from typing import Final

from scenarios.report.words import time_parts
from scenarios.summaries.steps.advice import AdviceLevel, AdviceSummary, Cause, ReducedPart
from scenarios.summaries.steps.mean_rank import mean_computing_s, mean_exposed_s
from scenarios.summaries.steps.step import StepSummary
from scenarios.workloads.steps.advising.trials import Trial, Trials, by_time
from scenarios.workloads.steps.findings.changes import COMPUTING, Change, Overrides, merged
from scenarios.workloads.steps.running import SimulatedStep
from scenarios.workloads.steps.summarise import summarise
from sim.engine.running.collector import collector_paused
from sim.plan.words.stream import stream_of

WORTH_DOING: Final = 0.01
"""A change that adds a smaller fraction to the throughput is not advised, a cause of a smaller one is not named."""
WORTH_ROOM: Final = 0.02
"""A change that may remove such a fraction of the step, but does not fit, is tried with others that make room."""
_MOST_PARTNERS: Final = 3
_MOST_ROUNDS: Final = 3
"""Changes that are put together, where all are asked for."""


@collector_paused()
def advise(found: SimulatedStep, level: AdviceLevel) -> AdviceSummary:
    """Return the advice on a simulated step. ``quick``: within a bounded predicted cost."""
    trials = Trials(found, level)
    if found.summary.fits_memory is False:
        best = _against_misfit(trials)
        causes: tuple[Cause, ...] = ()
    else:
        causes = _causes(trials)
        best = _against_time(trials)
    return AdviceSummary(
        level=level,
        best=None if best is None else best.change,
        reduced=None if best is None or found.summary.fits_memory is False else _reduced(found.summary, best),
        causes=causes,
        tried=tuple(trial.change for trial in by_time(trials.tried)),
        not_tried=tuple(trials.not_tried),
    )


def losses_of(summary: StepSummary) -> dict[str, float]:
    """Return the fractions of the mean rank's step that something may remove, by name."""
    losses: dict[str, float] = {}
    for stream, seconds in mean_exposed_s(summary.roles).items():
        name = stream_of(stream).purpose or stream
        losses[name] = losses.get(name, 0.0) + seconds / summary.iteration_time_s
    computing = {name: part_s / summary.iteration_time_s for name, part_s in mean_computing_s(summary.roles).items()}
    return {**losses, **computing, COMPUTING: computing.get("needed", 0.0)}


def _against_time(trials: Trials) -> Trial | None:
    """Return the trial with the largest gain that is worth it."""
    losses = losses_of(trials.found.summary)
    unfit: set[Overrides] = set()
    for change in sorted(trials.scenario.changes(), key=lambda change: -change.expected(losses)):
        if change.above in unfit:
            trials.note_unfit(change.overrides)
            continue
        trial = trials.attempt(change.overrides)
        if trial is not None and trial.change.fits_memory is False:
            unfit.add(change.overrides)
            if change.expected(losses) >= WORTH_ROOM:
                _with_room(trials, change)
    best = _fastest(trials)
    return _climbed(trials, best) if trials.level == "full" else best


def _with_room(trials: Trials, change: Change) -> None:
    """Try a change that does not fit together with one that makes room, the mildest that is enough."""
    keys = _keys(change.overrides)
    milder = [step for step in trials.scenario.ladder() if keys.isdisjoint(_keys(step)) and not _is_drastic(step)]
    for partner in milder[:_MOST_PARTNERS]:
        trial = trials.attempt(change.overrides, partner)
        if trial is not None and trial.change.fits_memory:
            return


def _is_drastic(step: Overrides) -> bool:
    """Return whether a change that makes room costs too much time to be the partner of one that should save some."""
    return "training.recompute=full" in step or any(key.endswith(".degree") for key in _keys(step))


def _keys(overrides: Overrides) -> set[str]:
    return {override.partition("=")[0] for override in overrides}


def _fastest(trials: Trials) -> Trial | None:
    """Return the fastest trial that fits, if it is worth it."""
    return next((trial for trial in by_time(trials.tried) if _is_worth(trial)), None)


def _is_worth(trial: Trial) -> bool:
    return trial.change.fits_memory is not False and (trial.change.gain or 0.0) >= WORTH_DOING


def _climbed(trials: Trials, best: Trial | None) -> Trial | None:
    """Return the best change with others that help on top of it."""
    useful = [trial for trial in by_time(trials.tried) if _is_worth(trial)]
    for _ in range(_MOST_ROUNDS - 1):
        if best is None:
            return None
        for other in useful:
            if other is not best:
                trials.attempt(other.change.set, best.change.set)
        found = _fastest(trials)
        if found is best:
            return best
        best = found
    return best


def _against_misfit(trials: Trials) -> Trial | None:
    """Return the fastest trial that fits; where none does, the one of the smallest peak."""
    for change in trials.scenario.remedies():
        trials.attempt(change.overrides)
    together: tuple[str, ...] = ()
    for step in trials.scenario.ladder():
        trial = trials.attempt(together, step)
        if trial is None:
            continue
        together = merged(together, step)
        if trial.change.fits_memory:
            break
    fitting = [trial for trial in by_time(trials.tried) if trial.change.fits_memory]
    return next(iter(fitting), None) or min(trials.tried, key=lambda t: t.change.peak_memory_bytes or 0, default=None)


def _causes(trials: Trials) -> tuple[Cause, ...]:
    """Return the causes without which the step is shorter, the one that costs most first."""
    found, time_s = list[Cause](), trials.found.summary.iteration_time_s
    for counterfactual in trials.scenario.counterfactuals():
        without_s = trials.time_without(counterfactual.overrides)
        fraction = 0.0 if without_s is None else 1.0 - without_s / time_s
        if without_s is not None and fraction >= WORTH_DOING:
            found.append(Cause(cause=counterfactual.cause, fraction=fraction, iteration_time_s=without_s))
    return tuple(sorted(found, key=lambda cause: -cause.fraction))


def _reduced(before: StepSummary, best: Trial) -> ReducedPart | None:
    """Return the part of the mean rank's step that is shortened most; None where it was only estimated."""
    if best.run is None:
        return None
    then = {words: seconds for (words, _), seconds in time_parts(summarise(best.scenario, best.run))}
    parts = [
        ReducedPart(part=words, before_s=now_s, after_s=then.get(words, 0.0))
        for (words, _), now_s in time_parts(before)
    ]
    return max(parts, key=lambda part: part.before_s - part.after_s, default=None)
