"""The config.json that ``model.huggingface`` names: a file of this machine. Nothing is downloaded."""

import re
from pathlib import Path
from typing import Final

from scenarios.errors import ScenarioError, nearest
from scenarios.reading.documents.named_file import named_file
from scenarios.reading.documents.yaml_tree import Document, KeyPath
from scenarios.reading.models.model_presets import load_presets

_KEY: Final[KeyPath] = ("model", "huggingface")
_HUB_ID: Final = re.compile(r"(?!.*\.(json|ya?ml)$)\w[\w.-]*(/\w[\w.-]*)?")
_HINT: Final = "use the config.json of a whole model"
_CONFIG: Final = "config.json"


def config_path(document: Document, name: str) -> Path:
    """Return the path of the file that ``model.huggingface`` names.

    Raises ScenarioError, with the key and a way to the file, for the name of a model on the Hugging Face hub, for a
    folder, and where nothing lies there.
    """
    origin, key = document.origin(_KEY), ".".join(map(str, _KEY))
    try:
        path = named_file(document, _KEY, name, _HINT)
    except ScenarioError as error:
        if not _HUB_ID.fullmatch(name):
            raise
        rule = f"there is no file {name}; only files are read, and nothing is downloaded from the hub"
        raise ScenarioError(origin, key, rule, _download(name)) from error
    if path.is_dir():
        has_config = (path / _CONFIG).is_file()
        remedy = f"write {key}: {Path(name) / _CONFIG}" if has_config else "name the config.json of a whole model"
        raise ScenarioError(origin, key, f"{path} is a directory, not a file", remedy)
    return path


def _download(name: str) -> str:
    """Return how to come by the file of a model of the hub, and the preset that is most like it."""
    close = nearest(name.rpartition("/")[2], load_presets(), 0.75)
    preset = f"; or write model.preset: {close}" if close else ""
    url = f"https://huggingface.co/{name}/resolve/main/{_CONFIG}"
    return f"download {url} and write model.huggingface: {_CONFIG}{preset}"
