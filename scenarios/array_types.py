"""What takes the place of ``numpy.typing`` in commands: types of arrays that annotations name, and nothing asks for.

NumPy's own module defines some forty others beside them, which takes 2 ms (``scenarios/on_use.py``). Type checkers read
NumPy's.
"""

from typing import Any, TypeVar

import numpy as np

_Scalar = TypeVar("_Scalar", bound=np.generic)
NDArray = np.ndarray[tuple[Any, ...], np.dtype[_Scalar]]
ArrayLike = Any
