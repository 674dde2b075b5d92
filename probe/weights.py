"""What a head's weights alone say of the link, without any text: what it looks for, and what it then writes.

A head reads through two circuits (Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"): QK, which
decides where it looks, and OV, which decides what it carries over. Both are taken on bare token embeddings, so above
the first layer this is the direct path only: what lower layers add to the stream is left out.

Axes besides those of `model`: W words, P query tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data.links import LinkItem, Word
from model.observe import attention_maps
from model.transformer import Transformer
from probe.statistics import cluster_interval, ranks

N_SHUFFLES = 1000  # of the words' labels: their SD is then known to 2 %, 1 / sqrt(2 N)


WordIds = tuple[int, ...]  # the token ids of a word's pieces


def weights_study(model: Transformer, items: Sequence[LinkItem], layer: int, head: int, *, seed: int) -> dict[str, Any]:
    """Return what the weights of one head say.

    Args:
        model: any; only its weights are read.
        items: of one question; of them only the words, their continuations and their distances are used.
        layer: of the head.
        head: the head.
        seed: of the label shuffles.

    Returns:
        ov_auc, ov_auc_interval: .5 knows nothing, 1 every mention raises its own continuations above all others.
        copying: from -1 to 1; 1 where every mention raises itself.
        qk_agreement: mean score of query tokens on words they can mean - on words they cannot.
        qk_agreement_sd: the same in standard deviations of shuffled labels.
        asymmetry: AS, how much the pronoun looks for the antecedent more than the other way round.
        direct_path_only: whether lower layers were left out, or the token before that model.token_shift mixes in.
        None where the items have nothing to measure it on.

    """
    linked = [item for item in items if item.antecedents and item.distractors]
    verbs = continuations(linked)
    noun_ids = sorted({token for item in linked for word in _mentions(item) for token in _ids(item, word)})
    agreement, in_sd = qk_agreement(model, linked, layer, head, seed)
    return {
        **payoff_auc(payoff_areas(model, verbs, layer, head), seed),
        "copying": copying(ov_logits(model, noun_ids, noun_ids, layer, head)),
        "qk_agreement": agreement,
        "qk_agreement_sd": in_sd,
        "asymmetry": asymmetry(model, linked, layer, head),
        "direct_path_only": layer > 0 or model.config.token_shift,
    }


def _ids(item: LinkItem, word: Word) -> WordIds:
    return tuple(item.tokens[place] for place in word)


def _mentions(item: LinkItem) -> tuple[Word, ...]:
    return item.antecedents + item.distractors


def continuations(items: Sequence[LinkItem]) -> dict[WordIds, set[int]]:
    """Return what may follow when a word is meant: the answers of the items whose antecedent it is."""
    found: dict[WordIds, set[int]] = {}
    for item in items:
        for word in item.antecedents:
            found.setdefault(_ids(item, word), set()).update(item.answers)
    return found


@torch.no_grad()
def ov_logits(model: Transformer, sources: Sequence[int], targets: Sequence[int], layer: int, head: int) -> Tensor:
    """Return [sources, targets] what a head adds to the target tokens' logits when it looks at the source tokens.

    Embedding, the layer's norm, W_V, W_O, the final norm's gain, unembedding; the final norm's division by the stream's
    length is one positive number for all targets and is left out, and so are biases, which say nothing of the source.
    """
    block = list(model.layers())[layer]
    _, _, value, output = block.attention.by_head()
    read = block.norm_1(_embed(model, sources)) @ value[head].T @ output[head].T  # [sources, D]
    return model.final_norm.undivided(read) @ _rows(model.unembedding, targets).T


def _embed(model: Transformer, ids: Sequence[int]) -> Tensor:
    return _rows(model.token_embedding.weight, ids)


def _rows(weight: Tensor, ids: Sequence[int]) -> Tensor:
    return weight[torch.tensor(ids, dtype=torch.int64, device=weight.device)]


def payoff_areas(model: Transformer, verbs: dict[WordIds, set[int]], layer: int, head: int) -> np.ndarray:
    """Return for each word how surely it raises one of its own continuations above one of the others: [W].

    The area under the ROC curve, from ranks (Mann & Whitney 1947); ties count half. Of a word of several pieces the
    mean over the pieces. Words that have none of their own, or no others, are left out.
    """
    every = sorted(set().union(*verbs.values())) if verbs else []
    areas = []
    for word, own in verbs.items():
        mine = np.array([token in own for token in every])
        if mine.all() or not mine.any():
            continue
        raised = ov_logits(model, word, every, layer, head).mean(0).double().cpu().numpy()
        n_below = ranks(raised)[mine].sum() - mine.sum() * (mine.sum() + 1) / 2  # Mann & Whitney's U
        areas.append(n_below / (mine.sum() * (~mine).sum()))
    return np.array(areas)


def payoff_auc(areas: np.ndarray, seed: int) -> dict[str, float | tuple[float, float] | None]:
    """Return the mean area over words and its 95 % bootstrap interval over words."""
    if not len(areas):
        return {"ov_auc": None, "ov_auc_interval": None}
    interval = cluster_interval(areas, np.arange(len(areas)), N_SHUFFLES, seed)
    return {"ov_auc": float(areas.mean()), "ov_auc_interval": interval}


def copying(circuit: Tensor) -> float | None:
    """Return the sum of the real parts of a square circuit's eigenvalues over the sum of their lengths.

    1: every token raises itself; -1: every token lowers itself (Elhage et al. 2021, "copying matrices").
    """
    values = np.linalg.eigvals(circuit.double().cpu().numpy()) if len(circuit) else np.zeros(1)
    length = np.abs(values).sum()
    return float(values.real.sum() / length) if length > 0 else None


@torch.no_grad()
def qk_scores(
    model: Transformer, queries: Sequence[int], keys: Sequence[int], distances: Tensor, layer: int, head: int
) -> Tensor:
    """Return s(query token, key token, distance) = q·k / sqrt(K) for every combination of tokens and distance.

    Where the model does not turn its queries all distances are alike; what positions add to the stream is left out.

    Args:
        model: any.
        queries: token ids.
        keys: token ids.
        distances: [n] how many positions the key stands before the query.
        layer: of the head.
        head: the head.

    Returns:
        [queries, keys, n] float32.

    """
    block = list(model.layers())[layer]
    attention = block.attention
    query_weights, key_weights, _, _ = attention.by_head()
    query = block.norm_1(_embed(model, queries)) @ query_weights[head].T  # [queries, K]
    key = block.norm_1(_embed(model, keys)) @ key_weights[head].T
    if (offsets := attention.offsets_by_head()) is not None:
        query, key = query + offsets[0][head], key + offsets[1][head]
    query = query[:, None].expand(-1, len(distances), -1)
    if attention.turned:
        query = attention.turn(query, distances.to(query.device))
        key = attention.turn(key, torch.zeros(1, device=key.device))  # stands at 0, and may be made longer by its turn
    scores = torch.einsum("qnk,wk->qwn", query, key) / (query.shape[-1] ** 0.5 if attention.scaled else 1.0)
    return scores if attention.slopes is None else scores - attention.slopes[head] * distances.to(scores.device)


def _link_distances(item: LinkItem) -> list[int]:
    return [item.query - place for word in _mentions(item) for place in word]


def qk_agreement(
    model: Transformer, items: Sequence[LinkItem], layer: int, head: int, seed: int
) -> tuple[float | None, float | None]:
    """Return how much higher queries score words they can mean than words they cannot, and that in shuffled SD.

    Which words a query token can mean is read off the items: its antecedents, against its distractors. Scores are
    averaged over the distances at which the items' mentions stand, and over the pieces of a word. For the SD the
    words change labels at random, so that a taste for one word or one query counts for nothing.
    """
    if not items:
        return None, None
    queries = sorted({item.tokens[item.query] for item in items})
    words = sorted({_ids(item, word) for item in items for word in _mentions(item)})
    signs = np.zeros((len(queries), len(words)))  # [P, W]
    for item in items:
        for found, sign in ((item.antecedents, 1), (item.distractors, -1)):
            for word in found:
                signs[queries.index(item.tokens[item.query]), words.index(_ids(item, word))] += sign
    signs = np.sign(signs)
    if not ((signs > 0).any() and (signs < 0).any()):
        return None, None
    contrast = (signs > 0) / (signs > 0).sum() - (signs < 0) / (signs < 0).sum()
    table = _mean_scores(model, queries, words, items, layer, head)
    rng = np.random.default_rng(seed)
    shuffled = [(contrast[:, rng.permutation(len(words))] * table).sum() for _ in range(N_SHUFFLES)]
    agreement, spread = float((contrast * table).sum()), float(np.std(shuffled))
    return agreement, (agreement - float(np.mean(shuffled))) / spread if spread > 0 else None


def _mean_scores(
    model: Transformer, queries: list[int], words: list[WordIds], items: Sequence[LinkItem], layer: int, head: int
) -> np.ndarray:
    """Return the scores [P, W] of words at the items' distances, each as often as it occurs."""
    counts = Counter(distance for item in items for distance in _link_distances(item))
    distances, shares = torch.tensor(list(counts)), torch.tensor(list(counts.values())).float()
    pieces = sorted({piece for word in words for piece in word})
    scores = qk_scores(model, queries, pieces, distances, layer, head).cpu() @ (shares / shares.sum())
    where = {piece: i for i, piece in enumerate(pieces)}
    columns = [scores[:, [where[piece] for piece in word]].mean(1) for word in words]
    return torch.stack(columns, dim=1).double().numpy()


def asymmetry(model: Transformer, items: Sequence[LinkItem], layer: int, head: int) -> float | None:
    """Return AS = E[s(pronoun, antecedent, distance) - s(antecedent, pronoun, distance)] - the same for distractors.

    The first token is the query, the second the key. Above 0 the head does not just join two words that go together:
    it goes from the pronoun to its antecedent. The distance is the one at which they stand in the item.
    """
    if not items:
        return None
    tokens = sorted({item.tokens[item.query] for item in items} | {i for item in items for i in _all_ids(item)})
    distances = sorted({distance for item in items for distance in _link_distances(item)})
    scores = qk_scores(model, tokens, tokens, torch.tensor(distances), layer, head).cpu()
    forth_not_back = (scores - scores.transpose(0, 1)).double().numpy()
    token_at = {token: i for i, token in enumerate(tokens)}
    distance_at = {distance: i for i, distance in enumerate(distances)}

    def mean(item: LinkItem, words: tuple[Word, ...]) -> float:
        asked = token_at[item.tokens[item.query]]
        places = [place for word in words for place in word]
        columns = [token_at[item.tokens[place]] for place in places]
        return float(forth_not_back[asked, columns, [distance_at[item.query - place] for place in places]].mean())

    return float(np.mean([mean(item, item.antecedents) - mean(item, item.distractors) for item in items]))


def _all_ids(item: LinkItem) -> WordIds:
    return tuple(token for word in _mentions(item) for token in _ids(item, word))


TYPES = ("previous", "first", "duplicate", "induction")


@torch.no_grad()
def head_types(
    model: Transformer, first_token: int, seed: int, n_sequences: int = 16, n_distinct: int = 24
) -> dict[str, np.ndarray]:
    """Measure every head's habits on a random text that is said twice (Olsson et al. 2022, induction heads).

    Args:
        model: in eval mode.
        first_token: what stands before every text; it is in no text.
        seed: of the texts.
        n_sequences: how many texts.
        n_distinct: tokens before the text repeats itself, no two alike; fewer if the context or vocabulary is short.

    Returns:
        `type_scores` by name, each [L, H].

    """
    n_distinct = min(n_distinct, (model.config.context_length - 1) // 2, model.vocab_size - 1)
    rng = np.random.default_rng(seed)
    others = np.delete(np.arange(model.vocab_size), first_token)
    once = np.stack([rng.choice(others, n_distinct, replace=False) for _ in range(n_sequences)])
    texts = np.concatenate([np.full((n_sequences, 1), first_token), once, once], axis=1)
    maps = attention_maps(model, torch.from_numpy(texts).to(model.token_embedding.weight.device))
    return type_scores(maps.cpu(), n_distinct)


def type_scores(maps: Tensor, n_distinct: int) -> dict[str, np.ndarray]:
    """Return the mean weight on the key that makes the type, for each of TYPES [L, H], from 0 to 1.

    Args:
        maps: [L, B, H, T, T] on texts of a first token and twice the same `n_distinct` tokens, T = 1 + 2 n_distinct.
        n_distinct: 2 or more.

    """
    again = torch.arange(n_distinct + 1, maps.shape[-1])  # the queries that have read this token before
    keys = {
        "previous": (torch.arange(2, maps.shape[-1]), -1),  # from 2 on: that before 1 is the first token
        "duplicate": (again, -n_distinct),  # the same token, said before
        "induction": (again, 1 - n_distinct),  # the token that came after it then
    }
    found = {name: maps[..., query, query + offset] for name, (query, offset) in keys.items()}
    found["first"] = maps[..., 1:, 0]
    return {name: found[name].mean(dim=(1, 3)).numpy() for name in TYPES}


@torch.no_grad()
def entropies(model: Transformer, tokens: Tensor) -> np.ndarray:
    """Return how evenly each head spreads its weights, [L, H] from 0, all on one token, to 1, the same on all.

    The entropy of a query's weights over the entropy of equal weights on all that it may see, log of their number; the
    mean over queries that see two tokens or more.

    Args:
        model: in eval mode.
        tokens: [B, T] texts without padding, T at least 2.

    """
    maps = attention_maps(model, tokens.to(model.token_embedding.weight.device))[..., 1:, :]  # [L, B, H, T - 1, T]
    entropy = torch.special.entr(maps).sum(-1)
    most = torch.arange(2, tokens.shape[1] + 1, device=maps.device).log()  # the first query sees but itself
    return (entropy / most).mean(dim=(1, 3)).cpu().numpy()


@torch.no_grad()
def score_asymmetry(model: Transformer) -> np.ndarray:
    """Return how far each head's score of word a for word b differs from that of b for a, [L, H] from 0 to 1.

    ||A - A'|| / 2 ||A|| (Frobenius) of the bilinear form A = W_Q' W_K of contents, positions aside: 0 where both
    directions score alike, about .71 for random weights, 1 where one is minus the other.
    """
    found = []
    for block in model.layers():
        query, key, _, _ = block.attention.by_head()  # [H, K, D]
        form = query.transpose(-1, -2) @ key
        apart = torch.linalg.matrix_norm(form - form.transpose(-1, -2))
        found.append(apart / (2 * torch.linalg.matrix_norm(form)).clamp(min=torch.finfo(form.dtype).tiny))
    return torch.stack(found).cpu().numpy()
