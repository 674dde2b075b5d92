"""A decoder-only transformer in one file: norm, positions, attention, MLP, block, model.

The default is Llama's architecture (Touvron et al. 2023, arXiv 2302.13971). Special in this file:

- The token embedding is also the output embedding; Llama has a matrix for each.
- A layer of a new model changes nothing, because its output matrices start at 0.
- Attention is computed in two ways: by PyTorch's fused kernel to train, by the formula to observe and edit the weights.
- A row may hold several documents: a token sees its own document only, and positions begin at 0 in each.
- Switches of the attention lab (settings/model.py) replace the positions, the scale or the softmax, or tie projections.

Letters in shapes: B texts, T tokens (Tq queries), D d_model, H heads, K = D / H head dimension, V tokens of the
vocabulary, L layers.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.loss import summed_cross_entropy
from settings.errors import UserError
from settings.model import ModelConfig, Position, Scale, Weighting

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


def rope_tables(n_positions: int, width: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines [n_positions, width] float32 with which `rotate` applies RoPE at each position.

    Each pair (i, i + width/2) of a query or key turns by an angle proportional to its position (Su et al. 2021, eq.
    34), so that only differences of positions reach the scores. The paper pairs neighbours, (2i, 2i + 1). `width` is
    even.
    """
    # In the order of operations of transformers' Llama: an exported model computes the same logits.
    exponents = torch.arange(0, width, 2).float() / width  # [width/2]
    frequencies = 1.0 / theta**exponents  # [width/2]
    angles = torch.arange(n_positions)[:, None].float() * frequencies  # [n_positions, width/2]
    cos = torch.cat([angles.cos(), angles.cos()], dim=-1)
    sin = torch.cat([-angles.sin(), angles.sin()], dim=-1)
    return cos, sin


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each pair (i, i + K/2) of `x` [..., T, K]; `cos` and `sin` [..., T, K] are of `rope_tables`."""
    # In place: the memory costs more than the products.
    return (x * cos).add_(x.roll(x.shape[-1] // 2, dims=-1).mul_(sin))


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """Return sines (first half) and cosines [..., width] of `positions` [...] (Vaswani et al. 2017, section 3.5).

    Divided by sqrt(width): the paper multiplies the token embeddings by it instead, which are small here. The paper
    takes sine and cosine in turn.
    """
    half = width // 2
    exponents = -torch.arange(half, device=positions.device, dtype=torch.float32) / half
    angles = positions[..., None].float() * 10000.0**exponents  # [..., width / 2]
    scale: float = width**0.5
    return torch.cat([angles.sin(), angles.cos()], dim=-1) / scale


def document_bias(document_ids: Tensor) -> Tensor:
    """Return the term [B, 1, T, T], 0 or -inf, that hides other documents of `document_ids` [B, T], and later keys."""
    is_same = document_ids[:, None, :, None] == document_ids[:, None, None, :]  # [B, 1, T, T]
    is_visible = is_same.tril()
    return torch.zeros_like(is_visible, dtype=torch.float32).masked_fill(~is_visible, float("-inf"))


def document_positions(document_ids: Tensor) -> Tensor:
    """Return the position [B, T] of each token in its own document; documents follow each other."""
    n_tokens = document_ids.shape[1]
    index = torch.arange(n_tokens, device=document_ids.device).expand_as(document_ids)  # [B, T]
    is_first = torch.ones_like(document_ids, dtype=torch.bool)
    is_first[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
    return index - torch.where(is_first, index, 0).cummax(dim=1).values


def attention_scores(query: Tensor, key: Tensor) -> Tensor:
    """Return query @ key^T / sqrt(K) (Vaswani et al. 2017, eq. 1), [B, H, T, T] float32; -inf for later keys."""
    scores: Tensor = query.float() @ key.float().mT / query.shape[-1] ** 0.5
    is_later = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)  # [T, T]
    return scores.masked_fill(is_later, float("-inf"))


def _positive_scores(scores: Tensor) -> Tensor:
    """Return max(score, 0) + 0.0001 [..., T], and 0 for -inf (weighting=sum)."""
    return (scores.relu() + _SUM_EPSILON).masked_fill(scores.isneginf(), 0.0)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None = None,
    *,
    scaled: bool = True,
) -> Tensor:
    """Return softmax(scores) @ value [B, H, T, K], by PyTorch's fused kernel, which never stores the weights.

    Query, key and value are [B, H, T, K]; `bias` [B, 1, T, T] is that of `document_bias` (default: each row is one
    document).
    """
    # In bfloat16 the gradient of this kernel takes 4 times as long on a CPU.
    output_type = value.dtype
    if not query.is_cuda:
        query, key, value = query.float(), key.float(), value.float()
    scale = query.shape[-1] ** -0.5 if scaled else 1.0
    mask = None if bias is None else bias.to(query.dtype)
    is_causal = bias is None  # without a term for each pair of tokens the kernel is much faster
    with torch.autocast("cpu", enabled=False):
        output = F.scaled_dot_product_attention(query, key, value, mask, is_causal=is_causal, scale=scale)
    return output.to(output_type)


class Attention(nn.Module):
    """Multi-head self-attention of one layer, computed in two ways.

    `forward` trains: it is fast, and the weights are never stored. `scored` is for the probe, which observes and edits
    the weights: the same scores by the formula, in float32.
    """

    cos: Tensor | None  # [context_length, K] of RoPE
    sin: Tensor | None  # [context_length, K] of RoPE

    def __init__(self, config: ModelConfig) -> None:
        """Create four projections D -> D without biases; tied projections share one module."""
        super().__init__()
        self.n_head = config.n_head
        self.scaled = config.scale is Scale.inverse_sqrt
        self.uses_sum_weighting = config.weighting is Weighting.sum
        cos, sin = None, None
        if config.position is Position.rope:
            cos, sin = rope_tables(config.context_length, config.head_dim, config.rope_theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

        projection = partial(nn.Linear, config.d_model, config.d_model, bias=False)
        self.query = projection()
        self.key = self.query if config.tie_query_key else projection()
        self.value = self.key if config.tie_key_value else projection()
        self.output = projection()

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return the update [B, T, D] of the residual stream from the normalised stream `x`."""
        query, key, value = self.project(x)  # each [B, H, T, K]
        heads = self.weighted_values(query, key, value, bias)
        update: Tensor = self.output(heads.transpose(1, 2).flatten(2))
        return update

    def project(self, x: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key (both rotated if RoPE is on) and value [B, H, T, K] of `x` [B, T, D].

        `positions` [T], or [B, 1, T] if they differ between the texts, default to 0 to T - 1; all are below
        context_length.
        """
        query = self._rotated(self.query(x), positions)
        key = self._rotated(self.key(x), positions)
        return query, key, self._by_head(self.value(x))

    def _rotated(self, projected: Tensor, positions: Tensor | None) -> Tensor:
        heads = self._by_head(projected)
        if self.cos is None or self.sin is None:
            return heads
        places = slice(projected.shape[1]) if positions is None else positions
        cos, sin = self.cos[places], self.sin[places]  # [T, K] or [B, 1, T, K]
        return rotate(heads.float(), cos, sin).to(heads.dtype)

    def _by_head(self, projected: Tensor) -> Tensor:
        """Return [B, T, D] as heads [B, H, T, K]."""
        heads: Tensor = projected.unflatten(-1, (self.n_head, -1)).transpose(1, 2)
        return heads

    def weighted_values(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return weights @ value [B, H, T, K] of each head; `bias` is that of `document_bias`."""
        if not self.uses_sum_weighting:
            return attend(query, key, value, bias, scaled=self.scaled)

        # There is no kernel for weights without an exponential, so the whole matrix is stored.
        scores = attention_scores(query, key)  # [B, H, T, T]
        if bias is not None:
            scores = scores + bias
        positive = _positive_scores(scores)
        weights = positive / positive.sum(dim=-1, keepdim=True)
        return (weights @ value.float()).to(value.dtype)

    def scored(self, products: Tensor) -> Tensor:
        """Return the scores [..., T] of products of queries and keys; with the mask, their softmax is the weights."""
        scores = products / (self.query.out_features // self.n_head) ** 0.5 if self.scaled else products
        return _positive_scores(scores).log() if self.uses_sum_weighting else scores


class SwiGLU(nn.Module):
    """The MLP: silu(x W_gate) * (x W_up), projected down (Shazeer 2020, eq. 6)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.d_model, config.d_mlp, bias=False)
        self.up = nn.Linear(config.d_model, config.d_mlp, bias=False)
        self.down = nn.Linear(config.d_mlp, config.d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the update [B, T, D] of the residual stream from the normalised stream `x`."""
        update: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return update


class Block(nn.Module):
    """One layer: attention and MLP read the normalised residual stream and add to it (pre-norm).

    Vaswani et al. 2017 normalise the sum instead. Dropout is applied to the updates alone; GPT-2 also drops attention
    weights and embeddings.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm_1 = RMSNorm(config.d_model, config.norm_eps)
        self.attention = Attention(config)
        self.norm_2 = RMSNorm(config.d_model, config.norm_eps)
        self.mlp = SwiGLU(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return the residual stream [B, T, D] after this layer; `bias` is that of `document_bias`."""
        x = x + self.dropout(self.attention(self.norm_1(x), bias))  # [B, T, D]
        x = x + self.dropout(self.mlp(self.norm_2(x)))
        return x


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
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.final_norm = RMSNorm(config.d_model, config.norm_eps)
        _initialise(self, seed)

    def forward(self, tokens: Tensor, document_ids: Tensor | None = None, targets: Tensor | None = None) -> Tensor:
        """Return the logits [B, T, V] of the token after each of `tokens` [B, T]; T is at most context_length.

        With `document_ids` [B, T] rows hold several documents; no token sees another document than its own. With
        `targets` [B, T] return their summed cross-entropy [] in nats instead, and never store all logits.
        """
        x = self.stream(tokens, document_ids)
        if targets is None:
            return self.unembed(x)
        return summed_cross_entropy(self.final_norm(x), self.token_embedding.weight, targets)

    def stream(self, tokens: Tensor, document_ids: Tensor | None = None) -> Tensor:
        """Return the residual stream [B, T, D] after the last block; `tokens` and `document_ids` as in `forward`."""
        bias, positions = None, None
        if document_ids is not None:
            bias = document_bias(document_ids)  # [B, 1, T, T]
            positions = document_positions(document_ids)  # [B, T]
        x = self.embed(tokens, positions)  # [B, T, D]
        for block in self.blocks:
            x = block(x, bias)
        return x

    def embed(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return the residual stream [B, T, D] before the first block; `positions` [B, T] default to 0 to T - 1."""
        x: Tensor = self.token_embedding(tokens)  # [B, T, D]
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)
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
        elif name.endswith(("output.weight", "down.weight")):
            # Each block starts as the identity (Zhang et al. 2019, arXiv 1901.09321).
            parameter.zero_()
        else:
            # 0.02 as in GPT-2; else 1 / sqrt(inputs), so that outputs are about as large as the normalised input.
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
        raise UserError(f"the checkpoint does not fit the run's config and tokenizer: {problem}") from None


def n_parameters(model: nn.Module) -> int:
    """Return the number of trained weights; the tied embedding counts once."""
    return sum(parameter.numel() for parameter in model.parameters())
