"""Hold a document against its schema, and report the first thing wrong as its writer would want to read it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from scenarios.errors import Origin, ScenarioError, nearest, suggestion
from scenarios.reading.documents.other_names import name_elsewhere
from scenarios.reading.documents.yaml_tree import Document, KeyPath, describe
from scenarios.reading.schema.model import (
    MODEL_SECTIONS,
    ROUTING_FORMS,
    GptModel,
    HuggingFaceModel,
    LlamaModel,
    PresetModel,
)
from scenarios.reading.schema.values import Section

SectionType = TypeVar("SectionType", bound=Section)

MODEL_FORMS = "family: gpt, llama or delay; or preset: NAME; or huggingface: path/to/config.json"


def check_document(document: Document, schema: type[SectionType]) -> SectionType:
    """Return the document's values as ``schema``. Raises ScenarioError for the first broken rule by line."""
    refuse_nulls(document)
    try:
        return schema.model_validate(document.data)
    except ValidationError as error:
        details = error.errors()
    problems = [(detail["type"] == "missing", _problem(document, schema, detail)) for detail in details]
    problems.sort(key=lambda entry: (entry[0], entry[1].line))  # a mistyped key before the key that it should be
    first = problems[0][1]
    raise ScenarioError(first.origin, first.key, first.rule, first.remedy, num_more=len(problems) - 1)


def refuse_nulls(document: Document) -> None:
    """Raise ScenarioError for the first key that is written without a value."""
    for path, value in _walk(document.data, ()):
        if value is None:
            remedy = "write a value, or leave the key out for its default"
            if isinstance(path[-1], str) and ":" in path[-1]:
                remedy = f"write a blank after the colon: {path[-1].replace(':', ': ', 1)[:100]}"
            raise ScenarioError(document.origin(path), dotted(path), "the key has no value", remedy)


def dotted(path: Sequence[str | int]) -> str:
    """Return a key path for messages: ``parallel.pipeline.layers_per_stage[3]``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f"{'.' if text else ''}{part[:60]}"
    return text


def _walk(value: object, path: KeyPath) -> Iterator[tuple[KeyPath, object]]:
    """Yield every key path below ``value`` with its value, in the order written."""
    items: Mapping[Any, object] = {}
    if isinstance(value, dict):
        items = value
    elif isinstance(value, list):
        items = dict(enumerate(value))
    for key, child in items.items():
        yield (*path, key), child
        yield from _walk(child, (*path, key))


def _problem(document: Document, schema: type[Section], detail: ErrorDetails) -> ScenarioError:
    """Return one of pydantic's errors with origin, key, rule and remedy."""
    location = _without_forms(detail["loc"])
    is_union = _has_model(schema) and len(location) > 1 and location[0] == "model"
    path: KeyPath = (location[0], *location[2:]) if is_union else location  # [1] is the union's tag
    owner = _owner(schema, location, is_union=is_union)
    if detail["type"].startswith("union_tag") and isinstance(detail["input"], dict) and "family" in detail["input"]:
        path = (*path, "family")
    rule, remedy = _explain(detail, path, owner, schema)
    return ScenarioError(_origin(document, detail, path), dotted(path), rule, remedy)


def _without_forms(location: KeyPath) -> KeyPath:
    """Return a location without the parts that are no keys: the form in which a routing is written, behind its key."""
    return tuple(
        part for place, part in enumerate(location)
        if not (part in ROUTING_FORMS and place and location[place - 1] == "routing")
    )  # fmt: skip


def _has_model(schema: type[Section]) -> bool:
    """Return whether a file has a model of one of several kinds."""
    field = schema.model_fields.get("model")
    options = get_args(field.annotation) if field is not None else ()
    return any(PresetModel in get_args(option) for option in options)


def _origin(document: Document, detail: ErrorDetails, path: KeyPath) -> Origin:
    """Return where the problem is: the key's line, for a missing key its section's."""
    return document.origin(path[:-1] if detail["type"] == "missing" else path)


def _owner(schema: type[Section], location: KeyPath, *, is_union: bool) -> type[Section] | None:
    """Return the section class whose key the location's last part is."""
    owner: type[Section] | None = schema
    for index, part in enumerate(location[:-1]):
        if isinstance(part, int) or (is_union and index == 0):  # an item of a list is of the list's section
            continue
        owner = MODEL_SECTIONS.get(str(part)) if is_union and index == 1 else _section_at(owner, part)
    return owner


def _section_at(owner: type[Section] | None, key: str | int) -> type[Section] | None:
    """Return the section class that ``key`` of ``owner`` holds, if it holds one."""
    field = owner.model_fields.get(str(key)) if owner else None
    return _section_in(field.annotation) if field else None


def _section_in(annotation: Any) -> type[Section] | None:
    """Return the section class in an annotation: a section, one that may be left out, or one form of several."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((found for option in get_args(annotation) if (found := _section_in(option))), None)


def _explain(
    detail: ErrorDetails, path: KeyPath, owner: type[Section] | None, schema: type[Section]
) -> tuple[str, str]:
    """Return rule and remedy of one of pydantic's errors."""
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    got = describe(value)
    match kind:
        case "rule":
            return str(context["rule"]), str(context["remedy"])
        case "missing":
            return "the key is required and missing", _missing_remedy(path)
        case "extra_forbidden":
            return "unknown key", _unknown_remedy(path, owner, schema)
        case "literal_error":
            return f"{got} is not one of {context['expected']}", _choice_remedy(value, str(context["expected"]))
        case "union_tag_invalid" | "union_tag_not_found":
            return _model_problem(value)
        case "too_short" | "too_long":
            return _length_problem(context, kind)
        case "string_too_short" | "string_too_long":
            return f"text of 1 to {context.get('max_length', 200)} characters belongs here", "write a name"
    if kind in _TYPES:
        rule, remedy = _TYPES[kind]
        if _TYPES[kind] is _MAPPING and isinstance(path[-1], str):
            remedy = _mapping_remedy(path[-1], value, _section_at(owner, path[-1]))
        return f"{rule} belongs here, not {got}", remedy
    for name, words in _LIMITS.items():
        if name in context:
            limit = context[name]
            shown = f"{limit:,}" if isinstance(limit, int) else f"{limit:g}"
            return f"must be {words} {shown}, got {got}", f"write a number {words} {shown}"
    return f"{detail['msg'][:1].lower()}{detail['msg'][1:]}, got {got}", "see: simulate schema"


_OTHER_VALUES = {
    "float16": "fp16", "half": "fp16", "mixed": "bf16", "amp": "bf16", "float32": "fp32", "tf32": "fp32",
    "float64": "fp64", "float8": "fp8", "zero_bubble": "zb_h1", "zb": "zb_h1", "block": "full", "uniform": "full",
    "true": "full", "core_attn": "selective",
}  # fmt: skip
"""What other programs call the values of some keys."""
_LIMITS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
_MAPPING = ("a mapping", "write keys below it, indented, or {key: value}")
_TYPES = {
    "int_type": ("a whole number", "write it without quotes, point or unit, as in 8"),
    "int_parsing_size": ("a whole number", "write a smaller number"),
    "float_type": ("a number", "write it without quotes or unit, as in 0.1"),
    "bool_type": ("true or false", "write true or false, without quotes"),
    "string_type": ("text", "write text, in quotes if it looks like a number"),
    "tuple_type": ("a list", "write [first, second, ...]"),
    "list_type": ("a list", "write [first, second, ...]"),
    "finite_number": ("a finite number", "write a number"),
    "model_type": _MAPPING,
    "model_attributes_type": _MAPPING,
    "dict_type": _MAPPING,
}


def _mapping_remedy(name: str, value: object, section: type[Section] | None) -> str:
    """Return how to write a section for which a bare value stands: a number where it has a degree is that."""
    is_degree = section is not None and "degree" in section.model_fields and (value == "auto" or type(value) is int)
    return f"write {name}: {{degree: {value}}}" if is_degree else _MAPPING[1]


def _missing_remedy(path: KeyPath) -> str:
    above = dotted(path[:-1])
    return f"add {path[-1]}: to {above}" if above else f"add {path[-1]}: to the file (simulate new shows where)"


def _unknown_remedy(path: KeyPath, owner: type[Section] | None, schema: type[Section]) -> str:
    """Return the nearest key of the section, or the section where the key would be right."""
    name = str(path[-1])
    known = list(owner.model_fields) if owner else []
    if name == "<<":
        return "merge keys are not read: write the keys out"
    if name == "huggingface" and owner is PresetModel:
        return "a model has one origin: keep either preset or huggingface"
    if name == "family" and (owner is PresetModel or owner is HuggingFaceModel):
        form = "preset" if owner is PresetModel else "huggingface"
        return f"{form} brings its own family: leave this key out (--set model='{{{form}: ...}}' replaces the section)"
    if path[:-1] == ("model",) and (family := _family_with(name, owner)):
        return f"only models of family: {family} have it"
    return name_elsewhere(name, known, key_paths(schema)) or suggestion(name, known)


def _family_with(name: str, owner: type[Section] | None) -> str:
    """Return the family of models that has a key, where those of ``owner`` lack it; else nothing."""
    families = (GptModel, LlamaModel)
    found = [family for family in families if owner in families and name in family.model_fields]
    return next((family for family, section in MODEL_SECTIONS.items() if section in found), "")


def key_paths(schema: type[Section], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of every key that a file of this schema, or a section of it, may have."""
    for name in schema.model_fields:
        path = (*above, name)
        yield path
        is_model = not above and name == "model" and _has_model(schema)
        inner = list(MODEL_SECTIONS.values()) if is_model else [_section_at(schema, name)]
        for section in inner:
            if section is not None:
                yield from key_paths(section, path)


def _choice_remedy(value: object, expected: str) -> str:
    choices = [choice.strip("'") for choice in expected.replace(" or ", ", ").split(", ")]
    close = _OTHER_VALUES.get(str(value).lower(), "")
    if close not in choices:
        close = nearest(str(value), choices)
    return f"did you mean {close}?" if close else f"write {expected}"


def _model_problem(value: object) -> tuple[str, str]:
    """Return rule and remedy for a model that is of no known kind."""
    if isinstance(value, str) and value and "/" not in value:
        remedy = f"write {{preset: {value}}}, if it is a name of: simulate list presets; else {MODEL_FORMS}"
        return f"a mapping belongs here, not {describe(value)}", remedy
    if not isinstance(value, dict):
        return f"a mapping belongs here, not {describe(value)}", f"write {MODEL_FORMS}"
    family = value.get("family")
    if family is None:
        return "nothing says what kind of model this is", f"write {MODEL_FORMS}"
    close = nearest(str(family), ("gpt", "llama", "delay"))
    remedy = f"did you mean family: {close}?" if close else f"write {MODEL_FORMS}"
    return f"there is no model family {describe(family)}", remedy


def _length_problem(context: Mapping[str, Any], kind: str) -> tuple[str, str]:
    limit = context["min_length"] if kind == "too_short" else context["max_length"]
    words = "at least" if kind == "too_short" else "at most"
    limits = f"{words} {limit:,} item{'' if limit == 1 else 's'}"
    return f"the list must hold {limits}, it holds {context['actual_length']}", "list as many as needed"
