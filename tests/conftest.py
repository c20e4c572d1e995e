"""What all tests share."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "meshtwin",
    deadline=None,  # a busy machine must not fail a test
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("meshtwin")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of shared measurements; skip where there is none."""
    default = Path(__file__).resolve().parents[1].parent / "shared"
    folder = Path(os.environ.get("MESHTWIN_SHARED", default)) / "data"
    if not folder.is_dir():
        pytest.skip(f"no shared measurements at {folder} (set MESHTWIN_SHARED)")
    return folder
