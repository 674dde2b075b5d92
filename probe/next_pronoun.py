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
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from data.links import Span, Word, token_spans
from data.next_pronoun import KINDS, Counterparts, Passage, Twin, content_words, make_twin, ngram_rule
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
_SEARCHED = 4  # times as many passages are tokenized at most, because frequent entities fill their share
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
        """The document and the entity of each class of each passage, each [N].

        A passage without an entity of a class is a cluster of its own there.
        """
        names = [(item.passage.doc, *item.passage.entities) for item in self.items]
        table = np.array(names, dtype=object).reshape(-1, 3)
        alone = np.array([f"passage {i}" for i in range(len(table))], dtype=object)
        return [np.where(labels == "", alone, labels).astype(str) for labels in table.T]

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
    usable = [passage for passage in passages if passage.kind == kind and not passage.pronouns]
    rng = np.random.default_rng(seed)
    counterparts = Counterparts(usable, lambda word: len(encode_text(tokenizer, f" {word}").ids), seed)
    left_out, found, unknown = Counter[str](), list[Item](), unknown_id(tokenizer)
    for i in rng.permutation(len(usable)):
        if len(found) == _SEARCHED * limit:
            break
        passage = usable[i]
        twin = None
        if needs_twin:
            replacements = counterparts.of(passage)
            twin = None if replacements is None else make_twin(passage, replacements)
            if twin is None:
                left_out["no counterpart with as many tokens"] += 1
                continue
        content = content_words(passage)
        word = content[int(rng.integers(len(content)))] if content else None
        item = make_item(passage, twin, word, tokenizer, start, max_tokens, unknown)
        if isinstance(item, str):
            left_out[item] += 1
        else:
            found.append(item)
    kept = cap_clusters(Items(found, left_out).clusterings[1:], max_share, limit) if found else list[int]()
    if len(found) > len(kept):
        left_out[f"an entity in more than {max_share:.0%} of the passages, or more than enough"] = len(found) - len(
            kept
        )
    return Items([found[i] for i in kept], left_out)


def make_item(
    passage: Passage,
    twin: Twin | None,
    word: Span | None,
    tokenizer: Tokenizer,
    start: int,
    max_tokens: int,
    unknown: int | None = None,
) -> Item | str:
    """Returns a passage and its twin in the tokens of a model, or the reason why it is left out.

    `word` is a span of the passage that is compared with the mentions, if any; `unknown` is the token of unknown words.
    """
    texts, mentions, content = list[tuple[int, ...]](), list[tuple[Word, Word]](), list[Word]()
    all_forms = set[tuple[int, int]]()
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
        # A text without twin loses its beginning if it is longer than the context; position 0 is the start token.
        lost = 0 if twin else max(0, len(before) + 1 - max_tokens)
        places = [tuple(i + 1 - lost for i in positions if i >= lost) for positions in words]
        n_first, n_mentions = len(groups[0]), len(groups[0]) + len(groups[1])
        tokens = (start, *before[lost:])
        if unknown in {tokens[i] for positions in places for i in positions}:
            return "a word is unknown"
        texts.append(tokens)
        sides = (places[:n_first], places[n_first:n_mentions])
        mentions.append((tuple(i for word in sides[0] for i in word), tuple(i for word in sides[1] for i in word)))
        content.append(places[-1] if extra else ())
        if any(group and not kept for group, kept in zip(groups, mentions[-1], strict=True)):
            return "every mention of an entity lies outside the context"
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


def interchanges(batch: SiteBatch, heads: Sequence[Head]) -> list[SiteEdit]:
    """Returns the edits that replace the outputs of some heads by those in the other text of the passage."""
    return [SiteEdit(layer, head, output=lambda rows: rows[batch.partner]) for layer, head in heads]


@dataclass(frozen=True)
class Margins:
    """The margins M of items without and with edits of C sets of heads; nan where not measured, or without twin."""

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
                interchanged[(*index, c)] = margins(batch, site_pass, *interchanges(batch, heads))
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
    over passage and twin: for two entities, half of M with the edge to the second class cut minus M with the edge to
    the first class cut. It does not use the author's pronoun.
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

    if not denominator.any():  # the model's margin is the same in passage and twin
        return float("nan"), [float("nan"), float("nan")]
    low, high = bootstrap_interval(statistic, designs, config.n_bootstrap, config.seed).tolist()
    return float(statistic(np.ones((1, len(numerator))))[0]), [low, high]


# The study


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measured value and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Criterion:
    """A criterion of the verdict: what was measured, and whether that is enough."""

    name: str
    level: str  # the first of LEVELS that needs it
    is_met: bool
    measured: str


@dataclass(frozen=True, kw_only=True)
class SetResult:
    """What some heads do together on the tested half."""

    heads: tuple[Head, ...]
    edge_effect: Estimate  # nats, signed
    p: float  # of the edge effect; of a single head corrected for all tested heads
    t: float
    meant_cut: Estimate  # share of the margin lost when the edge to the meant entity is cut
    other_cut: Estimate  # the same for the other entity; negative: the margin rises
    content_cut: Estimate  # share lost by cutting the meant edge minus that of a random content word's edge
    share: Estimate  # share of the margin that changes sides when the weights on both entities change places
    flips: Estimate  # share of texts whose more probable pronoun changes with them
    verdict: str
    evidence_level: str
    criteria: tuple[Criterion, ...]


@dataclass(frozen=True, slots=True)
class Example:
    """A tested passage, with the probabilities of both pronouns before and after the weights change places."""

    text: str
    forms: tuple[str, str]
    entities: tuple[str, str]
    weights: tuple[float, float]  # of the head on the mentions of each class
    clean: tuple[float, float]  # probability of either pronoun
    exchanged: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class NextPronounResult:
    """The answer to one question: which head decides the next pronoun."""

    question: str
    site: str
    layer: int
    head: int
    verdict: str  # of the head, or of the set if only that is supported
    evidence_level: str
    unit: str  # "head" or "set": what the verdict is about
    p_corrected: float
    n: int  # tested passages
    n_one: int
    n_two: int
    n_documents: int
    n_entities: tuple[int, int]  # different entities of each class in the tested passages
    effective_clusters: tuple[float, float, float]  # 1 / sum of squared shares: documents, entities of each class
    follows_twin: Estimate  # passages with one entity whose margin follows the twin
    right_in_both: float  # of these, the more probable pronoun is right in passage and twin
    head_share_of_one: Estimate  # of the margin of one entity, lost when the head's edge to it is cut
    interchanged: Estimate  # of that margin, moved when the head's output is that of the twin
    author_accuracy: Estimate  # passages with two: the model picks the person of the author's pronoun
    nearest_accuracy: float
    rules: dict[str, float]
    author_where_nearest_is_wrong: Estimate
    n_nearest_is_wrong: int
    weight_correlation: float  # of the head's difference of attention and the model's margin, over texts of two
    chosen: SetResult
    head_set: SetResult | None  # the smallest set that exchanges MIN_SET_SHARE; None if there is none
    curve: tuple[tuple[Head, float, Estimate], ...]  # heads added one by one: the head, share on either half
    untrained_t: tuple[float, ...]
    candidates: tuple[tuple[Head, float, float, float], ...]  # head, edge effect, t, p on the tested half
    left_out: dict[str, dict[str, int]]
    examples: tuple[Example, ...]

    def entry(self) -> dict[str, Any]:
        """Returns the entry of probe.json's `selected`: the named values, and everything else under `details`."""
        chosen = self.head_set if self.unit == "set" and self.head_set else self.chosen
        intervals = {
            "share": chosen.share,
            "flips": chosen.flips,
            "follows_twin": self.follows_twin,
            "author_accuracy": self.author_accuracy,
        }
        entry: dict[str, Any] = {name: getattr(self, name) for name in _ENTRY}
        for name, estimate in intervals.items():
            entry |= {name: estimate.value, f"{name}_interval": [estimate.low, estimate.high]}
        entry["head_set"] = None if self.head_set is None else asdict(self.head_set)
        return entry | {"details": asdict(self)}


_ENTRY = "question site layer head verdict evidence_level unit p_corrected n nearest_accuracy".split()


def study_question(
    model: ObservableModel,
    untrained: Iterable[ObservableModel],
    tokenizer: Tokenizer,
    start: int,
    question: str,
    passages: Sequence[Passage],
    documents: Sequence[tuple[str, str]],
    config: ProbeConfig,
    progress: Progress = lambda stage: None,
) -> NextPronounResult | str:
    """Chooses the head that decides the next pronoun on half of the documents, and tests it on the other half.

    `passages` are those of one question in `documents`, (name, text) each. `untrained` are models of the same shape.

    Returns:
        the result; or a sentence with the counts, if there are too few passages.

    """
    # Items of both kinds; whole documents belong to one half.
    n_heads = model.n_layer * model.n_head
    limits = MAX_PASSAGES if n_heads <= ALL_HEADS else MAX_PASSAGES_LARGE
    items, left_out = list[Item](), dict[str, dict[str, int]]()
    for kind in KINDS:
        made = make_items(passages, kind, tokenizer, start, model.context_length, config.seed, limits[kind])
        items += made.items
        left_out[kind] = dict(made.left_out)
    documents_of = np.array([item.passage.doc for item in items])
    is_choosing = random_half(documents_of, config.seed) if items else np.zeros(0, dtype=bool)
    choosing = [item for item, chosen in zip(items, is_choosing, strict=True) if chosen]
    tested = Items([item for item, chosen in zip(items, is_choosing, strict=True) if not chosen], Counter())
    if problem := too_few(question, items, tested, left_out):
        return problem

    # Candidates, and the head with the largest signed edge effect on the choosing half.
    all_heads = [(layer, head) for layer in range(model.n_layer) for head in range(model.n_head)]
    candidates = all_heads
    if n_heads > ALL_HEADS:
        progress("ranking heads by direct effect")
        direct = np.abs(np.nanmean(direct_effects(model, choosing, config.tokens_per_batch), axis=0))
        order = np.argsort(-direct.ravel(), kind="stable")[:MAX_CANDIDATES]
        candidates = [all_heads[i] for i in order]
    progress("choosing a head")
    singles = [[head] for head in candidates]
    measured = measure_margins(model, choosing, singles, config.tokens_per_batch, ["cut"])
    best = int(edge_effects(choosing, measured).mean(axis=0).argmax())
    chosen = candidates[best]

    # The tested half: every candidate's edges cut, everything else for the chosen head.
    progress("testing")
    measured = measure_margins(model, tested.items, singles, config.tokens_per_batch, ["cut"])
    effects = edge_effects(tested.items, measured)
    test = max_t_test(effects, tested.clusterings, 0.0, config.n_bootstrap, config.seed)
    untrained_t = list[float]()
    for number, other in enumerate(untrained, 1):
        progress(f"untrained model {number}")
        heads = singles if n_heads <= ALL_HEADS else [[all_heads[i]] for i in order]
        values = edge_effects(
            tested.items, measure_margins(other, tested.items, heads, config.tokens_per_batch, ["cut"])
        )
        t = max_t_test(values, tested.clusterings, 0.0, 100, config.seed).t
        untrained_t.append(float(t.max()))
    progress("what the head decides")
    one, two = (of_kind(tested, kind) for kind in KINDS)
    follows = follow_twin(model, one, chosen, config)
    largest_untrained = max(untrained_t, default=0.0)
    result = test_set(model, tested, [chosen], follows["follows_twin"], largest_untrained, config, float(test.p[best]))

    # Heads that share the work, added one by one on the choosing half.
    progress("sets of heads")
    curve, smallest = grow_set(model, choosing, two, candidates, config) if two.items else ([], None)
    head_set = None
    if smallest is not None:
        head_set = test_set(model, tested, smallest, follows["follows_twin"], largest_untrained, config)
    is_set = result.verdict != SUPPORTED and head_set is not None and head_set.verdict == SUPPORTED
    judged = head_set if is_set and head_set is not None else result
    behaviour = author_choice(model, two, documents, question, config, chosen)
    columns = [labels for labels in tested.clusterings]
    return NextPronounResult(
        question=QUESTION_NAMES[question],
        site=SITE,
        layer=chosen[0],
        head=chosen[1],
        verdict=judged.verdict,
        evidence_level=judged.evidence_level,
        unit="set" if is_set else "head",
        p_corrected=judged.p,
        n=len(tested.items),
        n_one=len(one.items),
        n_two=len(two.items),
        n_documents=len(set(columns[0])),
        n_entities=(_n_entities(tested, 0), _n_entities(tested, 1)),
        effective_clusters=(_effective(columns[0]), _effective(columns[1]), _effective(columns[2])),
        **follows,
        **behaviour,
        chosen=result,
        head_set=head_set,
        curve=tuple(curve),
        untrained_t=tuple(untrained_t),
        candidates=tuple(
            (head, float(effects[:, c].mean()), float(test.t[c]), float(test.p[c])) for c, head in enumerate(candidates)
        ),
        left_out=left_out,
        examples=median_examples(model, two, chosen, config),
    )


def of_kind(items: Items, kind: str) -> Items:
    """Returns the items with one or two entities."""
    return Items([item for item in items.items if item.passage.kind == kind], items.left_out)


def _n_entities(items: Items, side: int) -> int:
    return len({item.passage.entities[side] for item in items.items} - {""})


def _effective(labels: np.ndarray) -> float:
    """Returns the effective number of clusters, 1 / sum of squared shares."""
    shares = np.unique(labels, return_counts=True)[1] / len(labels)
    return float(1 / (shares**2).sum())


def too_few(question: str, items: Sequence[Item], tested: Items, left_out: dict[str, dict[str, int]]) -> str:
    """Returns why a question cannot be tested, with the counts; "" if it can."""
    n_one, n_two = (sum(item.passage.kind == kind for item in items) for kind in KINDS)
    n_clusters = len({item.passage.doc for item in tested.items}), _n_entities(tested, 0), _n_entities(tested, 1)
    if n_one >= MIN_ONE and n_two >= MIN_TWO and min(n_clusters) >= MIN_CLUSTERS:
        return ""
    reasons = [f"{count:,} {reason}" for kind in KINDS for reason, count in left_out[kind].items()]
    noun = "person" if question == "gender" else "thing"
    return (
        f"{QUESTION_NAMES[question]}: {n_one} passages with one {noun} and {n_two} with one of each class; the tested "
        f"half has {n_clusters[0]} documents, {n_clusters[1]} and {n_clusters[2]} entities; needed: {MIN_ONE}, "
        f"{MIN_TWO} and {MIN_CLUSTERS} of each" + (f" (left out: {'; '.join(reasons)})" if reasons else "")
    )


def estimate_mean(values: np.ndarray, items: Items, config: ProbeConfig) -> Estimate:
    """Returns the mean of values [N] of some items with its interval."""
    low, high = mean_interval(values, items.designs(), config.n_bootstrap, config.seed).tolist()
    return Estimate(float(values.mean()), low, high)


def estimate_ratio(numerator: np.ndarray, denominator: np.ndarray, items: Items, config: ProbeConfig) -> Estimate:
    """Returns the ratio of the means of two values [N] of some items with its interval."""
    value, (low, high) = ratio_interval(numerator, denominator, items.designs(), config)
    return Estimate(value, low, high)


def follow_twin(model: ObservableModel, one: Items, head: Head, config: ProbeConfig) -> dict[str, Any]:
    """Returns the measures on passages with one entity: does the margin follow the twin, and what does a head do?"""
    edits = ["cut", "interchanged"]
    measured = measure_margins(model, one.items, [[head]], config.tokens_per_batch, edits)
    clean = decision(one.items, measured.clean)
    meant_cut, _ = role_cuts(one.items, measured)
    moved = (clean - decision(one.items, measured.interchanged)[:, 0]) / 2
    is_right_in_both = (clean > 0) & (measured.clean[:, 0] * measured.clean[:, 1] < 0)
    return {
        "follows_twin": estimate_mean((clean > 0).astype(float), one, config),
        "right_in_both": float(is_right_in_both.mean()),
        "head_share_of_one": estimate_ratio(clean - meant_cut[:, 0], clean, one, config),
        "interchanged": estimate_ratio(moved, clean, one, config),
    }


def author_choice(
    model: ObservableModel,
    two: Items,
    documents: Sequence[tuple[str, str]],
    question: str,
    config: ProbeConfig,
    head: Head,
) -> dict[str, Any]:
    """Returns how often the model picks the entity of the author's pronoun, beside the rules."""
    measured = measure_margins(model, two.items, [], config.tokens_per_batch)
    is_right = (decision(two.items, measured.clean) > 0).astype(float)
    meant = np.array([item.passage.meant for item in two.items])
    tested_documents = {item.passage.doc for item in two.items}
    ngram = ngram_rule([document for document in documents if document[0] not in tested_documents], question)
    predicted = np.array([ngram(item.passage) for item in two.items])  # 1: the first class
    accuracies = {
        name: float(np.mean([getattr(item.passage, name) == item.passage.meant for item in two.items]))
        for name in ("nearest", "first", "subject")
    }
    accuracies["last words"] = float(np.where(predicted == 0.5, 0.5, predicted == (meant == 0)).mean())
    is_hard = np.array([item.passage.nearest != item.passage.meant for item in two.items])
    hard = two.take(np.flatnonzero(is_hard))
    where_wrong = Estimate(float("nan"), float("nan"), float("nan"))
    if is_hard.any():
        where_wrong = estimate_mean(is_right[is_hard], hard, config)
    weights = entity_weights(model, two.items, head, config.tokens_per_batch)  # [N, 2, 2]
    difference = weights[..., 0] - weights[..., 1]
    is_constant = np.ptp(difference) == 0 or np.ptp(measured.clean) == 0
    correlation = np.nan if is_constant else np.corrcoef(difference.ravel(), measured.clean.ravel())[0, 1]
    return {
        "author_accuracy": estimate_mean(is_right, two, config),
        "nearest_accuracy": accuracies["nearest"],
        "rules": accuracies,
        "author_where_nearest_is_wrong": where_wrong,
        "n_nearest_is_wrong": int(is_hard.sum()),
        "weight_correlation": float(correlation),
    }


@torch.no_grad()
def entity_weights(model: ObservableModel, items: Sequence[Item], head: Head, tokens_per_batch: int) -> np.ndarray:
    """Returns a head's attention weight at the site on the mentions of each class, [N, 2 texts, 2 classes]."""
    weights = np.full((len(items), 2, 2), np.nan)
    for batch in site_batches(items, tokens_per_batch, model.device):
        record = model.record(batch.tokens, batch.site[:, None])[head[0]]
        row = record.scores[:, head[1], 0].softmax(-1)  # [B, T]
        for side in (0, 1):
            weights[(*np.array(batch.index).T, side)] = (row * batch.classes[side]).sum(-1).cpu().numpy()
    return weights


def test_set(
    model: ObservableModel,
    tested: Items,
    heads: Sequence[Head],
    follows: Estimate,
    untrained_t: float,
    config: ProbeConfig,
    corrected_p: float | None = None,
) -> SetResult:
    """Tests some heads together on the tested half; without `corrected_p` p is that of one test of the whole set."""
    two = of_kind(tested, "two")
    edits = ["cut", "exchanged", "content_cut"]
    of_all = measure_margins(model, tested.items, [heads], config.tokens_per_batch, ["cut"])
    effects = edge_effects(tested.items, of_all)[:, 0]
    test = max_t_test(effects[:, None], tested.clusterings, 0.0, config.n_bootstrap, config.seed)
    p, t = float(test.p[0]) if corrected_p is None else corrected_p, float(test.t[0])
    measured = measure_margins(model, two.items, [heads], config.tokens_per_batch, edits)
    clean = decision(two.items, measured.clean)
    meant, other = role_cuts(two.items, measured)
    content = decision(two.items, measured.content_cut)[:, 0]
    has_content = np.array([all(item.content_word) for item in two.items])
    content = np.where(has_content, content, clean)
    numerator, denominator = exchange_terms(measured)
    size = np.abs(clean)  # of the margin: signed by the author's pronoun, its mean would be near 0 in a weak model
    values: dict[str, Any] = {
        "edge_effect": estimate_mean(effects, tested, config),
        "meant_cut": estimate_ratio(clean - meant[:, 0], size, two, config),
        "other_cut": estimate_ratio(clean - other[:, 0], size, two, config),
        "content_cut": estimate_ratio(content - meant[:, 0], size, two, config),
        "share": estimate_ratio(numerator[:, 0], denominator, two, config),
        "flips": estimate_mean(flips(measured)[:, 0], two, config),
    }
    criteria = judge(follows, p, t, untrained_t, **values)
    level, verdict = verdict_of(criteria)
    return SetResult(heads=tuple(heads), p=p, t=t, verdict=verdict, evidence_level=level, criteria=criteria, **values)


def judge(
    follows: Estimate,
    p: float,
    t: float,
    untrained_t: float,
    *,
    meant_cut: Estimate,
    other_cut: Estimate,
    content_cut: Estimate,
    share: Estimate,
    **_: Estimate,
) -> tuple[Criterion, ...]:
    """Returns the criteria of levels E1 to E3; the bars were registered before anything was measured against them."""
    return (
        Criterion("the pronoun follows the twin", "E1", follows.low > 0.5, f"from {follows.low:.3f}"),
        Criterion(f"corrected p below {MAX_P}", "E2", t > 0 and p < MAX_P, f"{p:.4f}"),
        Criterion("t above every untrained model", "E2", t > untrained_t, f"{t:.1f}, untrained {untrained_t:.1f}"),
        Criterion(
            f"cutting the meant edge takes {MIN_CUT:.0%} of the margin",
            "E3",
            meant_cut.value >= MIN_CUT and meant_cut.low > MIN_CUT_LOW,
            f"{meant_cut.value:.3f}, from {meant_cut.low:.3f}",
        ),
        Criterion("cutting the other edge raises it", "E3", other_cut.high < 0, f"up to {other_cut.high:.3f}"),
        Criterion("more than a random content word's edge", "E3", content_cut.low > 0, f"from {content_cut.low:.3f}"),
        Criterion(
            f"share exchanged of {MIN_EXCHANGE} or more", "E3", share.value >= MIN_EXCHANGE, f"{share.value:.3f}"
        ),
    )


def verdict_of(criteria: Sequence[Criterion]) -> tuple[str, str]:
    """Returns the highest level whose criteria, and those of all lower ones, are met, and the verdict."""
    level = "E0"
    for name in ("E1", "E2", "E3"):
        if not all(criterion.is_met for criterion in criteria if criterion.level == name):
            break
        level = name
    verdicts = {"E0": UNKNOWN_TO_MODEL, "E1": NOT_ESTABLISHED, "E2": SUGGESTIVE, "E3": SUPPORTED}
    return level, verdicts[level]


def grow_set(
    model: ObservableModel, choosing: Sequence[Item], two: Items, candidates: Sequence[Head], config: ProbeConfig
) -> tuple[list[tuple[Head, float, Estimate]], list[Head] | None]:
    """Adds heads one by one, each time the one that raises the share exchanged most on the choosing half.

    Returns (head, share on the choosing half, share on the tested half `two`) of each step, and the smallest set that
    exchanges MIN_SET_SHARE on the choosing half; None if MAX_SET heads do not.
    """
    chosen_items = [item for item in choosing if item.passage.kind == "two"]
    heads, shares = list[Head](), list[float]()
    smallest = None
    while len(heads) < min(MAX_SET, len(candidates)) and smallest is None and chosen_items:
        remaining = [head for head in candidates if head not in heads]
        sets = [[*heads, head] for head in remaining]
        measured = measure_margins(model, chosen_items, sets, config.tokens_per_batch, ["exchanged"])
        numerator, denominator = exchange_terms(measured)
        if not denominator.any():
            break  # the model's margin is the same in passage and twin: nothing to exchange
        of_sets = numerator.mean(axis=0) / denominator.mean()
        heads.append(remaining[int(of_sets.argmax())])
        shares.append(float(of_sets.max()))
        if shares[-1] >= MIN_SET_SHARE:
            smallest = list(heads)
    sets = [heads[: n + 1] for n in range(len(heads))]
    tested = measure_margins(model, two.items, sets, config.tokens_per_batch, ["exchanged"])
    numerator, denominator = exchange_terms(tested)
    estimates = [estimate_ratio(numerator[:, n], denominator, two, config) for n in range(len(sets))]
    return list(zip(heads, shares, estimates, strict=True)), smallest


@torch.no_grad()
def median_examples(
    model: ObservableModel, two: Items, head: Head, config: ProbeConfig, n: int = 3
) -> tuple[Example, ...]:
    """Returns the tested passages whose share exchanged is nearest to the median, so that none is better than half."""
    measured = measure_margins(model, two.items, [[head]], config.tokens_per_batch, ["exchanged"])
    numerator, denominator = exchange_terms(measured)
    shares = numerator[:, 0] / np.maximum(denominator, np.finfo(float).tiny)
    nearest = np.argsort(np.abs(shares - np.median(shares)), kind="stable")[:n]
    chosen = [two.items[i] for i in nearest]
    weights = entity_weights(model, chosen, head, config.tokens_per_batch)
    examples = []
    for i, item in enumerate(chosen):
        [batch] = site_batches([item], 2**31, model.device)
        site_pass = model.site_pass(batch.tokens, batch.site)
        probabilities = [
            site_pass.logits(edits)[0].softmax(-1)[list(item.forms)].tolist()
            for edits in ((), exchanges(batch, [head]))
        ]
        examples.append(
            Example(
                text=item.passage.text,
                forms=item.passage.forms,
                entities=item.passage.entities,
                weights=(float(weights[i, 0, 0]), float(weights[i, 0, 1])),
                clean=(probabilities[0][0], probabilities[0][1]),
                exchanged=(probabilities[1][0], probabilities[1][1]),
            )
        )
    return tuple(examples)


# A head chosen elsewhere


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """What a head or a set that was chosen on another text does in this one: one test, without a correction."""

    question: str
    heads: tuple[Head, ...]
    n: int
    edge_effect: Estimate  # nats, signed
    t: float
    p: float
    meant_cut: Estimate  # nats of the margin lost when the edge to the meant entity is cut
    other_cut: Estimate  # the same for the other entity; negative: the margin rises
    picks_meant: Estimate  # passages in which the model prefers the pronoun of the meant entity


def confirm(
    model: ObservableModel,
    tokenizer: Tokenizer,
    start: int,
    question: str,
    passages: Sequence[Passage],
    heads: Sequence[Head],
    config: ProbeConfig,
    *,
    needs_twin: bool = True,
) -> Confirmation | str:
    """Tests a head or a set on all passages with two entities; a sentence with the counts if there are too few.

    Annotated rows have no twin: there the margin is that of the passage alone.
    """
    limit = MAX_PASSAGES["two"] if model.n_layer * model.n_head <= ALL_HEADS else MAX_PASSAGES_LARGE["two"]
    items = make_items(
        passages, "two", tokenizer, start, model.context_length, config.seed, limit, needs_twin=needs_twin
    )
    n_clusters = len({item.passage.doc for item in items.items}), _n_entities(items, 0), _n_entities(items, 1)
    if len(items.items) < MIN_TWO or min(n_clusters) < MIN_CLUSTERS:
        return f"{QUESTION_NAMES[question]}: only {len(items.items)} passages with one of each class; needed: {MIN_TWO}"
    measured = measure_margins(model, items.items, [heads], config.tokens_per_batch, ["cut"])
    effects = edge_effects(items.items, measured)
    test = max_t_test(effects, items.clusterings, 0.0, config.n_bootstrap, config.seed)
    clean = decision(items.items, measured.clean)
    meant, other = role_cuts(items.items, measured)
    return Confirmation(
        question=QUESTION_NAMES[question],
        heads=tuple(heads),
        n=len(items.items),
        edge_effect=estimate_mean(effects[:, 0], items, config),
        t=float(test.t[0]),
        p=float(test.p[0]),
        meant_cut=estimate_mean(clean - meant[:, 0], items, config),
        other_cut=estimate_mean(clean - other[:, 0], items, config),
        picks_meant=estimate_mean((clean > 0).astype(float), items, config),
    )
