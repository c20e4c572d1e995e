"""The YAML files that are packaged with the cost models: the hardware catalogue and the profiles."""

from collections.abc import Mapping
from importlib import resources
from typing import Any

import yaml


def packaged_yaml(folder: str, name: str) -> Mapping[str, Any]:
    """Return a packaged YAML file of a folder, e.g. ``packaged_yaml("catalogue", "nodes")``.

    If PyYAML has libyaml, it reads the file several times as fast as Python would, with the same result.
    """
    text = resources.files("costmodels").joinpath(folder, f"{name}.yaml").read_text(encoding="utf-8")
    loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
    entries: Mapping[str, Any] = yaml.load(text, loader)
    return entries
