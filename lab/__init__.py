"""Worked examples of the founding texts, and comparison of model variants."""
