"""Experts that a policy places anew from step to step: its rates, its decisions, and the simulation of the steps."""
