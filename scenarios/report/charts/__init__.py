"""Parts of charts: what they show, and how they are drawn."""
