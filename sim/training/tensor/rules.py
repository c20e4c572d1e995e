"""Checks of meshes: their form, and the sizes that their sides divide."""

from collections.abc import Mapping, Sequence
from math import prod

from sim.training.errors import SpecError
from sim.training.tensor.method import Sizes

_KEY = "parallel.tensor.mesh"


def check_form(name: str, mesh: Sequence[int], form: str) -> None:
    """Raise SpecError unless a mesh has the form of a method: ``q q``, ``q q d`` or ``p p p``; equal letters are equal.

    The first side is 2 or more.
    """
    letters = form.split()
    sides = dict(zip(letters, mesh, strict=False))
    fits = len(mesh) == len(letters) and all(sides[letter] == side for letter, side in zip(letters, mesh, strict=True))
    if not fits:
        rule = f"method {name} needs a mesh [{', '.join(letters)}], got {list(mesh)}"
        raise SpecError(_KEY, rule, f"write {_nearest(mesh, letters)}")
    if mesh[0] == 1:
        remedy = "method: 1d" if prod(mesh) == 1 else f"parallel.data.degree: {prod(mesh)}"
        raise SpecError(
            _KEY, f"mesh {list(mesh)} cuts no matrix", f"write {_nearest(mesh, letters)}, or {remedy} instead"
        )


def check_blocks(block: Sequence[int], mesh: Sequence[int]) -> None:
    """Raise SpecError unless the sides of a block divide those of the mesh."""
    if len(block) != len(mesh) or any(side % part for part, side in zip(block, mesh, strict=True)):
        sides = zip((*block, *[1] * len(mesh)), mesh, strict=False)
        nearest = [max(n for n in range(1, side + 1) if side % n == 0 and n <= max(part, 1)) for part, side in sides]
        rule = f"blocks of {list(block)} do not tile mesh {list(mesh)}"
        raise SpecError("parallel.tensor.node_block", rule, f"write {nearest}")


def _nearest(mesh: Sequence[int], letters: Sequence[str]) -> str:
    """Return the mesh of a form whose equal sides are the mean of what is asked for, in ranks."""
    asked = (*mesh, *[1] * (len(letters) - len(mesh)))[: len(letters)]
    equal = [side for letter, side in zip(letters, asked, strict=True) if letter == letters[0]]
    side = max(2, round(prod(equal) ** (1 / len(equal))))
    return str([side if letter == letters[0] else own for letter, own in zip(letters, asked, strict=True)])


def check_divisors(sizes: Sizes, divisors: Mapping[str, int], mesh: Sequence[int]) -> None:
    """Raise SpecError for the first size that its number of parts does not divide, with the nearest that it does."""
    for key, parts in divisors.items():
        size = sizes.get(key, parts)
        if size % parts:
            above, rest = size + -size % parts, size % parts
            nearest = above if above - size <= rest or size < parts else size - rest
            raise SpecError(
                _KEY,
                f"{key.rpartition('.')[2]} {size} does not divide by {parts}, into which mesh {list(mesh)} cuts it",
                f"write {key}: {nearest}, or a mesh that cuts {size} evenly",
            )
