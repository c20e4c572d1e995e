"""Descriptions of keys in the JSON Schema: the docstrings of fields.

Pydantic reads these docstrings from the source of each class when the class is made. Here they are read when a schema
is asked for, which few commands do.
"""

import ast
import inspect
import sys
from collections.abc import Mapping
from functools import cache
from types import ModuleType

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema


class DescribedSchema(GenerateJsonSchema):
    """A generator of JSON Schema that describes each key by the docstring of its field."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Return the JSON Schema of a model, its keys described."""
        written = super().model_schema(schema)
        documented = _docstrings(schema["cls"])
        for name, key in written.get("properties", {}).items():
            if name in documented:
                key.setdefault("description", documented[name])
        return written


def _docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstring of each field of a model, its own and those that it inherits."""
    found: dict[str, str] = {}
    for owner in reversed(model.__mro__):
        if issubclass(owner, BaseModel) and owner is not BaseModel:
            found |= _own_docstrings(owner)
    return found


def _own_docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstring under each annotated name in the source of a class."""
    parsed = _classes_of(sys.modules[model.__module__])[model.__name__]
    found: dict[str, str] = {}
    for field, below in zip(parsed.body, parsed.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                found[name] = inspect.cleandoc(words)
    return found


@cache
def _classes_of(module: ModuleType) -> Mapping[str, ast.ClassDef]:
    """Return the classes at the top of a module's source, parsed once for all of them."""
    parsed = ast.parse(inspect.getsource(module))
    return {node.name: node for node in parsed.body if isinstance(node, ast.ClassDef)}
