"""Reports that people read: blocks, the pages and consoles that show them, and pictures."""
