"""The margins of passages before a pronoun, without and with edits of heads at the last token.

The margin M of a text is log p(first form) - log p(second form) of the next token, "she" against "he". Edits are made
at the last token, of a passage and of its twin alike: a head's edges to the mentions of an entity are cut (attention
knockout, Geva et al. 2023), its weights on both entities change places, or its output is replaced by that of the twin
(interchange, Geiger et al. 2021).

Axes: N passages, 2 texts (passage, twin), B texts of a batch, T tokens, C sets of heads, L layers, H heads per layer.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from model.observe import ObservableModel, SiteEdit, SitePass
from probe.batches import length_batches, pad_rows
from probe.interventions import cut_weights, exchange_weights
from probe.passage_items import PassageItem
from probe.results import Head

MAX_ROWS = 512  # texts that are edited at once; a model with a large vocabulary needs 0.2 MB for each
EDIT_COST = 1 / 30  # cost of an edit at the site, relative to an unedited pass over the text; for the remaining time


@dataclass(frozen=True, slots=True)
class _SiteBatch:
    """Texts that end before a pronoun; the twin of a passage is the next row. B texts, T tokens."""

    index: list[tuple[int, int]]  # [B] (item, text) of each row
    tokens: Tensor  # [B, T]
    site: Tensor  # [B] position of the last token
    forms: Tensor  # [B, 2] token of the pronoun of each class
    classes: Tensor  # [2, B, T] True on the mentions of each class
    content: Tensor  # [B, T] True on a random content word
    partner: Tensor  # [B] row of the other text of the same passage


def _site_batches(items: Sequence[PassageItem], tokens_per_batch: int, device: torch.device) -> Iterator[_SiteBatch]:
    """Yield the items in batches of up to `tokens_per_batch` tokens, items of similar length together."""
    lengths = [max(map(len, item.texts)) for item in items]
    for chosen in length_batches(lengths, tokens_per_batch, n_texts=2):
        rows = [(i, text) for i in chosen for text in range(len(items[i].texts))]
        tokens = pad_rows([items[i].texts[text] for i, text in rows])  # [B, T]
        site = torch.tensor([len(items[i].texts[text]) - 1 for i, text in rows])
        forms = torch.tensor([items[i].forms for i, _ in rows])

        # The mentions of each class, the content word, and the row of the other text.
        classes = torch.zeros(2, *tokens.shape, dtype=torch.bool)
        content = torch.zeros_like(tokens, dtype=torch.bool)
        partner = torch.arange(len(rows))
        for row, (i, text) in enumerate(rows):
            for side in (0, 1):
                classes[side, row, list(items[i].mentions[text][side])] = True
            content[row, list(items[i].content_word[text])] = True
            if len(items[i].texts) == 2:
                partner[row] = row + 1 - 2 * text
        tensors = [x.to(device) for x in (tokens, site, forms, classes, content, partner)]
        yield _SiteBatch(rows, *tensors)


def _cuts(mask: Tensor, heads: Sequence[Head]) -> list[SiteEdit]:
    """Return the edits that cut the edges of some heads to the tokens of `mask` [B, T]."""
    return [SiteEdit(layer, head, weights=lambda row: cut_weights(row, mask)) for layer, head in heads]


def _exchanges(batch: _SiteBatch, heads: Sequence[Head]) -> list[SiteEdit]:
    """Return the edits that let the weights of some heads on the mentions of both classes change places."""

    def exchange(row: Tensor) -> Tensor:
        return exchange_weights(row, batch.classes[0], batch.classes[1])

    return [SiteEdit(layer, head, weights=exchange) for layer, head in heads]


def _interchanges(batch: _SiteBatch, heads: Sequence[Head]) -> list[SiteEdit]:
    """Return the edits that replace the outputs of some heads by those in the other text of the passage."""
    return [SiteEdit(layer, head, output=lambda rows: rows[batch.partner]) for layer, head in heads]


@dataclass(frozen=True)
class Margins:
    """The margins M of items without and with edits of C sets of heads; nan where not measured, or without twin."""

    clean: np.ndarray  # [N, 2]
    cut: np.ndarray  # [N, 2, 2, C]: the edge to the mentions of each class is cut
    exchanged: np.ndarray  # [N, 2, C]
    content_cut: np.ndarray  # [N, 2, C]
    interchanged: np.ndarray  # [N, 2, C]


class Sites:
    """The items of a model in batches; their unedited pass is computed once and kept for all edits."""

    def __init__(
        self,
        model: ObservableModel,
        items: Sequence[PassageItem],
        tokens_per_batch: int,
        advance: Callable[[float], None] = lambda texts: None,
    ) -> None:
        """Run the unedited pass; `advance` is called after each batch with its share of the tokens, in texts."""
        self.model = model
        self.items = items
        self.clean = np.full((len(items), 2), np.nan)
        self._advance = advance
        self._batches = list[tuple[_SiteBatch, SitePass]]()
        lengths = [len(text) for item in items for text in item.texts]
        for batch in _site_batches(items, tokens_per_batch, model.device):
            site_pass = model.site_pass(batch.tokens, batch.site)
            self.clean[_places(batch)] = _margins(batch, site_pass, [[]])[0]
            self._batches.append((batch, site_pass))
            advance(len(lengths) * float((batch.site + 1).sum()) / sum(lengths))

    def measure(self, sets: Sequence[Sequence[Head]], edits: Collection[str]) -> Margins:
        """Return the margins with the heads of each of C sets edited together; `edits` are names of `Margins`."""
        shape = (len(self.items), 2)
        cut = np.full((*shape, 2, len(sets)), np.nan)
        exchanged, content_cut, interchanged = np.full((3, *shape, len(sets)), np.nan)
        for batch, site_pass in self._batches:
            # Cutting a class that no text of the batch mentions changes nothing.
            is_mentioned = batch.classes.any(-1).any(-1).tolist()  # [2]

            # Where the margins of each list of edits belong, a view [N, 2].
            targets: list[np.ndarray] = []
            edit_lists: list[list[SiteEdit]] = []
            for c, heads in enumerate(sets):
                if "cut" in edits:
                    for side in (0, 1):
                        targets.append(cut[:, :, side, c])
                        edit_lists.append(_cuts(batch.classes[side], heads) if is_mentioned[side] else [])
                if "exchanged" in edits:
                    targets.append(exchanged[:, :, c])
                    edit_lists.append(_exchanges(batch, heads))
                if "content_cut" in edits:
                    targets.append(content_cut[:, :, c])
                    edit_lists.append(_cuts(batch.content, heads))
                if "interchanged" in edits:
                    targets.append(interchanged[:, :, c])
                    edit_lists.append(_interchanges(batch, heads))

            # All edits of the batch together, [E, B].
            found = _margins(batch, site_pass, edit_lists)
            for target, of_rows in zip(targets, found, strict=True):
                target[_places(batch)] = of_rows
            self._advance(EDIT_COST * found.size)
        return Margins(self.clean, cut, exchanged, content_cut, interchanged)

    @torch.no_grad()
    def direct_effects(self) -> np.ndarray:
        """Return what each head writes into the twin difference of the margin directly, [N, L, H] in nats.

        Direct logit attribution (Elhage et al. 2021): the head's output at the site, times its output matrix, times the
        difference of the two pronouns' output embeddings, pulled back through the final norm. Half the difference of
        passage and twin, signed so that a positive value is in the direction of the model's own difference. nan where
        the model gives no weights.
        """
        model = self.model
        effects = np.full((len(self.items), 2, model.n_layer, model.n_head), np.nan)
        unembedding = model.unembedding().float()
        for batch, site_pass in self._batches:
            # The direction of the residual stream that raises the margin, [B, D].
            direction = unembedding[batch.forms[:, 0]] - unembedding[batch.forms[:, 1]]
            pulled = model.final_norm_pullback(direction, site_pass.final_stream().float())
            for layer, record in enumerate(site_pass.records()):
                weight = model.head_weights(layer).output  # [H, D, K]
                if weight is None or pulled is None:
                    continue
                of_heads = torch.einsum("hdk,bd->bhk", weight.float(), pulled)  # in each head's output
                written = (record.output.float() * of_heads).sum(-1)  # [B, H]
                effects[(*_places(batch), layer)] = written.cpu().numpy()

        # Half the difference of passage and twin, in the direction of the model's own.
        sign = np.sign(self.clean[:, 0] - self.clean[:, 1])
        half: np.ndarray = (effects[:, 0] - effects[:, 1]) / 2 * sign[:, None, None]
        return half

    @torch.no_grad()
    def entity_weights(self, head: Head) -> np.ndarray:
        """Return a head's attention weight on the mentions of each class, [N, 2 texts, 2 classes]."""
        weights = np.full((len(self.items), 2, 2), np.nan)
        for batch, site_pass in self._batches:
            row = site_pass.records()[head[0]].weights[:, head[1]]  # [B, T]
            for side in (0, 1):
                weights[(*_places(batch), side)] = (row * batch.classes[side]).sum(-1).cpu().numpy()
        return weights

    def probabilities(self, heads: Sequence[Head]) -> np.ndarray:
        """Return the probability of each form, unedited and with the weights exchanged, [N, 2 texts, 2 passes, 2]."""
        found = np.full((len(self.items), 2, 2, 2), np.nan)
        for batch, site_pass in self._batches:
            logits = site_pass.edited_logits([[], _exchanges(batch, heads)])  # [2, B, V]
            of_forms = logits.softmax(-1).gather(2, batch.forms.expand(2, -1, -1))  # [2, B, 2]
            found[_places(batch)] = of_forms.transpose(0, 1).cpu().numpy()
        return found


@torch.no_grad()
def _margins(batch: _SiteBatch, site_pass: SitePass, edit_lists: Sequence[Sequence[SiteEdit]]) -> np.ndarray:
    """Return M = log p(first form) - log p(second form) in nats at the site, with each of E lists of edits, [E, B]."""
    n_at_once = max(1, MAX_ROWS // len(batch.site))
    found = np.empty((len(edit_lists), len(batch.site)))
    for start in range(0, len(edit_lists), n_at_once):
        chunk = edit_lists[start : start + n_at_once]
        of_forms = site_pass.edited_logits(chunk, batch.forms)  # [E, B, 2]
        difference = of_forms[..., 0] - of_forms[..., 1]
        found[start : start + len(chunk)] = difference.double().cpu().numpy()
    return found


def _places(batch: _SiteBatch) -> tuple[np.ndarray, np.ndarray]:
    """Return the item and the text of each row, each [B]."""
    items, texts = np.array(batch.index).T
    return items, texts


def decision(items: Sequence[PassageItem], values: np.ndarray) -> np.ndarray:
    """Return half the difference of the margin between passage and twin [N, ...], from margins [N, 2, ...].

    Signed: one entity: towards its class; two: towards the class of the author's pronoun. Without a twin it is the
    signed margin of the passage.
    """
    # One value for each item, in the shape [N, 1, ...] that fits the result.
    shape = (-1, *[1] * (values.ndim - 2))
    signs = np.array([1.0 if item.passage.meant == 0 else -1.0 for item in items]).reshape(shape)
    has_twin = np.array([len(item.texts) == 2 for item in items]).reshape(shape)
    paired: np.ndarray = np.where(has_twin, (values[:, 0] - values[:, 1]) / 2, values[:, 0])
    return signs * paired


def signed_edge_effects(items: Sequence[PassageItem], measured: Margins) -> np.ndarray:
    """Return the signed edge effect of each head on each item, [N, C] in nats.

    It is how far the edge to an entity moves the margin towards that entity's class, averaged over the entities and
    over passage and twin: for two entities, half of M with the edge to the second class cut minus M with the edge to
    the first class cut. It does not use the author's pronoun.
    """
    # What the edge to either class adds to the margin of each text, [N, 2 texts, C].
    clean = measured.clean[:, :, None]
    first = clean - measured.cut[:, :, 0]
    second = clean - measured.cut[:, :, 1]

    # 1 if a text mentions the class; the twin mentions the other one in its place. [N, 2 texts, 2 classes]
    in_passage = np.array([list(map(bool, item.mentions[0])) for item in items], dtype=float)
    is_mentioned = np.stack([in_passage, in_passage[:, ::-1]], axis=1)

    # The margin is that of the first class, so the edge to the second one counts with the other sign.
    moved = first * is_mentioned[:, :, 0, None] - second * is_mentioned[:, :, 1, None]
    of_text = moved / is_mentioned.sum(-1)[:, :, None]
    effects: np.ndarray = np.nanmean(of_text, axis=1)  # a passage may have no twin
    return effects


def role_cuts(items: Sequence[PassageItem], measured: Margins) -> tuple[np.ndarray, np.ndarray]:
    """Return `decision` with the edge to the meant entity cut, and with the edge to the other one, each [N, C].

    The entity in the same place counts as the meant one in the twin.
    """
    result = []
    for is_other in (False, True):
        chosen = np.empty((len(items), 2, measured.cut.shape[-1]))
        for i, item in enumerate(items):
            side = item.passage.meant ^ is_other
            chosen[i, 0] = measured.cut[i, 0, side]
            chosen[i, 1] = measured.cut[i, 1, 1 - side]
        result.append(decision(items, chosen))
    return result[0], result[1]


def exchange_terms(measured: Margins) -> tuple[np.ndarray, np.ndarray]:
    """Return numerator [N, C] and denominator [N] of the share exchanged, which is the ratio of their means.

    The share is 1 if exchanging the weights turns the margin of the passage into that of its twin and the other way
    round. Both are signed by the model's own preference, so that passages in which it prefers either entity add up.
    """
    total = measured.clean[:, 0] - measured.clean[:, 1]  # [N]
    moved = measured.clean[:, :, None] - measured.exchanged  # [N, 2, C]

    # A complete exchange moves either text by the whole difference, so half of both together is the difference.
    return np.sign(total)[:, None] * (moved[:, 0] - moved[:, 1]) / 2, np.abs(total)


def flips(measured: Margins) -> np.ndarray:
    """Return the share of the texts of each item whose more probable pronoun changes with the weights, [N, C]."""
    changed = np.sign(measured.clean[:, :, None]) != np.sign(measured.exchanged)
    share: np.ndarray = changed.mean(axis=1)
    return share
