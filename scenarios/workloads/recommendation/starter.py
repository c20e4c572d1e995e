"""The file that ``simulate new --workload recommendation`` writes."""

from typing import Final

STARTER: Final = """\
# Embedding tables in host memory, and a cache of their rows on the device.
#   simulate sweep my.yaml --set cache.policy=dataset_frequency,lfu,lru,fifo,random   policies side by side
#   simulate sweep my.yaml --set cache.fraction=0.015,0.05,0.1                        sizes of the cache

name: my tables
workload: recommendation

tables:
  - {name: users, num_rows: 200000, zipf: 1.05}
  - {name: items, num_rows: 50000, num_lookups: 4, zipf: 1.2}
  - {name: countries, num_rows: 200, zipf: 1.0}
embedding_dim: 128          # elements of a row, of 4 bytes each

trace:
  batch_size: 512
  num_batches: 100
  num_unmeasured: 50        # the cache fills before it is measured

cache:
  fraction: 0.015           # of all rows
  policy: dataset_frequency
  warm_up: 0.7              # of the cache holds the most popular rows before the first batch
"""
