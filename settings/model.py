"""Settings of the model; the sizes are in configs/model/."""

from dataclasses import MISSING, dataclass, fields
from enum import StrEnum

from settings.errors import UserError
from settings.fields import check_limits, setting


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
    none = "none"  # from the causal mask only


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Shape of a Llama-like decoder (Touvron et al. 2023, arXiv 2302.13971) and the switches of the attention lab."""

    n_layer: int = setting("number of layers", above=0)
    n_head: int = setting("attention heads per layer; must divide d_model", above=0)
    d_model: int = setting("width of the residual stream", above=0)
    d_mlp: int = setting("inner width of the SwiGLU", above=0)
    context_length: int = setting("longest input in tokens", low=2, orders_batches=True)
    rope_theta: float = setting("base of the RoPE frequencies", above=0)
    norm_eps: float = setting("epsilon of RMSNorm", above=0)
    dropout: float = setting("probability, for the updates of attention and MLP", low=0, below=1)
    # The switches of the attention lab (docs/attention.md); the defaults give a Llama.
    scale: Scale = setting("factor of the attention scores", default=Scale.inverse_sqrt)
    weighting: Weighting = setting("how scores become weights", default=Weighting.softmax)
    position: Position = setting("how the model knows the order of the tokens", default=Position.rope)
    tie_query_key: bool = setting("query and key share one projection", default=False)
    tie_key_value: bool = setting("key and value share one projection", default=False)

    def __post_init__(self) -> None:
        check_limits(self, "model.")
        if self.d_model % self.n_head:
            raise UserError(f"model.d_model={self.d_model}: must be a multiple of model.n_head={self.n_head}")
        if self.position is Position.rope and self.head_dim % 2:
            raise UserError(f"model.d_model={self.d_model}: d_model / n_head must be even for model.position=rope")
        if self.position is Position.sinusoidal and self.d_model % 2:
            raise UserError(f"model.d_model={self.d_model}: must be even for model.position=sinusoidal")
        if self.weighting is Weighting.sum and self.scale is Scale.none:
            raise UserError("model.scale=none: has no effect with model.weighting=sum, a common factor cancels")

    @property
    def head_dim(self) -> int:
        return self.d_model // self.n_head


def departures(config: ModelConfig) -> list[str]:
    """Return NAME=VALUE of every switch of `config` that no Llama has; the defaults are those of a Llama."""
    switches = []
    for field in fields(config):
        value = getattr(config, field.name)
        if field.default is not MISSING and value != field.default:
            switches.append(f"model.{field.name}={str(value).lower()}")
    return switches
