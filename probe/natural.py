"""Which head turns with a pronoun in natural text? Chosen on half of the documents, tested once on the other half.

Each prefix of `data.natural` is read twice, with the pronoun of either class. For a head and a site,

    contrast = mean of log (attention on the class of the pronoun / attention on the other class) over the two readings

Whatever does not depend on the pronoun cancels. A positive contrast means that the head looks at the pronoun's class, a
negative one that it looks at the other entity. Nothing here says that the antecedent is known: no text is annotated.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from data.links import LinkItem, link_items
from data.natural import CLASSES, SITES, Prefix, census, contrast_texts, find_prefixes
from data.tokenizer import encode_text, unknown_id
from model.observe import ObservableModel
from probe.config import ProbeConfig
from probe.interventions import cut_edge
from probe.scores import Candidates, item_batches, output_norms, reduce_scores, text_batches
from probe.statistics import Design, MaxT, largest, max_t_test, mean_interval, random_half, similar_heads
from probe.verdict import MAX_P, NOT_ESTABLISHED, SUGGESTIVE, SUPPORTED

DECIDED_SITES = SITES[1:]  # before the pronoun both readings are equal
MIN_PREFIXES = 40  # fewer give no test
MIN_TESTED_CLUSTERS = 9  # documents, and entities of each class, in the tested half: with 8 no p is below 2 / 2^8
MAX_PREFIXES = 800  # per question; the others are left out at random
SECTION_CHARACTERS = 5000  # documents are cut into sections of this size
MAX_DOCUMENT_SHARE, MIN_DOCUMENTS = 0.1, 24  # if one is a larger share of the text, or if there are fewer
N_DRAWS, N_FLIPS = 20, 400  # behind the curve of the number of items
N_CONTINUATION = 8  # tokens after the pronoun whose loss shows what an edge does
Place = tuple[int, ...]  # (index of the site, layer, head)
ROUNDING = 1e-3  # two passes over texts that are equal so far may differ by this much
MIN_CAUSAL, MAX_MISMATCH = 20, 0.2  # prefixes of the causal test; difference of both weights as a share
SIGNS = {"matching entity": 1, "other entity": -1}  # what a head looks at, and the sign of its contrast


def natural_study(
    model: ObservableModel,
    untrained: Callable[[int], ObservableModel],
    tokenizer: Tokenizer,
    start: int,
    prefixes_by_question: Mapping[str, Sequence[Prefix]],
    config: ProbeConfig,
    *,
    chosen_elsewhere: Mapping[str, Mapping[str, Place]] = MappingProxyType({}),
    limit: int = MAX_PREFIXES,
    progress: Callable[[str], None] = lambda question: None,
) -> dict[str, Any]:
    """Tests the heads of a model in float32 on all questions that have enough prefixes.

    `untrained` makes a model of the same shape from a seed, for comparison; one at a time is in memory. `start` is the
    token before every text. Heads in `chosen_elsewhere`, by question and target, were chosen on other texts; they are
    tested on all prefixes here. At most `limit` prefixes of each question are used. `progress` is called with the
    name of each question before it is tested.

    Returns:
        `questions` (see `probe_question`), and `missing`: a sentence for each question that cannot be tested.

    """
    questions, missing = dict[str, Any](), list[str]()
    for question, prefixes in prefixes_by_question.items():
        progress(f"{question} in natural text")
        items = make_items(prefixes, tokenizer, start, model.context_length, config.seed, limit)
        n, (_, testing) = len(items.prefixes), items.halves(config.seed)
        n_clusters = [len(np.unique(labels[testing])) for labels in items.clusterings]
        if n >= MIN_PREFIXES and min(n_clusters) >= MIN_TESTED_CLUSTERS:
            twins = (untrained(config.seed + i) for i in range(config.n_untrained))
            questions[question] = probe_question(model, twins, items, config, chosen_elsewhere.get(question, {}))
            continue
        reasons = "".join(f"; {count:,} left out: {reason}" for reason, count in items.left_out.items())
        missing.append(
            f"{question}: {n} prefixes; the tested half has {n_clusters[0]} documents or sections, {n_clusters[1]} and "
            f"{n_clusters[2]} entities; needed: {MIN_PREFIXES} prefixes, {MIN_TESTED_CLUSTERS} of each{reasons}"
        )
    return {"questions": questions, "missing": missing}


def prefixes_in(documents: Sequence[str]) -> dict[str, list[Prefix]]:
    """Returns the prefixes of each question in the documents."""
    parts = sections(documents)
    return {q: [prefix for name, text in parts for prefix in find_prefixes(name, text, q)] for q in CLASSES}


def describe(documents: Sequence[str]) -> str:
    """Returns how many of the words that the questions need a text contains, as one phrase."""
    counts = Counter[str]()
    for question in CLASSES:
        found = census([("", text) for text in documents], question)
        counts.update({name if name != "pronouns" else f"{question} pronouns": n for name, n in found.items()})
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


@dataclass(frozen=True)
class Items:
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

    def take(self, index: np.ndarray) -> "Items":
        """Returns the items of the prefixes at `index`."""
        cells = {site: [cells[2 * i + cell] for i in index for cell in (0, 1)] for site, cells in self.cells.items()}
        return Items([self.prefixes[i] for i in index], cells, [self.full_tokens[i] for i in index], self.left_out)

    def designs(self, index: np.ndarray) -> list[Design]:
        """Returns the designs of an interval over the prefixes at `index`: documents crossed with entities."""
        documents, first, second = (labels[index] for labels in self.clusterings)
        pairs = np.array([f"{a} {b}" for a, b in zip(first, second, strict=True)])
        return [(documents, labels) for labels in (pairs, first, second)]

    def halves(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the indices of the prefixes to choose a head on, and those to test it on; no document is in both."""
        is_chosen = random_half(self.clusterings[0], seed)
        return np.flatnonzero(is_chosen), np.flatnonzero(~is_chosen)


def sections(documents: Sequence[str], *, only_long: bool = False) -> list[tuple[str, str]]:
    """Returns (name, text) of each document, or of each section of about 5,000 characters.

    With `only_long` each document of more than 5,000 characters is cut, and no other. Otherwise:

    Sections are used if there are fewer than MIN_DOCUMENTS documents, or if one is more than a tenth of the text: a
    random half of such documents often has far more or far less than half of the text.
    """
    longest, total = max(map(len, documents), default=0), sum(map(len, documents))
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


def make_items(
    prefixes: Sequence[Prefix], tokenizer: Tokenizer, start: int, max_tokens: int, seed: int, limit: int = MAX_PREFIXES
) -> Items:
    """Returns up to `limit` prefixes of one question, drawn at random, in the tokens of a model.

    A prefix is left out, and counted by reason, if a word shares a token with its neighbour or is unknown, if its
    readings differ in more than the pronoun, or if it does not fit into the context.
    """
    unknown = unknown_id(tokenizer)
    used, full_tokens, left_out = list[Prefix](), list[tuple[int, ...]](), Counter[str]()
    cells: dict[str, list[LinkItem]] = {}
    for i in np.random.default_rng(seed).permutation(len(prefixes)):
        if len(used) == limit:
            left_out["more than enough"] = len(prefixes) - len(used) - left_out.total()
            break
        prefix = prefixes[i]
        rows = contrast_texts([prefix])
        try:
            items = link_items(rows, tokenizer, start)
        except ValueError:
            left_out["a word shares a token with its neighbour"] += 1
            continue
        first, second = items[: len(items) // 2], items[len(items) // 2 :]
        last = first[-1]
        mentioned = {last.tokens[token] for word in last.antecedents + last.distractors for token in word}
        if max(len(item.tokens) for item in items) > max_tokens:
            left_out["longer than the context"] += 1
        elif unknown in mentioned:
            left_out["a name is not in the vocabulary"] += 1
        elif any(a.query != b.query for a, b in zip(first, second, strict=True)) or first[0].tokens != second[0].tokens:
            left_out["the pronouns have different numbers of tokens"] += 1
        else:
            used.append(prefix)
            full_tokens.append((start, *encode_text(tokenizer, rows[prefix.meant].text).ids)[:max_tokens])
            for pair in zip(first, second, strict=True):
                cells.setdefault(pair[0].site, []).extend(pair)
    return Items(used, cells, full_tokens, left_out)


@dataclass(frozen=True)
class Readings:
    """What every head does at every decided site. Shapes [N, S, L, H]: N prefixes, S sites, L layers, H heads."""

    contrast: np.ndarray
    value_contrast: np.ndarray  # with attention x norm of the transformed value
    pair_right: np.ndarray  # 1 if the pronoun's class gets more attention in both readings
    right: np.ndarray  # share of the two readings


def read(model: ObservableModel, items: Items, tokens_per_batch: int) -> Readings:
    """Reads every head at all sites in one pass.

    Raises:
        ValueError: a head distinguishes the readings before the pronoun, so something else differs.

    """
    cells = list(items.cells.values())
    shape = (len(cells[0]), len(cells), model.n_layer, model.n_head)
    rows = {name: np.empty(shape) for name in ("log_ratio", "value_log_ratio")}
    for batch in item_batches(cells[-1], tokens_per_batch):
        query = torch.zeros(len(batch.tokens), len(cells), dtype=torch.int64)
        for i, site_cells in enumerate(cells):
            query[batch.rows, i] = torch.tensor([site_cells[member].query for member in batch.members])
        index, mentions = batch.rows.to(model.device), Candidates(*(x.to(model.device) for x in batch.mentions))
        for layer, record in enumerate(model.record(batch.tokens.to(model.device), query.to(model.device))):
            norms = output_norms(model.head_weights(layer).output, record, index, mentions.positions)
            for i in range(len(cells)):
                reduced = reduce_scores(record.scores[index, :, i], mentions, norms)
                for name, values in rows.items():
                    values[batch.members, i, layer] = reduced[name].cpu().numpy()
    log_ratio, value_log_ratio = (values.reshape(-1, 2, *shape[1:]) for values in rows.values())  # [N, 2, sites, L, H]
    if not np.abs(log_ratio[:, :, 0].mean(axis=1)).max(initial=0) <= ROUNDING:  # nan is no equality
        raise ValueError("no report for this model: the two readings differ before the pronoun")
    right = log_ratio[:, :, 1:] > 0
    contrast, value_contrast = (values[:, :, 1:].mean(axis=1) for values in (log_ratio, value_log_ratio))
    return Readings(contrast, value_contrast, right.all(axis=1).astype(float), right.mean(axis=1))


def t_test(contrast: np.ndarray, items: Items, index: np.ndarray, config: ProbeConfig) -> MaxT:
    """Returns the two-sided max-T test of all heads and sites on the prefixes at `index`."""
    clusterings = [names[index] for names in items.clusterings]
    return max_t_test(contrast[index], clusterings, 0.0, config.n_bootstrap, config.seed, two_sided=True)


def choose_and_test(contrast: np.ndarray, items: Items, config: ProbeConfig) -> tuple[dict[str, Place], MaxT]:
    """Returns the (site, layer, head) with the largest t of either sign on one half, and the test on the other half."""
    choosing, testing = items.halves(config.seed)
    t = t_test(contrast, items, choosing, config).t
    return {target: largest(sign * t) for target, sign in SIGNS.items()}, t_test(contrast, items, testing, config)


def probe_question(
    model: ObservableModel,
    untrained: Iterable[ObservableModel],
    items: Items,
    config: ProbeConfig,
    chosen_elsewhere: Mapping[str, Place] = MappingProxyType({}),
) -> dict[str, Any]:
    """Chooses the best head of either sign on half of the documents and tests it on the other half.

    Returns:
        counts, and one entry per sign of `SIGNS` with the head, its scores with 95 % intervals, the p corrected for the
        search over all heads and sites, the largest |t| of any head of an untrained model, the causal test, and the
        verdict.

    """
    choosing, testing = items.halves(config.seed)
    readings = read(model, items, config.tokens_per_batch)
    chosen, tested = choose_and_test(readings.contrast, items, config)
    tested_items = items.take(testing)
    untrained_t = [
        largest_t(read(twin, tested_items, config.tokens_per_batch), tested_items, config) for twin in untrained
    ]
    entries = {}
    for target, place in chosen.items():
        columns = np.stack([values[(testing, *place)] for values in vars(readings).values()], axis=1)
        intervals = mean_interval(columns, items.designs(testing), config.n_bootstrap, config.seed)
        entry: dict[str, Any] = {"site": DECIDED_SITES[place[0]], "layer": place[1], "head": place[2]}
        for name, values, interval in zip(vars(readings), columns.T, intervals.T, strict=True):
            entry |= {name: float(values.mean()), f"{name}_interval": interval.tolist()}
        entry |= {"t": float(tested.t[place]), "p_corrected": float(tested.p[place]), "untrained_t": max(untrained_t)}
        first = np.array([items.prefixes[i].is_first for i in testing])
        entry["strata"] = {
            name: {"n": int(mask.sum()), "contrast": float(columns[mask, 0].mean()) if mask.any() else None}
            for name, mask in (("no earlier pronoun", first), ("an earlier pronoun", ~first))
        }
        entry["similar"] = similar_heads(readings.contrast[testing, place[0]], (place[1], place[2]))
        entry["causal"] = causal_test(model, items, testing, place, target, config)
        entries[target] = entry | judge(entry, SIGNS[target])
    return {
        "n_prefixes": len(items.prefixes),
        "n_tested": len(testing),
        "n_documents": len(np.unique(items.clusterings[0])),
        "left_out": dict(items.left_out),
        "smallest_p": tested.smallest_p,
        "untrained_t": untrained_t,
        "heads": {"t": tested.t.tolist(), "p": tested.p.tolist()},
        "chosen": entries,
        "items_needed": items_needed(readings.contrast, items, choosing, testing, config),
        "confirmed": {
            target: confirm(readings.contrast, items, place, config) | {"untrained_t": max(untrained_t)}
            for target, place in chosen_elsewhere.items()
            if place[0] < readings.contrast.shape[1]
        },
        "examples": median_prefixes(items, testing, readings.contrast, entries),
    }


def largest_t(readings: Readings, items: Items, config: ProbeConfig) -> float:
    """Returns the largest |t| of all heads and sites."""
    return float(np.abs(t_test(readings.contrast, items, np.arange(len(items.prefixes)), config).t).max())


def confirm(contrast: np.ndarray, items: Items, place: Place, config: ProbeConfig) -> dict[str, Any]:
    """Tests a head that was chosen on other texts on all prefixes: one two-sided test, without a correction."""
    everything = np.arange(len(items.prefixes))
    values = contrast[(everything, *place)]
    result = t_test(values[:, None], items, everything, config)
    interval = mean_interval(values, items.designs(everything), config.n_bootstrap, config.seed)
    return {
        "site": DECIDED_SITES[place[0]], "layer": place[1], "head": place[2], "n": len(values),
        "contrast": float(values.mean()), "contrast_interval": interval.tolist(), "t": float(result.t[0]),
        "p": float(result.p[0]),
    }  # fmt: skip


def judge(entry: dict[str, Any], sign: int) -> dict[str, Any]:
    """Returns the verdict: all three criteria: supported; the first, alone or with one other: suggestive."""
    is_right_sign = sign * entry["t"] > 0
    criteria = {
        f"corrected p below {MAX_P}": is_right_sign and entry["p_corrected"] < MAX_P,
        "|t| above that of every untrained model": abs(entry["t"]) > entry["untrained_t"],
        "cutting the edge changes the continuation's loss": entry["causal"] is not None and has_effect(entry["causal"]),
    }
    met = list(criteria.values())
    verdict = SUPPORTED if all(met) else SUGGESTIVE if met[0] else NOT_ESTABLISHED
    return {"verdict": verdict, "criteria": criteria}


def has_effect(causal: Mapping[str, Any]) -> bool:
    """Returns True if the cut changes the loss, and changes it more in that direction than the matched cut does."""
    intervals = causal["rise_interval"], causal["difference_interval"]
    return all(low > 0 for low, _ in intervals) or all(high < 0 for _, high in intervals)


def causal_test(
    model: ObservableModel, items: Items, index: np.ndarray, place: Place, target: str, config: ProbeConfig
) -> dict[str, Any] | None:
    """Removes the edge from the head's site to its target, and measures the loss of the text's own next tokens.

    The texts are the prefixes at `index` with their own pronoun, if at least N_CONTINUATION tokens follow. The `target`
    "matching entity" stands for the mentions of the pronoun's class, "other entity" for the other mentions. The loss
    is compared with the loss after removing the edge to the one other token whose weight is nearest to the target's.
    Prefixes whose two weights differ by more than a fifth are left out.

    Returns:
        None with fewer than MIN_CAUSAL prefixes; else n, the mean `mass` of the target and of the matched tokens,
        `rise` and `matched_rise` of the loss in nats per token, their `difference`, and 95 % intervals of `rise` and
        `difference`.

    """
    members, cells, texts = list[int](), list[LinkItem](), list[tuple[int, ...]]()
    for i in index:
        cell = items.cells[DECIDED_SITES[place[0]]][2 * i + items.prefixes[i].meant]
        text = items.full_tokens[i][: cell.query + N_CONTINUATION + 1]
        if len(text) > cell.query + N_CONTINUATION:
            members.append(i)
            cells.append(cell)
            texts.append(text)
    effects = edge_effects(model, cells, texts, place, target, config.tokens_per_batch // 4)
    is_matched = np.abs(effects[:, 3] - effects[:, 2]) <= MAX_MISMATCH * effects[:, 2]
    if is_matched.sum() < MIN_CAUSAL:
        return None
    used, effects = np.array(members)[is_matched], effects[is_matched]
    values = np.column_stack([effects, effects[:, 0] - effects[:, 1]])
    intervals = mean_interval(values, items.designs(used), config.n_bootstrap, config.seed)
    names = ("rise", "matched_rise", "mass", "matched_mass", "difference")
    means = {name: float(value) for name, value in zip(names, values.mean(axis=0), strict=True)}
    both = {"rise_interval": intervals[:, 0].tolist(), "difference_interval": intervals[:, -1].tolist()}
    return {"n": len(used), **means, **both}


@torch.no_grad()
def edge_effects(
    model: ObservableModel,
    cells: Sequence[LinkItem],
    texts: Sequence[tuple[int, ...]],
    place: Place,
    target: str,
    tokens_per_batch: int,
) -> np.ndarray:
    """Returns rise, matched rise, mass and matched mass of each text, [N, 4], as `causal_test` explains them."""
    _, layer, head = place
    results = np.empty((len(texts), 4))
    for members, rows, tokens, _ in text_batches(texts, tokens_per_batch):
        tokens = tokens[rows].to(model.device)  # equal texts with different queries get rows of their own
        query = torch.tensor([cells[i].query for i in members], device=model.device)
        is_target, is_mention = torch.zeros(2, *tokens.shape, dtype=torch.bool, device=model.device)
        for row, i in enumerate(members):
            words = cells[i].antecedents if target == "matching entity" else cells[i].distractors
            is_target[row, [token for word in words for token in word]] = True
            is_mention[row, [token for word in cells[i].antecedents + cells[i].distractors for token in word]] = True
        weights = model.record(tokens, query[:, None])[layer].scores[:, head, 0].softmax(-1)  # [B, T]
        mass = (weights * is_target).sum(-1)
        is_excluded = is_mention | (torch.arange(tokens.shape[1], device=model.device) >= query[:, None])
        is_excluded[:, 0] = True  # the start token
        distance = (weights - mass[:, None]).abs().masked_fill(is_excluded, torch.inf)
        matched = F.one_hot(distance.argmin(-1), tokens.shape[1]).bool()
        streams = model.residual_stream(tokens)
        clean, cut, control = (
            continuation_loss(model.logits(tokens, None, edits, streams), tokens, query)
            for edits in ((), *((cut_edge(query, layer, head, mask),) for mask in (is_target, matched)))
        )
        columns = (cut - clean, control - clean, mass, (weights * matched).sum(-1))
        results[members] = torch.stack(columns, dim=1).double().cpu().numpy()
    return results


def continuation_loss(logits: torch.Tensor, tokens: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Returns the mean loss [B] in nats of the N_CONTINUATION tokens after the `query` [B], from logits [B, T, V]."""
    positions = query[:, None] + torch.arange(N_CONTINUATION, device=query.device)
    rows = torch.arange(len(tokens), device=query.device)[:, None]
    losses = F.cross_entropy(
        logits[rows, positions].flatten(0, 1), tokens[rows, positions + 1].flatten(), reduction="none"
    )
    return losses.unflatten(0, positions.shape).mean(-1)


def items_needed(
    contrast: np.ndarray, items: Items, choosing: np.ndarray, testing: np.ndarray, config: ProbeConfig
) -> list[dict[str, float]]:
    """Returns, for fewer and fewer prefixes, how often the same head is chosen and how small its p is.

    Each size is drawn N_DRAWS times from both halves; "same" is the share of draws that choose the head that all
    prefixes choose by |t|, "p" the median p of the chosen head.
    """
    config = replace(config, n_bootstrap=N_FLIPS)

    def strongest(index: np.ndarray) -> Place:
        return largest(np.abs(t_test(contrast, items, index, config).t))

    rng, everything = np.random.default_rng(config.seed), strongest(choosing)
    curve = []
    n = 2 * min(len(choosing), len(testing))
    while n >= MIN_PREFIXES:
        draws = []
        for _ in range(N_DRAWS):
            halves = [rng.choice(half, n // 2, replace=False) for half in (choosing, testing)]
            place = strongest(halves[0])
            draws.append((place == everything, float(t_test(contrast, items, halves[1], config).p[place])))
        same, p = np.array(draws, dtype=float).T
        curve.append({"n": n, "same": float(same.mean()), "p": float(np.median(p))})
        n //= 2
    return curve[::-1]


def median_prefixes(
    items: Items, testing: np.ndarray, contrast: np.ndarray, entries: dict[str, Any]
) -> dict[str, list[dict[str, Any]]]:
    """Returns for each target the three tested prefixes nearest to the median contrast of the chosen head."""
    shown = dict[str, list[dict[str, Any]]]()
    for target, entry in entries.items():
        values = contrast[(testing, DECIDED_SITES.index(entry["site"]), entry["layer"], entry["head"])]
        nearest = np.argsort(np.abs(values - np.median(values)), kind="stable")[:3]
        shown[target] = []
        for i in nearest:
            prefix = items.prefixes[testing[i]]
            example: dict[str, Any] = {name: getattr(prefix, name) for name in ("text", "forms", "mentions")}
            next_word = re.match(r"\s*([^\W\d_]+|\d+|[^\w\s])", prefix.rest)
            until_next_word = next_word.group() if next_word else prefix.rest
            example["after"] = until_next_word if entry["site"] == "after_pronoun" else ""
            shown[target].append(example | {"contrast": float(values[i])})
    return shown
