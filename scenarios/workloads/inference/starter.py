"""The file that ``simulate new --workload inference`` writes."""

from typing import Final

STARTER: Final = """\
# Prompts that are answered together: one pass over all of them, then a step of decoding per token.
#   simulate my.yaml                                                     time to the first token, and per token
#   simulate sweep my.yaml --set inference.sequences=1,8,64              the same against the batch
#   simulate sweep my.yaml --set parallel.tensor.degree=1,2,4,8          and against tensor parallelism

name: my inference
workload: inference

cluster: {node: hgx-h100, num_nodes: 1}
model: {preset: llama-3-8b}

inference:
  sequences: 8              # of each replica
  prompt_tokens: 1024
  output_tokens: 8
  # prompts: [512, 2048]    # unequal ones instead

parallel:
  tensor: {degree: 2}       # 8 devices hold 4 replicas
"""
