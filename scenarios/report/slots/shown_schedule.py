"""A pipeline schedule for commands to show: its words, and the slots of a simulated run."""

from typing import Any

from msgspec import Struct

from scenarios.report.slots.slot_diagram import SlotDiagram


class ShownSchedule(Struct, frozen=True, kw_only=True):
    """A schedule. ``words``: the schedule and its numbers; ``what``: whether the slots show one step or several."""

    name: str
    num_microbatches: int
    virtual_stages: int
    words: str
    what: str
    slots: SlotDiagram

    def as_json(self) -> dict[str, Any]:
        """Return schedule and slots for JSON; ``slots`` holds the drawn slots, rank by rank."""
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
