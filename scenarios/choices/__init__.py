"""What a scenario leaves to its cluster: chosen from prices, before the plan is built.

A builder knows no times. So a first plan, the same but for the choice, is built and priced, its tasks are timed alone,
and the choice follows: token slices, what aiao defers of gradient synchronisation, zb_auto's order, what OSDP shards.
"""
