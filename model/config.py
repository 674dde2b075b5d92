"""Settings of the model; their values are in configs/model/."""

from dataclasses import dataclass
from enum import StrEnum


class Scale(StrEnum):
    """Factor of the attention scores."""

    inverse_sqrt = "inverse_sqrt"  # 1 / sqrt(head_dim) (Vaswani et al. 2017, eq. 1)
    none = "none"


class Weighting(StrEnum):
    """How scores become weights that sum to 1."""

    softmax = "softmax"
    sum = "sum"  # each positive score over the sum of the positive scores, without an exponential


class Position(StrEnum):
    """How the model knows the order of the tokens."""

    rope = "rope"  # queries and keys are rotated (Su et al. 2021)
    learned = "learned"  # a learned vector per position is added to the token embedding (GPT-2)
    sinusoidal = "sinusoidal"  # fixed sines and cosines are added (Vaswani et al. 2017, section 3.5)
    alibi = "alibi"  # a penalty for distance, with a slope per head, is added to the scores (Press et al. 2022)
    none = "none"  # from the causal mask only


class Mask(StrEnum):
    """Which tokens a query may attend to."""

    causal = "causal"  # itself and earlier tokens
    none = "none"  # all tokens of its text; the model sees its targets, so its loss means nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """Shape of a Llama-like decoder (Touvron et al. 2023, arXiv 2302.13971) and the switches of the attention lab."""

    n_layer: int
    n_head: int  # must divide d_model
    d_model: int  # width of the residual stream
    d_mlp: int  # inner width of the SwiGLU
    context_length: int  # in tokens, at least 2
    rope_theta: float  # base of the RoPE frequencies
    norm_eps: float  # epsilon of RMSNorm
    dropout: float  # probability, for the updates of attention and MLP, in [0, 1)
    scale: Scale
    weighting: Weighting
    position: Position
    mask: Mask
    tie_query_key: bool  # query and key share one projection
    tie_key_value: bool  # key and value share one projection
    token_shift: bool  # add a learned share of the previous token's embedding to each embedding (Peng et al. 2023)

    def __post_init__(self) -> None:
        """Raises ValueError for a model that cannot be built."""
        for name in ("n_layer", "n_head", "d_model", "d_mlp", "rope_theta", "norm_eps"):
            if getattr(self, name) <= 0:
                raise ValueError(f"model.{name}={getattr(self, name)}: must be above 0")
        if self.context_length < 2:
            raise ValueError(f"model.context_length={self.context_length}: must be 2 or more")
        if self.d_model % self.n_head:
            raise ValueError(f"model.d_model={self.d_model}: must be a multiple of model.n_head={self.n_head}")
        if self.position is Position.rope and self.head_dim % 2:
            raise ValueError(f"model.d_model={self.d_model}: d_model / n_head must be even for model.position=rope")
        if self.position is Position.sinusoidal and self.d_model % 2:
            raise ValueError(f"model.d_model={self.d_model}: must be even for model.position=sinusoidal")
        if self.weighting is Weighting.sum and self.scale is Scale.none:
            raise ValueError("model.scale=none: has no effect with model.weighting=sum, a common factor cancels")
        if self.weighting is Weighting.sum and self.position is Position.alibi:
            raise ValueError("model.position=alibi: needs model.weighting=softmax")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"model.dropout={self.dropout}: must be in [0, 1)")

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.d_model // self.n_head

    @property
    def is_causal(self) -> bool:
        """True if no token sees a later one."""
        return self.mask is Mask.causal
