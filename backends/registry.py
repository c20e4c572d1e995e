"""The one place where a backend is imported on demand: simulating must not need torch."""

from importlib import import_module
from importlib.util import find_spec

from backends.errors import MissingBackendError
from backends.execution.protocol import TorchLibrary


def load_torch_backend() -> TorchLibrary:
    """Return the functions that need torch. Raises MissingBackendError if torch is not installed."""
    if find_spec("torch") is None:
        raise MissingBackendError("executing needs torch, which is not installed; pip install 'meshtwin[torch]'")
    library: object = import_module("backends.torch.backend").Library()
    assert isinstance(library, TorchLibrary)
    return library
