"""Several runs or models (runs=, model=A,B): what holds over seeds, and what settings change."""
