"""Sliding windows of attention, and which layers have one."""

from msgspec import Struct


class SlidingWindow(Struct, frozen=True, kw_only=True):
    """Layers whose queries see ``size`` keys at most: their own and those before it (Jiang et al. 2023, Mistral 7B).

    ``global_every``: the last of so many layers in a row sees the whole sequence (Gemma Team 2024, Gemma 2); None: all
    layers have the window. ``rotary_base``: of layers with a window; None: the model's.
    """

    size: int
    global_every: int | None = None
    rotary_base: float | None = None

    def is_of(self, layer: int) -> bool:
        """Return whether a layer has the window."""
        return self.global_every is None or bool((layer + 1) % self.global_every)
