"""No key passes in silence: written with another value it changes what is simulated, or it is refused."""

import dataclasses
import json
import random
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

import jsonschema
import numpy as np
import pytest
from msgspec import Struct

from scenarios.errors import ScenarioError
from scenarios.reading.documents.overrides import apply_overrides
from scenarios.reading.documents.yaml_tree import Document, document_of
from scenarios.reading.sections.section import Key, Section, keys_of
from scenarios.reading.sections.section_reader import BrokenRulesError, read_section
from scenarios.workloads.job_mix.schema import PoliciesSection
from scenarios.workloads.loading import scenario_of
from scenarios.workloads.registry import workload_named
from scenarios.workloads.workload import Scenario

VALUES = (
    True, False, 0.3, 0.5, 1, 2, 3, 4, 1.5, 64, 0, "3 ms", "2 h", "1 GB", "3x", "10 GB/s", "2.5 USD/h", [1], [2, 2],
    [0.5], ["none"], "ring",
)  # fmt: skip
"""What a key is tried with, as far as it takes it; words are tried as the key lists them."""

FORMS = frozenset({"name", "workload", "model.family", "model.preset", "model.huggingface"})
"""Keys that describe, or that decide which others there are."""

GPT = "{family: gpt, num_layers: 2, hidden_size: 256, num_heads: 4, sequence_length: 512, vocab_size: 1024}"
LLAMA = (
    "{family: llama, num_layers: 2, hidden_size: 256, num_heads: 4, ffn_hidden_size: 512, sequence_length: 512, "
    "vocab_size: 1026}"  # rows of a half of it are not aligned
)
EXPERTS = f"{LLAMA[:-1]}, experts: {{num_experts: 8, top_k: 2, ffn_hidden_size: 256}}}}"
DRAWN = "rate: 40.0, num_requests: 30, prompt_tokens: 100, output_tokens: 20"
TABLES = "tables: [{name: a, num_rows: 2000}, {name: b, num_rows: 500}]\n"
TABLES += "trace: {batch_size: 8, num_batches: 3, num_unmeasured: 1}\n"
TIMED = "model: {name: dlrm}\ncluster: {node: dgx-a100-80g, num_nodes: 2, devices_per_node: 1}\n"
STAGES = "{family: delay, forward: 1 s, backward_input: 1 s, backward_weight: 1 s}"


NUM_PAIRS = 500
"""Pairs of keys that are tried of a job mix at most."""
DECIDING = frozenset({"policy", "jobs.draw.num_jobs"})
"""Keys beside which others may count no more: options of another policy, and the load of a single job."""
LENGTH = frozenset({"model.sequence_length"})
"""A model that is written out has to have it; requests of a service have lengths of their own."""
ALONE = frozenset(f"parallel.context.{key}" for key in ("method", "layout", "inner_degree"))
"""How ranks share a sequence, of which the degree may be swept from 1 on."""
CHOSEN = frozenset(
    f"policies.{policy}.{option}"
    for policy, field in keys_of(PoliciesSection).items()
    for option in keys_of(type(field.default))
)
"""Options of policies count for the policy that is chosen, so that policies can be swept."""


class Case(NamedTuple):
    """A file of a kind of work, and the keys of it that may be written for nothing."""

    kind: str
    text: str
    idle: Set[str] = frozenset()


def _training(model: str, parallel: str, idle: Set[str]) -> Case:
    text = f"cluster: {{node: dgx-a100-80g, num_nodes: 2, devices_per_node: 4}}\nmodel: {model}\n"
    text += f"parallel: {parallel}\ntraining: {{global_batch_size: 16, microbatch_size: 1}}\n"
    return Case("training", text, idle)


def _service(model: str, requests: str) -> Case:
    text = f"cluster: {{node: hgx-h100, num_nodes: 1}}\nmodel: {model}\nrequests: {{{requests}}}\n"
    return Case("service", text, LENGTH)


def _inference(model: str) -> Case:
    text = f"cluster: {{node: hgx-h100, num_nodes: 2}}\nmodel: {model}\nparallel: {{tensor: {{degree: 2}}}}\n"
    return Case("inference", f"{text}inference: {{prompt_tokens: 64, output_tokens: 2}}\n")


def _mix(policy: str) -> Case:
    text = "cluster: {num_nodes: 4, devices_per_node: 8}\njobs: {draw: {num_jobs: 6, load: 0.9}}\n"
    return Case(
        "job_mix", f"{text}policy: {policy}\n", {key for key in CHOSEN if not key.startswith(f"policies.{policy}.")}
    )


CASES = (
    _training(GPT, "{tensor: {degree: 2}, pipeline: {degree: 2}, data: {degree: 2}}", ALONE),
    _training(EXPERTS, "{data: {degree: 8}, expert: {degree: 4}}", ALONE),
    _service(GPT, DRAWN), _service(EXPERTS, "trace: requests.csv"), _inference(GPT), _inference(EXPERTS),
    Case("textbook", f"model: {STAGES}\ntraining: {{num_microbatches: 8}}\nparallel: {{pipeline: {{degree: 4}}}}\n"),
    Case("recommendation", TABLES), Case("recommendation", f"{TABLES}parameter_server: {{workers: 2}}\n"),
    Case("recommendation", TABLES + TIMED),
    Case("recommendation", f"{TABLES}{TIMED}parameter_server: {{workers: 2}}\n"),
    *(_mix(policy) for policy in ("fifo", "las", "tiresias", "themis", "gavel", "gandiva")),
)  # fmt: skip


def _sections(annotation: Any) -> list[type[Section]]:
    """Return the sections that a key may hold."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    return [section for inner in get_args(annotation) for section in _sections(inner)]


def _keys(section: type[Section], path: tuple[str, ...] = ()) -> Iterator[tuple[str, Key]]:
    """Yield the dotted keys of a section that hold a value, but for lists of sections and the model's other forms."""
    for name, field in keys_of(section).items():
        inner, words = _sections(field.annotation), str(field.annotation)
        if not inner:
            yield ".".join((*path, name)), field
        elif not any(word in words for word in ("tuple[", "Mapping[")):
            for each in inner:
                yield from _keys(each, (*path, name))


def _words(annotation: Any) -> list[object]:
    """Return the words that a key may hold."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    annotation = getattr(annotation, "__value__", annotation)
    return [word for inner in get_args(annotation) for word in _words(inner)]


@cache
def _candidates(kind: str) -> list[tuple[str, list[object]]]:
    """Return the keys of a kind of work, and up to four values that each takes by itself and that are no default."""
    fields: dict[str, list[Key]] = {}
    for key, field in _keys(workload_named(kind).schema):
        fields.setdefault(key, []).append(field)
    return [(key, _values(forms)[:4]) for key, forms in fields.items() if key not in FORMS]


def _values(forms: Sequence[Key]) -> list[object]:
    """Return values that one of a key's forms takes, and that are the default of none, nor ``auto``."""
    taken = []
    for field in forms:
        section = type("Tried", (Section,), {"__annotations__": {"key": field.annotation}})
        for value in _words(field.annotation) or VALUES:
            try:
                read = read_section(section, {"key": value}).key  # type: ignore[attr-defined]
            except BrokenRulesError:
                continue
            if value != "auto" and all((read, type(read)) != (form.default, type(form.default)) for form in forms):
                taken.append(value)
    return taken


def _plain(value: object) -> object:
    """Return all that a scenario holds as text and numbers, which can be compared."""
    if isinstance(value, Struct):
        return type(value).__name__, [_plain(getattr(value, name)) for name in value.__struct_fields__]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [each.name for each in dataclasses.fields(value) if each.init and each.compare]
        return type(value).__name__, [_plain(getattr(value, name)) for name in names]
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return [(_plain(key), _plain(item)) for key, item in value.items()]
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(item) for item in value]
    if isinstance(value, str | int | float | None) or callable(value):
        return value
    names = sorted({*getattr(value, "__slots__", ()), *getattr(value, "__dict__", {})})
    return type(value).__name__, [(name, _plain(getattr(value, name))) for name in names]


def _read(case: Case, folder: Path, *changes: str) -> object:
    """Return what is simulated of a file with changes."""
    scenario = scenario_of(_document(case, folder), changes)
    beside = {*Scenario.__struct_fields__} - {"seed"}
    return [_plain(getattr(scenario, name)) for name in scenario.__struct_fields__ if name not in beside]


def _document(case: Case, folder: Path) -> Document:
    return document_of(f"name: a\nworkload: {case.kind}\n{case.text}", folder / "a.yaml")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kind)
def test_a_key_that_is_written_is_read_or_refused(case: Case, tmp_path: Path) -> None:
    """Every key changes the scenario with one of some values, or is refused."""
    (tmp_path / "requests.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.0,100,5\n2023-11-16 18:17:04.0,90,7\n"
    )
    before = _read(case, tmp_path)
    assert _read(case, tmp_path) == before
    silent = {key for key, values in _candidates(case.kind) if _is_silent(case, tmp_path, key, values, before)}
    assert silent == case.idle


def _is_silent(case: Case, folder: Path, key: str, values: Sequence[object], before: object) -> bool:
    """Return whether a key may have any of these values, and nothing comes of it."""
    for value in values:
        try:
            if _read(case, folder, f"{key}={json.dumps(value)}") != before:
                return False
        except ScenarioError:
            return False
    return bool(values)


@pytest.mark.parametrize("case", [case for case in CASES if case.kind == "job_mix"], ids=lambda case: case.text[-9:-1])
def test_two_keys_of_a_job_mix_are_read_or_refused(case: Case, tmp_path: Path) -> None:
    """A key that counts alone counts beside another one, or the pair is refused."""
    before = _read(case, tmp_path)
    alone = [(each, _tried(case, tmp_path, each)) for each in _changes(case.kind)]
    counting = [(each, found) for each, found in alone if found is not None and found != before]
    pairs = [pair for pair in permutations(counting, 2) if not _is_of_one_key(pair[0][0], pair[1][0])]
    tried = random.Random(case.text).sample(pairs, min(NUM_PAIRS, len(pairs)))
    for (first, changed), (second, _) in tried:
        assert _tried(case, tmp_path, first, second) != changed, (first, second)


def _changes(kind: str) -> list[str]:
    """Return the changes of single keys that are tried, as overrides."""
    found = [(key, value) for key, values in _candidates(kind) if key not in DECIDING for value in values]
    return [f"{key}={json.dumps(value)}" for key, value in found]


def _is_of_one_key(first: str, second: str) -> bool:
    return first.partition("=")[0] == second.partition("=")[0]


def _tried(case: Case, folder: Path, *changes: str) -> object:
    """Return what is simulated of a file with changes; None where they are refused."""
    try:
        return _read(case, folder, *changes)
    except ScenarioError:
        return None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kind)
def test_the_json_schema_refuses_keys_that_are_not_read(case: Case, schema: dict[str, Any], tmp_path: Path) -> None:
    """An editor marks what the loader refuses by the same declaration, and allows it where it is read."""
    validator, plain = jsonschema.Draft202012Validator(schema), _document(case, tmp_path)
    assert validator.is_valid(plain.data)
    values = {key: values for key, values in _candidates(case.kind) if values}
    for each in workload_named(case.kind).unread:
        for key in values.keys() & set(each.keys):
            data = apply_overrides(plain, [f"{key}={json.dumps(values[key][0])}"]).data
            assert validator.is_valid(data) != each.applies(data), key
            assert validator.is_valid(data) or not _is_allowed(case, tmp_path, key, values[key])


def _is_allowed(case: Case, folder: Path, key: str, values: Sequence[object]) -> bool:
    """Return whether the loader takes a key with one of some values."""
    return any(_tried(case, folder, f"{key}={json.dumps(value)}") is not None for value in values)


@pytest.mark.parametrize("place", [5, 10])
def test_times_depend_on_keys_of_frameworks_and_devices(place: int, tmp_path: Path) -> None:
    """The same of results: what the framework or a device adds is priced where its key is not refused."""
    case = CASES[place]
    before, unread = _results(case, tmp_path), {key for each in workload_named(case.kind).unread for key in each.keys}
    for key, values in _candidates(case.kind):
        if key.startswith(("software.", "cluster.jitter.")) and key not in unread:
            changes = [f"{key}={json.dumps(value)}" for value in values[-2:]]
            assert any(_results(case, tmp_path, change) != before for change in changes), key


def _results(case: Case, folder: Path, *changes: str) -> dict[str, Any]:
    """Return the answers of a simulation, but for what it took."""
    scenario = scenario_of(_document(case, folder), changes)
    return scenario.workload.simulate(scenario).as_json() | {"engine": None}


@pytest.mark.parametrize(
    ("case", "change", "key", "said"),
    [
        (_service("{preset: llama-3-8b}", DRAWN),
         "model.sequence_length=4096", "model.sequence_length", "take the lengths of sequences from requests"),
        (CASES[3], "requests.prompt_tokens=100", "requests.prompt_tokens", "the trace says it of every request"),
        (CASES[3], "model.experts.gate=gshard", "model.experts.gate", "get equally many tokens"),
        (CASES[4], "model.attention=flash", "model.attention", "attention to caches is one kernel"),
        (CASES[0], "training={global_batch_size: 16, microbatch_size: 1, optimizer: sgd, adam_beta1: 0.5}",
         "training.adam_beta1", "sgd has no moments"),
        (CASES[-1], "failures.repair=1 h", "failures.repair", "no failure is drawn"),
        (CASES[-1], "failures.save_every=1 h", "failures.save_every", "no node fails"),
    ],
)  # fmt: skip
def test_a_key_that_is_not_read_is_refused_by_its_name(
    case: Case, change: str, key: str, said: str, schema: dict[str, Any], tmp_path: Path
) -> None:
    """The message names the key, why nobody reads it, and the option that wrote it; an editor marks the file."""
    (tmp_path / "requests.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.0,100,5\n")
    with pytest.raises(ScenarioError, match=said) as caught:
        scenario_of(_document(case, tmp_path), [change])
    assert (caught.value.key, caught.value.origin.option) == (key, f"--set {change}")
    changed = apply_overrides(_document(case, tmp_path), [change])
    assert not jsonschema.Draft202012Validator(schema).is_valid(changed.data)
