"""The decoder-only transformer, observed without being disturbed.

Axes, in every shape of this package: B batch, T tokens (Tq query positions, Tk key positions), D d_model, H heads,
K head_dim, V vocab, L layers. Scores are before the softmax, weights after it. A mask is True where attending is
allowed.
"""
