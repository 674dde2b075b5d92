"""What the models of the tests have in common: a plain Llama, every switch of the lab where it stands by default."""

from typing import Any

from model.config import Mask, Position, Scale, Weighting

PLAIN: dict[str, Any] = {
    "rope_theta": 1e4,
    "norm_eps": 1e-5,
    "dropout": 0.0,
    "scale": Scale.inverse_sqrt,
    "weighting": Weighting.softmax,
    "position": Position.rope,
    "mask": Mask.causal,
    "tie_query_key": False,
    "tie_key_value": False,
    "token_shift": False,
}

# Each switch turned somewhere, in mixes that are possible; what holds for attention holds in all of them.
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "shares of a sum, learned positions": {"weighting": Weighting.sum, "position": Position.learned},
    "queries are keys, sinusoidal positions": {"tie_query_key": True, "position": Position.sinusoidal},
    "values are keys, unscaled, no positions": {
        "tie_key_value": True,
        "scale": Scale.none,
        "position": Position.none,
    },
    "falling scores, the token before mixed in": {"position": Position.alibi, "token_shift": True},
}
