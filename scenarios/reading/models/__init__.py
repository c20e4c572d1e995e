"""Models that a file of Hugging Face describes, or that ship with the project."""
