"""The file that ``simulate new --workload job_mix`` writes."""

from typing import Final

STARTER: Final = """\
# Jobs that share a cluster under a scheduling policy.
#   simulate sweep my.yaml --set policy=fifo,srtf,tiresias --set jobs.draw.load=0.7,1.2

name: my job mix
workload: job_mix

cluster: {num_nodes: 4, devices_per_node: 8}

jobs:
  draw: {num_jobs: 200, load: 0.9, median_duration: 15 min}
  # trace: jobs.csv           # columns job_id, arrival_s, num_gpus, duration_s
  # ones: {num_jobs: 400}     # elastic jobs

policy: tiresias    # fifo, fifo_fit_first, sjf, srtf, srsf, las, themis, gavel, gandiva
                    # for elastic jobs alone: optimus, afs, sia, pollux, ones, learned
policies:
  tiresias: {thresholds: [7200]}    # GPU-seconds after which a job falls to the next queue
costs: {start: 10 s, resume: 30 s}
"""
