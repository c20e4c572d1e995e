"""How the work lies over the ranks: degrees and axes, sharded state, context, experts, layers of stages."""
