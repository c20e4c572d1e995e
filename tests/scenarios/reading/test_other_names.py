"""Keys that other programs call otherwise, and keys in the wrong section: the message names the key to write."""

import pytest

from scenarios.errors import ScenarioError
from scenarios.reading.documents.checking import check_document, key_paths
from scenarios.reading.documents.other_names import OTHER_NAMES, name_elsewhere
from scenarios.reading.documents.overrides import apply_overrides
from scenarios.reading.documents.yaml_tree import read_document
from scenarios.workloads.registry import workloads
from scenarios.workloads.textbook.schema import DelayScenario
from scenarios.workloads.training.schema import DenseScenario
from tests.scenarios.conftest import QUICKSTART, TEXTBOOK

NAMES = [(known, name) for known in OTHER_NAMES for name in known.names.split()]


def test_every_other_name_leads_to_a_key_of_some_kind_of_work() -> None:
    """Keys that are named exist, and no other program's name is itself a key where it is refused."""
    keys = [{".".join(path) for path in key_paths(kind.schema)} for kind in workloads()]
    for known, name in NAMES:
        having = [known_keys for known_keys in keys if known.key in known_keys]
        assert having, known.key
        section = known.key.rpartition(".")[0]
        assert all(f"{section}.{name}" not in known_keys for known_keys in having), name


def _is_deeper(key: str) -> bool:
    """Return whether a key stands in a section that the file lacks, or in a list."""
    return "experts" in key or "stragglers" in key


@pytest.mark.parametrize(("text", "schema"), [(QUICKSTART, DenseScenario), (TEXTBOOK, DelayScenario)])
def test_other_names_are_answered_wherever_they_stand(write, text: str, schema: type) -> None:
    """In the right section, in a wrong one and at the top, each name is refused with the key of this kind of work."""
    document = read_document(write(text))
    keys = {".".join(path) for path in key_paths(schema)}
    known_names = {name for known, name in NAMES if known.key in keys and not _is_deeper(known.key)}
    for name in sorted(known_names):
        owner = next(known for known, other in NAMES if other == name and known.key in keys)
        for section in {owner.key.rpartition(".")[0], "training", ""}:
            key = f"{section}.{name}".lstrip(".")
            if key in keys:
                continue
            changed = apply_overrides(document, [f"{key}=1"])
            with pytest.raises(ScenarioError) as caught:
                check_document(changed, schema)
            assert (caught.value.key, caught.value.rule) == (key, "unknown key")
            assert caught.value.remedy == owner.remedy(name)


@pytest.mark.parametrize(
    ("name", "known", "remedy"),
    [
        ("Tensor-Parallel-Size", (), "Tensor-Parallel-Size is written as a.degree here"),
        ("degree", ("depth",), "degree belongs under one of a, b"),
        ("deep", ("dept",), "deep belongs under b.c: write b.c.deep; or did you mean dept?"),
        ("top", (), "top belongs at the top of the file, under no other key"),
        ("degrees", (), "did you mean a.degree?"),
        ("degrees", ("degre",), ""),
        ("nothing", (), ""),
    ],
)
def test_nearest_place_of_a_name_comes_first(monkeypatch, name: str, known: tuple[str, ...], remedy: str) -> None:
    """Another program's name, then a key of another section, then a key like it where the section has none."""
    keys = [("a",), ("a", "degree"), ("b",), ("b", "degree"), ("b", "c", "degree"), ("b", "c", "deep"), ("top",)]
    path = "scenarios.reading.documents.other_names.OTHER_NAMES"
    monkeypatch.setattr(path, (type(OTHER_NAMES[0])("a.degree", "tensor_parallel_size"),))
    assert name_elsewhere(name, known, keys) == remedy
