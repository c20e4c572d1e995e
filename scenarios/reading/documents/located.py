"""Give errors of the simulated world the place in the file that they are about."""

from collections.abc import Iterator
from contextlib import contextmanager

from scenarios.errors import ScenarioError
from scenarios.reading.documents.yaml_tree import Document
from sim.errors import KeyedError


@contextmanager
def located(document: Document) -> Iterator[None]:
    """Give an error of the simulated world raised inside the origin of the key that it names."""
    try:
        yield
    except KeyedError as error:
        origin = document.origin(error.key.split("."))
        raise ScenarioError(origin, error.key, error.rule, error.remedy) from error
