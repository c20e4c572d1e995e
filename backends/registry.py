"""The one place where a backend is imported on demand: simulating must not need torch."""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from backends.errors import MissingBackendError


def load_torch_backend() -> ModuleType:
    """Return the torch backend's module. Raises MissingBackendError where torch is not installed."""
    if find_spec("torch") is None:
        raise MissingBackendError("executing needs torch, which is not installed; pip install 'meshtwin[torch]'")
    return import_module("backends.torch.backend")
