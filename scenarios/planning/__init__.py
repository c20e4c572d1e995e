"""Planning: the strategy of a scenario is searched, estimated by closed forms, and proved by the engine."""
