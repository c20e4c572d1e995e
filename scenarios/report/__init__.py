"""Reports for readers: blocks of content, the pages and consoles that show them, and pictures."""
