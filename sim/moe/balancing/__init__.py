"""Balancing of experts over ranks: replicas of experts, the tokens that each gets, and decisions on where they lie.

Knows neither plans, nor SimPy, nor torch. All decisions are pure functions of token counts.
"""
