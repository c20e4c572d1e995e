"""Execution of a step's plan with torch, and its choice of collectives."""
