"""What can be set about the model; the values are in configs/model/."""

from dataclasses import dataclass
from enum import StrEnum


class Scale(StrEnum):
    """What scores are multiplied by before they become weights."""

    inverse_sqrt = "inverse_sqrt"  # 1 / sqrt(head_dim) (Vaswani et al. 2017, eq. 1)
    none = "none"


class Weighting(StrEnum):
    """How scores become weights that sum to 1."""

    softmax = "softmax"
    sum = "sum"  # what is positive of each score, over their sum: no exponential


class Position(StrEnum):
    """What tells a model where a token stands."""

    rope = "rope"  # queries and keys are turned (Su et al. 2021)
    learned = "learned"  # a vector for each place is added to the token's (GPT-2)
    sinusoidal = "sinusoidal"  # the same, from sines that are not trained (Vaswani et al. 2017, section 3.5)
    alibi = "alibi"  # a score falls with distance, in each head at a rate of its own (Press et al. 2022)
    none = "none"  # nothing but what the mask gives away


class Mask(StrEnum):
    """Which tokens a token may look at."""

    causal = "causal"  # itself and what came before
    none = "none"  # all of its text: the answer too, so this model cheats


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """The shape of a Llama-like decoder (Touvron et al. 2023, arXiv 2302.13971)."""

    n_layer: int  # 1 or more
    n_head: int  # divides d_model
    d_model: int  # width of the residual stream
    d_mlp: int  # width inside the SwiGLU
    context_length: int  # tokens, 2 or more
    rope_theta: float  # base of the rotary angles, above 0
    norm_eps: float  # of RMSNorm, above 0
    dropout: float  # on what attention and MLP add, 0 up to but not including 1
    scale: Scale
    weighting: Weighting
    position: Position
    mask: Mask
    tie_query_key: bool  # one projection serves as query and as key
    tie_key_value: bool  # one projection serves as key and as value
    token_shift: bool  # a learned share of the token before is added to each token's embedding (Peng et al. 2023)

    def __post_init__(self) -> None:
        """Refuse shapes that cannot be built."""
        for name in ("n_layer", "n_head", "d_model", "d_mlp", "rope_theta", "norm_eps"):
            if getattr(self, name) <= 0:
                raise ValueError(f"model.{name} must be above 0, got {getattr(self, name)}")
        if self.context_length < 2:
            raise ValueError(f"model.context_length must be 2 or more, got {self.context_length}")
        if self.d_model % self.n_head:
            raise ValueError(f"model.d_model={self.d_model} is not a multiple of model.n_head={self.n_head}")
        if self.position is Position.rope and self.head_dim % 2:
            raise ValueError(
                f"model.d_model / model.n_head = {self.head_dim} must be even: RoPE (model.position) turns pairs"
            )
        if self.position is Position.sinusoidal and self.d_model % 2:
            raise ValueError(
                f"model.d_model={self.d_model} must be even: model.position=sinusoidal pairs sines, cosines"
            )
        if self.weighting is Weighting.sum and self.scale is Scale.none:
            raise ValueError(
                "model.scale=none changes nothing where model.weighting=sum: what multiplies every score leaves shares "
                "as they are"
            )
        if self.weighting is Weighting.sum and self.position is Position.alibi:
            raise ValueError("model.position=alibi goes with model.weighting=softmax: shares of a sum do not fall")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"model.dropout must lie in [0, 1), got {self.dropout}")

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.d_model // self.n_head

    @property
    def is_causal(self) -> bool:
        """Whether no token sees what comes after it."""
        return self.mask is Mask.causal

    @property
    def is_relative(self) -> bool:
        """Whether only distances reach the model, so that a text may begin anywhere."""
        return self.position in (Position.rope, Position.alibi, Position.none)

    @property
    def asks_places(self) -> bool:
        """Whether what enters the first block depends on where in its text a token stands."""
        return self.token_shift or not self.is_relative

    def n_parameters(self, vocab_size: int) -> int:
        """Return how many numbers such a model trains, without building it."""
        projections = 4 - self.tie_query_key - self.tie_key_value
        layer = projections * self.d_model**2 + 3 * self.d_model * self.d_mlp + 2 * self.d_model  # and two norms
        places = self.context_length if self.position is Position.learned else 0
        own = vocab_size + places + 1 + self.token_shift  # and the last norm
        return self.n_layer * layer + own * self.d_model
