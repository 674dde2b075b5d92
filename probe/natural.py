"""Which head's attention shifts with a pronoun in natural text? Chosen on half of the documents, tested on the other.

Each prefix of `data.natural` is read twice, with the pronoun of either class. For a head and a site,

    contrast = mean of log (attention on the class of the pronoun / attention on the other class) over the two readings

Whatever does not depend on the pronoun cancels. A positive contrast means that the head attends to the pronoun's class,
a negative one that it attends to the other entity. No text is annotated, so nothing here knows the antecedent.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from data.errors import UserError
from data.links import LinkItem, link_items
from data.natural import CLASSES, SITES, Prefix, census, contrast_texts, find_prefixes
from data.tokenizer import encode_text, unknown_id
from model.observe import ObservableModel
from probe.batches import text_batches
from probe.config import ProbeConfig
from probe.interventions import cut_edge
from probe.results import (
    ConfirmedShift,
    EdgeCut,
    NaturalQuestion,
    NaturalResult,
    NeededItems,
    PrefixExample,
    ShiftResult,
    ShiftTable,
    Stratum,
)
from probe.scores import Candidates, item_batches, output_norms, reduce_scores
from probe.statistics import Design, largest, mean_interval, random_half, similar_heads
from probe.study import Place, Sample, choose_and_test
from probe.verdict import judged_shift

DECIDED_SITES = SITES[1:]  # before the pronoun both readings are equal
MIN_PREFIXES = 40  # fewer give no test
MIN_TESTED_CLUSTERS = 9  # documents, and entities of each class, in the tested half: with 8 no p is below 2 / 2^8
MAX_PREFIXES = 800  # per question; the others are left out at random
SECTION_CHARACTERS = 5000  # documents are cut into sections of this size
MAX_DOCUMENT_SHARE = 0.1  # documents are cut if one is a larger share of the text,
MIN_DOCUMENTS = 24  # or if there are fewer
N_DRAWS = 20  # behind each point of the curve of the number of items
N_FLIPS = 400  # the same
N_CONTINUATION = 8  # tokens after the pronoun whose loss shows what an edge does
EQUAL_READINGS = 1e-3  # two passes over texts that are equal so far may differ by this much, in log attention
MIN_CAUSAL = 20  # prefixes of the causal test
MAX_MISMATCH = 0.2  # difference of both weights as a share, in the causal test
SIGNS = {"matching entity": 1, "other entity": -1}  # what a head attends to, and the sign of its contrast


def study_prefixes(
    model: ObservableModel,
    untrained: Callable[[int], ObservableModel],
    tokenizer: Tokenizer,
    bos_id: int,
    prefixes_by_question: Mapping[str, Sequence[Prefix]],
    config: ProbeConfig,
    *,
    chosen_elsewhere: Mapping[str, Mapping[str, Place]] = MappingProxyType({}),
    limit: int = MAX_PREFIXES,
    progress: Callable[[str], None] = lambda question: None,
) -> NaturalResult:
    """Test the heads of a model in float32 on all questions that have enough prefixes.

    `untrained` makes a model of the same shape from a seed, for comparison; one at a time is in memory. `bos_id` is the
    token before every text. Heads in `chosen_elsewhere`, by question and target, were chosen on other texts; they are
    tested on all prefixes here. At most `limit` prefixes of each question are used. `progress` is called with the
    name of each question before it is tested.
    """
    result = NaturalResult({}, [])
    for question, prefixes in prefixes_by_question.items():
        progress(f"{question} in natural text")
        items = make_prefix_items(prefixes, tokenizer, bos_id, model.context_length, config.seed, limit)
        problem = _too_few(question, items, config.seed)
        if problem:
            result.missing.append(problem)
            continue
        others = (untrained(config.seed + i) for i in range(config.n_untrained))
        places = chosen_elsewhere.get(question, {})
        result.questions[question] = study_shift(model, others, items, config, places)
    return result


def prefixes_in(documents: Sequence[str]) -> dict[str, list[Prefix]]:
    """Return the prefixes of each question in the documents."""
    parts = sections(documents)
    found: dict[str, list[Prefix]] = {}
    for question in CLASSES:
        found[question] = []
        for name, text in parts:
            found[question] += find_prefixes(name, text, question)
    return found


def describe(documents: Sequence[str]) -> str:
    """Return how many of the words that the questions need a text contains, as one phrase."""
    counts = Counter[str]()
    for question in CLASSES:
        found = census([("", text) for text in documents], question)
        for name, n in found.items():
            counts[name if name != "pronouns" else f"{question} pronouns"] += n
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


# Items


@dataclass(frozen=True)
class PrefixItems:
    """The prefixes of one question in the tokens of a model: two readings of each prefix at three sites."""

    prefixes: list[Prefix]
    cells: dict[str, list[LinkItem]]  # by site, in the order of SITES: both readings of each prefix in turn, [2 N]
    full_tokens: list[tuple[int, ...]]  # each prefix with its own pronoun and all that follows
    left_out: Counter[str]  # how many prefixes, by reason

    @cached_property
    def clusterings(self) -> list[np.ndarray]:
        """The document (or section), the first entity and the second entity of each prefix, each [N]."""
        names = [(prefix.doc, *prefix.entities) for prefix in self.prefixes]
        return list(np.array(names, dtype=str).reshape(-1, 3).T)

    @cached_property
    def designs(self) -> list[Design]:
        """The designs of an interval over the prefixes: documents crossed with entities."""
        documents, first, second = self.clusterings
        pairs = np.array([f"{a} {b}" for a, b in zip(first, second, strict=True)])
        return [(documents, labels) for labels in (pairs, first, second)]

    def take(self, index: np.ndarray) -> "PrefixItems":
        """Return the items of the prefixes at `index`."""
        cells: dict[str, list[LinkItem]] = {}
        for site, of_site in self.cells.items():
            cells[site] = []
            for i in index:
                cells[site] += of_site[2 * i : 2 * i + 2]
        tokens = [self.full_tokens[i] for i in index]
        return PrefixItems([self.prefixes[i] for i in index], cells, tokens, self.left_out)

    def halves(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices of the prefixes to choose a head on, and those to test it on; no document is in both."""
        is_chosen = random_half(self.clusterings[0], seed)
        return np.flatnonzero(is_chosen), np.flatnonzero(~is_chosen)

    def sample(self, contrast: np.ndarray) -> Sample:
        """Return contrasts [N, ...] of these prefixes as a sample."""
        return Sample(contrast, self.clusterings, self.designs)


def sections(documents: Sequence[str], *, only_long: bool = False) -> list[tuple[str, str]]:
    """Return (name, text) of each document, or of each section of about 5,000 characters.

    With `only_long` each document of more than 5,000 characters is cut, and no other. Otherwise:

    Sections are used if there are fewer than MIN_DOCUMENTS documents, or if one is more than a tenth of the text: a
    random half of such documents often has far more or far less than half of the text.
    """
    longest = max(map(len, documents), default=0)
    total = sum(map(len, documents))
    if not only_long and longest <= MAX_DOCUMENT_SHARE * total and len(documents) >= MIN_DOCUMENTS:
        return [(f"d{number}", text) for number, text in enumerate(documents)]

    parts = list[tuple[str, str]]()
    for number, text in enumerate(documents):
        if only_long and len(text) <= SECTION_CHARACTERS:
            parts.append((f"d{number}", text))
            continue
        section = ""
        for part in re.split(r"(?<=[.!?\u201d\"])(?=\s)", text):  # after a sentence
            section += part
            if len(section) >= SECTION_CHARACTERS:
                parts.append((f"d{number}s{len(parts)}", section))
                section = ""
        if section.strip():
            parts.append((f"d{number}s{len(parts)}", section))
    return parts


def make_prefix_items(
    prefixes: Sequence[Prefix], tokenizer: Tokenizer, bos_id: int, max_tokens: int, seed: int, limit: int = MAX_PREFIXES
) -> PrefixItems:
    """Return up to `limit` prefixes of one question, drawn at random, in the tokens of a model.

    A prefix is left out, and counted by reason, if a word shares a token with its neighbour or is unknown, if its
    readings differ in more than the pronoun, or if it does not fit into the context.
    """
    unknown = unknown_id(tokenizer)
    items = PrefixItems([], {}, [], Counter())
    for i in np.random.default_rng(seed).permutation(len(prefixes)):
        if len(items.prefixes) == limit:
            n_read = limit + items.left_out.total()
            items.left_out["more than enough"] = len(prefixes) - n_read
            break
        prefix = prefixes[i]
        rows = contrast_texts([prefix])
        try:
            cells = link_items(rows, tokenizer, bos_id)
        except ValueError:
            items.left_out["a word shares a token with its neighbour"] += 1
            continue
        n_sites = len(cells) // 2
        readings = cells[:n_sites], cells[n_sites:]
        if problem := _unsuitable(*readings, max_tokens, unknown):
            items.left_out[problem] += 1
            continue
        text = rows[prefix.meant].text
        items.prefixes.append(prefix)
        items.full_tokens.append((bos_id, *encode_text(tokenizer, text).ids)[:max_tokens])
        for pair in zip(*readings, strict=True):
            items.cells.setdefault(pair[0].site, []).extend(pair)
    return items


def _unsuitable(first: Sequence[LinkItem], second: Sequence[LinkItem], max_tokens: int, unknown: int | None) -> str:
    """Return why a prefix is left out, "" if it is not; its readings are given at all sites."""
    last = first[-1]
    mentioned = set()
    for word in last.antecedents + last.distractors:
        mentioned |= {last.tokens[token] for token in word}
    if max(len(cell.tokens) for cell in (*first, *second)) > max_tokens:
        return "longer than the context"
    if unknown in mentioned:
        return "a name is not in the vocabulary"
    is_moved = any(a.query != b.query for a, b in zip(first, second, strict=True))
    if is_moved or first[0].tokens != second[0].tokens:
        return "the pronouns have different numbers of tokens"
    return ""


def _too_few(question: str, items: PrefixItems, seed: int) -> str:
    """Return why a question cannot be tested, with the counts; "" if it can."""
    n = len(items.prefixes)
    testing = items.halves(seed)[1]
    n_clusters = [len(np.unique(labels[testing])) for labels in items.clusterings]
    if n >= MIN_PREFIXES and min(n_clusters) >= MIN_TESTED_CLUSTERS:
        return ""
    reasons = "".join(f"; {count:,} left out: {reason}" for reason, count in items.left_out.items())
    return (
        f"{question}: {n} prefixes; the tested half has {n_clusters[0]} documents or sections, {n_clusters[1]} and "
        f"{n_clusters[2]} entities; needed: {MIN_PREFIXES} prefixes, {MIN_TESTED_CLUSTERS} of each{reasons}"
    )


# Numbers of every head


@dataclass(frozen=True)
class _PairContrasts:
    """What every head does at every decided site. Shapes [N, S, L, H]: N prefixes, S sites, L layers, H heads."""

    contrast: np.ndarray
    value_contrast: np.ndarray  # with attention x norm of the transformed value
    pair_right: np.ndarray  # 1 if the pronoun's class gets more attention in both readings
    right: np.ndarray  # share of the two readings


def measure_contrasts(model: ObservableModel, items: PrefixItems, tokens_per_batch: int) -> _PairContrasts:
    """Measure every head at all sites in one pass.

    Raises:
        UserError: a head distinguishes the readings before the pronoun, so something else differs.

    """
    cells = list(items.cells.values())
    shape = (len(cells[0]), len(cells), model.n_layer, model.n_head)
    rows = {name: np.empty(shape) for name in ("log_ratio", "value_log_ratio")}
    for batch in item_batches(cells[-1], tokens_per_batch):
        # The same text is read at every site, [B, S].
        query = torch.zeros(len(batch.tokens), len(cells), dtype=torch.int64)
        for i, site_cells in enumerate(cells):
            query[batch.rows, i] = torch.tensor([site_cells[member].query for member in batch.members])
        index = batch.rows.to(model.device)
        mentions = Candidates(*(x.to(model.device) for x in batch.mentions))
        records = model.record(batch.tokens.to(model.device), query.to(model.device))

        # From scores to the log ratio of both entities, [N, H] by layer and site.
        for layer, record in enumerate(records):
            norms = output_norms(model.head_weights(layer).output, record, index, mentions.positions)
            for i in range(len(cells)):
                reduced = reduce_scores(record.scores[index, :, i], mentions, norms)
                for name, values in rows.items():
                    values[batch.members, i, layer] = reduced[name].cpu().numpy()

    # Before the pronoun both readings are equal: a check of the instrument.
    pairs = {name: values.reshape(-1, 2, *shape[1:]) for name, values in rows.items()}  # [N, 2, sites, L, H]
    before = np.abs(pairs["log_ratio"][:, :, 0].mean(axis=1))
    if not before.max(initial=0) <= EQUAL_READINGS:  # nan is no equality
        raise UserError("no report for this model: the two readings differ before the pronoun")
    decided = {name: values[:, :, 1:] for name, values in pairs.items()}  # [N, 2, S, L, H]
    is_right = decided["log_ratio"] > 0
    return _PairContrasts(
        contrast=decided["log_ratio"].mean(axis=1),
        value_contrast=decided["value_log_ratio"].mean(axis=1),
        pair_right=is_right.all(axis=1).astype(float),
        right=is_right.mean(axis=1),
    )


def strongest_of_each_sign(sample: Sample, config: ProbeConfig) -> list[Place]:
    """Return the (site, layer, head) with the largest t of either sign, in the order of SIGNS."""
    t = sample.t(config, two_sided=True)
    return [largest(sign * t) for sign in SIGNS.values()]


# The study of one question


def study_shift(
    model: ObservableModel,
    untrained: Iterable[ObservableModel],
    items: PrefixItems,
    config: ProbeConfig,
    chosen_elsewhere: Mapping[str, Place] = MappingProxyType({}),
) -> NaturalQuestion:
    """Choose the best head of either sign on half of the documents and test it on the other half."""
    # All heads on both halves, and those of untrained models on the tested half.
    choosing, testing = items.halves(config.seed)
    tested_items = items.take(testing)
    measured = measure_contrasts(model, items, config.tokens_per_batch)
    tests = choose_and_test(
        items.take(choosing).sample(measured.contrast[choosing]),
        tested_items.sample(measured.contrast[testing]),
        partial(strongest_of_each_sign, config=config),
        _contrasts_of(untrained, tested_items, config),
        config,
        two_sided=True,
    )
    untrained_t = max(tests.untrained_t)

    # The chosen head of each target, judged; and heads that another text chose.
    chosen: dict[str, ShiftResult] = {}
    examples: dict[str, list[PrefixExample]] = {}
    for target, place in zip(SIGNS, tests.chosen, strict=True):
        t, p = float(tests.tested.t[place]), float(tests.tested.p[place])
        scores = _scores_of_head(measured, tested_items, testing, place, config)
        result = ShiftResult(
            site=DECIDED_SITES[place[0]],
            layer=place[1],
            head=place[2],
            **scores,
            t=t,
            p_corrected=p,
            untrained_t=untrained_t,
            strata=_strata(tested_items, measured.contrast[(testing, *place)]),
            similar=similar_heads(measured.contrast[testing, place[0]], (place[1], place[2])),
            causal=_measure_cut(model, tested_items, place, target, config),
            criteria={},
            verdict="",
        )
        chosen[target] = judged_shift(result, SIGNS[target])
        examples[target] = _median_prefixes(tested_items, measured.contrast[(testing, *place)], result.site)
    confirmed = {}
    for target, place in chosen_elsewhere.items():
        if place[0] < measured.contrast.shape[1]:
            confirmed[target] = _confirm_shift(measured.contrast, items, place, untrained_t, config)
    return NaturalQuestion(
        n_prefixes=len(items.prefixes),
        n_tested=len(testing),
        n_documents=len(np.unique(items.clusterings[0])),
        left_out=dict(items.left_out),
        smallest_p=tests.tested.smallest_p,
        untrained_t=tests.untrained_t,
        heads=ShiftTable(tests.tested.t.tolist(), tests.tested.p.tolist()),
        chosen=chosen,
        items_needed=items_needed(measured.contrast, items, config),
        confirmed=confirmed,
        examples=examples,
    )


def _contrasts_of(models: Iterable[ObservableModel], items: PrefixItems, config: ProbeConfig) -> Iterator[Sample]:
    """Yield the contrasts of each model as a sample."""
    for model in models:
        yield items.sample(measure_contrasts(model, items, config.tokens_per_batch).contrast)


def _scores_of_head(
    measured: _PairContrasts, tested_items: PrefixItems, testing: np.ndarray, place: Place, config: ProbeConfig
) -> dict[str, Any]:
    """Return the mean of each measure of a head over the tested prefixes, and its interval, as fields of a result."""
    columns = np.stack([values[(testing, *place)] for values in vars(measured).values()], axis=1)
    intervals = mean_interval(columns, tested_items.designs, config.n_bootstrap, config.seed)
    scores: dict[str, Any] = {}
    for name, values, interval in zip(vars(measured), columns.T, intervals.T, strict=True):
        scores[name] = float(values.mean())
        scores[f"{name}_interval"] = tuple(interval.tolist())
    return scores


def _strata(items: PrefixItems, contrast: np.ndarray) -> dict[str, Stratum]:
    """Return a head's mean contrast in prefixes with and without an earlier pronoun; `contrast` [N]."""
    first = np.array([prefix.is_first for prefix in items.prefixes])
    strata = {}
    for name, mask in (("no earlier pronoun", first), ("an earlier pronoun", ~first)):
        mean = float(contrast[mask].mean()) if mask.any() else None
        strata[name] = Stratum(int(mask.sum()), mean)
    return strata


def _confirm_shift(
    contrast: np.ndarray, items: PrefixItems, place: Place, untrained_t: float, config: ProbeConfig
) -> ConfirmedShift:
    """Test a head that was chosen on other texts on all prefixes: one two-sided test, without a correction."""
    site, layer, head = place
    values = contrast[:, site, layer, head]  # [N]
    test = items.sample(values[:, None]).test(config, two_sided=True)
    low, high = mean_interval(values, items.designs, config.n_bootstrap, config.seed).tolist()
    return ConfirmedShift(
        site=DECIDED_SITES[site],
        layer=layer,
        head=head,
        n=len(values),
        contrast=float(values.mean()),
        contrast_interval=(low, high),
        t=float(test.t[0]),
        p=float(test.p[0]),
        untrained_t=untrained_t,
    )


def items_needed(contrast: np.ndarray, items: PrefixItems, config: ProbeConfig) -> list[NeededItems]:
    """Return, for fewer and fewer prefixes, how often the same head is chosen and how small its p is.

    Each size is drawn N_DRAWS times from both halves; `same` is the share of draws that choose the head that all
    prefixes choose by |t|, `p` the median p of the chosen head.
    """
    config = replace(config, n_bootstrap=N_FLIPS)
    choosing, testing = items.halves(config.seed)

    def sample_of(index: np.ndarray) -> Sample:
        return items.take(index).sample(contrast[index])

    def strongest(index: np.ndarray) -> Place:
        return largest(np.abs(sample_of(index).t(config, two_sided=True)))

    rng = np.random.default_rng(config.seed)
    of_all = strongest(choosing)
    curve = []
    n = 2 * min(len(choosing), len(testing))
    while n >= MIN_PREFIXES:
        is_same = []
        p = []
        for _ in range(N_DRAWS):
            drawn = [rng.choice(half, n // 2, replace=False) for half in (choosing, testing)]
            place = strongest(drawn[0])
            is_same.append(place == of_all)
            p.append(sample_of(drawn[1]).test(config, two_sided=True).p[place])
        curve.append(NeededItems(n, float(np.mean(is_same)), float(np.median(p))))
        n //= 2
    return curve[::-1]


def _median_prefixes(items: PrefixItems, contrast: np.ndarray, site: str) -> list[PrefixExample]:
    """Return the three prefixes nearest to the median contrast of a head at a site; `contrast` [N]."""
    nearest = np.argsort(np.abs(contrast - np.median(contrast)), kind="stable")[:3]
    examples = []
    for i in nearest:
        prefix = items.prefixes[i]
        after = ""
        if site == "after_pronoun":
            next_word = re.match(r"\s*([^\W\d_]+|\d+|[^\w\s])", prefix.rest)
            after = next_word.group() if next_word else prefix.rest
        mentions = list(prefix.mentions[0]), list(prefix.mentions[1])
        examples.append(PrefixExample(prefix.text, prefix.forms, mentions, after, float(contrast[i])))
    return examples


# The causal test


def _measure_cut(
    model: ObservableModel, items: PrefixItems, place: Place, target: str, config: ProbeConfig
) -> EdgeCut | None:
    """Cut the edge from the head's site to its target, and measure the loss of the text's own next tokens.

    The texts are the prefixes with their own pronoun, if at least N_CONTINUATION tokens follow. The `target`
    "matching entity" stands for the mentions of the pronoun's class, "other entity" for the other mentions. The loss
    is compared with the loss after cutting the edge to the one other token whose weight is nearest to the target's.
    Prefixes whose two weights differ by more than a fifth are left out. None with fewer than MIN_CAUSAL prefixes.
    """
    # Prefixes with enough text after them.
    members = list[int]()
    cells = list[LinkItem]()
    texts = list[tuple[int, ...]]()
    for i, prefix in enumerate(items.prefixes):
        cell = items.cells[DECIDED_SITES[place[0]]][2 * i + prefix.meant]
        text = items.full_tokens[i][: cell.query + N_CONTINUATION + 1]
        if len(text) > cell.query + N_CONTINUATION:
            members.append(i)
            cells.append(cell)
            texts.append(text)

    # Those with another token of about the same weight.
    effects = _cut_effects(model, cells, texts, place, target, config.tokens_per_batch // 4)
    rise, matched_rise, mass, matched_mass = effects.T
    is_matched = np.abs(matched_mass - mass) <= MAX_MISMATCH * mass
    if is_matched.sum() < MIN_CAUSAL:
        return None
    used = items.take(np.array(members)[is_matched])
    values = np.column_stack([effects, rise - matched_rise])[is_matched]
    intervals = mean_interval(values, used.designs, config.n_bootstrap, config.seed).T.tolist()
    means = values.mean(axis=0).tolist()
    return EdgeCut(
        n=len(used.prefixes),
        rise=means[0],
        matched_rise=means[1],
        mass=means[2],
        matched_mass=means[3],
        difference=means[4],
        rise_interval=tuple(intervals[0]),
        difference_interval=tuple(intervals[-1]),
    )


@torch.no_grad()
def _cut_effects(
    model: ObservableModel,
    cells: Sequence[LinkItem],
    texts: Sequence[tuple[int, ...]],
    place: Place,
    target: str,
    tokens_per_batch: int,
) -> np.ndarray:
    """Return rise, matched rise, mass and matched mass of each text, [N, 4], as `_measure_cut` explains them."""
    _, layer, head = place
    results = np.empty((len(texts), 4))
    for members, rows, tokens, _ in text_batches(texts, tokens_per_batch):
        tokens = tokens[rows].to(model.device)  # equal texts with different queries get rows of their own
        query = torch.tensor([cells[i].query for i in members], device=model.device)

        # Which tokens are the target, and which are mentions at all, [B, T].
        is_target = torch.zeros(tokens.shape, dtype=torch.bool, device=model.device)
        is_mention = is_target.clone()
        for row, i in enumerate(members):
            words = cells[i].antecedents if target == "matching entity" else cells[i].distractors
            for word in words:
                is_target[row, list(word)] = True
            for word in cells[i].antecedents + cells[i].distractors:
                is_mention[row, list(word)] = True

        # The other token whose weight is nearest to that of the target.
        weights = model.record(tokens, query[:, None])[layer].scores[:, head, 0].softmax(-1)  # [B, T]
        mass = (weights * is_target).sum(-1)  # [B]
        is_late = torch.arange(tokens.shape[1], device=model.device) >= query[:, None]
        is_excluded = is_mention | is_late
        is_excluded[:, 0] = True  # the token before every text
        distance = (weights - mass[:, None]).abs().masked_fill(is_excluded, torch.inf)
        matched = F.one_hot(distance.argmin(-1), tokens.shape[1]).bool()

        # The loss with all edges, without the target's, and without the matched one's.
        streams = model.residual_stream(tokens)
        positions = query[:, None] + torch.arange(N_CONTINUATION, device=query.device)  # [B, N_CONTINUATION]
        targets = tokens.gather(1, positions + 1)
        losses = []
        for edits in ([], [cut_edge(query, layer, head, is_target)], [cut_edge(query, layer, head, matched)]):
            logits = model.logits(tokens, positions, edits, streams)  # [B, N_CONTINUATION, V]
            of_tokens = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
            losses.append(of_tokens.unflatten(0, targets.shape).mean(-1))
        clean, cut, control = losses
        columns = (cut - clean, control - clean, mass, (weights * matched).sum(-1))
        results[members] = torch.stack(columns, dim=1).double().cpu().numpy()
    return results
