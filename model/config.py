"""What can be set about the model; the values are in configs/model/."""

from dataclasses import dataclass


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

    def __post_init__(self) -> None:
        """Refuse shapes that cannot be built."""
        for name in ("n_layer", "n_head", "d_model", "d_mlp", "rope_theta", "norm_eps"):
            if getattr(self, name) <= 0:
                raise ValueError(f"model.{name} must be above 0, got {getattr(self, name)}")
        if self.context_length < 2:
            raise ValueError(f"model.context_length must be 2 or more, got {self.context_length}")
        if self.d_model % self.n_head:
            raise ValueError(f"model.d_model={self.d_model} is not a multiple of model.n_head={self.n_head}")
        if self.head_dim % 2:
            raise ValueError(
                f"model.d_model / model.n_head = {self.head_dim} must be even: RoPE turns pairs of numbers"
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"model.dropout must lie in [0, 1), got {self.dropout}")

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.d_model // self.n_head
