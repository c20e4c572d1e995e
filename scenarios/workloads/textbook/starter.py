"""The file that ``simulate new --workload textbook`` writes."""

from typing import Final

STARTER: Final = """\
# A pipeline schedule with stated times: no hardware, no memory in bytes, nothing but order.
#   simulate show my.yaml                                             its slots, drawn in the terminal
#   simulate sweep my.yaml --set parallel.pipeline.schedule=gpipe,1f1b,zb_h1   schedules side by side
# `simulate list schedules` names all schedules.

name: my schedule
workload: textbook

model:
  family: delay
  forward: 1 s              # of a stage, per micro-batch
  backward_input: 1 s       # the part of backward that the stage before waits for
  backward_weight: 1 s      # the part that nobody waits for
  # hop: 0.1 s              # added to every dependency between ranks

training:
  num_microbatches: 8

parallel:
  pipeline:
    degree: 4
    schedule: 1f1b
"""
