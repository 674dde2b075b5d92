"""Which mention a head looks at from a pronoun, and whether the head chosen on one half holds on the other.

A head chooses the mention whose word has the largest weight. A word of several pieces has their sum; a mention has its
largest word and not the sum over its words, or the longest mention would win. A word that stands in several mentions,
one inside the other, belongs to the innermost: "my" in "my family" is one mention and "family" the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from data.alignment import word_pieces
from data.links import Span
from model.transformer import Block, Transformer
from probe.outside.intervals import clustered
from probe.outside.subject import Subject
from probe.readout import text_batches


@dataclass(frozen=True, slots=True)
class Choice:
    """One pronoun in the tokens of one tokenizer, and the words of the mentions before it. W words."""

    tokens: tuple[int, ...]  # END first, up to and including the pronoun's last piece
    words: tuple[tuple[int, ...], ...]  # [W] the positions in `tokens` of each word's pieces
    gold: tuple[bool, ...]  # [W] of an antecedent


def owners(mentions: Sequence[Span], n_words: int) -> list[int | None]:
    """Return, for each word, the innermost mention that holds it; None where none does.

    Args:
        mentions: words [start, end) of each.
        n_words: of the text.

    """
    owner: list[int | None] = [None] * n_words
    for i in sorted(range(len(mentions)), key=lambda i: (mentions[i][0] - mentions[i][1], mentions[i][0], -i)):
        owner[slice(*mentions[i])] = [i] * (mentions[i][1] - mentions[i][0])  # shorter ones come later
    return owner


def cut(subject: Subject, text: str, spans: Sequence[Span], gold: Sequence[bool], needed: Span) -> Choice | str:
    """Return the words `spans` of `text` as a choice at the word `needed`, or the reason why there is none.

    What is longer than the context is cut at the left, as long as that takes no word of an antecedent.

    Args:
        subject: whose tokenizer and context it must fit.
        text: to be read up to the word `needed`.
        spans: characters of each candidate word, all before `needed`.
        gold: whether each belongs to an antecedent.
        needed: characters of the pronoun.

    """
    ids, offsets = subject.encode(text[: needed[1]])
    try:
        *words, pronoun = word_pieces(text, offsets, [*spans, needed])
    except ValueError:
        return "a word shares a token with its neighbour"
    stop = pronoun[-1] + 1
    start = max(0, stop - subject.limit)
    if start > pronoun[0] or any(right and word[0] < start for word, right in zip(words, gold, strict=True)):
        return "an antecedent lies outside the context"
    kept = [i for i, word in enumerate(words) if word[0] >= start]
    return Choice(
        (subject.end, *ids[start:stop]),
        tuple(tuple(piece - start + 1 for piece in words[i]) for i in kept),
        tuple(gold[i] for i in kept),
    )


@torch.no_grad()
def word_scores(model: Transformer, choices: Sequence[Choice], tokens_per_batch: int) -> np.ndarray:
    """Return the score of every word for every head, [N, L, H, W] float32: the LSE of its pieces' scores.

    The softmax over all keys is one denominator for the whole row, so the order of these is the order of the weights.
    Missing words are -inf. A block that adds nothing, as all of a model that was never trained, is not computed.
    """
    width = max((len(choice.words) for choice in choices), default=1)
    shape = (len(choices), model.config.n_layer, model.config.n_head, width)
    found = np.full(shape, -np.inf, dtype=np.float32)
    device = model.token_embedding.weight.device
    blocks = list(model.layers())
    last = max((i for i, block in enumerate(blocks) if block.adds()), default=-1)
    for members, place, tokens in text_batches([choice.tokens for choice in choices], tokens_per_batch):
        some = [choices[i] for i in members]
        keys, index = _keys(some)
        rows = torch.tensor(place, device=device)
        query = torch.tensor([len(choice.tokens) - 1 for choice in some], device=device)
        keys, flat = keys.to(device), index.flatten(1)[:, None].to(device)
        x = model.embed(tokens.to(device))
        for layer, block in enumerate(blocks):
            scores = F.pad(_scores(block, x, rows, query, keys), (0, 1), value=float("-inf"))
            of_pieces = scores.gather(-1, flat.expand(-1, scores.shape[1], -1)).unflatten(-1, index.shape[1:])
            found[members, layer, :, : index.shape[1]] = of_pieces.logsumexp(-1).cpu().numpy()
            if layer < min(last + 1, len(blocks) - 1) and block.adds():
                x = block(x)
    return found


def _keys(choices: Sequence[Choice]) -> tuple[Tensor, Tensor]:
    """Return the positions [N, M] of all pieces of each choice, and where among the M each word's are: [N, W, P].

    Where there is no piece the position is 0 and the place M.
    """
    flat = [[piece for word in choice.words for piece in word] for choice in choices]
    n_keys = max(1, *map(len, flat)) if flat else 1
    n_words = max((len(choice.words) for choice in choices), default=1)
    n_pieces = max((len(word) for choice in choices for word in choice.words), default=1)
    keys = np.zeros((len(choices), n_keys), dtype=np.int64)
    index = np.full((len(choices), n_words, n_pieces), n_keys)
    for i, choice in enumerate(choices):
        keys[i, : len(flat[i])] = flat[i]
        place = 0
        for j, word in enumerate(choice.words):
            index[i, j, : len(word)] = range(place, place + len(word))
            place += len(word)
    return torch.from_numpy(keys), torch.from_numpy(index)


def _scores(block: Block, x: Tensor, rows: Tensor, query: Tensor, keys: Tensor) -> Tensor:
    """Return [N, H, M] what each query thinks of a few keys before it, as `Attention.scores` does of all.

    Args:
        block: of one layer.
        x: [B, T, D] the stream that enters it.
        rows: [N] the batch row of each query.
        query: [N] its position.
        keys: [N, M] positions, none after the query.

    """
    attention, heads = block.attention, (block.attention.n_head, -1)
    q = attention.query(block.norm_1(x[rows, query]))[:, None].unflatten(-1, heads).transpose(1, 2)  # [N, H, 1, K]
    k = attention.key(block.norm_1(x[rows[:, None], keys])).unflatten(-1, heads).transpose(1, 2)  # [N, H, M, K]
    if attention.turned:
        q = attention.turn(q, query[:, None, None])
        k = attention.turn(k, keys[:, None])
    return attention.judge(q, k, query[:, None], keys)[:, :, 0]


def hits(scores: np.ndarray, gold: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Return whether each head's largest word is an antecedent's, [N, L, H] float32; ties share the hit.

    Args:
        scores: [N, L, H, W].
        gold: [N, W] True for words of an antecedent.
        asked: [N, W] True for words that may be chosen; every item has one.

    """
    open_only = np.where(asked[:, None, None], scores, -np.inf)
    largest = open_only == open_only.max(-1, keepdims=True)
    return ((largest & gold[:, None, None]).sum(-1) / largest.sum(-1)).astype(np.float32)


def halves(groups: np.ndarray, seed: int) -> np.ndarray:
    """Return [N] True for the items of one half of the groups, drawn by lot; the other half is the rest."""
    names = np.unique(groups)
    chosen = np.random.default_rng(seed).permutation(names)[: len(names) // 2]
    return np.isin(groups, chosen)


def choose(found: np.ndarray) -> tuple[int, int]:
    """Return the (layer, head) of largest mean hit; of equals the first."""
    mean = found.mean(0, dtype=np.float64)
    layer, head = np.unravel_index(int(mean.argmax()), mean.shape)
    return int(layer), int(head)


def held_out(
    found: np.ndarray,
    rules: Mapping[str, np.ndarray],
    untrained: Sequence[np.ndarray],
    groups: np.ndarray,
    chosen_on: np.ndarray,
    n_bootstrap: int,
    seed: int,
    beside: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> dict[str, Any]:
    """Choose a head on one half of the groups and test it once on the other, beside everything that knows nothing.

    Args:
        found: [N, L, H] hits of the trained model.
        rules: name: [N] hits of a rule that was not chosen.
        untrained: [N, L, H] hits of each untrained model; its best head is chosen in the same way.
        groups: [N] what is resampled whole: the document.
        chosen_on: [N] True for the half to choose on.
        n_bootstrap: resamplings behind each interval.
        seed: of the resamplings.
        beside: name: [N] hits of a rule that does know something; the head is held against it, but not judged by it.

    Returns:
        "verdict" is "established" if and only if the interval of the difference to every rule, and to the best of the
        untrained models, lies above 0; "reasons" says what is missing.

    """
    tested = ~chosen_on
    layer, head = choose(found[chosen_on])
    values = found[tested][:, layer, head].astype(float)
    nothing = [one[tested][(slice(None), *choose(one[chosen_on]))].astype(float) for one in untrained]
    best = max(nothing, key=lambda one: one.mean())
    against = {name: rule[tested].astype(float) for name, rule in rules.items()} | {"best untrained": best}
    settings = groups[tested], n_bootstrap, seed

    def less(other: np.ndarray) -> dict[str, Any]:
        return {"mean": float((values - other).mean()), "interval": clustered(values - other, *settings)}

    differences = {name: less(other) for name, other in against.items()}
    reasons = []
    for name, difference in differences.items():
        interval = difference["interval"]
        if interval is None or interval[0] <= 0:
            why = "too few documents" if interval is None else "the interval of the difference to it is not above 0"
            reasons.append(f"{name}: {why}")
    known = {name: rule[tested] for name, rule in beside.items()}
    return {
        "layer": layer,
        "head": head,
        "beside": {name: {"accuracy": float(rule.mean()), **less(rule)} for name, rule in known.items()},
        "chosen_with": float(found[chosen_on][:, layer, head].mean(dtype=np.float64)),
        "n": int(tested.sum()),
        "n_groups": len(np.unique(groups[tested])),
        "accuracy": float(values.mean()),
        "interval": clustered(values, *settings),
        "rules": {name: float(rule[tested].mean()) for name, rule in rules.items()},
        "untrained": [float(one.mean()) for one in nothing],
        "differences": differences,
        "verdict": "not established" if reasons else "established",
        "reasons": reasons,
    }
