"""Pages of the commands, as blocks."""
