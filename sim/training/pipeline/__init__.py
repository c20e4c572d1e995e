"""Pipeline schedules: in which order each rank runs its forwards and backwards."""
