"""What every head does at the query position of every item: one float32 pass, only the asked rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from data.links import LinkItem
from model.transformer import Transformer, attention_scores, streams


@dataclass(frozen=True, slots=True)
class Rows:
    """Per item and head, in the order of the items. Axes: N items, L layers, H heads."""

    preference: np.ndarray  # [N, L, H] lambda: log of the weight on antecedents over the weight on distractors
    selects: np.ndarray  # [N, L, H] the best antecedent's score minus the best distractor's
    strict: np.ndarray  # [N, L, H] 1 where the largest weight of all tokens but the first is on an antecedent
    mass: np.ndarray  # [N, L, H] weight on all mentions together
    first_mass: np.ndarray  # [N, L, H] weight on the first token, where unused attention rests

    def take(self, index: np.ndarray) -> "Rows":
        """Return the rows of some items."""
        return Rows(
            self.preference[index], self.selects[index], self.strict[index], self.mass[index], self.first_mass[index]
        )


@torch.no_grad()
def read_rows(model: Transformer, items: Sequence[LinkItem], tokens_per_batch: int) -> Rows:
    """Read every head at every item's query.

    lambda = LSE over antecedents of the scores - LSE over distractors: the softmax's denominator, and with it
    whatever rests on the first token, cancels exactly. Where a side is empty it is infinite or nan.

    Texts that are the same up to the query are read once, so that their rows are the same to the last bit.
    """
    shape = (len(items), model.config.n_layer, model.config.n_head)
    rows = Rows(**{name: np.empty(shape, dtype=np.float32) for name in Rows.__dataclass_fields__})
    device = model.token_embedding.weight.device
    for members, place, tokens in _batches([item.tokens[: item.query + 1] for item in items], tokens_per_batch):
        some = [items[i] for i in members]
        query = torch.zeros(len(tokens), 1, dtype=torch.int64)
        query[place, 0] = torch.tensor([item.query for item in some])
        scores = attention_scores(model, tokens.to(device), query.to(device))[:, :, :, 0].transpose(0, 1)
        scores = scores[torch.tensor(place, device=device)]  # [N, L, H, Tk]
        gold = _mask([sum(item.antecedents, ()) for item in some], scores)
        other = _mask([sum(item.distractors, ()) for item in some], scores)
        for name, values in _read(scores, gold, other).items():
            getattr(rows, name)[members] = values.cpu().numpy()
    return rows


def _read(scores: torch.Tensor, gold: torch.Tensor, other: torch.Tensor) -> dict[str, torch.Tensor]:
    """Reduce scores [B, L, H, Tk] over the keys, given which are gold and which are not, both [B, 1, 1, Tk]."""
    inf = float("-inf")
    on_gold, on_other = scores.masked_fill(~gold, inf), scores.masked_fill(~other, inf)
    weights = scores.softmax(-1)
    beyond_first = scores.clone()
    beyond_first[..., 0] = inf
    return {
        "preference": on_gold.logsumexp(-1) - on_other.logsumexp(-1),
        "selects": on_gold.amax(-1) - on_other.amax(-1),
        "strict": (on_gold.amax(-1) >= beyond_first.amax(-1)).float(),
        "mass": weights.masked_fill(~(gold | other), 0).sum(-1),
        "first_mass": weights[..., 0],
    }


@torch.no_grad()
def read_margins(model: Transformer, items: Sequence[LinkItem], tokens_per_batch: int) -> np.ndarray:
    """Return [N] log p(answers) - log p(foils) at each item's payoff: above 0 where the model prefers the right ones.

    nan for items without a payoff.
    """
    margins = np.full(len(items), np.nan)
    asked = [i for i, item in enumerate(items) if item.payoff is not None]
    device = model.token_embedding.weight.device
    inf = float("-inf")
    for members, place, tokens in _batches([items[i].tokens for i in asked], tokens_per_batch):
        some = [items[asked[i]] for i in members]
        *_, stream = streams(model, tokens.to(device))
        payoffs = torch.tensor([item.payoff for item in some], device=device)
        logits = model.unembed(stream[torch.tensor(place, device=device), payoffs]).float()  # [N, V]
        answers = _mask([item.answers for item in some], logits)[:, 0, 0]
        foils = _mask([item.foils for item in some], logits)[:, 0, 0]
        found = logits.masked_fill(~answers, inf).logsumexp(-1) - logits.masked_fill(~foils, inf).logsumexp(-1)
        margins[[asked[i] for i in members]] = found.cpu().numpy()
    return margins


def _batches(
    texts: Sequence[tuple[int, ...]], tokens_per_batch: int
) -> Iterator[tuple[list[int], list[int], torch.Tensor]]:
    """Yield (indices of texts, the batch row of each, tokens [B, T]): equal texts share a row, like lengths a batch.

    Rows are padded behind, where causality hides it.
    """
    sharing: dict[tuple[int, ...], list[int]] = {}
    for i, text in enumerate(texts):
        sharing.setdefault(text, []).append(i)
    order = sorted(sharing, key=len)
    while order:
        n_rows = max(1, tokens_per_batch // len(order[-1]))
        some, order = order[-n_rows:], order[:-n_rows]
        padded = np.zeros((len(some), len(some[-1])), dtype=np.int64)
        for row, text in enumerate(some):
            padded[row, : len(text)] = text
        members = [i for text in some for i in sharing[text]]
        place = [row for row, text in enumerate(some) for _ in sharing[text]]
        yield members, place, torch.from_numpy(padded)


def _mask(positions: list[tuple[int, ...]], like: torch.Tensor) -> torch.Tensor:
    """Return [B, 1, 1, n] True at the given places of each row, n the last axis of `like`."""
    mask = torch.zeros(len(positions), 1, 1, like.shape[-1], dtype=torch.bool)
    rows = [row for row, some in enumerate(positions) for _ in some]
    mask[rows, 0, 0, [place for some in positions for place in some]] = True
    return mask.to(like.device)
