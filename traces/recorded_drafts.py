"""Recorded hit rates of drafts, one YAML file per model and text. ``backends/torch/decoding`` records them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from msgspec import Struct

FOLDER: Final = Path(__file__).parent / "drafts"


class RecordedDrafts(Struct, frozen=True):
    """Recorded hit rates of draft methods.

    ``tables``: for each tree method, hit rates by depth and rank, under the condition that the tokens before are right.
    ``acceptance``: for each chain method, the fraction of judged tokens that were accepted.
    """

    tables: Mapping[str, tuple[tuple[float, ...], ...]]
    acceptance: Mapping[str, float]


def recording_names() -> tuple[str, ...]:
    """Return the names of the packaged recordings."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


def recorded_drafts(name: str) -> RecordedDrafts:
    """Return a packaged recording by its name."""
    found: Mapping[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    methods = {key: value for key, value in found.items() if isinstance(value, Mapping)}
    return RecordedDrafts(
        tables={key: tuple(map(tuple, of["hit_rates"])) for key, of in methods.items() if "hit_rates" in of},
        acceptance={key: of["acceptance"] for key, of in methods.items() if "acceptance" in of},
    )
