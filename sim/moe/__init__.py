"""Routing of tokens to experts as data: how many of each rank's choices go to each expert, layer by layer.

Knows neither plans, nor SimPy, nor torch. ``Routing`` is one step's table; ``Even``, ``Shares``, ``Skew`` and
``Recorded`` are ways to come by one.
"""
