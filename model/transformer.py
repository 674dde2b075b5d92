"""The whole model, top to bottom: `forward(tokens) -> logits`, and the same pass observed."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.attention import Attention
from model.config import ModelConfig, Position, Weighting
from model.fast import FastBlock, How
from model.init import initialise
from model.positions import hidden_once, positions_within, rotary_angles, sinusoids, within_texts
from model.products import multiplied_product, product


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


def streams(model: Transformer, tokens: Tensor) -> Iterator[Tensor]:
    """Yield the residual stream [B, T, D] before each block and after the last: L + 1 of them."""
    x = model.embed(tokens)
    yield x
    for block in model.layers():
        x = block(x)
        yield x


def observed(
    model: Transformer, tokens: Tensor, query_positions: Tensor | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield of each layer what it reads and its heads' scores, and compute nothing that these do not need.

    What is projected for the scores carries the stream on; of the last layer there is nothing but its scores.

    Args:
        model: in eval mode, or dropout falls differently on each call.
        tokens: [B, T].
        query_positions: [B, Tq], the only rows wanted; None for all.

    Returns:
        L pairs of the normalised stream [B, T, D] and scores [B, H, Tq, Tk] as `Attention.judge` gives them.

    """
    *below, last = model.layers()
    x = model.embed(tokens)
    for block in below:
        normed = block.norm_1(x)
        query, key, value = block.attention.project(normed)
        yield normed, block.attention.rows(query, key, query_positions)
        x = x + block.attention.merge(block.attention.mix(query, key, value))
        x = x + block.mlp(block.norm_2(x))
    normed = last.norm_1(x)
    yield normed, last.attention.scores(normed, query_positions)


def attention_scores(model: Transformer, tokens: Tensor, query_positions: Tensor | None = None) -> Tensor:
    """Return every head's scores on `tokens` [B, T], computed beside the fused path and leaving no trace in it.

    Args:
        model: in eval mode, or dropout falls differently on each call.
        tokens: [B, T].
        query_positions: [B, Tq], the only rows wanted; None for all.

    Returns:
        [L, B, H, Tq, Tk] float32, -inf where the key comes after the query. The softmax over the last axis is what
        the fused path uses, to 1e-5 in float32.

    """
    return torch.stack([scores for _, scores in observed(model, tokens, query_positions)])


def attention_maps(model: Transformer, tokens: Tensor, query_positions: Tensor | None = None) -> Tensor:
    """Return every head's weights [L, B, H, Tq, Tk]: rows sum to 1 and are exactly 0 in the future."""
    return attention_scores(model, tokens, query_positions).softmax(dim=-1)


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
