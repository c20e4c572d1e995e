"""Evidence on what a gate does to learning: small mixtures of experts, trained for real."""
