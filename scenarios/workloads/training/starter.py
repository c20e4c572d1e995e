"""The text that ``simulate new`` writes."""

from typing import Final

STARTER: Final = """\
# A scenario: a model, a cluster, and how to train the one on the other.
#   simulate my.yaml                                      how long does a step take, does it fit, what does it wait for
#   simulate my.yaml --set parallel.tensor.degree=4 ...   the same with another value
#   simulate my.yaml --out results/                       with timeline (opens in Perfetto) and report
# `simulate list` names the nodes, presets and schedules; `simulate schema` prints every key for your editor.

name: my model on 16 A100
seed: 0

cluster:
  node: dgx-a100-80g        # simulate list
  num_nodes: 2
  # devices_per_node: 4     # use a part of each node; default all

model:
  family: gpt               # gpt or llama; or instead of all these keys: `preset: llama-2-7b`
  num_layers: 32            #              or: `huggingface: path/to/config.json`
  hidden_size: 4096
  num_heads: 32
  sequence_length: 2048
  vocab_size: 51200
  # attention: flash        # gpt's default is core: scores and softmax as kernels of their own

training:
  global_batch_size: 128    # sequences per step, over all replicas
  microbatch_size: 2        # sequences per micro-batch of one replica
  precision: bf16           # fp8, fp16, bf16, fp32, fp64
  recompute: selective      # none; selective: attention again in backward; full: whole layers again
  optimizer: adam

parallel:                   # the product of the degrees is the number of devices; one of them may be auto
  tensor:
    method: 1d
    degree: 4
    sequence_parallel: auto # shards activations outside the matrix products too, where the degree is 2 or more
  pipeline:
    degree: 2
    schedule: 1f1b          # gpipe, 1f1b, interleaved_1f1b (with virtual_stages: 2 or more)
  data:
    degree: auto
    zero_stage: 1           # 1: shard the optimizer state over the replicas
    overlap_gradient_sync: true
    # bucket: 200 MiB       # quantities are text with a unit
"""
