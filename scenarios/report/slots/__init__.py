"""Slot diagrams of pipeline schedules: selection, text and drawing."""
