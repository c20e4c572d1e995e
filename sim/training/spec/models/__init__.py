"""Models: transformers, their experts and latent attention, with the costs that no strategy changes."""
