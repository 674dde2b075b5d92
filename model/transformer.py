"""A decoder-only transformer in one file: norm, positions, attention, MLP, block, model.

The default is Llama's architecture (Touvron et al. 2023, arXiv 2302.13971) with tied embeddings. Letters in shapes:
B texts, T tokens, D d_model, H heads, K = D / H head dimension, V tokens of the vocabulary, L layers.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config import ModelConfig, Position, Scale, Weighting

_SUM_EPSILON = 1e-4  # added to each score (weighting=sum), or a row without a positive score would divide 0 by 0


class RMSNorm(nn.Module):
    """Root mean square normalisation (Zhang & Sennrich 2019, eq. 4), always computed in float32."""

    def __init__(self, width: int, eps: float) -> None:
        """Starts with a gain of 1."""
        super().__init__()
        self.gain, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        """Returns `x` [..., D] divided by its root mean square and multiplied by the gain."""
        return F.rms_norm(x.float(), self.gain.shape, self.gain.float(), self.eps).to(x.dtype)


def rotary_angles(positions: Tensor, width: int, theta: float) -> Tensor:
    """Returns the rotation angles [..., K/2] in float32 of a head of `width` K at `positions` [...].

    The order of operations is that of transformers' Llama, so that an exported model computes the same logits.
    """
    frequencies = 1.0 / theta ** (torch.arange(0, width, 2, device=positions.device).float() / width)
    return positions[..., None].float() * frequencies


def apply_rope(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotates each pair (i, i + K/2) of `x` by an angle proportional to its position (RoPE, Su et al. 2021, eq. 34).

    `x` [..., T, K] are queries or keys at `positions` [T], K even. Only differences of positions reach the scores.
    """
    angles = rotary_angles(positions, x.shape[-1], theta)  # [..., T, K/2]
    cos, sin = torch.cat([angles.cos(), angles.cos()], dim=-1), torch.cat([-angles.sin(), angles.sin()], dim=-1)
    other_half = x.float().roll(x.shape[-1] // 2, dims=-1)  # 2.5 times as fast as joining two halves, same bits
    return (x.float() * cos + other_half * sin).to(x.dtype)


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """Returns sines (first half) and cosines [..., width] of `positions` [...] (Vaswani et al. 2017, section 3.5).

    Divided by sqrt(width): the paper multiplies the token embeddings by it instead, which are small here.
    """
    half = width // 2
    frequencies = 10000.0 ** (-torch.arange(half, device=positions.device, dtype=torch.float32) / half)
    angles = positions[..., None].float() * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1) / width**0.5


def alibi_slopes(n_head: int) -> Tensor:
    """Returns the slope of each head [H]: 2^(-8/H) down to 2^-8, geometric (Press et al. 2022, section 3)."""
    return 2.0 ** (-8 * torch.arange(1, n_head + 1, dtype=torch.float32) / n_head)


def document_mask(document_ids: Tensor, *, causal: bool = True) -> Tensor:
    """Returns the attention mask [B, 1, T, T] of rows with several documents [B, T], True where a query sees a key."""
    mask = document_ids[:, :, None] == document_ids[:, None, :]
    return (mask.tril() if causal else mask)[:, None]


def document_positions(document_ids: Tensor) -> Tensor:
    """Returns the position [B, T] of each token in its own document; the documents [B, T] follow each other."""
    index = torch.arange(document_ids.shape[1], device=document_ids.device).expand_as(document_ids)
    is_first = torch.ones_like(document_ids, dtype=torch.bool)
    is_first[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
    return index - torch.where(is_first, index, 0).cummax(dim=1).values


def position_bias(distance: Tensor, slopes: Tensor | None = None, *, causal: bool = True) -> Tensor:
    """Returns the term that is added to the scores, float32: -inf for later keys, elsewhere ALiBi's penalty or 0.

    `distance` [..., Tq, T] is the position of the query minus that of the key, `slopes` [H] the penalty per token of
    distance, which adds an axis of heads; without `causal` later keys stay visible.
    """
    bias = torch.zeros_like(distance, dtype=torch.float32)
    if slopes is not None:
        bias = -slopes[:, None, None] * distance.abs()
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
    """Returns query @ key^T / sqrt(K) (Vaswani et al. 2017, eq. 1) plus the `position_bias`, [B, H, Tq, T] float32.

    The `query` [B, H, Tq, K] stands at `query_positions` [B, Tq] among the keys [B, H, T, K] (default: query i at i).
    """
    scores = query.float() @ key.float().mT  # [B, H, Tq, T]
    if scaled:
        scores = scores / query.shape[-1] ** 0.5
    if query_positions is None:
        query_positions = torch.arange(query.shape[-2], device=query.device)[None]
    distance = query_positions[:, None, :, None] - torch.arange(key.shape[-2], device=key.device)  # [B or 1, 1, Tq, T]
    return scores + position_bias(distance, slopes, causal=causal).to(scores.dtype)  # autocast makes them bfloat16


def causal_attention_weights(query: Tensor, key: Tensor) -> Tensor:
    """Returns the softmax of the causal `attention_scores` [B, H, T, T]: rows sum to 1, the future is exactly 0."""
    return attention_scores(query, key).softmax(dim=-1)


def positive_part(scores: Tensor) -> Tensor:
    """Returns max(score, 0) + 0.0001 [..., T], and 0 for -inf. Weights are its shares of the row (weighting=sum)."""
    return (scores.relu() + _SUM_EPSILON).masked_fill(scores.isneginf(), 0.0)


def sum_normalised(scores: Tensor) -> Tensor:
    """Returns each positive score over the sum of its row [..., T] (weighting=sum); -inf gives 0."""
    positive = positive_part(scores)
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
    """Returns softmax(scores) @ value [B, H, T, K], by PyTorch's fused kernel, which never stores the weights.

    Query, key and value are [B, H, T, K]; `mask` [B, 1, T, T] is that of `document_mask` (default: each row is one
    document); the switches are those of `attention_scores`.
    """
    scale = query.shape[-1] ** -0.5 if scaled else 1.0
    if slopes is None and mask is None:
        return F.scaled_dot_product_attention(query, key, value, is_causal=causal, scale=scale)
    index = torch.arange(query.shape[-2], device=query.device)
    bias = position_bias(index[:, None] - index, slopes, causal=causal).to(query.dtype)  # [T, T] or [H, T, T]
    if mask is not None:
        bias = bias.where(mask, float("-inf"))  # [B, 1 or H, T, T]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scale)


class Attention(nn.Module):
    """Multi-head self-attention of one layer, computed in two ways.

    `forward` trains: it is fast, and the weights are never stored. `scores` is for the probe, which reads and edits
    the weights: the same scores by the formula, in float32.
    """

    slopes: Tensor | None  # [H] of ALiBi

    def __init__(self, config: ModelConfig) -> None:
        """Creates four projections D -> D without biases; tied projections share one module."""
        super().__init__()
        self.n_head, self.theta = config.n_head, config.rope_theta
        self.scaled, self.causal = config.scale is Scale.inverse_sqrt, config.is_causal
        self.has_rope, self.sums = config.position is Position.rope, config.weighting is Weighting.sum
        slopes = alibi_slopes(config.n_head) if config.position is Position.alibi else None
        self.register_buffer("slopes", slopes, persistent=False)
        projection = partial(nn.Linear, config.d_model, config.d_model, bias=False)
        self.query = projection()
        self.key = self.query if config.tie_query_key else projection()
        self.value = self.key if config.tie_key_value else projection()
        self.output = projection()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Returns the update [B, T, D] of the residual stream, from the normalised stream `x` [B, T, D]."""
        query, key, value = self.project(x)  # each [B, H, T, K]
        return self.merge_heads(self.weighted_values(query, key, value, mask))

    def project(self, x: Tensor, first: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Returns query, key (rotated if RoPE is on) and value [B, H, T, K] of `x` [B, T, D] from position `first`."""
        return self._project(x, torch.arange(first, first + x.shape[1], device=x.device))

    def project_site(self, x: Tensor, site: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns query, key and value [B, H, 1, K] of `x` [B, 1, D], whose position in each text is `site` [B]."""
        return self._project(x, site[:, None, None])

    def _project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = (
            linear(x).unflatten(-1, (self.n_head, -1)).transpose(1, 2) for linear in (self.query, self.key, self.value)
        )
        if self.has_rope:
            query, key = apply_rope(torch.stack((query, key)), positions, self.theta)
        return query, key, value

    def weighted_values(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        """Returns weights @ value [B, H, T, K] of each head; `mask` is that of `document_mask`, if any."""
        if not self.sums:
            return attend(query, key, value, mask, scaled=self.scaled, slopes=self.slopes, causal=self.causal)
        scores = attention_scores(query, key, causal=self.causal)  # [B, H, T, T]
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        return (sum_normalised(scores) @ value.float()).to(value.dtype)

    def merge_heads(self, head_output: Tensor) -> Tensor:
        """Returns the output projection [B, T, D] of the concatenated heads [B, H, T, K]."""
        return self.output(head_output.transpose(1, 2).flatten(2))

    def scores(self, query: Tensor, key: Tensor, query_positions: Tensor | None = None) -> Tensor:
        """Returns the scores [B, H, Tq, T] float32 whose softmax equals the attention weights, -inf where masked.

        Query and key are those of `project`; `query_positions` [B, Tq] are the only rows wanted (default: all).
        ValueError if the model is not causal (model.mask=none).
        """
        if not self.causal:
            raise ValueError("model.mask=none: a model that sees its targets has no attention to interpret")
        if query_positions is not None:
            query = query.take_along_dim(query_positions[:, None, :, None], dim=2)  # [B, H, Tq, K]
        scores = attention_scores(query, key, query_positions, scaled=self.scaled, slopes=self.slopes)
        return positive_part(scores).log() if self.sums else scores

    def site_scores(self, query: Tensor, key: Tensor, site: Tensor) -> Tensor:
        """Returns the `scores` [B, H, 1, T] of one query [B, H, 1, K] per text, at the position `site` [B]."""
        scores = attention_scores(query, key, site[:, None], scaled=self.scaled, slopes=self.slopes)
        return positive_part(scores).log() if self.sums else scores

    def by_head(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns the weights of each head: query, key and value [H, K, D], output [H, D, K]."""
        query, key, value = (
            linear.weight.unflatten(0, (self.n_head, -1)) for linear in (self.query, self.key, self.value)
        )
        return query, key, value, self.output.weight.unflatten(1, (self.n_head, -1)).transpose(0, 1)


class SwiGLU(nn.Module):
    """The MLP: silu(x W_gate) * (x W_up), projected down (Shazeer 2020, eq. 6)."""

    def __init__(self, config: ModelConfig) -> None:
        """Creates the three matrices, without biases."""
        super().__init__()
        self.gate = nn.Linear(config.d_model, config.d_mlp, bias=False)
        self.up = nn.Linear(config.d_model, config.d_mlp, bias=False)
        self.down = nn.Linear(config.d_mlp, config.d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the update [B, T, D] of the residual stream, from the normalised stream `x` [B, T, D]."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """One layer: attention and MLP, each reads the normalised residual stream and adds to it (pre-norm)."""

    def __init__(self, config: ModelConfig) -> None:
        """Creates both halves."""
        super().__init__()
        self.norm_1, self.attention = RMSNorm(config.d_model, config.norm_eps), Attention(config)
        self.norm_2, self.mlp = RMSNorm(config.d_model, config.norm_eps), SwiGLU(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Returns the residual stream [B, T, D] after this layer."""
        x = x + self.dropout(self.attention(self.norm_1(x), mask))
        return x + self.dropout(self.mlp(self.norm_2(x)))


class Transformer(nn.Module):
    """The model: `forward(tokens) -> logits` of the next token."""

    def __init__(self, config: ModelConfig, vocab_size: int, seed: int) -> None:
        """Builds the model and initialises every weight from `seed` alone."""
        super().__init__()
        self.config, self.vocab_size = config, vocab_size
        self.token_embedding = nn.Embedding(vocab_size, config.d_model)  # also the output embedding
        if config.position is Position.learned:
            self.position_embedding = nn.Embedding(config.context_length, config.d_model)
        if config.token_shift:
            self.shift = nn.Parameter(torch.zeros(config.d_model))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.final_norm = RMSNorm(config.d_model, config.norm_eps)
        initialise(self, seed)

    def forward(self, tokens: Tensor, document_ids: Tensor | None = None) -> Tensor:
        """Returns the logits [B, T, V] of the token after each of `tokens` [B, T]; T is at most context_length.

        With `document_ids` [B, T] rows hold several documents; no token sees another document than its own.
        """
        mask, positions = None, None
        if document_ids is not None:
            mask = document_mask(document_ids, causal=self.config.is_causal)
            positions = document_positions(document_ids)
        x = self.embed(tokens, positions)  # [B, T, D]
        for block in self.blocks:
            x = block(x, mask)
        return self.unembed(x)

    def embed(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """Returns the residual stream [B, T, D] before the first block; `positions` [B, T] default to 0 to T - 1."""
        x = self.token_embedding(tokens)
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)
        if self.config.token_shift:
            previous = F.pad(x[:, :-1], (0, 0, 1, 0)) * (positions > 0)[..., None]  # 0 for a document's first token
            x = x + self.shift * previous
        if self.config.position is Position.learned:
            x = x + self.position_embedding(positions)
        if self.config.position is Position.sinusoidal:
            x = x + sinusoids(positions, self.config.d_model)
        return x

    def unembed(self, x: Tensor) -> Tensor:
        """Returns the logits [..., V] of a residual stream [..., D]."""
        return F.linear(self.final_norm(x), self.token_embedding.weight)

    def layers(self) -> list[Block]:
        """Returns the blocks from first to last, typed."""
        return [block for block in self.blocks if isinstance(block, Block)]


def initialise(model: Transformer, seed: int) -> None:
    """Sets every weight from `seed` alone, without touching PyTorch's global random state."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            if name.endswith("gain"):
                parameter.fill_(1.0)
            elif name.endswith(("output.weight", "down.weight", "shift")):  # each block starts as the identity
                parameter.zero_()
            else:
                sd = 0.02 if name.endswith("_embedding.weight") else parameter.shape[1] ** -0.5
                parameter.normal_(0.0, sd, generator=generator)


def draw_outputs(model: Transformer, seed: int) -> None:
    """Draws the output matrices of an untrained model, so that each layer writes about as much as an embedding.

    In a new model they are 0: its layers write nothing, and the word after a pronoun is the same in both readings.
    """
    generator = torch.Generator().manual_seed(seed)
    scale = float(model.token_embedding.weight.detach().std())
    for block in model.layers():
        for output in (block.attention.output, block.mlp.down):
            nn.init.normal_(output.weight, std=scale * output.in_features**-0.5, generator=generator)


def load_weights(model: Transformer, weights: dict[str, Tensor]) -> None:
    """Loads saved weights into `model`; ValueError names a weight that is missing or has another shape."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        problem = str(error).split("\n\t")[-1]
        raise ValueError(f"the checkpoint does not fit the run's config and tokenizer: {problem}") from None


def n_parameters(model: nn.Module) -> int:
    """Returns the number of trained weights; the tied embedding counts once."""
    return sum(parameter.numel() for parameter in model.parameters())
