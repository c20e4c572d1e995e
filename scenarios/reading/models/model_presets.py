"""Published models by name, read from the files in ``scenarios/library/presets``.

Each file holds ``source`` (where its numbers come from), optional ``notes``, and ``models``: a mapping from
preset name to the keys of a ``model`` section.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from scenarios.errors import ScenarioError
from scenarios.library.shipped import FOLDER
from scenarios.reading.documents.yaml_tree import read_document

_REMEDY: Final = "write it as the other files beside it"
PRESETS_FOLDER: Final = FOLDER / "presets"


class Preset(Struct, frozen=True, kw_only=True):
    """A published model: the keys of its ``model`` section and where they come from."""

    name: str
    keys: dict[str, Any]
    source: str


def load_preset(name: str, folder: Path = PRESETS_FOLDER) -> Preset | None:
    """Return the preset of a name, None if there is none; files without the name are not parsed."""
    return _presets_of(path for path in _files(folder) if name in path.read_text(encoding="utf-8")).get(name)


def load_presets(folder: Path = PRESETS_FOLDER) -> dict[str, Preset]:
    """Return every preset by name, in the order of the files and of the models in them."""
    return _presets_of(_files(folder))


def _files(folder: Path) -> Sequence[Path]:
    return sorted(folder.glob("*.yaml"))


def _presets_of(files: Iterable[Path]) -> dict[str, Preset]:
    presets: dict[str, Preset] = {}
    for path in files:
        document = read_document(path)
        models, source = document.data.get("models"), document.data.get("source")
        if not isinstance(source, str) or not isinstance(models, dict):
            rule = "a file of presets has source:, text, and models:, a mapping"
            raise ScenarioError(document.origin(()), "", rule, _REMEDY)
        for name, keys in models.items():
            if not isinstance(keys, dict):
                raise ScenarioError(document.origin(("models", name)), name, "a preset is a mapping of keys", _REMEDY)
            presets[name] = Preset(name=name, keys=keys, source=source)
    return presets
