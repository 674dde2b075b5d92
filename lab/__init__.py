"""Worked examples of attention, results over training seeds, and comparison of model variants."""
