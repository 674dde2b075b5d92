"""The training loop and everything a run writes."""
