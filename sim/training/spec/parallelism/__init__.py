"""The distribution of the work over the ranks: degrees and axes, sharded state, context, experts, layers of stages."""
