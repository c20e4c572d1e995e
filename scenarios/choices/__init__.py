"""Open decisions of a scenario: made from prices, before the plan is built.

A builder knows no times. So a first plan, without the decision, is built and priced, and its tasks are timed alone. The
decision follows from these times: token slices, the deferred part of aiao's synchronisation, zb_auto's order, the
operators that OSDP shards.
"""
