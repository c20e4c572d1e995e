"""Random values of runs, drawn once: they are pure functions of their arguments, and most plans ask for the same."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from torch import Tensor

from backends.torch.kernels import elementwise, model_ends
from backends.torch.reference import dense
from backends.torch.running import state
from backends.torch.values.randomness import initial_normal, kept_by_dropout, token_ids


@contextmanager
def values_drawn_once() -> Iterator[None]:
    """Let runs in this process, and the dense reference, draw each mask, first value and token once."""
    with pytest.MonkeyPatch.context() as patch:
        for draw in (initial_normal, kept_by_dropout, token_ids):
            known = drawn_once(draw)
            for module in (elementwise, model_ends, dense, state):
                if hasattr(module, draw.__name__):
                    patch.setattr(module, draw.__name__, known)
        yield


def drawn_once(draw: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function that draws what was not drawn before, and copies what was."""
    known: dict[object, Tensor] = {}

    def drawn(*arguments: Any, **named: Any) -> Tensor:
        key = (*map(_plain, arguments), *[(name, _plain(value)) for name, value in named.items()])
        if key not in known:
            known[key] = draw(*arguments, **named)
        return known[key].clone()

    return drawn


def _plain(value: Any) -> Any:
    """Return an argument, perhaps a list of tensors, in a form that equals that of an equal argument."""
    if isinstance(value, Tensor):
        return value.shape, value.numpy().tobytes()
    return tuple([_plain(x) if isinstance(x, Tensor) else x for x in value]) if isinstance(value, list) else value
