"""What a reader sees of a probe: the page and the tables."""
