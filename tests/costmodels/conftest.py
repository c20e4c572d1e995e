"""Where the shared measurements lie."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of shared measurements; skip where there is none."""
    default = Path(__file__).resolve().parents[2].parent / "shared"
    folder = Path(os.environ.get("MESHTWIN_SHARED", default)) / "data"
    if not folder.is_dir():
        pytest.skip(f"no shared measurements at {folder} (set MESHTWIN_SHARED)")
    return folder
