"""Keys of a training step that name files: the list of them is that of the keys whose readers look for one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from scenarios.errors import ScenarioError
from scenarios.reading.documents.named_file import FILES_OF_STEPS
from scenarios.workloads.loading import load_scenario

Keys = tuple[str, ...]
NOWHERE = "nowhere.json"
MODEL = {
    "family": "gpt", "num_layers": 2, "hidden_size": 64, "num_heads": 4, "sequence_length": 32, "vocab_size": 64,
    "experts": {
        "num_experts": 4, "top_k": 2, "ffn_hidden_size": 64, "dispatch": "exact", "routing": {"skew": {"zipf": 1.0}},
    },
}  # fmt: skip
BASE: dict[str, Any] = {
    "name": "a",
    "cluster": {"node": "hgx-h100", "num_nodes": 1},
    "model": MODEL,
    "training": {"global_batch_size": 8, "microbatch_size": 1},
    "parallel": {"pipeline": {"degree": 2}, "data": {"degree": 4}},
}
ALONE = {("model",), ("model", "experts", "routing")}
"""Sections in which a file stands for all other keys."""


def words_of(schema: dict[str, Any], node: dict[str, Any], path: Keys, inside: Keys) -> Iterator[Keys]:
    """Yield the keys below a node of the JSON Schema that may hold any text."""
    name = str(node.get("$ref", "")).rpartition("/")[2]
    if name and name not in inside:
        yield from words_of(schema, schema["$defs"][name], path, (*inside, name))
    if node.get("type") == "string" and "enum" not in node:
        yield path
    for choice in (part for key in ("anyOf", "oneOf", "allOf") for part in node.get(key, ())):
        yield from words_of(schema, choice, path, inside)
    for key, below in node.get("properties", {}).items():
        yield from words_of(schema, below, (*path, key), inside)


def written(keys: Keys) -> dict[str, Any]:
    """Return a training step in which a key holds a file's name."""
    document: dict[str, Any] = yaml.safe_load(yaml.safe_dump(BASE))
    section = document
    for key in keys[:-1]:
        section = section.setdefault(key, {})
    if keys[:-1] in ALONE:
        section.clear()
    section[keys[-1]] = NOWHERE
    return document


def test_every_key_whose_reader_looks_for_a_file_is_on_the_list(tmp_path: Path, schema: dict[str, Any]) -> None:
    """With a name of no file, each key on the list is refused for the missing file, and no other key is."""
    path, found = tmp_path / "step.yaml", set[Keys]()
    for keys in set(words_of(schema, {"$ref": "#/$defs/DenseScenario"}, (), ())):
        path.write_text(yaml.safe_dump(written(keys)))
        try:
            load_scenario(path)
        except ScenarioError as error:
            if "there is no such file" in str(error):
                found.add(keys)
    assert found == set(FILES_OF_STEPS)


def test_the_step_without_such_a_key_is_read(tmp_path: Path) -> None:
    """What is refused above is refused for its file."""
    (tmp_path / "step.yaml").write_text(yaml.safe_dump(BASE))
    assert load_scenario(tmp_path / "step.yaml").name == "a"
