"""What a reader sees of a probe: the page, the tables and the figures."""
