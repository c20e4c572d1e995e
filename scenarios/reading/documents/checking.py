"""Hold a document against its schema, and report the first thing wrong as its writer would want to read it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scenarios.errors import ScenarioError, nearest, suggestion
from scenarios.reading.documents import other_names
from scenarios.reading.documents.yaml_tree import Document, KeyPath, describe
from scenarios.reading.schema.model import (
    MODEL_SECTIONS,
    GptModel,
    HuggingFaceModel,
    LlamaModel,
    PresetModel,
)
from scenarios.reading.sections.section import Section, SectionType, keys_of, sections_in
from scenarios.reading.sections.section_reader import BrokenRulesError, Problem, read_section

MODEL_FORMS = "family: gpt, llama or delay; or preset: NAME; or huggingface: path/to/config.json"


def check_document(document: Document, schema: type[SectionType]) -> SectionType:
    """Return the document's values as ``schema``. Raises ScenarioError for the first broken rule by line."""
    refuse_nulls(document)
    try:
        return read_section(schema, document.data)
    except BrokenRulesError as error:
        found = error.problems
    problems = [(problem.kind == "missing", _explained(document, schema, problem)) for problem in found]
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


def _explained(document: Document, schema: type[Section], problem: Problem) -> ScenarioError:
    """Return a problem with origin, key, rule and remedy."""
    path = problem.path
    if problem.kind == "union_tag_invalid" and isinstance(problem.value, dict) and "family" in problem.value:
        path = (*path, "family")
    rule, remedy = _explain(problem, path, schema)
    above = path[:-1] if problem.kind == "missing" else path
    return ScenarioError(document.origin(above), dotted(path), rule, remedy)


def _section_at(owner: type[Section], key: str | int) -> type[Section] | None:
    """Return the section class that ``key`` of ``owner`` holds, if it holds one."""
    found = keys_of(owner).get(str(key))
    return next(sections_in(found.annotation), None) if found else None


def _explain(problem: Problem, path: KeyPath, schema: type[Section]) -> tuple[str, str]:
    """Return rule and remedy of a problem."""
    kind, value, context, owner = problem.kind, problem.value, problem.context, problem.owner
    got = describe(value)
    match kind:
        case "rule":
            return str(context["rule"]), str(context["remedy"])
        case "missing":
            return "the key is required and missing", _missing_remedy(path)
        case "extra_forbidden":
            return "unknown key", _unknown_remedy(path, owner, schema)
        case "literal_error":
            expected = _listed(context["choices"])
            return f"{got} is not one of {expected}", _choice_remedy(value, context["choices"], expected)
        case "union_tag_invalid":
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
    name = next(name for name in _LIMITS if name in context)
    words, limit = _LIMITS[name], context[name]
    shown = f"{limit:,}" if isinstance(limit, int) else f"{limit:g}"
    return f"must be {words} {shown}, got {got}", f"write a number {words} {shown}"


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
    "float_type": ("a number", "write it without quotes or unit, as in 0.1"),
    "bool_type": ("true or false", "write true or false, without quotes"),
    "string_type": ("text", "write text, in quotes if it looks like a number"),
    "tuple_type": ("a list", "write [first, second, ...]"),
    "finite_number": ("a finite number", "write a number"),
    "model_type": _MAPPING,
    "dict_type": _MAPPING,
}


def _mapping_remedy(name: str, value: object, section: type[Section] | None) -> str:
    """Return how to write a section for which a bare value stands: a number where it has a degree is that."""
    is_degree = section is not None and "degree" in keys_of(section) and (value == "auto" or type(value) is int)
    return f"write {name}: {{degree: {value}}}" if is_degree else _MAPPING[1]


def _missing_remedy(path: KeyPath) -> str:
    above = dotted(path[:-1])
    return f"add {path[-1]}: to {above}" if above else f"add {path[-1]}: to the file (simulate new shows where)"


def _unknown_remedy(path: KeyPath, owner: type[Section] | None, schema: type[Section]) -> str:
    """Return the nearest key of the section, or the section where the key would be right."""
    name = str(path[-1])
    known = list(keys_of(owner)) if owner else []
    if name == "<<":
        return "merge keys are not read: write the keys out"
    if name == "huggingface" and owner is PresetModel:
        return "a model has one origin: keep either preset or huggingface"
    if name == "family" and (owner is PresetModel or owner is HuggingFaceModel):
        form = "preset" if owner is PresetModel else "huggingface"
        return f"{form} brings its own family: leave this key out (--set model='{{{form}: ...}}' replaces the section)"
    if path[:-1] == ("model",) and (family := _family_with(name, owner)):
        return f"only models of family: {family} have it"
    return other_names.name_elsewhere(name, known, key_paths(schema)) or suggestion(name, known)


def _family_with(name: str, owner: type[Section] | None) -> str:
    """Return the family of models that has a key, where those of ``owner`` lack it; else nothing."""
    families = (GptModel, LlamaModel)
    found = [family for family in families if owner in families and name in keys_of(family)]
    return next((family for family, section in MODEL_SECTIONS.items() if section in found), "")


def key_paths(schema: type[Section], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of every key that a file of this schema, or a section of it, may have."""
    for name in keys_of(schema):
        path = (*above, name)
        yield path
        for section in sections_in(keys_of(schema)[name].annotation):
            yield from key_paths(section, path)


def _listed(choices: Sequence[str]) -> str:
    """Return words as a list in words: ``'a', 'b' or 'c'``."""
    *others, last = map(repr, choices)
    return f"{', '.join(others)} or {last}" if others else last


def _choice_remedy(value: object, choices: Sequence[str], expected: str) -> str:
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
