"""Many runs of one scenario: the product of some keys' values, each point simulated, one table in the end."""
