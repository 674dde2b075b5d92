"""The answer margins of pairs without and with edits of heads.

    M = log p(answers) - log p(foils) of the token after the payoff, in nats

Edits at the query: `swap` lets a head's weights on the antecedent and on the other mention change places; `cut_meant`,
`cut_other` and `cut_control` remove its weights on one of them or on a content word (attention knockout, Geva et al.
2023). `carries` lets its output at the query change places with that in the other text of the pair (interchange
intervention, Geiger et al. 2021); with `same_answer` the output is that of a text of another pair with the same answer.
At all positions `zero` removes its output.
Later layers may compensate for a head (self-repair, McGrath et al. 2023), so effects of removing something are lower
bounds.

Axes: N pairs, 2 texts, B texts of a batch (the counterpart is the next row), T tokens, C sets of heads, E edit lists,
L layers, H heads per layer.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, product, starmap

import numpy as np
import torch
from torch import Tensor

from data.pairs import Cell, Items
from model.edits import cut_weights, exchange_weights, remove_head, split_weights
from model.observe import ObservableModel, SiteEdit, SitePass
from probe.batches import length_batches, pad_rows, progress_bar
from probe.config import ProbeConfig
from probe.questions import MIN_SHARE
from probe.results import Curve, Head
from probe.statistics import sample_of

Sets = Sequence[Sequence[Head]]  # the heads of each set are edited together
NO_TOKEN = -1  # pads rows of token ids
PASS_ERROR = 1e-5  # nats; margins of two float32 passes that should agree differ by up to this
MAX_ROWS = 512  # texts that are edited at once at the site: up to 0.2 MB of logits each
MAX_KEPT = 2**21  # tokens in layers whose passes are kept: three gigabytes of keys and values in SmolLM2-135M
MAX_HEADS = 6  # a set has no more
MAX_CANDIDATES = 16  # for a set: those that move dev most alone
MIN_GAIN = 0.02  # a head that adds less to what a set moves does not share the work
EDIT_ALL = 64  # with more heads than this, edits of all of them take too long
DOSES = {"swap_25": 0.25, "swap_50": 0.5, "swap_75": 0.75, "swap": 1.0}  # shares of the weights that are exchanged


@dataclass(frozen=True)
class Margins:
    """The margins of N pairs towards each text's own answers, without and with edits of C sets of heads, in nats."""

    clean: np.ndarray  # [N, 2]
    edited: dict[str, np.ndarray]  # [N, 2, C] by edit

    @property
    def total(self) -> np.ndarray:
        """The change by the counterpart, mean of both texts, [N]: the answers of one text are the other's foils."""
        return np.asarray(self.clean.sum(axis=1))

    def lost(self, edit: str) -> np.ndarray:
        """Return what an edit takes from the margin, the mean of both texts, [N, C].

        specificity: how much more the edges to the antecedent carry than those to the other mention.
        """
        if edit == "specificity":
            return np.asarray(self.lost("cut_meant") - self.lost("cut_other"))
        return np.asarray((self.clean[:, :, None] - self.edited[edit]).mean(axis=1))

    def swaps(self, edit: str = "swap") -> tuple[np.ndarray, np.ndarray]:
        """Return numerator [N, C] and denominator [N] of the share that changes sides, which is a ratio of means.

        Both count in the direction of the model's own preference, so that pairs in which it prefers either side add up.
        """
        sign = np.sign(self.total)
        return sign[:, None] * self.lost(edit), sign * self.total

    def flips(self) -> np.ndarray:
        """Return the share of both texts whose preferred side changes with the swap, [N, C]."""
        changed = np.sign(self.clean[:, :, None]) != np.sign(self.edited["swap"])
        return np.asarray(changed.mean(axis=1))


@dataclass(frozen=True)
class Batch:
    """Pairs as one right-padded batch: texts in rows 2i and 2i + 1."""

    pairs: list[int]  # index of each pair
    masks: dict[str, Tensor]  # [B, T] True on the tokens of "meant", "other" and "control"
    tokens: Tensor  # [B, T]
    query: Tensor  # [B]
    payoff: Tensor  # [B]
    answers: Tensor  # [B, n] token ids, padded with NO_TOKEN
    foils: Tensor  # [B, n]

    def site_edits(self, name: str, heads: Iterable[Head]) -> list[SiteEdit]:
        outputs = {"carries": _from_counterpart, "same_answer": self._from_same_answer}
        if name in outputs:
            return [SiteEdit(*head, output=outputs[name]) for head in heads]
        if name in DOSES:
            change = partial(exchange_weights, left=self.masks["meant"], right=self.masks["other"], share=DOSES[name])
        else:
            change = partial(cut_weights, mask=self.masks[name.removeprefix("cut_")])
        return [SiteEdit(*head, weights=change) for head in heads]

    def _from_same_answer(self, outputs: Tensor) -> Tensor:
        """Return the outputs [B, K] of the next text of another pair of this batch with the same answers, else nan."""
        rows = torch.arange(len(outputs), device=outputs.device)
        is_same = (self.answers[:, None] == self.answers).all(-1) & (rows[:, None] // 2 != rows // 2)
        n_after = (rows - rows[:, None]) % len(rows)
        partner = n_after.masked_fill(~is_same, len(rows)).argmin(1)
        of_partner: Tensor = outputs[partner].masked_fill(~is_same.any(1)[:, None], torch.nan)
        return of_partner

    def on_both(self, site_pass: SitePass, head: Head) -> Tensor:
        """Return the weight of a head on the antecedent and on the other mention, [2, B]."""
        row = site_pass.records()[head.layer].weights[:, head.head]  # [B, T]
        return torch.stack([(row * self.masks[name]).sum(-1) for name in ("meant", "other")])

    def margins(self, logits: Tensor) -> np.ndarray:
        """Return the margins [..., pairs, 2] of the logits [..., B, V] at the payoff."""
        margins: np.ndarray = answer_margins(logits, self.answers, self.foils).double().cpu().numpy()
        return margins.reshape(*margins.shape[:-1], -1, 2)


def _from_counterpart(outputs: Tensor) -> Tensor:
    """Return the outputs [B, K] with those of the two texts of each pair exchanged."""
    exchanged: Tensor = outputs.unflatten(0, (-1, 2)).flip(1).flatten(0, 1)
    return exchanged


def _batches(items: Items, tokens_per_batch: int, device: torch.device) -> Iterator[Batch]:
    lengths = [len(cell.tokens) for cell in items.cells]
    of_pairs = list(map(max, lengths[::2], lengths[1::2]))
    for index in length_batches(of_pairs, tokens_per_batch, n_texts=2):
        cells = items.take(index).cells
        tokens = pad_rows([cell.tokens for cell in cells])  # [B, T]
        masks = {name: np.zeros(tokens.shape, dtype=bool) for name in ("meant", "other", "control")}
        for row, cell in enumerate(cells):
            for name, words in (("meant", cell.meant), ("other", cell.other), ("control", (cell.control,))):
                masks[name][row, list(chain(*words))] = True
        positions = torch.tensor([(cell.query, cell.payoff or 0) for cell in cells])
        tensors = [tensor.to(device) for tensor in (tokens, *positions.T, *answer_ids(cells))]
        yield Batch(index, {name: torch.from_numpy(mask).to(device) for name, mask in masks.items()}, *tensors)


class EditedPairs:
    """Comparable pairs with the unedited passes over them, which are kept for all edits of heads at the query.

    `direct_effects` and `shown` are of pairs whose answer is the word after the query.
    """

    def __init__(self, model: ObservableModel, items: Items, tokens_per_batch: int) -> None:
        self.model = model
        self.items = items
        self.tokens_per_batch = tokens_per_batch
        self.clean = np.full((len(items), 2), np.nan)  # margins towards each text's own answers, in nats
        self.batches = list(_batches(items, tokens_per_batch, model.device))
        self._kept: dict[int, SitePass] = {}
        n_kept = 0  # tokens in layers
        for number, (batch, site_pass) in enumerate(self.passes()):
            self.clean[batch.pairs] = batch.margins(site_pass.logits())
            n_kept += batch.tokens.numel() * model.n_layer
            if n_kept <= MAX_KEPT and torch.equal(batch.query, batch.payoff):  # other passes hold whole streams
                self._kept[number] = site_pass

    def passes(self) -> Iterator[tuple[Batch, SitePass]]:
        """Yield every batch with the unedited pass over it."""
        for number, batch in enumerate(self.batches):
            if number in self._kept:
                yield batch, self._kept[number]
            elif torch.equal(batch.query, batch.payoff):
                yield batch, self.model.site_pass(batch.tokens, batch.query)
            else:
                yield batch, SitePass(self.model, batch.tokens, batch.query, batch.payoff)

    def margins(self, sets: Sets, edits: Sequence[str]) -> Margins:
        """Return the margins with the heads of each set edited together."""
        at_query = [name for name in edits if name != "zero"]

        def lists_of(batch: Batch) -> list[list[SiteEdit]]:
            return [batch.site_edits(name, heads) for name, heads in product(at_query, sets)]

        # All edits at the query are one call, so that they share passes.
        edited = {}
        if at_query:
            found = self.edited(lists_of).reshape(len(at_query), len(sets), len(self.items), 2)
            edited = dict(zip(at_query, np.moveaxis(found, 1, -1), strict=True))
        if "zero" in edits:
            edited["zero"] = np.full((len(self.items), 2, len(sets)), np.nan)
            for batch in self.batches:
                for c, heads in enumerate(sets):
                    removed = list(starmap(remove_head, heads))
                    logits = self.model.logits(batch.tokens, batch.payoff, removed)
                    edited["zero"][batch.pairs, :, c] = batch.margins(logits)
        return Margins(self.clean, edited)

    def edited(self, lists_of: Callable[[Batch], Sequence[Sequence[SiteEdit]]]) -> np.ndarray:
        """Return the margins [E, N, 2] with each of E lists of edits at the query; `lists_of` makes them of a batch."""
        found = []
        with progress_bar(len(self.items), "pair") as bar:
            for batch, site_pass in self.passes():
                of_lists = margins_at_site(site_pass, lists_of(batch), batch.answers, batch.foils)
                found.append(of_lists.reshape(len(of_lists), -1, 2))
                bar.update(len(batch.pairs))
        order = np.argsort(np.concatenate([batch.pairs for batch in self.batches]))
        in_order: np.ndarray = np.concatenate(found, axis=1)[:, order]
        return in_order

    def swaps(self, sets: Sets) -> tuple[np.ndarray, np.ndarray]:
        """Return numerators [N, C] and denominator [N] of the shares that sets of heads swap, see `Margins.swaps`."""
        return self.margins(sets, ["swap"]).swaps()

    def exchanged(self, sets: Sets, edit: str = "swap") -> tuple[np.ndarray, np.ndarray]:
        """Return the same towards the answers, whichever side the model prefers; `edit` is "swap" or "carries"."""
        margins = self.margins(sets, [edit])
        return margins.lost(edit), margins.total

    @torch.no_grad()
    def log_odds(self, head: Head) -> np.ndarray:
        """Return the log of a head's weight on the antecedent over that on the other, the mean of both texts, [N]."""
        found = np.full(len(self.items), np.nan)
        for batch, site_pass in self.passes():
            logs = batch.on_both(site_pass, head).clamp(min=1e-9).log()
            found[batch.pairs] = (logs[0] - logs[1]).cpu().numpy().reshape(-1, 2).mean(axis=1)
        return found

    def split_margins(self, heads: Sequence[Head], log_odds: Sequence[np.ndarray]) -> np.ndarray:
        """Return the margins [N, 2] with the weights of each head on both entities split by its `log_odds` [N].

        Their sum stays.
        """

        def split(batch: Batch) -> list[list[SiteEdit]]:
            edits = []
            for head, of_head in zip(heads, log_odds, strict=True):
                of_rows = torch.tensor(of_head[batch.pairs].repeat(2)[:, None], dtype=torch.float32)  # [B, 1]
                left, right = batch.masks["meant"], batch.masks["other"]
                change = partial(split_weights, left=left, right=right, log_odds=of_rows.to(batch.tokens.device))
                edits.append(SiteEdit(*head, weights=change))
            return [edits]

        margins: np.ndarray = self.edited(split)[0]
        return margins

    @torch.no_grad()
    def direct_effects(self) -> np.ndarray:
        """Return what each head writes into the margins directly, the mean of both texts, [N, L, H] in nats.

        Direct logit attribution (Elhage et al. 2021): the head's output at the query, times its output matrix, times
        the difference of the answers' output embeddings, pulled back through the final norm. Signed so that a positive
        value is in the direction of the model's own decision. nan where the model gives no weights.
        """
        model = self.model
        effects = np.full((len(self.items), 2, model.n_layer, model.n_head), np.nan)
        unembedding = model.unembedding().float()
        for batch, site_pass in self.passes():
            direction = unembedding[batch.answers[:, 0]] - unembedding[batch.foils[:, 0]]  # raises the margin, [B, D]
            pulled = model.final_norm_pullback(direction, site_pass.final_stream().float())
            for layer, record in site_pass.records().items():
                weight = model.output_weights(layer)  # [H, D, K]
                if weight is None or pulled is None:
                    continue
                of_heads = torch.einsum("hdk,bd->bhk", weight.float(), pulled)  # in each head's output
                written = (record.output.float() * of_heads).sum(-1)  # [B, H]
                effects[batch.pairs, :, layer] = written.cpu().numpy().reshape(-1, 2, model.n_head)
        return np.asarray(effects.mean(axis=1) * np.sign(self.clean.sum(axis=1))[:, None, None])

    @torch.no_grad()
    def shown(self, head: Head, heads: Sequence[Head]) -> tuple[np.ndarray, np.ndarray]:
        """Return a head's weights on antecedent and other mention in the first text of each pair, [N, 2].

        And the probabilities of answer and foil there, unedited and with the weights of `heads` exchanged, [N, 2, 2].
        """
        weights = np.empty((len(self.items), 2))
        probabilities = np.empty((len(self.items), 2, 2))
        for batch, site_pass in self.passes():
            weights[batch.pairs] = batch.on_both(site_pass, head)[:, ::2].T.cpu().numpy()
            logits = site_pass.edited_logits([[], batch.site_edits("swap", heads)])  # [2, B, V]
            words = torch.stack([batch.answers[:, 0], batch.foils[:, 0]], dim=1)
            of_words = logits.softmax(-1).gather(2, words.expand(2, -1, -1))  # [2, B, 2]
            probabilities[batch.pairs] = of_words[:, ::2].transpose(0, 1).cpu().numpy()
        return weights, probabilities


def answer_ids(cells: Sequence[Cell]) -> tuple[Tensor, Tensor]:
    """Return the answers and the foils of the texts, each [B, n] token ids padded with NO_TOKEN."""
    answers = [cell.answers for cell in cells]
    foils = [cell.foils for cell in cells]
    return pad_rows(answers, NO_TOKEN), pad_rows(foils, NO_TOKEN)


def answer_margins(logits: Tensor, answers: Tensor, foils: Tensor) -> Tensor:
    """Return M [..., B] = log p(answers) - log p(foils) in nats, from the logits [..., B, V] at the payoff."""
    sides = []
    for ids in (answers, foils):
        places = ids.clamp(min=0).expand(*logits.shape[:-1], -1)
        side = logits.gather(-1, places).masked_fill(ids == NO_TOKEN, float("-inf"))
        sides.append(side.logsumexp(-1))
    return sides[0] - sides[1]


def margins_at_site(
    site_pass: SitePass, edit_lists: Sequence[Sequence[SiteEdit]], answers: Tensor, foils: Tensor
) -> np.ndarray:
    """Return the margins [E, B] of the token after the site with each of E lists of edits; see `answer_ids`."""
    # With one answer and one foil the model computes the logits of these two tokens only.
    words = None
    if answers.shape[1] == foils.shape[1] == 1:
        words = torch.cat([answers, foils], dim=1)
    n_at_once = max(1, MAX_ROWS // len(answers))
    margins = []
    for start in range(0, len(edit_lists), n_at_once):
        logits = site_pass.edited_logits(edit_lists[start : start + n_at_once], words)
        of_lists = answer_margins(logits, answers, foils) if words is None else logits[..., 0] - logits[..., 1]
        margins.append(of_lists.double().cpu().numpy())
    return np.concatenate(margins)


def all_heads(model: ObservableModel) -> list[Head]:
    """Return every head of a model, by layer."""
    return list(starmap(Head, product(model.attention_layers, range(model.n_head))))


def alone(heads: Sequence[Head]) -> list[list[Head]]:
    """Return sets of one head each."""
    return [[head] for head in heads]


def screened(scores: np.ndarray, *, above: int, most: int) -> list[Head]:
    """Return all heads by layer, or of more than `above`, whose edits take too long, the `most` of largest score.

    nan in the scores [L, H] is no head.
    """
    heads = [Head(*place) for place in np.argwhere(~np.isnan(scores)).tolist()]
    if len(heads) <= above:
        return heads
    return sorted(sorted(heads, key=lambda head: -scores[head])[:most])


# Returns numerators [N, C] and denominator [N] of the shares that C sets of heads swap.
Swapped = Callable[[Sets], tuple[np.ndarray, np.ndarray]]


def grown(
    swapped: Swapped, candidates: Sequence[Head], *, least_gain: float = 0.0, most: int | None = None
) -> list[tuple[Head, float]]:
    """Add heads one by one, each time the one that raises the joint swap most; return each with the share it reaches.

    Ends with the smallest set that swaps MIN_SHARE; else if no head adds more than `least_gain` to the set, or with
    MAX_HEADS. Empty if the answer is the same in both texts. After the first one only the `most` that swap most alone
    are tried.
    """
    heads = list[Head]()
    shares = list[float]()
    while len(heads) < min(MAX_HEADS, len(candidates)) and max(shares, default=0.0) < MIN_SHARE:
        remaining = [head for head in candidates if head not in heads]
        moved, total = swapped([[*heads, head] for head in remaining])
        if total.mean() <= PASS_ERROR:
            return []
        of_sets = moved.mean(axis=0) / total.mean()
        if not heads:
            candidates = [candidates[i] for i in np.argsort(-of_sets, kind="stable")[:most]]
        if of_sets.max() <= (shares[-1] + least_gain if shares else 0.0):
            break  # no head adds to the set
        heads.append(remaining[int(of_sets.argmax())])
        shares.append(float(of_sets.max()))
    return list(zip(heads, shares, strict=True))


def curve_of(steps: Sequence[tuple[Head, float]], swapped: Swapped, items: Items, config: ProbeConfig) -> Curve:
    """Return the steps of `grown` with the share that the heads so far swap on other items, with its interval."""
    heads = [head for head, _ in steps]
    if not heads:
        return []
    moved, total = swapped([heads[: n + 1] for n in range(len(heads))])
    shares = sample_of(items, moved).ratios(total, config)
    return [(*step, share) for step, share in zip(steps, shares, strict=True)]
