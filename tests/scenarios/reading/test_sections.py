"""Sections are read as pydantic reads models with the same annotations, and without it."""

import math
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from random import Random
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Meta
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    ValidationError,
    create_model,
)
from pydantic_core import PydanticCustomError

from scenarios.reading.schema.memory import ChunkOffloadSection, TiersSection
from scenarios.reading.schema.moe import MoeSection
from scenarios.reading.sections.markers import Checked, OneOf, Parsed, RefusalError
from scenarios.reading.sections.section import (
    Section,
    keys_of,
    plain_value,
    sections_in,
    values_of,
    with_values,
    written_keys,
)
from scenarios.reading.sections.section_reader import BrokenRulesError, limits_of, optional_of, read_section
from scenarios.workloads.registry import KINDS

_TAG = "<form>"
_JUNK = (
    None, True, 0, 3, -1, 10**400, 2.5, -0.1, math.nan, math.inf, "x", "", "auto", "y" * 5000, [], [1, "1"], {},
    {"family": "gpt"}, {"family": "bert"}, {"skew": 1},
)  # fmt: skip
_TEXTS = ("2 GB", "3 ms", "2x", "auto", 3, True, 0.5, "10 GB/s", "2 USD/h", [1, 2], "15 T", "0-3", {"kind": "a"})


def _told(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function of a marker as pydantic calls it."""

    def read(value: Any) -> Any:
        try:
            return function(value)
        except RefusalError as refusal:
            context = {"rule": refusal.rule, "remedy": refusal.remedy}
            raise PydanticCustomError("rule", "{rule}", context) from refusal

    return read


@cache
def _model(section: Any) -> type[BaseModel]:
    """Return a pydantic model with the keys of a section."""
    fields: dict[str, Any] = {}
    for name, key in keys_of(section).items():
        default = _model(type(key.default))() if isinstance(key.default, Section) else plain_value(key.default)
        fields[name] = (_annotation(key.annotation), ... if key.is_required else default)
    config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())
    return create_model(section.__name__, __config__=config, **fields)


def _annotation(annotation: Any, *marks: Any) -> Any:
    """Return an annotation in pydantic's words."""
    origin, inner = get_origin(annotation), get_args(annotation)
    found: list[Any] = []
    if origin is Annotated:
        forms = [mark for mark in marks or annotation.__metadata__ if isinstance(mark, OneOf)]
        parsed = [mark for mark in annotation.__metadata__ if isinstance(mark, Parsed)]
        if parsed:
            return Annotated[Any, PlainValidator(_told(parsed[0].parse))]
        if forms:
            return _forms(get_args(annotation.__origin__), forms[0])
        found = [part for mark in annotation.__metadata__ for part in _mark(mark, annotation.__origin__)]
        return Annotated[(_annotation(annotation.__origin__), *found)]
    if origin is Literal:
        return annotation
    if NoneType in inner:
        return _annotation(optional_of(annotation)) | None
    if origin is tuple:
        return Annotated[tuple[_annotation(inner[0]), ...], Field(strict=False)]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return dict[str, _annotation(inner[1])]  # type: ignore[misc]
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return _model(annotation)
    return Annotated[float, Field(allow_inf_nan=False)] if annotation is float else annotation


def _mark(mark: Any, of: Any) -> tuple[Any, ...]:
    if isinstance(mark, Checked):
        return (AfterValidator(_told(mark.check)),)
    assert isinstance(mark, Meta), (mark, of)
    limits = limits_of(mark)
    if "max_length" in limits and of is not str:
        return Field(**limits), BeforeValidator(_no_longer_than(limits["max_length"]))
    return (Field(**limits),)


def _no_longer_than(most: int) -> Callable[[Any], Any]:
    """Return a check of the items that are written: pydantic counts those that are valid."""

    def read(value: Any) -> Any:
        if isinstance(value, list | tuple | dict) and len(value) > most:
            context = {"max_length": most, "actual_length": len(value)}
            raise PydanticCustomError("too_long", "at most {max_length}", context)
        return value

    return read


def _forms(forms: tuple[Any, ...], one_of: OneOf) -> Any:
    """Return a union in which the marker's function says which form a value has."""
    tags = {form: f"{_TAG}{number}" for number, form in enumerate(forms)}
    options = [Annotated[_annotation(form), Tag(tag)] for form, tag in tags.items()]
    union = options[0]
    for option in options[1:]:
        union |= option
    return Annotated[union, Discriminator(lambda value: tags.get(one_of.form_of(value)))]


def _drawn(annotation: Any, random: Random) -> Any:
    """Return a value that an annotation often takes, and now and then one that no annotation expects."""
    if random.random() < 0.03:
        return random.choice(_JUNK)
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        marks = annotation.__metadata__
        if any(isinstance(mark, Parsed) for mark in marks):
            return random.choice(_TEXTS)
        if any(isinstance(mark, OneOf) for mark in marks):
            return _drawn(random.choice(get_args(annotation.__origin__)), random)
        limits: dict[str, Any] = {}
        for mark in marks:
            limits |= limits_of(mark) if isinstance(mark, Meta) else {}
        if annotation.__origin__ in {int, float}:
            edges = [limit for name, limit in limits.items() if name in {"le", "lt", "ge", "gt"}]
            return random.choice([*edges, *(edge - 1 for edge in edges), 1, 2, 0.5, True])
        return _drawn(annotation.__origin__, random)
    if origin is Literal:
        return random.choice(inner)
    if NoneType in inner:
        return _drawn(optional_of(annotation), random)
    if origin is tuple:
        return [_drawn(inner[0], random) for _ in range(random.choice((0, 1, 2, 3, 17)))]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {name: _drawn(inner[1], random) for name in random.sample("abc", 2)}
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return _document(annotation, random)
    return random.choice({int: (1, 7), float: (0.5, 2), bool: (True, False), str: ("a", "b")}[annotation])


def _document(section: type[Section], random: Random) -> dict[str, Any]:
    """Return a document of a section: most required keys, few others, and now and then one that is unknown."""
    names = {
        name: key.annotation for name, key in keys_of(section).items()
        if random.random() < (0.98 if key.is_required else 0.15)
    }  # fmt: skip
    found = {name: _drawn(annotation, random) for name, annotation in names.items()}
    return found | ({"unknown": 1} if random.random() < 0.02 else {})


def _by_pydantic(section: type[Section], data: object) -> tuple[Any, list[Any]]:
    """Return the values that pydantic reads, and its errors: path, kind, value and what the rule says."""
    try:
        return _model(section).model_validate(data).model_dump(warnings=False), []
    except ValidationError as error:
        found = [
            (
                tuple(part for part in each["loc"] if not str(part).startswith(_TAG)),
                each["type"].replace("union_tag_not_found", "union_tag_invalid"),
                repr(each["input"]),
                {key: value for key, value in each.get("ctx", {}).items() if key in _COMPARED},
            )
            for each in error.errors()
            if each["type"] != "too_short" or len(each["input"]) < each["ctx"]["min_length"]  # it counts valid items
        ]
        return None, found


_COMPARED = ("rule", "remedy", "le", "lt", "ge", "gt", "min_length", "max_length", "actual_length")


def _by_us(section: type[Section], data: object) -> tuple[Any, list[Any]]:
    try:
        return values_of(read_section(section, data)), []
    except BrokenRulesError as error:
        found = [
            (each.path, each.kind, repr(each.value), {k: v for k, v in each.context.items() if k in _COMPARED})
            for each in error.problems
        ]
        return None, found


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@given(seed=st.integers(0, 2**32))
@example(seed=1095)  # a list of training has too many items, some of them invalid
def test_documents_are_read_as_pydantic_reads_them(kind: Any, seed: int) -> None:
    """For random documents, most of them broken somewhere, values and all errors are those of a pydantic model."""
    schema, random = kind.workload.schema, Random(seed)
    sections = [schema, *(inner for key in keys_of(schema).values() for inner in sections_in(key.annotation))]
    for section in sections:
        document = _document(section, random)
        assert _by_us(section, document) == _by_pydantic(section, document)


@given(value=st.sampled_from(_JUNK + _TEXTS))
def test_a_value_that_is_no_mapping_is_no_section(value: object) -> None:
    """What stands for a whole section is read as pydantic reads it."""
    assert [problem[1] for problem in _by_us(MoeSection, value)[1]] == [
        problem[1].replace("model_attributes_type", "model_type") for problem in _by_pydantic(MoeSection, value)[1]
    ]


@pytest.mark.parametrize("name", ["parameters", "optimizer"])
@pytest.mark.parametrize("value", [math.nan, math.inf, 10**400])
def test_numbers_are_finite(name: str, value: float) -> None:
    """A fraction that is no finite number is refused."""
    with pytest.raises(BrokenRulesError, match=r"finite_number|float_type"):
        read_section(ChunkOffloadSection, {name: value})


def test_a_section_knows_which_keys_were_written() -> None:
    """Keys that are left out have their defaults; a changed copy keeps what was written."""
    section = read_section(ChunkOffloadSection, {"parameters": 1})
    assert values_of(section) == {"parameters": 1.0, "optimizer": 0.0}
    assert set(written_keys(section)) == {"parameters"}
    assert with_values(section, optimizer=0.5) == ChunkOffloadSection(parameters=1.0, optimizer=0.5)
    assert hash(section) == hash(ChunkOffloadSection(parameters=1.0, optimizer=0.0)) != hash(ChunkOffloadSection())


def test_a_section_is_not_changed() -> None:
    """Keys cannot be set or deleted, and a section has no others."""
    section = TiersSection()
    with pytest.raises(AttributeError, match="nvme cannot be changed"):
        section.nvme = None  # type: ignore[misc]
    with pytest.raises(AttributeError, match="nvme cannot be deleted"):
        del section.nvme
    with pytest.raises(TypeError, match="MoeSection needs the key system"):
        MoeSection()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="TiersSection has no key disk"):
        TiersSection(disk=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("arguments", [[], ["--set", "training.global_batch_size=many"]], ids=["answer", "refusal"])
def test_no_scenario_needs_pydantic(arguments: list[str]) -> None:
    """Neither an answer nor a refusal imports pydantic, nor its core."""
    program = (
        "import sys; from scenarios.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print([name for name in sys.modules if name.startswith('pydantic')], file=sys.stderr)"
    )
    command = [sys.executable, "-c", program, "tiny-gpt-two-stages", "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3])
    assert done.stderr.rstrip().endswith("\n[]" if arguments else "[]"), done.stderr
    assert ("a whole number belongs here" in done.stderr) == bool(arguments)
