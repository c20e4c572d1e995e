"""A pipeline schedule as commands show it: its words, and the slots of a simulated run of it."""

from dataclasses import dataclass
from typing import Any

from scenarios.report.slots.slot_diagram import SlotDiagram


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSchedule:
    """``words``: the schedule and its numbers. ``what``: what the slots are of, a step or several in a row."""

    name: str
    num_microbatches: int
    virtual_stages: int
    words: str
    what: str
    slots: SlotDiagram

    def as_json(self) -> dict[str, Any]:
        """Return schedule and slots as JSON has them; ``slots`` holds what is drawn, rank by rank."""
        return {
            "name": self.name,
            "num_microbatches": self.num_microbatches,
            "virtual_stages": self.virtual_stages,
            "duration_s": self.slots.end_s,
            "idle_fraction": self.slots.idle_fraction,
            "slots": [
                {
                    "role": name,
                    "tasks": [
                        {"task": s.task, "microbatch": s.microbatch, "start_s": s.start_s, "end_s": s.end_s}
                        for s in (*self.slots.boxes, *self.slots.lines)
                        if s.lane == lane
                    ],
                }
                for lane, name in enumerate(self.slots.ranks)
            ],
        }
