"""The whole model, top to bottom: `forward(tokens) -> logits`, and the same pass observed."""

from collections.abc import Iterator
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config import ModelConfig, Position, Scale, Weighting
from model.fast import FastBlock, How, PieceAttention
from model.products import multiplied_product, product

EMBEDDING_STD = 0.02


def initialise(model: nn.Module, seed: int) -> None:
    """Fill every parameter of a `Transformer` by the table, from `seed` alone: the global random state is untouched."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            if name.endswith("gain"):
                parameter.fill_(1.0)
            elif name.endswith(("output.weight", "down.weight", "shift")):
                parameter.zero_()
            else:
                std = EMBEDDING_STD if name.endswith("_embedding.weight") else parameter.shape[1] ** -0.5
                parameter.normal_(0.0, std, generator=generator)


def rotary_angles(positions: Tensor, width: int, theta: float) -> Tensor:
    """Return [..., K/2] float32, by how much each pair of a head of `width` K is turned at positions [...].

    Written as Llama's code has it, for its last bits: what is exported then computes the same logits (model/export.py).
    """
    frequencies = 1.0 / theta ** (torch.arange(0, width, 2, device=positions.device).float() / width)
    return positions[..., None].float() * frequencies


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Turn each pair (i, i + K/2) of `x` by an angle that grows with its position (RoPE, Su et al. 2021, eq. 34).

    Args:
        x: [..., T, K] queries or keys, K even.
        positions: [T] or broadcastable to x.shape[:-1]; any origin, since only differences reach the scores.
        theta: base of the angles.

    Returns:
        [..., T, K], each vector as long as before; computed in float32, returned in x's type.

    """
    angles = rotary_angles(positions, x.shape[-1], theta)  # [..., T, K/2]
    cos, sin = angles.cos(), angles.sin()
    # Whole vectors and not their halves, whose rows are short: 2.5 times as fast (measured), and the same bits.
    whole = x.float()
    turned = whole * torch.cat([cos, cos], dim=-1) + whole.roll(x.shape[-1] // 2, dims=-1) * torch.cat(
        [-sin, sin], dim=-1
    )
    return turned.to(x.dtype)


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """Return [..., width] the sines (first half) and cosines of positions [...] (Vaswani et al. 2017, section 3.5).

    Divided by sqrt(width), so that each is 0.71 long. There tokens are multiplied by it instead (section 3.4) and begin
    about 1.4 times as long as the sines; here tokens begin at .16 (width 64) and grow to .76 (the median
    of a trained default run), about as long as these.
    """
    half = width // 2
    frequencies = 10000.0 ** (-torch.arange(half, device=positions.device, dtype=torch.float32) / half)
    angles = positions[..., None].float() * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1) / width**0.5


def head_slopes(n_head: int) -> Tensor:
    """Return [H] float32, by how much a score falls from each key to the one before it (ALiBi, Press et al. 2022).

    A geometric sequence from 2^(-8/H) down to 2^-8 (section 3).
    """
    return 2.0 ** (-8 * torch.arange(1, n_head + 1, dtype=torch.float32) / n_head)


def falling(length: int, slopes: Tensor | None, *, causal: bool = True) -> Tensor:
    """Return what is added to the scores of a row of one text: [H or 1, T, T], -inf where a key may not be seen.

    Args:
        length: T.
        slopes: [H] what a step of distance costs; None: nothing.
        causal: whether the future is hidden.

    """
    places = torch.arange(length, device=None if slopes is None else slopes.device)
    distances = places[:, None] - places[None, :]
    added = -slopes[:, None, None] * distances.abs() if slopes is not None else torch.zeros(1, length, length)
    return added.masked_fill(distances < 0, float("-inf")) if causal else added


@lru_cache(maxsize=4)
def hidden_once(length: int, n_head: int) -> Tensor:
    """Return `falling` of a causal row, in bfloat16 on a CPU: made once, 2 ms with 8 heads of 256 tokens.

    Whoever asks gets the same tensor, so nobody may write into it.

    Args:
        length: T.
        n_head: H of ALiBi's heads; 0: scores do not fall.

    """
    return falling(length, head_slopes(n_head) if n_head else None).bfloat16()


def within_texts(texts: Tensor, *, causal: bool = True) -> Tensor:
    """Return which key each query may see where a row holds several texts: [B, 1, T, T], those of its own text.

    Args:
        texts: [B, T] the number of the text that each token belongs to.
        causal: of them only those up to the query.

    """
    own = texts[:, :, None] == texts[:, None, :]
    if causal:
        places = torch.arange(texts.shape[1], device=texts.device)
        own = own & (places[None, :] <= places[:, None])
    return own[:, None]


def positions_within(texts: Tensor) -> Tensor:
    """Return [B, T] how many tokens of its own text stand before each token; texts [B, T] lie end to end."""
    places = torch.arange(texts.shape[1], device=texts.device).expand_as(texts)
    begins = torch.ones_like(texts, dtype=torch.bool)
    begins[:, 1:] = texts[:, 1:] != texts[:, :-1]
    return places - torch.where(begins, places, 0).cummax(dim=1).values


# On a CPU in bfloat16, from this context on, attention by pieces is taken where a block as a whole cannot be fast
# (measured at 256: 2.2 times as fast as the fused kernel in float32, both ways together; at 64 1.2 times).
_LEAST_CONTEXT = 128


# Added to what is positive of each score where weights are shares (weighting=sum): a query whose scores are all
# negative then looks everywhere alike instead of dividing 0 by 0.
_LEAST_SCORE = 1e-4


def causal_attention_scores(
    query: Tensor,
    key: Tensor,
    query_positions: Tensor | None = None,
    key_positions: Tensor | None = None,
    *,
    scaled: bool = True,
    slopes: Tensor | None = None,
) -> Tensor:
    """Return what each query position thinks of each key position before the softmax (Vaswani et al. 2017, eq. 1).

    Args:
        query: [B, H, Tq, K].
        key: [B, H, Tk, K].
        query_positions: [B, Tq] where each query stands; None: query i stands at i.
        key_positions: [B, Tk] where each key stands; None: key i stands at i.
        scaled: by 1 / sqrt(K), or not at all.
        slopes: [H] what a step of distance costs in each head (`head_slopes`); None: nothing.

    Returns:
        [B, H, Tq, Tk] float32, q·k / sqrt(K), exactly -inf at every key after the query.

    """
    scores = query.float() @ key.float().transpose(-1, -2)
    if scaled:
        scores = scores / query.shape[-1] ** 0.5
    if query_positions is None:
        query_positions = torch.arange(query.shape[-2], device=query.device)[None]
    if key_positions is None:
        key_positions = torch.arange(key.shape[-2], device=key.device)[None]
    distances = query_positions[:, None, :, None] - key_positions[:, None, None, :]
    if slopes is not None:
        scores = scores - slopes[:, None, None] * distances
    return scores.masked_fill(distances < 0, float("-inf"))


def causal_attention_weights(query: Tensor, key: Tensor, query_positions: Tensor | None = None) -> Tensor:
    """Return the softmax of `causal_attention_scores`: [B, H, Tq, Tk], rows that sum to 1, exactly 0 in the future."""
    return causal_attention_scores(query, key, query_positions).softmax(dim=-1)


def log_shares(scores: Tensor) -> Tensor:
    """Return numbers whose softmax is each score's share of the sum of all, what is negative counting as next to 0.

    Args:
        scores: [..., Tk] float32, -inf where a key may not be seen.

    Returns:
        [..., Tk], log(max(score, 0) + 0.0001), -inf where a key may not be seen.

    """
    return (scores.relu() + _LEAST_SCORE).log().masked_fill(scores.isneginf(), float("-inf"))


def summed_attention(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor) -> Tensor:
    """Return weights @ value [B, H, T, K], the weights being scores over their sum: attention without an exponential.

    Args:
        query: [B, H, T, K].
        key: [B, H, T, K].
        value: [B, H, T, K].
        allowed: broadcastable to [B, H, T, T], True where a key may be seen.

    """
    scores = query.float() @ key.float().transpose(-1, -2) / query.shape[-1] ** 0.5
    shares = (scores.relu() + _LEAST_SCORE) * allowed
    return ((shares / shares.sum(-1, keepdim=True)) @ value.float()).to(value.dtype)


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    allowed: Tensor | None = None,
    *,
    causal: bool = True,
    scaled: bool = True,
    slopes: Tensor | None = None,
) -> Tensor:
    """Return weights @ value [B, H, T, K] without ever holding the weights.

    On a CPU in bfloat16 the fused kernel is many times slower than in float32 (measured, torch 2.13), so there it is
    given float32, or done without (`PieceAttention`, which keeps its weights) where a row is one long text.

    Args:
        query: [B, H, T, K].
        key: [B, H, T, K].
        value: [B, H, T, K].
        allowed: `within_texts`; None where a row is one text.
        causal: where a row is one text, whether its future is hidden.
        scaled: by 1 / sqrt(K), or not at all.
        slopes: [H] what a step of distance costs in each head; None: nothing.

    """
    alone = causal and allowed is None
    if query.device.type == "cpu" and query.dtype == torch.bfloat16:
        with torch.autocast("cpu", enabled=False):
            if alone and query.shape[-2] >= _LEAST_CONTEXT and not torch.compiler.is_compiling():
                hidden = hidden_once(query.shape[-2], 0 if slopes is None else query.shape[1])
                return PieceAttention.apply(query, key, value, query.shape[-1] ** -0.5 if scaled else 1.0, hidden)
            heads = (query.float(), key.float(), value.float())
            mixed = fused_attention(*heads, allowed, causal=causal, scaled=scaled, slopes=slopes)
        return mixed.to(query.dtype)
    if slopes is not None:
        added = falling(query.shape[-2], slopes, causal=alone).to(query.dtype)
        allowed = added if allowed is None else added.where(allowed, float("-inf"))
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=allowed, is_causal=causal and allowed is None, scale=None if scaled else 1.0
    )


class Attention(nn.Module):
    """The weights of one layer's attention and the two ways through it: fused to train, observed to look."""

    slopes: Tensor | None  # [H] what a step of distance costs

    def __init__(self, config: ModelConfig) -> None:
        """Make the four projections, D to D, without biases; tied ones are one and the same."""
        super().__init__()
        self.n_head, self.theta = config.n_head, config.rope_theta
        self.scaled, self.causal = config.scale is Scale.inverse_sqrt, config.is_causal
        self.turned, self.summed = config.position is Position.rope, config.weighting is Weighting.sum
        slopes = head_slopes(config.n_head) if config.position is Position.alibi else None
        self.register_buffer("slopes", slopes, persistent=False)  # [H], and moves to a device with the weights

        def projection() -> nn.Linear:
            return nn.Linear(config.d_model, config.d_model, bias=False)

        self.query = projection()
        self.key = self.query if config.tie_query_key else projection()
        self.value = self.key if config.tie_key_value else projection()
        self.output = projection()

    def project(self, x: Tensor, first: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key (both turned by their positions) and value of `x` [B, T, D], each [B, H, T, K].

        `first` is the position of the first of the T tokens.
        """
        query, key, value = (self._heads(product(x, one.weight)) for one in (self.query, self.key, self.value))
        if self.turned:
            positions = torch.arange(first, first + x.shape[1], device=x.device)
            query, key = self.turn(torch.stack((query, key)), positions)  # in one call: a step is 5 % shorter
        return query, key, value

    def turn(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return queries or keys `x` [..., T, K] turned by their positions, as `rotate` does; of a model that turns."""
        return rotate(x, positions, self.theta)

    def forward(self, x: Tensor, allowed: Tensor | None = None) -> Tensor:
        """Return what attention adds to the stream: [B, T, D] from [B, T, D]."""
        return self.merge(self.mix(*self.project(x), allowed))

    def mix(self, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None = None) -> Tensor:
        """Return weights @ value [B, H, T, K] of what `project` gave, without ever holding the weights of softmax."""
        if self.summed:
            if allowed is None:
                allowed = torch.ones(2 * query.shape[2:3], dtype=torch.bool, device=query.device)
                allowed = allowed.tril() if self.causal else allowed
            return summed_attention(query, key, value, allowed)
        return fused_attention(query, key, value, allowed, causal=self.causal, scaled=self.scaled, slopes=self.slopes)

    def merge(self, mixed: Tensor) -> Tensor:
        """Return what all heads together add to the stream, [B, T, D] from the values they mixed [B, H, T, K]."""
        return product(mixed.transpose(1, 2).flatten(2), self.output.weight)

    def by_head(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the weights as each head has them: query, key and value [H, K, D], output [H, D, K]."""
        read = (linear.weight.unflatten(0, (self.n_head, -1)) for linear in (self.query, self.key, self.value))
        query, key, value = read
        return query, key, value, self.output.weight.unflatten(1, (self.n_head, -1)).transpose(0, 1)

    def offsets_by_head(self) -> tuple[Tensor, Tensor] | None:
        """Return what is added to each head's query and key [H, K] whatever is read; None: nothing, as here."""
        return None

    def scores(self, x: Tensor, query_positions: Tensor | None = None) -> Tensor:
        """Return `judge` of `x`, of all positions or of `query_positions` [B, Tq] alone."""
        query, key, _ = self.project(x)
        return self.rows(query, key, query_positions)

    def rows(self, query: Tensor, key: Tensor, query_positions: Tensor | None = None) -> Tensor:
        """Return `judge` of what `project` gave, of all positions or of `query_positions` [B, Tq] alone."""
        if query_positions is not None:
            index = query_positions[:, None, :, None].expand(-1, query.shape[1], -1, query.shape[-1])
            query = query.gather(2, index)  # [B, H, Tq, K]
        return self.judge(query, key, query_positions)

    def judge(
        self, query: Tensor, key: Tensor, query_positions: Tensor | None = None, key_positions: Tensor | None = None
    ) -> Tensor:
        """Return the numbers whose softmax the weights are: [B, H, Tq, Tk], arguments as `causal_attention_scores`.

        Where weights are shares of a sum, those numbers are their logarithms (`log_shares`), so that whoever observes
        reads every kind of attention in one way. Of a model without a mask nothing can be observed.

        Raises:
            ValueError: model.mask=none.

        """
        if not self.causal:
            raise ValueError("a model trained with model.mask=none reads what it must predict: its heads say nothing")
        scores = causal_attention_scores(
            query, key, query_positions, key_positions, scaled=self.scaled, slopes=self.slopes
        )
        return log_shares(scores) if self.summed else scores

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.n_head, -1)).transpose(1, 2)  # [B, H, T, K]


class Norm(nn.Module):
    """RMSNorm (Zhang & Sennrich 2019, eq. 4), always computed in float32."""

    def __init__(self, width: int, eps: float) -> None:
        """Start at gain 1."""
        super().__init__()
        self.gain, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` [..., D] divided by its root mean square and multiplied by the gain."""
        return F.rms_norm(x.float(), self.gain.shape, self.gain.float(), self.eps).to(x.dtype)

    def undivided(self, x: Tensor) -> Tensor:
        """Return `x` [..., D] as the norm leaves it, but for the division by its size and for what is always added."""
        return x * self.gain

    def before(self, direction: Tensor, x: Tensor) -> Tensor:
        """Return what `direction` [..., D] behind the norm is in front of it, where the norm reads `x` [..., D].

        Its dot product with any part of `x` is what that part gives to the dot product behind. The size by which the
        norm divides is taken as that of `x`.
        """
        return direction * self.gain / (x.pow(2).mean(-1, keepdim=True) + self.eps).sqrt()

    def always(self, direction: Tensor) -> Tensor | None:
        """Return the part of a dot product with `direction` [..., D] that no input changes; None: there is none."""
        return None


class Mlp(nn.Module):
    """SwiGLU (Shazeer 2020, eq. 6): a gate decides what of `up` passes."""

    def __init__(self, config: ModelConfig) -> None:
        """Make the three matrices, without biases."""
        super().__init__()
        self.gate = nn.Linear(config.d_model, config.d_mlp, bias=False)
        self.up = nn.Linear(config.d_model, config.d_mlp, bias=False)
        self.down = nn.Linear(config.d_mlp, config.d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the MLP adds to the stream: [B, T, D] from [B, T, D]."""
        return product(multiplied_product(F.silu(product(x, self.gate.weight)), x, self.up.weight), self.down.weight)


class Block(nn.Module):
    """One layer: attention, then MLP, each reading a normalised stream and adding to it."""

    def __init__(self, config: ModelConfig) -> None:
        """Build both halves."""
        super().__init__()
        self.norm_1, self.attention = Norm(config.d_model, config.norm_eps), Attention(config)
        self.norm_2, self.mlp = Norm(config.d_model, config.norm_eps), Mlp(config)
        self.dropout = nn.Dropout(config.dropout)
        plain = config.is_causal and config.weighting is Weighting.softmax
        self.can_be_fast, self.eps = plain and config.dropout == 0, config.norm_eps

    def forward(self, x: Tensor, allowed: Tensor | None = None) -> Tensor:
        """Pass the stream [B, T, D] on."""
        if self.can_be_fast and allowed is None and _trains_in_bfloat16(x):
            return self._fast(x)
        x = x + self.dropout(self.attention(self.norm_1(x), allowed))
        return x + self.dropout(self.mlp(self.norm_2(x)))

    def adds(self) -> bool:
        """Whether it can add anything to the stream: one that was never trained does not (model/init.py)."""
        return bool(self.attention.output.weight.any()) or bool(self.mlp.down.weight.any())

    def _fast(self, x: Tensor) -> Tensor:
        """Return what `forward` does, to rounding (model/fast.py)."""
        attention, mlp, length = self.attention, self.mlp, x.shape[1]
        angles = None
        if attention.turned:
            angles = rotary_angles(torch.arange(length), x.shape[2] // attention.n_head, attention.theta)
        with torch.autocast("cpu", enabled=False):
            hidden = hidden_once(length, 0 if attention.slopes is None else attention.n_head)
            scale = (x.shape[2] // attention.n_head) ** -0.5 if attention.scaled else 1.0
            return FastBlock.apply(
                *(x, How(attention.n_head, self.eps, scale, angles, hidden), self.norm_1.gain),
                *(attention.query.weight, attention.key.weight, attention.value.weight, attention.output.weight),
                *(self.norm_2.gain, mlp.gate.weight, mlp.up.weight, mlp.down.weight),
            )


def _trains_in_bfloat16(x: Tensor) -> bool:
    """Whether this is a training step's pass on a CPU in bfloat16, and not one that is being compiled.

    What is only looked at takes the plain path, as the probe does.
    """
    if x.device.type != "cpu" or torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return False
    return torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") is torch.bfloat16


class Transformer(nn.Module):
    """A decoder-only transformer of Llama's shape with tied embeddings."""

    def __init__(self, config: ModelConfig, vocab_size: int, seed: int) -> None:
        """Build it and initialise every weight from `seed` alone, as the table in model/init.py says."""
        super().__init__()
        self.config, self.vocab_size = config, vocab_size
        self.token_embedding = nn.Embedding(vocab_size, config.d_model)
        if config.position is Position.learned:
            self.position_embedding = nn.Embedding(config.context_length, config.d_model)
        if config.token_shift:
            self.shift = nn.Parameter(torch.zeros(config.d_model))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.final_norm = Norm(config.d_model, config.norm_eps)
        initialise(self, seed)

    def forward(self, tokens: Tensor, texts: Tensor | None = None) -> Tensor:
        """Return the logits [B, T, V] of the token after each of `tokens` [B, T]; T up to context_length.

        Where a row holds several texts end to end, `texts` [B, T] numbers them, and each is read as if it stood alone.
        """
        allowed = None if texts is None else within_texts(texts, causal=self.config.is_causal)
        x = self.embed(tokens, None if texts is None or not self.config.asks_places else positions_within(texts))
        for block in self.blocks:
            x = block(x, allowed)
        return self.unembed(x)

    def embed(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return the stream [B, T, D] that enters the first block.

        Args:
            tokens: [B, T].
            positions: [B, T] where each token stands in its text, below context_length; None: token i stands at i.
                A model that has no token shift and whose positions are relative does not ask.

        """
        x = self.token_embedding(tokens)
        if not self.config.asks_places:
            return x
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)
        if self.config.token_shift:
            before = F.pad(x[:, :-1], (0, 0, 1, 0)) * (positions > 0)[..., None]  # the first of a text has none
            x = x + self.shift * before
        if self.config.is_relative:
            return x
        if self.config.position is Position.learned:
            return x + self.position_embedding(positions)
        return x + sinusoids(positions, self.config.d_model)

    def layers(self) -> Iterator[Block]:
        """Yield the blocks, bottom up."""
        for block in self.blocks:
            assert isinstance(block, Block)  # a ModuleList does not say what it holds
            yield block

    @property
    def unembedding(self) -> Tensor:
        """The vector of every token [V, D] whose dot product with the normalised stream is its logit."""
        return self.token_embedding.weight

    def unembed(self, x: Tensor) -> Tensor:
        """Return the logits [..., V] of a stream [..., D]: its norm's dot product with every token's vector."""
        return F.linear(self.final_norm(x), self.unembedding)


def load_weights(model: Transformer, weights: dict[str, Tensor]) -> None:
    """Fill `model` with saved weights; ValueError in one line where they are not those of such a model."""
    expected = {name: tuple(parameter.shape) for name, parameter in model.state_dict().items()}
    found = {name: tuple(parameter.shape) for name, parameter in weights.items()}
    wrong = [name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)]
    if wrong:
        name = min(wrong)
        raise ValueError(
            f"the checkpoint does not fit the run's config and tokenizer: {name} is {found.get(name)}, "
            f"not {expected.get(name)}"
        )
    model.load_state_dict(weights)


def flops_per_token(model: Transformer) -> float:
    """Return the floating-point operations that training on one token takes, in matrix products alone.

    6 N + 12 L T D / 2: two for each of the N weights that a token is multiplied by going forward, the unembedding
    counted and looking up an embedding not, and twice that going back (Kaplan et al. 2020, section 2.1); in attention
    the same for its two products over a context of T (Chowdhery et al. 2022, PaLM, appendix B), halved where the mask
    is causal, since half of them no one needs. What is computed twice to save memory counts once.
    """
    config = model.config
    weights = model.token_embedding.weight.numel()
    for block in model.layers():
        attention, mlp = block.attention, block.mlp
        used = (attention.query, attention.key, attention.value, attention.output, mlp.gate, mlp.up, mlp.down)
        weights += sum(linear.weight.numel() for linear in used)  # a tied one as often as it is used
    products = 12 * config.n_layer * config.context_length * config.d_model
    return 6 * weights + (products / 2 if config.is_causal else products)


def n_parameters(model: nn.Module) -> int:
    """Count the trained numbers, the tied embedding once."""
    return sum(parameter.numel() for parameter in model.parameters())
