"""A decoder-only transformer in one file: norm, positions, attention, MLP, block, model.

The default is Llama's architecture (Touvron et al. 2023, arXiv 2302.13971) with tied embeddings.
Letters in shapes: B texts, T tokens (Tq queries), D d_model, H heads, K = D / H head dimension,
V tokens of the vocabulary, L layers.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from data.errors import UserError
from model.config import ModelConfig, Position, Scale, Weighting

# Added to each score (weighting=sum), or a row without a positive score would divide 0 by 0.
_SUM_EPSILON = 1e-4


class RMSNorm(nn.Module):
    """Root mean square normalisation (Zhang & Sennrich 2019, eq. 4), always computed in float32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))  # [D]
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` [..., D] divided by its root mean square and multiplied by the gain."""
        return F.rms_norm(x.float(), self.gain.shape, self.gain.float(), self.eps).to(x.dtype)


def apply_rope(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotate each pair (i, i + K/2) of `x` by an angle proportional to its position (RoPE, Su et al. 2021, eq. 34).

    `x` [..., T, K] are queries or keys at `positions` [T], K even. Only differences of positions reach the scores.
    """
    # In the order of operations of transformers' Llama: an exported model computes the same logits.
    width = x.shape[-1]
    exponents = torch.arange(0, width, 2, device=positions.device).float() / width  # [K/2]
    frequencies = 1.0 / theta**exponents  # [K/2]
    angles = positions[..., None].float() * frequencies  # [..., T, K/2]
    cos = torch.cat([angles.cos(), angles.cos()], dim=-1)  # [..., T, K]
    sin = torch.cat([-angles.sin(), angles.sin()], dim=-1)  # [..., T, K]

    # Rolling is 2.5 times as fast as joining the two halves in the other order, with the same bits.
    other_half = x.float().roll(width // 2, dims=-1)  # [..., T, K]
    return (x.float() * cos + other_half * sin).to(x.dtype)


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """Return sines (first half) and cosines [..., width] of `positions` [...] (Vaswani et al. 2017, section 3.5).

    Divided by sqrt(width): the paper multiplies the token embeddings by it instead, which are small here.
    """
    half = width // 2
    exponents = -torch.arange(half, device=positions.device, dtype=torch.float32) / half
    angles = positions[..., None].float() * 10000.0**exponents  # [..., width / 2]
    return torch.cat([angles.sin(), angles.cos()], dim=-1) / width**0.5


def alibi_slopes(n_head: int) -> Tensor:
    """Return the slope of each head [H]: 2^(-8/H) down to 2^-8 (Press et al. 2022, section 3)."""
    return 2.0 ** (-8 * torch.arange(1, n_head + 1, dtype=torch.float32) / n_head)


def document_mask(document_ids: Tensor) -> Tensor:
    """Return the mask [B, 1, T, T] of rows with several documents [B, T], True within a document."""
    return (document_ids[:, :, None] == document_ids[:, None, :])[:, None]


def document_positions(document_ids: Tensor) -> Tensor:
    """Return the position [B, T] of each token in its own document; documents follow each other."""
    n_tokens = document_ids.shape[1]
    index = torch.arange(n_tokens, device=document_ids.device).expand_as(document_ids)  # [B, T]
    is_first = torch.ones_like(document_ids, dtype=torch.bool)
    is_first[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
    return index - torch.where(is_first, index, 0).cummax(dim=1).values


def _position_bias(distance: Tensor, slopes: Tensor | None = None, *, causal: bool = True) -> Tensor:
    """Return the term added to the scores, float32: -inf for later keys, else ALiBi's penalty or 0.

    `distance` [..., Tq, T] is the position of the query minus that of the key, `slopes` [H] the penalty per token of
    distance, which adds an axis of heads; without `causal` later keys stay visible.
    """
    bias = torch.zeros_like(distance, dtype=torch.float32)
    if slopes is not None:
        bias = -slopes[:, None, None] * distance.abs()  # [..., H, Tq, T]
    return bias.masked_fill(distance < 0, float("-inf")) if causal else bias


def attention_scores(
    query: Tensor,
    key: Tensor,
    query_positions: Tensor | None = None,
    *,
    scaled: bool = True,
    slopes: Tensor | None = None,
    causal: bool = True,
) -> Tensor:
    """Return query @ key^T / sqrt(K) (Vaswani et al. 2017, eq. 1) plus the bias of positions, [B, H, Tq, T] float32.

    The `query` [B, H, Tq, K] stands at `query_positions` [B, Tq] among the keys [B, H, T, K] (default: query i at i).
    """
    scores = query.float() @ key.float().mT  # [B, H, Tq, T]
    if scaled:
        scores = scores / query.shape[-1] ** 0.5

    # The causal mask and ALiBi depend on the distance of query and key.
    if query_positions is None:
        query_positions = torch.arange(query.shape[-2], device=query.device)[None]  # [1, Tq]
    key_positions = torch.arange(key.shape[-2], device=key.device)  # [T]
    distance = query_positions[:, None, :, None] - key_positions  # [B or 1, 1, Tq, T]
    bias = _position_bias(distance, slopes, causal=causal)  # [B or 1, 1 or H, Tq, T]
    return scores + bias.to(scores.dtype)  # autocast makes the scores bfloat16


def causal_attention_weights(query: Tensor, key: Tensor) -> Tensor:
    """Return the softmax of the causal `attention_scores` [B, H, T, T]; the future is exactly 0."""
    return attention_scores(query, key).softmax(dim=-1)


def _positive_scores(scores: Tensor) -> Tensor:
    """Return max(score, 0) + 0.0001 [..., T], and 0 for -inf (weighting=sum)."""
    return (scores.relu() + _SUM_EPSILON).masked_fill(scores.isneginf(), 0.0)


def sum_normalised(scores: Tensor) -> Tensor:
    """Return each positive score over the sum of its row [..., T] (weighting=sum); -inf gives 0."""
    positive = _positive_scores(scores)
    return positive / positive.sum(dim=-1, keepdim=True)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    scaled: bool = True,
    slopes: Tensor | None = None,
    causal: bool = True,
) -> Tensor:
    """Return softmax(scores) @ value [B, H, T, K], by PyTorch's fused kernel, which never stores the weights.

    Query, key and value are [B, H, T, K]; `mask` [B, 1, T, T] is that of `document_mask` (default: each row is one
    document); the switches are those of `attention_scores`.
    """
    # Without a mask the kernel needs no term for each pair of tokens, and is much faster.
    attention = F.scaled_dot_product_attention
    scale = query.shape[-1] ** -0.5 if scaled else 1.0
    if slopes is None and mask is None:
        return attention(query, key, value, is_causal=causal, scale=scale)

    # Every other mask is a term that the kernel adds to the scores.
    index = torch.arange(query.shape[-2], device=query.device)
    distance = index[:, None] - index  # [T, T]
    bias = _position_bias(distance, slopes, causal=causal).to(query.dtype)  # [T, T] or [H, T, T]
    if mask is not None:
        bias = bias.where(mask, float("-inf"))  # [B, 1 or H, T, T]
    return attention(query, key, value, attn_mask=bias, scale=scale)


class Attention(nn.Module):
    """Multi-head self-attention of one layer, computed in two ways.

    `forward` trains: it is fast, and the weights are never stored. `scores` is for the probe, which observes and edits
    the weights: the same scores by the formula, in float32.
    """

    slopes: Tensor | None  # [H] of ALiBi

    def __init__(self, config: ModelConfig) -> None:
        """Create four projections D -> D without biases; tied projections share one module."""
        super().__init__()
        self.n_head = config.n_head
        self.theta = config.rope_theta
        self.scaled = config.scale is Scale.inverse_sqrt
        self.causal = config.is_causal
        self.has_rope = config.position is Position.rope
        self.uses_sum_weighting = config.weighting is Weighting.sum
        slopes = alibi_slopes(config.n_head) if config.position is Position.alibi else None
        self.register_buffer("slopes", slopes, persistent=False)

        projection = partial(nn.Linear, config.d_model, config.d_model, bias=False)
        self.query = projection()
        self.key = self.query if config.tie_query_key else projection()
        self.value = self.key if config.tie_key_value else projection()
        self.output = projection()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the update [B, T, D] of the residual stream from the normalised stream `x`."""
        query, key, value = self.project(x)  # each [B, H, T, K]
        return self.merge_heads(self.weighted_values(query, key, value, mask))

    def project(self, x: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key (rotated if RoPE is on) and value [B, H, T, K] of `x` [B, T, D].

        `positions` [T], or [B, 1, T] if they differ between the texts, default to 0 to T - 1.
        """
        # One row of D numbers becomes H heads of K numbers.
        linears = (self.query, self.key, self.value)
        query, key, value = (linear(x).unflatten(-1, (self.n_head, -1)).transpose(1, 2) for linear in linears)
        if self.has_rope:
            if positions is None:
                positions = torch.arange(x.shape[1], device=x.device)
            query, key = apply_rope(torch.stack((query, key)), positions, self.theta)
        return query, key, value

    def weighted_values(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return weights @ value [B, H, T, K] of each head; `mask` is that of `document_mask`."""
        if not self.uses_sum_weighting:
            return attend(query, key, value, mask, scaled=self.scaled, slopes=self.slopes, causal=self.causal)

        # There is no kernel for weights without an exponential, so the whole matrix is stored.
        scores = attention_scores(query, key, causal=self.causal)  # [B, H, T, T]
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        return (sum_normalised(scores) @ value.float()).to(value.dtype)

    def merge_heads(self, head_output: Tensor) -> Tensor:
        """Return the output projection [B, T, D] of the concatenated heads [B, H, T, K]."""
        return self.output(head_output.transpose(1, 2).flatten(2))

    def scores(self, query: Tensor, key: Tensor, query_positions: Tensor | None = None) -> Tensor:
        """Return the scores [B, H, Tq, T] float32 whose softmax equals the attention weights, -inf where masked.

        Query [B, H, Tq, K] and key are those of `project`; `query_positions` [B, Tq] as in `attention_scores`.
        UserError if the model is not causal (model.mask=none).
        """
        if not self.causal:
            problem = "a model that sees its targets has no attention to interpret"
            raise UserError(f"model.mask=none: {problem}")
        scores = attention_scores(query, key, query_positions, scaled=self.scaled, slopes=self.slopes)
        return _positive_scores(scores).log() if self.uses_sum_weighting else scores

    def by_head(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the weights of each head: query, key and value [H, K, D], output [H, D, K]."""
        linears = (self.query, self.key, self.value)
        query, key, value = (linear.weight.unflatten(0, (self.n_head, -1)) for linear in linears)
        output = self.output.weight.unflatten(1, (self.n_head, -1)).transpose(0, 1)  # [H, D, K]
        return query, key, value, output


class SwiGLU(nn.Module):
    """The MLP: silu(x W_gate) * (x W_up), projected down (Shazeer 2020, eq. 6)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.d_model, config.d_mlp, bias=False)
        self.up = nn.Linear(config.d_model, config.d_mlp, bias=False)
        self.down = nn.Linear(config.d_mlp, config.d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the update [B, T, D] of the residual stream from the normalised stream `x`."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """One layer: attention and MLP read the normalised residual stream and add to it (pre-norm)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm_1 = RMSNorm(config.d_model, config.norm_eps)
        self.attention = Attention(config)
        self.norm_2 = RMSNorm(config.d_model, config.norm_eps)
        self.mlp = SwiGLU(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the residual stream [B, T, D] after this layer."""
        x = x + self.dropout(self.attention(self.norm_1(x), mask))  # [B, T, D]
        return x + self.dropout(self.mlp(self.norm_2(x)))


class Transformer(nn.Module):
    """The model: `forward(tokens) -> logits` of the next token."""

    def __init__(self, config: ModelConfig, vocab_size: int, seed: int) -> None:
        """Build the model and initialise every weight from `seed` alone."""
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        # The token embedding is also the output embedding.
        self.token_embedding = nn.Embedding(vocab_size, config.d_model)
        if config.position is Position.learned:
            self.position_embedding = nn.Embedding(config.context_length, config.d_model)
        if config.token_shift:
            self.shift = nn.Parameter(torch.zeros(config.d_model))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.final_norm = RMSNorm(config.d_model, config.norm_eps)
        _initialise(self, seed)

    def forward(self, tokens: Tensor, document_ids: Tensor | None = None) -> Tensor:
        """Return the logits [B, T, V] of the token after each of `tokens` [B, T]; T is at most context_length.

        With `document_ids` [B, T] rows hold several documents; no token sees another document than its own.
        """
        mask, positions = None, None
        if document_ids is not None:
            mask = document_mask(document_ids)  # [B, 1, T, T]
            positions = document_positions(document_ids)  # [B, T]
        x = self.embed(tokens, positions)  # [B, T, D]
        for block in self.blocks:
            x = block(x, mask)
        return self.unembed(x)

    def embed(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return the residual stream [B, T, D] before the first block; `positions` [B, T] default to 0 to T - 1."""
        x = self.token_embedding(tokens)  # [B, T, D]
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)
        if self.config.token_shift:
            # The first token of a document has no previous one.
            previous = F.pad(x[:, :-1], (0, 0, 1, 0)) * (positions > 0)[..., None]  # [B, T, D]
            x = x + self.shift * previous

        # RoPE and ALiBi come later, in attention.
        if self.config.position is Position.learned:
            x = x + self.position_embedding(positions)
        if self.config.position is Position.sinusoidal:
            x = x + sinusoids(positions, self.config.d_model)
        return x

    def unembed(self, x: Tensor) -> Tensor:
        """Return the logits [..., V] of a residual stream [..., D]."""
        return F.linear(self.final_norm(x), self.token_embedding.weight)

    def layers(self) -> list[Block]:
        """Return the blocks from first to last, typed."""
        return [block for block in self.blocks if isinstance(block, Block)]


@torch.no_grad()
def _initialise(model: Transformer, seed: int) -> None:
    """Set every weight from `seed` alone, without touching PyTorch's global random state."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.endswith("gain"):
            parameter.fill_(1.0)
        elif name.endswith(("output.weight", "down.weight", "shift")):
            # Each block starts as the identity.
            parameter.zero_()
        else:
            sd = 0.02 if name.endswith("_embedding.weight") else parameter.shape[1] ** -0.5
            parameter.normal_(0.0, sd, generator=generator)


def draw_outputs(model: Transformer, seed: int) -> None:
    """Draw the output matrices of an untrained model, so that each layer writes about as much as an embedding.

    In a new model they are 0: its layers write nothing, and the word after a pronoun is the same in both readings.
    """
    generator = torch.Generator().manual_seed(seed)
    scale = float(model.token_embedding.weight.detach().std())
    for block in model.layers():
        for output in (block.attention.output, block.mlp.down):
            sd = scale * output.in_features**-0.5
            nn.init.normal_(output.weight, std=sd, generator=generator)


def load_weights(model: Transformer, weights: dict[str, Tensor]) -> None:
    """Load saved weights into `model`; UserError names one that is missing or of another shape."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        problem = str(error).split("\n\t")[-1]
        message = "the checkpoint does not fit the run's config and tokenizer"
        raise UserError(f"{message}: {problem}") from None


def n_parameters(model: nn.Module) -> int:
    """Return the number of trained weights; the tied embedding counts once."""
    return sum(parameter.numel() for parameter in model.parameters())
