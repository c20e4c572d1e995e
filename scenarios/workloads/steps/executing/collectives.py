"""The choices of ``--collectives``: the library's own collectives, or step lists by named algorithms."""

from collections.abc import Mapping
from typing import Final

from costmodels.collectives.catalogue import STEP_LISTS
from costmodels.collectives.steps_in_network import IN_NETWORK_STEPS
from scenarios.errors import Origin, ScenarioError, nearest
from scenarios.workloads.executing import NATIVE
from sim.plan.words.op import Collective
from sim.plan.words.program import Plan

EXPLICIT: Final = "explicit"
FORMS: Final = "native, explicit, explicit:ALGORITHM or explicit:KIND=ALGORITHM,KIND=ALGORITHM"


def chosen_algorithms(text: str, plan: Plan, named: Mapping[str, str] | None = None) -> Mapping[str, str] | None:
    """Return the algorithm by kind for collectives that run as step lists; None: the library's own collectives.

    ``explicit`` takes the algorithm that the scenario names (``named``, by kind), else the first of each kind.
    ``explicit:ALGORITHM`` takes that algorithm for all kinds of the plan. ``explicit:KIND=ALGORITHM,...`` names one per
    kind; other kinds are as with ``explicit``. Raises ScenarioError for another text, for an algorithm without a step
    list of its kind, and for a kind that the plan lacks. Algorithms of reducing switches cannot run so, as a switch is
    not a process.
    """
    word, colon, choice = text.partition(":")
    if word not in {NATIVE, EXPLICIT} or (colon and (word == NATIVE or not choice)):
        raise _refusal(text, f"{text!r} is no way to run collectives", f"write {FORMS}")
    if word == NATIVE:
        return None
    kinds = kinds_of(plan)
    chosen = {kind: next(iter(STEP_LISTS[kind])) for kind in kinds}
    chosen |= {kind: name for kind, name in (named or {}).items() if kind in kinds}
    pairs = [part.partition("=") for part in choice.split(",")] if choice else []
    if len(pairs) == 1 and not pairs[0][1]:
        pairs = [(kind, "=", choice) for kind in kinds]
        _refuse_unknown(text, choice)
    for kind, equals, algorithm in pairs:
        if not equals:
            raise _refusal(text, f"{kind!r} names no kind and algorithm", f"write {FORMS}")
        _refuse_misfit(text, plan, kind, algorithm, kinds)
        chosen[kind] = algorithm
    for kind, algorithm in chosen.items():
        if algorithm not in STEP_LISTS[kind]:
            rule = f"the scenario names {kind}, which {_no_step_list(kind, algorithm)}"
            remedy = f"write explicit:{kind}=NAME, NAME one of {', '.join(STEP_LISTS[kind])}, or --collectives native"
            raise _refusal(text, rule, remedy)
    return chosen


def kinds_of(plan: Plan) -> tuple[str, ...]:
    """Return the kinds of collective by which ranks of a plan communicate, in the order of the step lists."""
    found = {
        str(op.kind)
        for program in plan.programs
        for task in program.tasks.values()
        for op in task.ops
        if isinstance(op, Collective) and op.group_size(plan.mesh) > 1
    }
    return tuple(kind for kind in STEP_LISTS if kind in found)


def _no_step_list(kind: str, algorithm: str) -> str:
    """Return in words that a kind has no step list by an algorithm, and why where a switch takes part."""
    by_switch = algorithm in IN_NETWORK_STEPS.get(kind, {})
    why = " for processes: a switch computes in it" if by_switch else ""
    return f"has no step list by {algorithm!r}{why}"


def _refuse_unknown(text: str, algorithm: str) -> None:
    tables = (*STEP_LISTS.values(), *IN_NETWORK_STEPS.values())
    names = sorted({name for algorithms in tables for name in algorithms})
    if algorithm not in names:
        raise _refusal(text, f"no collective has a step list by {algorithm!r}", _known(algorithm, names))


def _refuse_misfit(text: str, plan: Plan, kind: str, algorithm: str, kinds: tuple[str, ...]) -> None:
    if kind not in STEP_LISTS:
        raise _refusal(text, f"there is no collective {kind!r}", _known(kind, STEP_LISTS))
    if kind not in kinds:
        has = ", ".join(kinds) or "none"
        raise _refusal(text, f"the plan of {plan.name!r} has no {kind}", f"leave it out; the plan's collectives: {has}")
    if algorithm not in STEP_LISTS[kind]:
        rule = f"the plan has {kind}, which {_no_step_list(kind, algorithm)}"
        remedy = f"write explicit:{kind}=NAME, NAME one of {', '.join(STEP_LISTS[kind])}"
        raise _refusal(text, rule, remedy)


def _known(word: str, names: Mapping[str, object] | list[str]) -> str:
    close = nearest(word, names)
    return f"{f'did you mean {close}? ' if close else ''}known: {', '.join(names)}"


def _refusal(text: str, rule: str, remedy: str) -> ScenarioError:
    return ScenarioError(Origin(option=f"--collectives {text}"), "", rule, remedy)
