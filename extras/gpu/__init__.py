"""A training step recorded as one CUDA graph."""
