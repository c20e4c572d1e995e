"""Small expressions over the cells of one row: ``gpus / 8``, ``'a' if interleave > 1 else 'b'``.

They may contain column names, whole numbers, quoted text, + - * / // %, one comparison, ``X if CONDITION else Y``, and
lists of these, such as ``[side, side]``. An empty cell counts as false, and as an error in place of a value; ``None``
leaves a key out. Division is exact; a whole result is an int.
"""

import ast
import operator
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from fractions import Fraction
from typing import Any, Final

Cell = int | float | str | bool
Value = Cell | list[Cell] | None
MAX_LENGTH: Final = 200

_ARITHMETIC: Final[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: Final[Mapping[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class ExpressionError(ValueError):
    """An expression without a value; the message states the broken rule."""


def parse_cell(text: str) -> Cell | None:
    """Return the value of a CSV cell: a whole number, a number, true or false, text, or None if empty.

    Numbers have ASCII digits only: ``1_000`` and other scripts' digits are text.
    """
    stripped = text.strip()
    if stripped.isascii() and "_" not in stripped:
        for convert in (int, float):
            with suppress(ValueError):
                return convert(stripped)
    return {"": None, "true": True, "false": False}.get(stripped.lower(), stripped)


def parse_expression(text: str) -> ast.expr:
    """Return the parsed expression. Raises ExpressionError for anything but the few forms allowed."""
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"an expression of {len(text)} characters, the limit is {MAX_LENGTH}")
    try:
        with warnings.catch_warnings(action="error", category=SyntaxWarning):  # for example, `9if x else y`
            tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise ExpressionError(f"{text!r} is not an expression over columns") from error
    for node in ast.walk(tree):
        if not isinstance(node, _ALLOWED) or (isinstance(node, ast.Constant) and type(node.value) not in _CONSTANTS):
            raise ExpressionError(f"{text!r} holds {type(node).__name__.lower()}, which is not allowed here")
    return tree


_ALLOWED: Final = (
    ast.Name, ast.Load, ast.Constant, ast.BinOp, ast.Compare, ast.IfExp, ast.List, *_ARITHMETIC, *_COMPARISONS,
)  # fmt: skip
_CONSTANTS: Final = frozenset({int, str, type(None)})
_LEFT_OUT: Final = object()
"""The value of a written ``None``, which an empty cell has not."""


def columns_of(expression: ast.expr) -> tuple[str, ...]:
    """Return the columns in an expression, sorted."""
    return tuple(sorted({node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}))


def evaluate(expression: ast.expr, cells: Mapping[str, Cell | None]) -> Value:
    """Return the expression's value for one row. Raises ExpressionError for empty cells and for sums of text."""
    value = _value(expression, cells)
    return [_finished(element) for element in value] if isinstance(value, list) else _finished(value)


def _finished(value: Any) -> Any:
    if value is _LEFT_OUT:
        return None
    if isinstance(value, list):
        raise ExpressionError("a list in a list is not allowed")
    if value is None:
        raise ExpressionError("the cell is empty")
    if isinstance(value, Fraction):
        return value.numerator if value.denominator == 1 else float(value)
    return value


def _value(node: ast.expr, cells: Mapping[str, Cell | None]) -> Any:
    match node:
        case ast.Name():
            return cells[node.id]
        case ast.Constant():
            return _LEFT_OUT if node.value is None else node.value
        case ast.IfExp():
            return _value(node.body if _value(node.test, cells) else node.orelse, cells)
        case ast.List():
            return [_value(element, cells) for element in node.elts]
        case ast.BinOp():
            sides = _number(node.left, cells), _number(node.right, cells)
            if isinstance(node.op, ast.Div | ast.FloorDiv | ast.Mod) and sides[1] == 0:
                raise ExpressionError("a division by zero")
            return _ARITHMETIC[type(node.op)](*sides)
        case ast.Compare() if len(node.ops) == 1:
            return _COMPARISONS[type(node.ops[0])](_number(node.left, cells), _number(node.comparators[0], cells))
    raise ExpressionError("only one comparison at a time is allowed")


def _number(node: ast.expr, cells: Mapping[str, Cell | None]) -> Fraction:
    value = _value(node, cells)
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction):
        shown = "an empty cell" if value is None else "None" if value is _LEFT_OUT else repr(value)[:60]
        raise ExpressionError(f"{shown} where a number is needed")
    try:
        return Fraction(value)
    except (OverflowError, ValueError) as error:
        raise ExpressionError(f"{value} where a number is needed") from error
