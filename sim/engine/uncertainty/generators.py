"""Random numbers by name.

Generators come from the modules of numpy that define them: the package ``numpy.random`` also loads its older generators
and the functions of its global one, which nobody uses here (``scenarios/on_use.py``).
"""

from zlib import crc32

from numpy.random._generator import Generator
from numpy.random._pcg64 import PCG64


def generator(seed: int, name: object) -> Generator:
    """Return the random generator of a name. Its draws do not depend on the generators of other names."""
    return Generator(PCG64([seed, crc32(repr(name).encode())]))
