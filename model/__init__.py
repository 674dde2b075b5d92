"""The decoder-only transformer, its observation and its exchange with transformers.

Shapes in this package: B batch, T tokens (Tq query positions), D d_model, H heads, K head dimension, V vocabulary,
L layers. Scores are before the softmax, weights after it. A boolean mask is True where attending is allowed.
"""
