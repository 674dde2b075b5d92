"""Does the model use the link? One thing in one head is changed, and the margin at the payoff is read again.

    M = log p(answers) - log p(foils) at the payoff        D = 1/2 [M(x) - M(x_swap)]
    effect of a change = (M_clean - M_changed) / (M_clean - M_swap), averaged first and then divided

M_swap keeps the item's own answers and reads the partner's text, so an effect of 1 undoes the whole difference and 0
does nothing. Other heads may step in for one that is missing (self-repair, McGrath et al. 2023), so what an ablation
shows is a lower bound. Resampling from the partner keeps a head's output among those the model knows; a mean is
farther from them, zero farthest (Zhang & Nanda 2024).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from data.links import LinkItem
from model.transformer import Transformer
from probe.interventions import (
    NO_TOKEN,
    Pairs,
    Run,
    batches,
    exchange,
    from_partner,
    margins,
    observe,
    onward,
    pair_up,
    partner,
    with_head,
    with_stream,
)
from probe.statistics import clusters_of, ranks

POSITIONS = ("antecedent", "distractor", "before_query", "query", "payoff")  # where a stream is patched
N_CONTROL_HEADS = 20  # random other heads of the same layer, as many as there are below that
ROUNDING = 1e-5  # of a margin in nats: what two float32 passes that should agree differ by
N_KINDS = 4  # of position for mean ablation: query, payoff, mention, any other
SOURCES = ("antecedent", "distractor", "other", "all")  # of direct contributions
CHANGES = (
    *("resample", "resample_query", "mean", "mean_query", "zero", "zero_query"),
    *("ko_antecedent", "ko_distractor", "ko_before", "ko_after", "removal", "removal_distractor", "attention_swap"),
)
Draws = list[tuple[np.ndarray, np.ndarray]]  # per clustering: each item's cluster [N], and counts [n_bootstrap, n]


def causal_study(
    model: Transformer,
    items: Sequence[LinkItem],
    layer: int,
    head: int,
    *,
    tokens_per_batch: int,
    n_bootstrap: int,
    seed: int,
) -> dict[str, Any]:
    """Return what hangs on one head, and for comparison what hangs on every other.

    Args:
        model: in eval mode, float32.
        items: of one question and hold-out, in whole blocks.
        layer: of the head.
        head: the head.
        tokens_per_batch: of one forward pass.
        n_bootstrap: resamplings behind each interval.
        seed: of the resamplings and of the choice of control heads.

    Returns:
        What goes into probe.json. Every effect comes with its 95 % interval over templates or over words, whichever
        is wider. Where the model itself does not tell the partners apart (the interval of D reaches 0, to rounding)
        nothing can be explained, and effects are None.

    Raises:
        ValueError: no two partners can be compared.

    """
    kept, n_dropped = pair_up(items)
    if not kept:
        raise ValueError("no item can be compared with its swap partner")
    device = model.token_embedding.weight.device
    with torch.no_grad():
        means = _means(model, items, kept, layer, head, tokens_per_batch)

        def measure(pairs: Pairs, run: Run) -> dict[str, Tensor]:
            return {
                **_head(model, pairs, run, layer, head, means),
                **_every_head(model, pairs, run),
                **_direct(model, pairs, run, layer, head),
                "interchange": _interchange(model, pairs, run),
            }

        found = collect(model, items, kept, tokens_per_batch, device, measure)
    draws = draw_clusters([items[i] for i in kept], n_bootstrap, seed)
    about = {"n_pairs": len(kept) // 2, "n_dropped": n_dropped, "n_templates": len({items[i].template for i in kept})}
    return about | _summary(found, draws, layer, head, seed)


def head_effects(model: Transformer, items: Sequence[LinkItem], *, tokens_per_batch: int) -> dict[str, np.ndarray]:
    """Return the effects of every head [L, H]: "resample" everywhere or at the query, "attention_swap", "attribution".

    "attribution" is the first-order estimate of "resample" (attribution patching, Nanda 2023), a check and no result.
    nan where the model does not tell partners apart at all.
    """
    kept, _ = pair_up(items)
    if not kept:
        raise ValueError("no item can be compared with its swap partner")
    with torch.no_grad():
        device = model.token_embedding.weight.device
        found = collect(
            model,
            items,
            kept,
            tokens_per_batch,
            device,
            lambda pairs, run: _ends(model, pairs, run) | _every_head(model, pairs, run),
        )
    return _effects_of_heads(found)


def collect(
    model: Transformer,
    items: Sequence[LinkItem],
    kept: list[int],
    tokens_per_batch: int,
    device: torch.device,
    measure: Callable[[Pairs, Run], dict[str, Tensor]],
) -> dict[str, np.ndarray]:
    """Measure every batch and return the results [N, ...] in the order of `kept`."""
    places: list[int] = []
    parts: list[dict[str, np.ndarray]] = []
    for pairs in batches(items, kept, tokens_per_batch, device):
        places += pairs.items
        measured = measure(pairs, observe(model, pairs))
        parts.append({name: value.double().cpu().numpy() for name, value in measured.items()})
    order = np.argsort(places)
    return {name: np.concatenate([part[name] for part in parts])[order] for name in parts[0]}


def _ends(model: Transformer, pairs: Pairs, run: Run) -> dict[str, Tensor]:
    last = run.streams[-1]
    return {"clean": margins(model, pairs, last), "swapped": margins(model, pairs, partner(last))}


def _head(model: Transformer, pairs: Pairs, run: Run, layer: int, head: int, means: Tensor) -> dict[str, Tensor]:
    """Return M after every change to one head, and the harm done to other tokens."""
    found = _ends(model, pairs, run)
    for name, mixed in ablations(pairs, run, layer, head, means).items():
        stream = with_head(model, pairs, run, layer, head, mixed)
        found[name] = margins(model, pairs, stream)
        if name == "resample":
            found["denoised"] = margins(model, pairs, partner(stream))
        if name == "mean":
            found["collateral"] = _other_losses(model, pairs, stream) - _other_losses(model, pairs, run.streams[-1])
    for name, weights in edges(pairs, run, layer, head).items():
        mixed = with_row(pairs, run, layer, head, weights)
        found[name] = margins(model, pairs, with_head(model, pairs, run, layer, head, mixed))
    for name, mask in (("ko_before", _before(pairs)), ("ko_after", _after(pairs))):
        found[name] = found[name].masked_fill(~mask.any(1), torch.nan)
    return found


def ablations(pairs: Pairs, run: Run, layer: int, head: int, means: Tensor) -> dict[str, Tensor]:
    """Return what a head would give [B, T, K] were it replaced: everywhere, and at the query alone.

    Args:
        pairs: the texts.
        run: of the model on them.
        layer: of the head.
        head: the head.
        means: [N_KINDS, K] its mean output at each kind of position.

    """
    own = run.mixed[layer][:, head]
    at_query = torch.zeros_like(pairs.padding)
    at_query[:, pairs.query] = True
    by_kind = means[_kinds(pairs)]
    there = at_query[:, :, None]
    return {
        "resample": from_partner(pairs, own),
        "resample_query": from_partner(pairs, own, at_query),
        "mean": by_kind,
        "mean_query": torch.where(there, by_kind, own),
        "zero": torch.zeros_like(own),
        "zero_query": own.masked_fill(there, 0),
    }


def edges(pairs: Pairs, run: Run, layer: int, head: int) -> dict[str, Tensor]:
    """Return the head's weights [B, T] at the query with one edge knocked out, removed or swapped.

    A knock-out hides the word before the softmax, so that its weight goes to the others; a removal takes the weight
    away and gives it to nobody. Over a whole block antecedent and distractor stand at the same distances, so knocking
    out the distractor is the control of same distance; the tokens just before the antecedent (its determiner, if it
    has one) and just after it are the controls of place.
    """
    scores = run.scores[layer][:, head]
    weights = scores.softmax(-1)
    hidden = {
        "ko_antecedent": pairs.antecedent,
        "ko_distractor": pairs.distractor,
        "ko_before": _before(pairs),
        "ko_after": _after(pairs),
    }
    changed = {name: scores.masked_fill(mask, float("-inf")).softmax(-1) for name, mask in hidden.items()}
    changed["removal"] = weights.masked_fill(pairs.antecedent, 0)
    changed["removal_distractor"] = weights.masked_fill(pairs.distractor, 0)
    changed["attention_swap"] = exchange(weights, pairs.antecedent, pairs.distractor)
    return changed


def with_row(pairs: Pairs, run: Run, layer: int, head: int, weights: Tensor) -> Tensor:
    """Return the head's output [B, T, K] with `weights` [B, T] at the query."""
    mixed = run.mixed[layer][:, head].clone()
    mixed[:, pairs.query] = (weights[:, None] @ run.values[layer][:, head])[:, 0]
    return mixed


def _before(pairs: Pairs) -> Tensor:
    """Mark the tokens just before the antecedents [B, T], if they are no mention and not the text's first."""
    first = pairs.padding | F.pad(pairs.padding, (1, -1), value=True)
    return F.pad(pairs.antecedent, (-1, 1)) & ~pairs.mention & ~first


def _after(pairs: Pairs) -> Tensor:
    """Mark the tokens just after the antecedents [B, T], if they are no mention and not the query."""
    marked = F.pad(pairs.antecedent, (1, -1)) & ~pairs.mention
    marked[:, pairs.query :] = False
    return marked


def _kinds(pairs: Pairs) -> Tensor:
    """Return the kind of every position [B, T], below N_KINDS."""
    kinds = pairs.mention.long()
    kinds[torch.arange(len(kinds), device=kinds.device), pairs.payoff] = 2
    kinds[:, pairs.query] = 3
    return kinds


def _means(
    model: Transformer, items: Sequence[LinkItem], kept: list[int], layer: int, head: int, tokens_per_batch: int
) -> Tensor:
    """Return the head's mean output [N_KINDS, K] over all texts at each kind of position; 0 for a kind there is not."""
    weight = model.token_embedding.weight
    sums = torch.zeros(N_KINDS, model.config.head_dim, device=weight.device)
    counts = torch.zeros(N_KINDS, 1, device=weight.device)
    for pairs in batches(items, kept, tokens_per_batch, weight.device):
        mixed = observe(model, pairs, layer + 1).mixed[layer][:, head]
        kinds = _kinds(pairs)[~pairs.padding]
        sums.index_add_(0, kinds, mixed[~pairs.padding])
        counts.index_add_(0, kinds, torch.ones_like(kinds, dtype=counts.dtype)[:, None])
    return sums / counts.clamp(min=1)


def _other_losses(model: Transformer, pairs: Pairs, stream: Tensor) -> Tensor:
    """Return each text's mean loss [B] in nats over the tokens up to the payoff, which is not among them.

    One text of every pair is read and stands for both: they are the same but for the words that decide.
    """
    logits = model.unembed(stream[::2, :-1])
    known = ~(pairs.padding[::2, 1:] | pairs.padding[::2, :-1])
    targets = pairs.tokens[::2, 1:].masked_fill(~known, -100)
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="none")
    return (losses.view_as(targets).sum(1) / known.sum(1)).repeat_interleave(2)


def _every_head(model: Transformer, pairs: Pairs, run: Run) -> dict[str, Tensor]:
    """Return M [B, L, H] after each head in turn is resampled or has its edges swapped, and the estimate of it."""
    config = model.config
    shape = (len(pairs.tokens), config.n_layer, config.n_head)
    names = ("resample", "resample_query", "attention_swap")
    found = {f"heads_{name}": run.streams[0].new_empty(shape) for name in names}
    at_query = torch.zeros_like(pairs.padding)
    at_query[:, pairs.query] = True
    only_there = not (pairs.parted & ~at_query).any()  # then resampling everywhere is resampling at the query
    for layer in range(config.n_layer):
        for head in range(config.n_head):
            own = run.mixed[layer][:, head]
            swapped = exchange(run.scores[layer][:, head].softmax(-1), pairs.antecedent, pairs.distractor)
            changes = {"attention_swap": with_row(pairs, run, layer, head, swapped)}
            changes["resample_query"] = from_partner(pairs, own, at_query)
            if not only_there:
                changes["resample"] = from_partner(pairs, own)
            for name, mixed in changes.items():
                stream = with_head(model, pairs, run, layer, head, mixed)
                found[f"heads_{name}"][:, layer, head] = margins(model, pairs, stream)
    if only_there:
        found["heads_resample"] = found["heads_resample_query"]
    found["heads_attribution"] = margins(model, pairs, run.streams[-1])[:, None, None] + attribution(model, pairs, run)
    return found


def attribution(model: Transformer, pairs: Pairs, run: Run) -> Tensor:
    """Estimate how M [B, L, H] changes if a head is resampled: gradient x (partner's output - own).

    Attribution patching (Nanda 2023; Syed et al. 2023): one backward pass for all heads, right to first order.
    """
    first = int(pairs.parted.any(0).float().argmax())
    with torch.enable_grad():
        start = run.streams[0][:, first:].detach().requires_grad_()
        x, mixed = onward(model, pairs, run, 0, start)
        total = margins(model, pairs, torch.cat([run.streams[-1][:, :first], x], dim=1)).sum()
        gradients = torch.autograd.grad(total, mixed)
    changes = []
    for own, gradient in zip(run.mixed, gradients, strict=True):
        changes.append((gradient * (partner(own) - own)[:, :, first:]).sum((-1, -2)))
    return torch.stack(changes, dim=1)


def _interchange(model: Transformer, pairs: Pairs, run: Run) -> Tensor:
    """Return M [B, L + 1, POSITIONS] with the stream at one place patched from the partner (Geiger et al. 2021)."""
    marks = {"antecedent": pairs.antecedent, "distractor": pairs.distractor}
    rows = torch.arange(len(pairs.tokens), device=pairs.tokens.device)
    for name, column in (("before_query", pairs.query - 1), ("query", pairs.query), ("payoff", pairs.payoff)):
        marks[name] = torch.zeros_like(pairs.padding)
        marks[name][rows, column] = True
    found = []
    for layer, stream in enumerate(run.streams):
        for name in POSITIONS:
            patched = from_partner(pairs, stream, marks[name])
            found.append(margins(model, pairs, with_stream(model, pairs, run, layer, patched)))
    return torch.stack(found, dim=1).unflatten(1, (-1, len(POSITIONS)))


def _answer_difference(model: Transformer, pairs: Pairs) -> Tensor:
    """Return [B, D] mean W_U[answers] - mean W_U[foils], the logit difference's direction behind the final norm."""
    means = []
    for ids in (pairs.answers, pairs.foils):
        real = (ids != NO_TOKEN)[:, :, None]
        means.append((model.unembedding[ids.clamp(min=0)] * real).sum(1) / real.sum(1))
    return means[0] - means[1]


def _answer_direction(model: Transformer, pairs: Pairs, run: Run) -> Tensor:
    """Return [B, D] whose dot product with anything in the payoff's stream is what it adds to the logit difference.

    (gain / sigma) (mean W_U[answers] - mean W_U[foils]), the final norm taken at the sigma of this very run.
    """
    x = run.streams[-1][torch.arange(len(pairs.payoff), device=pairs.payoff.device), pairs.payoff]
    return model.final_norm.before(_answer_difference(model, pairs), x)


def direct_contributions(model: Transformer, pairs: Pairs, run: Run) -> tuple[Tensor, Tensor, Tensor]:
    """Return what embedding [B], heads [B, L, H] and MLPs [B, L] write at the payoff into the logit difference.

    Direct logit attribution (Elhage et al. 2021; nostalgebraist 2020). They add up to mean logit of the answers -
    mean logit of the foils. A model from elsewhere may have biases: that of its values counts with the head that moves
    them, for weights sum to one; those behind the heads and in the final norm count with the MLPs.
    """
    direction = _answer_direction(model, pairs, run)
    rows = torch.arange(len(pairs.payoff), device=pairs.payoff.device)
    heads, mlps = [], []
    for layer, block in enumerate(model.layers()):
        *_, output = block.attention.by_head()
        mixed = run.mixed[layer][rows, :, pairs.payoff]  # [B, H, K]
        heads.append(torch.einsum("bhk,hdk,bd->bh", mixed, output, direction))
        added = (run.streams[layer + 1] - run.streams[layer])[rows, pairs.payoff]
        mlps.append((added * direction).sum(-1) - heads[-1].sum(-1))
    always = model.final_norm.always(_answer_difference(model, pairs))
    if always is not None:
        mlps[-1] = mlps[-1] + always
    embedding = (run.streams[0][rows, pairs.payoff] * direction).sum(-1)
    return embedding, torch.stack(heads, dim=1), torch.stack(mlps, dim=1)


def _direct(model: Transformer, pairs: Pairs, run: Run, layer: int, head: int) -> dict[str, Tensor]:
    """Return what a head writes into the logit difference by the word it comes from; nan where query is not payoff."""
    direction = _answer_direction(model, pairs, run)
    *_, output = list(model.layers())[layer].attention.by_head()
    weights = run.scores[layer][:, head].softmax(-1)
    by_source = weights * (run.values[layer][:, head] @ (direction @ output[head])[:, :, None])[..., 0]  # [B, T]
    embedding, heads, mlps = direct_contributions(model, pairs, run)
    found = {
        "dla_antecedent": by_source.masked_fill(~pairs.antecedent, 0).sum(1),
        "dla_distractor": by_source.masked_fill(~pairs.distractor, 0).sum(1),
        "dla_other": by_source.masked_fill(pairs.antecedent | pairs.distractor, 0).sum(1),
        "dla_all": embedding + heads.sum((1, 2)) + mlps.sum(1),
    }
    return {name: value.masked_fill(pairs.payoff != pairs.query, torch.nan) for name, value in found.items()}


def draw_clusters(items: Sequence[LinkItem], n_bootstrap: int, seed: int) -> Draws:
    """Draw how often each cluster is taken in each resampling, for templates, first words and second words.

    A head or a model may have a taste for a template or for a word and know nothing else, so both are clusters.
    """
    every = clusters_of(items)
    clusterings = [every[name] for name in ("templates", "first_words", "second_words")]
    draws = []
    for clusters in clusterings:
        names, index = np.unique(clusters, return_inverse=True)
        even = np.full(len(names), 1 / len(names))
        draws.append((index, np.random.default_rng(seed).multinomial(len(names), even, size=n_bootstrap)))
    return draws


def ratio_interval(numerator: np.ndarray, denominator: np.ndarray, draws: Draws) -> tuple[float, float]:
    """Return the 95 % percentile-bootstrap interval of mean(numerator) / mean(denominator), both [N].

    Of all clusterings the lowest low and the highest high. Resamplings without any denominator are left out.
    """
    bounds = []
    for index, drawn in draws:
        above, below = (drawn @ np.bincount(index, weights=values) for values in (numerator, denominator))
        bounds.append(np.percentile(above[below != 0] / below[below != 0], (2.5, 97.5)))
    return float(min(low for low, _ in bounds)), float(max(high for _, high in bounds))


def _effects_of_heads(found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    clean, swapped = found["clean"], found["swapped"]
    whole = (clean - swapped).mean()
    every = {}
    for name in ("resample", "resample_query", "attention_swap", "attribution"):
        lost = (clean[:, None, None] - found[f"heads_{name}"]).mean(axis=0)
        every[name] = lost / whole if whole else np.full_like(lost, np.nan)
    return every


def _summary(found: dict[str, np.ndarray], draws: Draws, layer: int, head: int, seed: int) -> dict[str, Any]:
    """Turn what was measured per item into effects with intervals."""
    clean, swapped = found["clean"], found["swapped"]
    whole, ones = clean - swapped, np.ones_like(clean)
    d = _ratio(whole / 2, ones, draws)
    explains = d is not None and d["interval"][0] > ROUNDING

    def effect(lost: np.ndarray) -> dict[str, Any] | None:
        return _ratio(lost, whole, draws) if explains else None

    heads = _effects_of_heads(found)
    return {
        "margin": _ratio(clean, ones, draws),
        "d": d,
        **{name: effect(clean - found[name]) for name in CHANGES},
        "es": effect(found["ko_distractor"] - found["ko_antecedent"]),
        "denoised": effect(found["denoised"] - swapped),
        "collateral_nats": _ratio(found["collateral"], ones, draws),
        "direct": {name: _ratio(found[f"dla_{name}"], ones, draws) for name in SOURCES},
        "interchange": _interchange_map(found),
        "heads": {name: values.tolist() for name, values in heads.items()} if explains else None,
        "controls": _controls(heads, layer, head, seed) if explains else None,
        "spearman_attribution": spearman(heads["resample"], heads["attribution"]) if explains else None,
    }


def _ratio(numerator: np.ndarray, denominator: np.ndarray, draws: Draws) -> dict[str, Any] | None:
    """Return a ratio of means with its interval over the items where the numerator is known; None without any."""
    known = ~np.isnan(numerator)
    if not known.any():
        return None
    above, below = np.where(known, numerator, 0), np.where(known, denominator, 0)
    interval = ratio_interval(above, below, draws)
    return {"value": float(above.sum() / below.sum()), "interval": interval, "n": int(known.sum())}


def _interchange_map(found: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return the share of answers that follow the donor, [L + 1][POSITIONS], and the share with no patch at all.

    An answer follows where the donor's words become likelier than the item's own; a tie counts half.
    """

    def follows(margin: np.ndarray) -> np.ndarray:
        return ((margin < 0) + 0.5 * (margin == 0)).mean(axis=0)

    return {
        "positions": list(POSITIONS),
        "map": follows(found["interchange"]).tolist(),
        "unpatched": float(follows(found["clean"])),
        "donor": float(follows(found["swapped"])),
    }


def _controls(heads: dict[str, np.ndarray], layer: int, head: int, seed: int) -> dict[str, Any]:
    """Return the same effects of random other heads of the layer."""
    others = np.delete(np.arange(heads["resample"].shape[1]), head)
    chosen = np.sort(np.random.default_rng(seed).permutation(others)[:N_CONTROL_HEADS])
    effects = {name: heads[name][layer, chosen].tolist() for name in ("resample", "resample_query", "attention_swap")}
    return {"heads": chosen.tolist()} | effects


def spearman(one: np.ndarray, other: np.ndarray) -> float | None:
    """Return the rank correlation of two arrays of one shape; None where one of the two is the same everywhere."""
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    return float(np.corrcoef(ranks(one.ravel()), ranks(other.ravel()))[0, 1])
