"""Which head decides the next pronoun? One word before "she" or "he", chosen on half of the documents, tested once.

Each passage of `data.next_pronoun` is compared with its twin, in which every entity has a counterpart of the other
class. So whatever ignores the entities cancels: a model that does not know them follows the twin in half of the
passages. `probe.margins` explains the margin and the edits. With many heads, direct logit attribution (Elhage et al.
2021) ranks them, and only the best are edited. Axes: N passages, C candidate heads.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from data.next_pronoun import KINDS, Passage, ngram_rule
from model.observe import ObservableModel
from probe.after_pronoun import AfterPronoun
from probe.config import ProbeConfig
from probe.estimates import Estimate, estimate_mean, estimate_ratio
from probe.margins import EDIT_COST, Head, Sites, decision, exchange_terms, flips, role_cuts, signed_edge_effects
from probe.passage_items import Item, Items, make_items
from probe.statistics import max_t_test, random_half
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
MAX_PASSAGES_LARGE = {"one": 40, "two": 150}  # for a model of more than MANY_HEADS heads, which is slow
MANY_HEADS = 128
MIN_CLUSTERS = 9  # documents and entities of each class in the tested half: with 8 no p is below 2 / 2^8
ALL_HEADS, MAX_CANDIDATES = 32, 8  # with more heads than the first, only so many are edited
MAX_SET = 6  # heads of a set
MIN_SET_SHARE = 0.8  # of the margin that a set must exchange
MIN_CUT, MIN_CUT_LOW = 0.10, 0.02  # share of the margin that cutting the meant edge takes: mean, end of its interval
MIN_EXCHANGE = 0.2  # share of the margin that changes sides when the weights change places
Progress = Callable[[str, float], None]  # called with the stage and the finished fraction of the study


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
    p: float  # p value of the edge effect: corrected for all tested heads, or doubled for a set of heads
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
    entities: tuple[str, str]  # the last mention of each class
    weights: tuple[float, float]  # of the head on the mentions of each class
    clean: tuple[float, float]  # probability of either pronoun
    exchanged: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Whom the model picks in passages with two entities."""

    stratum: str  # which passages
    n: int
    author: Estimate  # share of passages in which the model picks the entity of the author's pronoun
    nearest: float  # the same for the rule that takes the last mention
    n_wrong: int  # passages in which that rule is wrong
    author_where_wrong: Estimate  # nan without any


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
    choices: tuple[Choice, ...]
    author_accuracy: Estimate  # passages with two: the model picks the person of the author's pronoun
    nearest_accuracy: float
    rules: dict[str, float]
    author_where_nearest_is_wrong: Estimate
    n_nearest_is_wrong: int
    weight_correlation: float  # of the head's difference of attention and the model's margin, over texts of two
    chosen: SetResult
    head_set: SetResult | None  # two heads or more: the smallest set that exchanges MIN_SET_SHARE, or the last one
    set_reaches: bool  # it exchanges MIN_SET_SHARE on the choosing half; only then the verdict can be that of the set
    curve: tuple[tuple[Head, float, Estimate], ...]  # heads added one by one: the head, share on either half
    untrained_t: tuple[float, ...]
    candidates: tuple[tuple[Head, float, float, float], ...]  # head, edge effect, t, p on the tested half
    left_out: dict[str, dict[str, int]]
    examples: tuple[Example, ...]
    after: AfterPronoun | None = None  # what the head does right after the pronoun

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


class Half:
    """The items of one half of the documents, with the unedited pass of a model over them."""

    def __init__(self, model: ObservableModel, items: Sequence[Item], tokens_per_batch: int, meter: "Meter") -> None:
        """Runs the model over the items of both kinds."""
        self.one, self.two = (Items([item for item in items if item.passage.kind == kind], Counter()) for kind in KINDS)
        self.all = Items([*self.one.items, *self.two.items], Counter())
        self.sites_one = Sites(model, self.one.items, tokens_per_batch, meter.advance)
        self.sites_two = Sites(model, self.two.items, tokens_per_batch, meter.advance)

    def edge_effects(self, sets: Sequence[Sequence[Head]]) -> np.ndarray:
        """Returns the signed edge effect of each set of heads on the items of `all`, [N, C] in nats."""
        of_kinds = []
        for sites in (self.sites_one, self.sites_two):
            of_kinds.append(signed_edge_effects(sites.items, sites.measure(sets, ["cut"])))
        return np.concatenate(of_kinds)

    def direct_effects(self) -> np.ndarray:
        """Returns the direct effect of each head on the items of `all`, [N, L, H] in nats."""
        return np.concatenate([self.sites_one.direct_effects(), self.sites_two.direct_effects()])


class Meter:
    """Adds up the work of a study and reports which share of it is done."""

    def __init__(self, progress: Progress) -> None:
        """Starts with nothing done; `progress` gets each stage and share."""
        self._progress, self._stage, self._done, self.total = progress, "", 0.0, float("inf")

    def begin(self, stage: str) -> None:
        """Starts a stage."""
        self._stage = stage
        self.advance(0)

    def advance(self, amount: float) -> None:
        """Adds work that has been done; its unit is the unedited pass over one text."""
        self._done += amount
        self._progress(self._stage, min(1.0, self._done / self.total))


@dataclass(frozen=True)
class QuestionItems:
    """The items of one question in the tokens of a model; all items of a document or section are in one half."""

    choosing: list[Item]
    tested: list[Item]
    earlier: list[Item]  # passages with two entities and an earlier pronoun, of both halves; none of a large model
    left_out: dict[str, dict[str, int]]  # by kind, how many passages by reason
    problem: str  # why the question cannot be tested, with the counts; "" if it can


def question_items(
    model: ObservableModel,
    tokenizer: Tokenizer,
    start: int,
    question: str,
    passages: Sequence[Passage],
    config: ProbeConfig,
) -> QuestionItems:
    """Returns the items of one question; arguments as `study_question`."""
    limits = MAX_PASSAGES if model.n_layer * model.n_head <= MANY_HEADS else MAX_PASSAGES_LARGE
    items, left_out = list[Item](), dict[str, dict[str, int]]()
    for kind in KINDS:
        made = make_items(passages, kind, tokenizer, start, model.context_length, config.seed, limits[kind])
        items += made.items
        left_out[kind] = dict(made.left_out)
    documents_of = np.array([item.passage.doc for item in items])
    is_choosing = random_half(documents_of, config.seed) if items else np.zeros(0, dtype=bool)
    choosing = [item for item, is_chosen in zip(items, is_choosing, strict=True) if is_chosen]
    tested = [item for item, is_chosen in zip(items, is_choosing, strict=True) if not is_chosen]
    problem = too_few(question, (choosing, tested), left_out)
    earlier = list[Item]()
    if not problem and model.n_layer * model.n_head <= MANY_HEADS:
        limit, length = limits["two"], model.context_length
        earlier = make_items(passages, "two", tokenizer, start, length, config.seed, limit, has_earlier=True).items
    return QuestionItems(choosing, tested, earlier, left_out, problem)


def study_question(
    model: ObservableModel,
    untrained: Iterable[ObservableModel],
    tokenizer: Tokenizer,
    start: int,
    question: str,
    passages: Sequence[Passage],
    documents: Sequence[tuple[str, str]],
    config: ProbeConfig,
    progress: Progress = lambda stage, share: None,
) -> NextPronounResult | str:
    """Chooses the head that decides the next pronoun on half of the documents, and tests it on the other half.

    `passages` are those of one question in `documents`, (name, text) each; `start` is the token before every text.
    `untrained` are `config.n_untrained` models of the same shape.

    Returns:
        the result; or a sentence with the counts, if there are too few passages.

    """
    progress("reading passages", 0.0)
    items = question_items(model, tokenizer, start, question, passages, config)
    if items.problem:
        return items.problem
    return study_items(model, untrained, items, question, documents, config, progress)


def study_items(
    model: ObservableModel,
    untrained: Iterable[ObservableModel],
    items: QuestionItems,
    question: str,
    documents: Sequence[tuple[str, str]],
    config: ProbeConfig,
    progress: Progress = lambda stage, share: None,
) -> NextPronounResult | str:
    """Chooses a head on one half of the items and tests it on the other; arguments and result as `study_question`."""
    n_heads = model.n_layer * model.n_head
    n_candidates = n_heads if n_heads <= ALL_HEADS else MAX_CANDIDATES
    meter = Meter(progress)
    meter.total = _planned(len(items.choosing), len(items.tested), n_candidates, config.n_untrained)

    # Candidates, and the head with the largest signed edge effect on the choosing half.
    meter.begin("choosing a head")
    all_heads = [(layer, head) for layer in range(model.n_layer) for head in range(model.n_head)]
    candidates = all_heads
    choosing = Half(model, items.choosing, config.tokens_per_batch, meter)
    if n_heads > ALL_HEADS:
        direct = np.abs(choosing.direct_effects().mean(axis=0))  # [L, H]
        if not np.isfinite(direct).all():
            return f"{QUESTION_NAMES[question]}: the direct effects of the heads are not known for this kind of model"
        order = np.argsort(-direct.ravel(), kind="stable")[:MAX_CANDIDATES]
        candidates = [all_heads[i] for i in order]
    singles = [[head] for head in candidates]
    best = int(choosing.edge_effects(singles).mean(axis=0).argmax())
    chosen = candidates[best]

    # The tested half: every candidate's edges cut, also in untrained models, and everything else for the chosen head.
    meter.begin("testing")
    tested = Half(model, items.tested, config.tokens_per_batch, meter)
    effects = tested.edge_effects(singles)  # [N, C]
    test = max_t_test(effects, tested.all.clusterings, 0.0, config.n_bootstrap, config.seed)
    untrained_t = list[float]()
    for number, other in enumerate(untrained, 1):
        meter.begin(f"untrained model {number}")
        values = Half(other, items.tested, config.tokens_per_batch, meter).edge_effects(singles)
        t = max_t_test(values, tested.all.clusterings, 0.0, 100, config.seed).t
        untrained_t.append(float(t.max()))
    meter.begin("what the head decides")
    follows = follow_twin(tested, chosen, config)
    largest_untrained = max(untrained_t, default=0.0)
    result = test_set(tested, [chosen], follows["follows_twin"], largest_untrained, config, float(test.p[best]))

    # Heads that share the work, added one by one on the choosing half.
    meter.begin("sets of heads")
    curve = grow_set(choosing, tested, candidates, config) if tested.two.items else []
    head_set = None
    if len(curve) > 1:
        grown = [head for head, _, _ in curve]
        head_set = test_set(tested, grown, follows["follows_twin"], largest_untrained, config)
    reaches = bool(curve) and curve[-1][1] >= MIN_SET_SHARE
    judged = result
    if reaches and head_set is not None and result.verdict != SUPPORTED and head_set.verdict == SUPPORTED:
        judged = head_set
    behaviour = author_choice(tested, documents, question, config, chosen)
    choices = [choice("no earlier pronoun", [choosing.sites_two, tested.sites_two], config)]
    if items.earlier:
        earlier = Sites(model, items.earlier, config.tokens_per_batch)
        choices.append(choice("an earlier pronoun", [earlier], config))
    columns = tested.all.clusterings
    return NextPronounResult(
        question=QUESTION_NAMES[question],
        site=SITE,
        layer=chosen[0],
        head=chosen[1],
        verdict=judged.verdict,
        evidence_level=judged.evidence_level,
        unit="head" if judged is result else "set",
        p_corrected=judged.p,
        n=len(tested.all.items),
        n_one=len(tested.one.items),
        n_two=len(tested.two.items),
        n_documents=len(set(columns[0])),
        n_entities=(_n_entities(tested.all, 0), _n_entities(tested.all, 1)),
        effective_clusters=(_effective(columns[0]), _effective(columns[1]), _effective(columns[2])),
        choices=tuple(choices),
        **follows,
        **behaviour,
        chosen=result,
        head_set=head_set,
        set_reaches=reaches,
        curve=tuple(curve),
        untrained_t=tuple(untrained_t),
        candidates=tuple(
            (head, float(effects[:, c].mean()), float(test.t[c]), float(test.p[c])) for c, head in enumerate(candidates)
        ),
        left_out=items.left_out,
        examples=typical_examples(tested, chosen, judged.heads),
    )


def _planned(n_choosing: int, n_tested: int, n_candidates: int, n_untrained: int) -> float:
    """Returns about how much work a study is, in unedited passes over one text."""
    n_texts = 2 * (n_choosing + n_tested * (1 + n_untrained))
    of_cuts = 2 * n_candidates * EDIT_COST * n_texts
    of_sets = MAX_SET * n_candidates * EDIT_COST * n_choosing
    return n_texts + of_cuts + of_sets


def _n_entities(items: Items, side: int) -> int:
    return len({item.passage.entities[side] for item in items.items} - {""})


def _effective(labels: np.ndarray) -> float:
    """Returns the effective number of clusters, 1 / sum of squared shares."""
    shares = np.unique(labels, return_counts=True)[1] / len(labels)
    return float(1 / (shares**2).sum())


def too_few(question: str, halves: Sequence[Sequence[Item]], left_out: dict[str, dict[str, int]]) -> str:
    """Returns why a question cannot be tested on the choosing and the tested half, with the counts; "" if it can."""
    one, both = ("one person", "a woman and a man") if question == "gender" else ("one thing", "one and several things")
    problems, counts = list[str](), list[str]()
    for kind, name, needed in zip(KINDS, (one, both), (MIN_ONE, MIN_TWO), strict=True):
        of_kind = [[item for item in half if item.passage.kind == kind] for half in halves]
        counts.append(f"{sum(map(len, of_kind))} passages with {name} (needed: {needed})")
        n_documents = min(len({item.passage.doc for item in half}) for half in of_kind)
        if sum(map(len, of_kind)) < needed:
            reasons = sorted(left_out[kind].items(), key=lambda reason: -reason[1])[:1]
            problems += [f"{count:,} with {name} left out: {reason}" for reason, count in reasons] or [""]
        elif n_documents < MIN_CLUSTERS:
            problems.append(f"those with {name}: only {n_documents} documents in one half (needed: {MIN_CLUSTERS})")
    tested = Items(list(halves[1]), Counter())
    n_entities = min(_n_entities(tested, 0), _n_entities(tested, 1))
    if not problems and n_entities < MIN_CLUSTERS:
        problems.append(
            f"only {n_entities} different entities of one class in the tested half (needed: {MIN_CLUSTERS})"
        )
    if not problems:
        return ""
    return "; ".join([f"{QUESTION_NAMES[question]}: {' and '.join(counts)}", *filter(None, problems)])


def follow_twin(tested: Half, head: Head, config: ProbeConfig) -> dict[str, Any]:
    """Returns the measures on passages with one entity: does the margin follow the twin, and what does a head do?"""
    one, sites = tested.one, tested.sites_one
    measured = sites.measure([[head]], ["cut", "interchanged"])
    clean = decision(one.items, measured.clean)  # [N]
    meant_cut, _ = role_cuts(one.items, measured)  # [N, 1]
    moved = (clean - decision(one.items, measured.interchanged)[:, 0]) / 2
    is_right_in_both = (clean > 0) & (measured.clean[:, 0] * measured.clean[:, 1] < 0)
    return {
        "follows_twin": estimate_mean(np.heaviside(clean, 0.5), one.designs(), config),
        "right_in_both": float(is_right_in_both.mean()),
        "head_share_of_one": estimate_ratio(clean - meant_cut[:, 0], clean, one.designs(), config),
        "interchanged": estimate_ratio(moved, clean, one.designs(), config),
    }


def choice(stratum: str, sites: Sequence[Sites], config: ProbeConfig) -> Choice:
    """Returns whom the model picks in the passages of some sites; they have two entities, and at least one is given."""
    items = Items([item for part in sites for item in part.items], Counter())
    clean = np.concatenate([part.clean for part in sites])  # [N, 2]
    is_right = np.heaviside(decision(items.items, clean), 0.5)
    is_wrong = np.array([item.passage.nearest != item.passage.meant for item in items.items])
    where_wrong = Estimate(float("nan"), float("nan"), float("nan"))
    if is_wrong.any():
        designs = items.take(np.flatnonzero(is_wrong)).designs()
        where_wrong = estimate_mean(is_right[is_wrong], designs, config)
    return Choice(
        stratum=stratum,
        n=len(items.items),
        author=estimate_mean(is_right, items.designs(), config),
        nearest=float(1 - is_wrong.mean()),
        n_wrong=int(is_wrong.sum()),
        author_where_wrong=where_wrong,
    )


def author_choice(
    tested: Half, documents: Sequence[tuple[str, str]], question: str, config: ProbeConfig, head: Head
) -> dict[str, Any]:
    """Returns how often the model picks the entity of the author's pronoun, beside the rules."""
    two, clean = tested.two, tested.sites_two.clean  # [N, 2]
    picked = choice("tested", [tested.sites_two], config)

    # The rules; that of the last words is counted in documents that are not tested.
    meant = np.array([item.passage.meant for item in two.items])
    tested_documents = {item.passage.doc for item in two.items}
    ngram = ngram_rule([document for document in documents if document[0] not in tested_documents], question)
    predicted = np.array([ngram(item.passage) for item in two.items])  # 1: the first class
    accuracies = {
        name: float(np.mean([getattr(item.passage, name) == item.passage.meant for item in two.items]))
        for name in ("nearest", "first", "subject")
    }
    accuracies["last words"] = float(np.where(predicted == 0.5, 0.5, predicted == (meant == 0)).mean())

    # Does the head look at the entity that the model prefers?
    weights = tested.sites_two.entity_weights(head)  # [N, 2 texts, 2 classes]
    difference = weights[..., 0] - weights[..., 1]
    is_constant = np.ptp(difference) == 0 or np.ptp(clean) == 0
    correlation = np.nan if is_constant else np.corrcoef(difference.ravel(), clean.ravel())[0, 1]
    return {
        "author_accuracy": picked.author,
        "nearest_accuracy": accuracies["nearest"],
        "rules": accuracies,
        "author_where_nearest_is_wrong": picked.author_where_wrong,
        "n_nearest_is_wrong": picked.n_wrong,
        "weight_correlation": float(correlation),
    }


def test_set(
    tested: Half,
    heads: Sequence[Head],
    follows: Estimate,
    untrained_t: float,
    config: ProbeConfig,
    corrected_p: float | None = None,
) -> SetResult:
    """Tests some heads together on the tested half.

    Without `corrected_p` they are a set, whose p is doubled: it is tested after the head.
    """
    effects = tested.edge_effects([heads])[:, 0]  # [N]
    test = max_t_test(effects[:, None], tested.all.clusterings, 0.0, config.n_bootstrap, config.seed)
    p = min(1.0, 2 * float(test.p[0])) if corrected_p is None else corrected_p
    t = float(test.t[0])

    # Passages with two entities: which edges carry the margin, and does it follow the weights?
    two = tested.two
    measured = tested.sites_two.measure([heads], ["cut", "exchanged", "content_cut"])
    clean = decision(two.items, measured.clean)
    meant, other = role_cuts(two.items, measured)
    content = decision(two.items, measured.content_cut)[:, 0]
    has_content = np.array([all(item.content_word) for item in two.items])
    content = np.where(has_content, content, clean)
    numerator, denominator = exchange_terms(measured)
    size = np.abs(clean)  # of the margin: signed by the author's pronoun, its mean would be near 0 in a weak model
    values: dict[str, Any] = {
        "edge_effect": estimate_mean(effects, tested.all.designs(), config),
        "meant_cut": estimate_ratio(clean - meant[:, 0], size, two.designs(), config),
        "other_cut": estimate_ratio(clean - other[:, 0], size, two.designs(), config),
        "content_cut": estimate_ratio(content - meant[:, 0], size, two.designs(), config),
        "share": estimate_ratio(numerator[:, 0], denominator, two.designs(), config),
        "flips": estimate_mean(flips(measured)[:, 0], two.designs(), config),
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
    choosing: Half, tested: Half, candidates: Sequence[Head], config: ProbeConfig
) -> list[tuple[Head, float, Estimate]]:
    """Adds heads one by one, each time the one that raises the share exchanged most on the choosing half.

    Ends with the smallest set that exchanges MIN_SET_SHARE on the choosing half; else if no head adds to the set, or
    with MAX_SET heads. Returns (head, share on the choosing half, share on the tested half) of each step.
    """
    heads, shares = list[Head](), list[float]()
    while len(heads) < min(MAX_SET, len(candidates)) and max(shares, default=0.0) < MIN_SET_SHARE:
        remaining = [head for head in candidates if head not in heads]
        sets = [[*heads, head] for head in remaining]
        numerator, denominator = exchange_terms(choosing.sites_two.measure(sets, ["exchanged"]))
        if not denominator.any():
            return []  # the model's margin is the same in passage and twin: nothing to exchange
        of_sets = numerator.mean(axis=0) / denominator.mean()
        if of_sets.max() <= max(shares, default=0.0):
            break  # no head adds to the set
        heads.append(remaining[int(of_sets.argmax())])
        shares.append(float(of_sets.max()))
    sets = [heads[: n + 1] for n in range(len(heads))]
    numerator, denominator = exchange_terms(tested.sites_two.measure(sets, ["exchanged"]))
    designs = tested.two.designs()
    estimates = [estimate_ratio(numerator[:, n], denominator, designs, config) for n in range(len(sets))]
    return list(zip(heads, shares, estimates, strict=True))


def typical_examples(tested: Half, head: Head, heads: Sequence[Head], n: int = 3) -> tuple[Example, ...]:
    """Returns tested passages with a typical effect of exchanging the weights of `heads`, and the weights of `head`.

    The candidates are the 20 % of the passages whose share exchanged is nearest to the median. Those with the highest
    probability of a pronoun are returned, because elsewhere another word comes next.
    """
    sites = tested.sites_two
    numerator, denominator = exchange_terms(sites.measure([heads], ["exchanged"]))
    shares = numerator[:, 0] / np.maximum(denominator, np.finfo(float).tiny)
    nearest = np.argsort(np.abs(shares - np.median(shares)), kind="stable")[: max(n, len(shares) // 5)]
    weights = sites.entity_weights(head)  # [N, 2 texts, 2 classes]
    probabilities = sites.probabilities(heads)  # [N, 2 texts, 2 (unedited, exchanged), 2 forms]
    of_pronouns = probabilities[nearest, 0, 0].sum(-1)
    examples = []
    for i in nearest[np.argsort(-of_pronouns, kind="stable")[:n]]:
        passage = sites.items[i].passage
        clean, exchanged = probabilities[i, 0].tolist()
        last_mentions = [passage.text[slice(*group[-1])] for group in passage.mentions]
        examples.append(
            Example(
                text=passage.text,
                forms=passage.forms,
                entities=(last_mentions[0], last_mentions[1]),
                weights=tuple(weights[i, 0].tolist()),
                clean=tuple(clean),
                exchanged=tuple(exchanged),
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
    limit = MAX_PASSAGES["two"] if model.n_layer * model.n_head <= MANY_HEADS else MAX_PASSAGES_LARGE["two"]
    items = make_items(
        passages, "two", tokenizer, start, model.context_length, config.seed, limit, needs_twin=needs_twin
    )
    n_clusters = len({item.passage.doc for item in items.items}), _n_entities(items, 0), _n_entities(items, 1)
    if len(items.items) < MIN_TWO or min(n_clusters) < MIN_CLUSTERS:
        documents, first, second = n_clusters
        return (
            f"{QUESTION_NAMES[question]}: {len(items.items)} passages with one of each class (needed: {MIN_TWO}), of "
            f"{documents} documents, with {first} and {second} different entities (needed: {MIN_CLUSTERS} of each)"
        )
    measured = Sites(model, items.items, config.tokens_per_batch).measure([heads], ["cut"])
    effects = signed_edge_effects(items.items, measured)
    test = max_t_test(effects, items.clusterings, 0.0, config.n_bootstrap, config.seed)
    clean = decision(items.items, measured.clean)
    meant, other = role_cuts(items.items, measured)
    return Confirmation(
        question=QUESTION_NAMES[question],
        heads=tuple(heads),
        n=len(items.items),
        edge_effect=estimate_mean(effects[:, 0], items.designs(), config),
        t=float(test.t[0]),
        p=float(test.p[0]),
        meant_cut=estimate_mean(clean - meant[:, 0], items.designs(), config),
        other_cut=estimate_mean(clean - other[:, 0], items.designs(), config),
        picks_meant=estimate_mean(np.heaviside(clean, 0.5), items.designs(), config),
    )
