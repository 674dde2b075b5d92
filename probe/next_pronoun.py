"""Which head decides the next pronoun? One word before "she" or "he", chosen on half of the documents, tested once.

The margin M of a text is log p(first form) - log p(second form) of the next token, "she" against "he". Each passage of
`data.next_pronoun` is compared with its twin, in which every entity has a counterpart of the other class. So whatever
ignores the entities cancels: a model that does not know them follows the twin in half of the passages.

Edits are made at the last token, of the text and of its twin alike: a head's edge to an entity is cut (attention
knockout, Geva et al. 2023), its weights on both entities change places, or its output is replaced by that of the twin
(interchange, Geiger et al. 2021). Heads are ranked by direct logit attribution (Elhage et al. 2021); only the best are
edited. Axes: N passages, 2 texts (passage, twin), C candidate heads.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from data.links import Span, Word, token_spans
from data.next_pronoun import Counterparts, Passage, Twin, content_words, find_all, make_twin, mixed_places, ngram_rule
from data.tokenizer import encode_text, unknown_id
from model.observe import ObservableModel, SiteEdit, SitePass
from probe.config import ProbeConfig
from probe.interventions import cut_weights, exchange
from probe.statistics import Design, bootstrap_interval, cap_clusters, max_t_test, mean_interval, random_half
from probe.verdict import MAX_P, NOT_ESTABLISHED, SUGGESTIVE, SUPPORTED

QUESTION_NAMES = {"gender": "next_pronoun_gender", "number": "next_pronoun_number"}
SITE = "before_pronoun"
UNKNOWN_TO_MODEL = "the model does not know"  # a verdict of its own: its choice does not follow the entities
LEVELS = {
    "E0": "the model's pronoun does not follow the entities",
    "E1": "the model's pronoun follows the entities",
    "E2": "cutting the head's edges moves the pronoun, on held-out documents",
    "E3": "this head's link decides the pronoun",
    "E4": "the choice is more than recency, and other seeds have such a head",
}
MIN_ONE, MIN_TWO = 40, 40  # passages of each kind; fewer give no test
MAX_PASSAGES = {"one": 300, "two": 300}  # of each kind; the others are left out at random
MAX_PASSAGES_LARGE = {"one": 60, "two": 90}  # for a model of more than LARGE_MODEL heads
MAX_SHARE = 0.1  # of the passages of one kind that mention the same entity of a class
MIN_CLUSTERS = 9  # documents and entities of each class in the tested half: with 8 no p is below 2 / 2^8
ALL_HEADS, MAX_CANDIDATES = 32, 8  # with more heads than the first, only so many are edited
MAX_SET = 6  # heads of a set
MIN_SET_SHARE = 0.8  # of the margin that a set must exchange
MIN_CUT, MIN_CUT_LOW = 0.10, 0.02  # share of the margin that cutting the meant edge takes: mean, end of its interval
MIN_EXCHANGE = 0.2  # share of the margin that changes sides when the weights change places
EDITS = ("cut", "exchanged", "content_cut", "interchanged")
Head = tuple[int, int]  # (layer, head)
Progress = Callable[[str], None]


# Items: passages in the tokens of a model


@dataclass(frozen=True, slots=True)
class Item:
    """A passage and its twin in the tokens of a model. Position 0 is the token before every text."""

    passage: Passage
    texts: tuple[tuple[int, ...], ...]  # tokens of the passage and, if it has one, of its twin; both end at the site
    forms: tuple[int, int]  # token of the pronoun of each class
    mentions: tuple[tuple[Word, Word], ...]  # for each text, positions of the mentions of either class
    content_word: tuple[Word, ...]  # for each text, positions of the same random content word; empty without one


@dataclass(frozen=True)
class Items:
    """The items of one question and kind."""

    items: list[Item]
    left_out: Counter[str]  # how many passages, by reason

    @property
    def clusterings(self) -> list[np.ndarray]:
        """The document and the entity of each class of each passage, each [N]; of one entity: document and entity."""
        names = [(item.passage.doc, *item.passage.entities) for item in self.items]
        table = np.array(names, dtype=str).reshape(-1, 3)
        if self.items and self.items[0].passage.kind == "one":
            entities = np.array([first or second for _, first, second in table])
            return [table[:, 0], entities]
        return list(table.T)

    def designs(self) -> list[Design]:
        """The designs of an interval: documents crossed with entities (see `probe.statistics`)."""
        documents, *entities = self.clusterings
        return [(documents, labels) for labels in entities]

    def take(self, index: np.ndarray) -> "Items":
        """Returns the items at `index`."""
        return Items([self.items[i] for i in index], self.left_out)


def make_items(
    passages: Sequence[Passage],
    kind: str,
    tokenizer: Tokenizer,
    start: int,
    max_tokens: int,
    seed: int,
    limit: int,
    *,
    needs_twin: bool = True,
    max_share: float = MAX_SHARE,
) -> Items:
    """Returns up to `limit` passages of a kind, drawn at random, in the tokens of a model.

    No entity of a class is in more than `max_share` of them. A passage is left out, and counted by reason, if the
    pronouns are not one token each, if there is no counterpart with as many tokens, if a word shares a token with its
    neighbour or is unknown, or if the text does not fit into the context.
    """
    of_kind = [passage for passage in passages if passage.kind == kind and not passage.pronouns]
    rng = np.random.default_rng(seed)
    counterparts = Counterparts(of_kind, lambda word: len(encode_text(tokenizer, f" {word}").ids), seed)
    left_out, found = Counter[str](), list[Item]()
    for i in rng.permutation(len(of_kind)):
        passage = of_kind[i]
        twin = None
        if needs_twin:
            replacements = counterparts.of(passage)
            twin = None if replacements is None else make_twin(passage, replacements)
            if twin is None:
                left_out["no counterpart with as many tokens"] += 1
                continue
        content = content_words(passage)
        word = content[int(rng.integers(len(content)))] if content else None
        item = make_item(passage, twin, word, tokenizer, start, max_tokens)
        if isinstance(item, str):
            left_out[item] += 1
        else:
            found.append(item)
    kept = cap_clusters(Items(found, left_out).clusterings[1:], max_share, limit) if found else []
    if len(found) > len(kept):
        left_out[f"an entity in more than {max_share:.0%} of the passages, or more than enough"] = len(found) - len(kept)
    return Items([found[i] for i in kept], left_out)


def make_item(
    passage: Passage, twin: Twin | None, word: Span | None, tokenizer: Tokenizer, start: int, max_tokens: int
) -> Item | str:
    """Returns a passage and its twin in the tokens of a model, or the reason why it is left out.

    `word` is a span of the passage that is compared with the mentions, if any.
    """
    texts, mentions, content = list[tuple[int, ...]](), list[tuple[Word, Word]](), list[Word]()
    all_forms = set[tuple[int, int]]()
    unknown = unknown_id(tokenizer)
    for text, groups, extra in _versions(passage, twin, word):
        # Both pronouns follow the same tokens and are one token each.
        first, second = (encode_text(tokenizer, text + form) for form in passage.forms)
        before = tuple(first.ids[:-1])
        if tuple(second.ids[:-1]) != before or text[first.offsets[-1][0] :].strip():
            return "a pronoun is not one token"
        all_forms.add((first.ids[-1], second.ids[-1]))
        try:
            words = token_spans(text, first.offsets[:-1], [*groups[0], *groups[1], *extra])
        except ValueError:
            return "a word shares a token with its neighbour"
        places = [tuple(i + 1 for i in positions) for positions in words]  # position 0 is the start token
        n_first, n_mentions = len(groups[0]), len(groups[0]) + len(groups[1])
        tokens = (start, *before)
        if unknown in {tokens[i] for positions in places for i in positions}:
            return "a word is unknown"
        texts.append(tokens)
        sides = (places[:n_first], places[n_first:n_mentions])
        mentions.append((tuple(i for word in sides[0] for i in word), tuple(i for word in sides[1] for i in word)))
        content.append(places[-1] if extra else ())
    forms = all_forms.pop()
    if all_forms or forms[0] == forms[1] or unknown in forms:
        return "a pronoun is not one token"
    if max(map(len, texts)) > max_tokens:
        return "longer than the context"
    return Item(passage, tuple(texts), forms, tuple(mentions), tuple(content))


def _versions(
    passage: Passage, twin: Twin | None, word: Span | None
) -> Iterator[tuple[str, tuple[Sequence[Span], Sequence[Span]], list[Span]]]:
    """Yields text, mentions of each class and content word of a passage and of its twin, if it has one."""
    yield passage.text, passage.mentions, [word] if word else []
    if twin:
        moved = [twin.moved(word)] if word else []
        yield twin.text, (twin.mentions[1], twin.mentions[0]), moved


# Measuring


@dataclass(frozen=True, slots=True)
class SiteBatch:
    """Texts that end before a pronoun; the twin of a passage is the next row. B texts, T tokens."""

    index: list[tuple[int, int]]  # [B] (item, text) of each row
    tokens: Tensor  # [B, T]
    site: Tensor  # [B] position of the last token
    forms: Tensor  # [B, 2] token of the pronoun of each class
    classes: Tensor  # [2, B, T] True on the mentions of each class
    content: Tensor  # [B, T] True on a random content word
    partner: Tensor  # [B] row of the other text of the same passage


def site_batches(items: Sequence[Item], tokens_per_batch: int, device: torch.device) -> Iterator[SiteBatch]:
    """Yields the items in batches of up to `tokens_per_batch` tokens, items of similar length together."""
    lengths = [max(map(len, item.texts)) for item in items]
    order = sorted(range(len(items)), key=lengths.__getitem__)
    while order:
        width = lengths[order[-1]]
        n_items = max(1, tokens_per_batch // (2 * width))
        chosen, order = order[-n_items:], order[:-n_items]
        rows = [(i, text) for i in chosen for text in range(len(items[i].texts))]
        tokens = torch.zeros(len(rows), width, dtype=torch.int64)
        classes = torch.zeros(2, len(rows), width, dtype=torch.bool)
        content = torch.zeros(len(rows), width, dtype=torch.bool)
        partner = torch.arange(len(rows))
        for row, (i, text) in enumerate(rows):
            item = items[i]
            tokens[row, : len(item.texts[text])] = torch.tensor(item.texts[text])
            for side in (0, 1):
                classes[side, row, list(item.mentions[text][side])] = True
            content[row, list(item.content_word[text])] = True
            if len(item.texts) == 2:
                partner[row] = row + 1 - 2 * text
        site = torch.tensor([len(items[i].texts[text]) - 1 for i, text in rows])
        forms = torch.tensor([items[i].forms for i, _ in rows])
        tensors = [x.to(device) for x in (tokens, site, forms, classes, content, partner)]
        yield SiteBatch(rows, *tensors)


def margins(batch: SiteBatch, site_pass: SitePass, *edits: SiteEdit) -> np.ndarray:
    """Returns M = log p(first form) - log p(second form) [B] in nats at the site, under some edits."""
    chosen = site_pass.logits(edits).gather(1, batch.forms)  # [B, 2]
    result: np.ndarray = (chosen[:, 0] - chosen[:, 1]).double().cpu().numpy()
    return result


def cuts(mask: Tensor, heads: Sequence[Head]) -> list[SiteEdit]:
    """Returns the edits that cut the edges of some heads to the tokens of `mask` [B, T]."""
    return [SiteEdit(layer, head, weights=lambda row: cut_weights(row, mask)) for layer, head in heads]


def exchanges(batch: SiteBatch, heads: Sequence[Head]) -> list[SiteEdit]:
    """Returns the edits that let the weights of some heads on the mentions of both classes change places."""
    first, second = batch.classes
    return [SiteEdit(layer, head, weights=lambda row: exchange(row, first, second)) for layer, head in heads]


@dataclass(frozen=True)
class Margins:
    """The margins M of some items without and with edits of C sets of heads; nan where not measured, or without twin."""

    clean: np.ndarray  # [N, 2]
    cut: np.ndarray  # [N, 2, 2, C]: the edge to the mentions of each class is cut
    exchanged: np.ndarray  # [N, 2, C]
    content_cut: np.ndarray  # [N, 2, C]
    interchanged: np.ndarray  # [N, 2, C]


@torch.no_grad()
def measure_margins(
    model: ObservableModel,
    items: Sequence[Item],
    sets: Sequence[Sequence[Head]],
    tokens_per_batch: int,
    edits: Collection[str] = EDITS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Margins:
    """Returns the margins of items with each set of heads edited together; `edits` are those of EDITS to measure."""
    shape = (len(items), 2)
    clean = np.full(shape, np.nan)
    cut = np.full((*shape, 2, len(sets)), np.nan)
    exchanged, content_cut, interchanged = np.full((3, *shape, len(sets)), np.nan)
    n_done = 0
    for batch in site_batches(items, tokens_per_batch, model.device):
        site_pass = model.site_pass(batch.tokens, batch.site)
        index = tuple(np.array(batch.index).T)  # items [B], texts [B]
        clean[index] = margins(batch, site_pass)
        is_mentioned = batch.classes.any(-1)  # [2, B]
        for c, heads in enumerate(sets):
            if "cut" in edits:
                for side in (0, 1):
                    is_needed = bool(is_mentioned[side].any())
                    edit = cuts(batch.classes[side], heads) if is_needed else []
                    cut[(*index, side, c)] = margins(batch, site_pass, *edit)
            if "exchanged" in edits and bool(is_mentioned.all()):
                exchanged[(*index, c)] = margins(batch, site_pass, *exchanges(batch, heads))
            if "content_cut" in edits:
                content_cut[(*index, c)] = margins(batch, site_pass, *cuts(batch.content, heads))
            if "interchanged" in edits:
                swaps = [SiteEdit(*head, output=lambda rows: rows[batch.partner]) for head in heads]
                interchanged[(*index, c)] = margins(batch, site_pass, *swaps)
        n_done += len(set(index[0].tolist()))
        progress(n_done, len(items))
    return Margins(clean, cut, exchanged, content_cut, interchanged)


@torch.no_grad()
def direct_effects(model: ObservableModel, items: Sequence[Item], tokens_per_batch: int) -> np.ndarray:
    """Returns what each head writes into the twin difference of the margin directly, [N, L, H] in nats.

    Direct logit attribution: the head's output at the site, times its output matrix, times the difference of the two
    pronouns' output embeddings, pulled back through the final norm. Half the difference of passage and twin, signed so
    that a positive value is in the direction of the model's own difference. nan where the model gives no weights.
    """
    effects = np.full((len(items), 2, model.n_layer, model.n_head), np.nan)
    clean = np.full((len(items), 2), np.nan)
    unembedding = model.unembedding().float()
    for batch in site_batches(items, tokens_per_batch, model.device):
        rows = torch.arange(len(batch.site), device=model.device)
        index = tuple(np.array(batch.index).T)
        site_pass = model.site_pass(batch.tokens, batch.site)
        clean[index] = margins(batch, site_pass)
        direction = unembedding[batch.forms[:, 0]] - unembedding[batch.forms[:, 1]]  # [B, D]
        pulled = model.final_norm_pullback(direction, site_pass.final_stream().float())
        for layer, record in enumerate(model.record(batch.tokens, batch.site[:, None])):
            weight = model.head_weights(layer).output
            if weight is None or pulled is None:
                continue
            outputs = record.head_output[rows, :, batch.site].float()  # [B, H, K]
            written = torch.einsum("bhk,hdk,bd->bh", outputs, weight.float(), pulled)
            effects[(*index, layer)] = written.cpu().numpy()
    sign = np.sign(clean[:, 0] - clean[:, 1])
    half: np.ndarray = (effects[:, 0] - effects[:, 1]) / 2 * sign[:, None, None]
    return half


# Measures


def decision(items: Sequence[Item], values: np.ndarray) -> np.ndarray:
    """Returns half the difference of the margin between passage and twin [N, ...], from margins [N, 2, ...].

    Signed: one entity: towards its class; two: towards the class of the author's pronoun. Without a twin it is the
    signed margin of the passage.
    """
    signs = np.array([1.0 if item.passage.meant == 0 else -1.0 for item in items])
    signs = signs.reshape(-1, *[1] * (values.ndim - 2))
    has_twin = np.array([len(item.texts) == 2 for item in items]).reshape(signs.shape)
    paired: np.ndarray = np.where(has_twin, (values[:, 0] - values[:, 1]) / 2, values[:, 0])
    return signs * paired


def edge_effects(items: Sequence[Item], measured: Margins) -> np.ndarray:
    """Returns the signed edge effect of each head on each item, [N, C] in nats.

    It is how far the edge to an entity moves the margin towards that entity's class, averaged over the entities and
    over passage and twin: for two entities, half of M with the edge to the second class cut minus M with the edge to the
    first class cut. It does not use the author's pronoun.
    """
    first, second = (measured.clean[:, :, None] - measured.cut[:, :, side] for side in (0, 1))  # [N, 2, C]
    is_mentioned = np.array([[bool(item.mentions[0][side]) for side in (0, 1)] for item in items], dtype=float)
    of_text = np.stack([is_mentioned, is_mentioned[:, ::-1]], axis=1)  # [N, 2 texts, 2 classes]
    moved = first * of_text[:, :, 0, None] - second * of_text[:, :, 1, None]
    effects: np.ndarray = np.nanmean(moved / of_text.sum(-1)[:, :, None], axis=1)
    return effects


def role_cuts(items: Sequence[Item], measured: Margins) -> tuple[np.ndarray, np.ndarray]:
    """Returns `decision` with the edge to the meant entity cut, and with the edge to the other one, each [N, C].

    The entity in the same place counts as the meant one in the twin.
    """
    result = []
    for is_other in (False, True):
        chosen = np.empty((len(items), 2, measured.cut.shape[-1]))
        for i, item in enumerate(items):
            side = item.passage.meant ^ is_other
            chosen[i, 0], chosen[i, 1] = measured.cut[i, 0, side], measured.cut[i, 1, 1 - side]
        result.append(decision(items, chosen))
    return result[0], result[1]


def exchange_terms(measured: Margins) -> tuple[np.ndarray, np.ndarray]:
    """Returns numerator [N, C] and denominator [N] of the share exchanged, which is the ratio of their means.

    The share is 1 if exchanging the weights turns the margin of the passage into that of its twin and the other way
    round. Both are signed by the model's own preference, so that passages in which it prefers either entity add up.
    """
    total = measured.clean[:, 0] - measured.clean[:, 1]  # [N]
    moved = measured.clean[:, :, None] - measured.exchanged  # [N, 2, C]
    return np.sign(total)[:, None] * (moved[:, 0] - moved[:, 1]) / 2, np.abs(total)


def flips(measured: Margins) -> np.ndarray:
    """Returns the share of the texts of each item whose more probable pronoun changes with the weights, [N, C]."""
    changed = np.sign(measured.clean[:, :, None]) != np.sign(measured.exchanged)
    share: np.ndarray = changed.mean(axis=1)
    return share


def ratio_interval(
    numerator: np.ndarray, denominator: np.ndarray, designs: Sequence[Design], config: ProbeConfig
) -> tuple[float, list[float]]:
    """Returns the ratio of the means of two values [N] and its 95 % interval."""

    def statistic(weights: np.ndarray) -> np.ndarray:
        below = weights @ denominator
        return np.divide(weights @ numerator, below, out=np.full(len(weights), np.nan), where=below != 0)

    low, high = bootstrap_interval(statistic, designs, config.n_bootstrap, config.seed).tolist()
    return float(statistic(np.ones((1, len(numerator))))[0]), [low, high]
