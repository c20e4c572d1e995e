"""Slot diagrams of pipeline schedules: chosen, printed and drawn."""
