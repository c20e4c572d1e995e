"""The file that ``simulate new --workload service`` writes."""

from typing import Final

STARTER: Final = """\
# A service: requests come, wait, are computed in batches, and are answered token by token.
#   simulate my.yaml                                           times to the first token and per token
#   simulate sweep my.yaml --set requests.rate=2.0,8.0,16.0    the same against load
#   simulate plan my.yaml --set service.slo.share=0.99         the fewest replicas with which that part meets the slo

name: my service
workload: service

cluster: {node: hgx-h100, num_nodes: 1}
model: {preset: llama-3-8b}

requests:
  rate: 40.0                # per second, a Poisson process
  num_requests: 500         # rates count until the last answer: the more requests, the nearer to a steady load
  prompt_tokens: 1024
  output_tokens: 128
  output_variation: 0.5
  # trace: azure.csv        # recorded requests instead

service:
  tensor_degree: 1          # devices of a replica
  batching: chunked
  max_tokens: 2048
  router: least_outstanding
  slo: {ttft: 500 ms, tpot: 50 ms}
"""
