"""Which head decides the next pronoun? One word before "she" or "he", chosen on half of the documents, tested once.

Each passage of `data.next_pronoun` is compared with its twin, in which every entity has a counterpart of the other
class. So whatever ignores the entities cancels: a model that does not know them follows the twin in half of the
passages. `probe.margins` explains the margin and the edits. With many heads, direct logit attribution (Elhage et al.
2021) ranks them, and only the best are edited. Axes: N passages, C candidate heads.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from tokenizers import Tokenizer

from data.next_pronoun import KINDS, Passage, ngram_rule
from model.observe import ObservableModel
from probe.config import ProbeConfig
from probe.margins import EDIT_COST, Sites, decision, exchange_terms, flips, role_cuts, signed_edge_effects
from probe.passage_items import PassageItem, PassageItems, make_passage_items
from probe.results import (
    NEXT_PRONOUN,
    Choice,
    Confirmation,
    Estimate,
    Head,
    NextPronounResult,
    PassageExample,
    SetResult,
)
from probe.statistics import random_half
from probe.study import HeadTests, Place, Sample, choose_and_test, estimate_mean, estimate_ratio
from probe.verdict import SUPPORTED, decision_criteria, decision_verdict

QUESTION_NAMES = {name: f"{NEXT_PRONOUN}{name}" for name in ("gender", "number")}
SITE = "before_pronoun"
MIN_ONE = 40  # passages with one entity; fewer give no test
MIN_TWO = 40  # the same with two
MAX_PASSAGES = {"one": 300, "two": 300}  # limit for each kind; the others are left out at random
MAX_PASSAGES_LARGE = {"one": 40, "two": 150}  # for a model of more than MANY_HEADS heads, which is slow
MANY_HEADS = 128
MIN_CLUSTERS = 9  # documents and entities of each class in the tested half: with 8 no p is below 2 / 2^8
ALL_HEADS = 32  # with more heads than this,
MAX_CANDIDATES = 8  # only so many are edited
MAX_SET = 6  # heads of a set
MIN_SET_SHARE = 0.8  # share of the margin that a set must exchange
NOT_KNOWN = Estimate(float("nan"), float("nan"), float("nan"))
Progress = Callable[[str, float], None]  # called with the stage and the finished fraction of the study


class Half:
    """The items of one half of the documents, with the unedited pass of a model over them."""

    def __init__(
        self, model: ObservableModel, items: Sequence[PassageItem], tokens_per_batch: int, meter: "Meter"
    ) -> None:
        self.one, self.two = (PassageItems([item for item in items if item.passage.kind == kind]) for kind in KINDS)
        self.all = PassageItems([*self.one.items, *self.two.items])
        self.sites_one = Sites(model, self.one.items, tokens_per_batch, meter.advance)
        self.sites_two = Sites(model, self.two.items, tokens_per_batch, meter.advance)

    def edge_effects(self, sets: Sequence[Sequence[Head]]) -> Sample:
        """Return the signed edge effect of each set of heads on the items of `all`, values [N, C] in nats."""
        of_kinds = []
        for sites in (self.sites_one, self.sites_two):
            of_kinds.append(signed_edge_effects(sites.items, sites.measure(sets, ["cut"])))
        return Sample(np.concatenate(of_kinds), self.all.clusterings, self.all.designs())

    def direct_effects(self) -> np.ndarray:
        """Return the direct effect of each head on the items of `all`, [N, L, H] in nats."""
        return np.concatenate([self.sites_one.direct_effects(), self.sites_two.direct_effects()])


class Meter:
    """Adds up the work of a study and reports which share of it is done."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._stage = ""
        self._done = 0.0
        self.total = float("inf")

    def begin(self, stage: str) -> None:
        self._stage = stage
        self.advance(0)

    def advance(self, amount: float) -> None:
        """Add work that has been done; its unit is the unedited pass over one text."""
        self._done += amount
        self._progress(self._stage, min(1.0, self._done / self.total))


# Items


@dataclass(frozen=True)
class QuestionItems:
    """The items of one question in the tokens of a model; all items of a document or section are in one half."""

    choosing: list[PassageItem]
    tested: list[PassageItem]
    earlier: list[PassageItem]  # two entities and an earlier pronoun, of both halves; none of a large model
    left_out: dict[str, dict[str, int]]  # by kind, how many passages by reason
    problem: str  # why the question cannot be tested, with the counts; "" if it can


def question_items(
    model: ObservableModel,
    tokenizer: Tokenizer,
    bos_id: int,
    question: str,
    passages: Sequence[Passage],
    config: ProbeConfig,
) -> QuestionItems:
    """Return the items of one question; arguments as `study_next_pronoun`."""
    # Passages of either kind, with a twin each.
    limits = _limits(model)
    items = list[PassageItem]()
    left_out = dict[str, dict[str, int]]()
    make = partial(
        make_passage_items,
        passages,
        tokenizer=tokenizer,
        bos_id=bos_id,
        max_tokens=model.context_length,
        seed=config.seed,
    )
    for kind in KINDS:
        made = make(kind=kind, limit=limits[kind])
        items += made.items
        left_out[kind] = dict(made.left_out)

    # A random half of the documents to choose on, the other half to test on.
    documents_of = np.array([item.passage.doc for item in items])
    is_choosing = random_half(documents_of, config.seed) if items else np.zeros(0, dtype=bool)
    choosing = [item for item, is_chosen in zip(items, is_choosing, strict=True) if is_chosen]
    tested = [item for item, is_chosen in zip(items, is_choosing, strict=True) if not is_chosen]
    problem = _too_few(question, (choosing, tested), left_out)
    earlier = list[PassageItem]()
    if not problem and limits is MAX_PASSAGES:
        earlier = make(kind="two", limit=limits["two"], has_earlier=True).items
    return QuestionItems(choosing, tested, earlier, left_out, problem)


def _limits(model: ObservableModel) -> dict[str, int]:
    """Return how many passages of each kind a model is tested on."""
    return MAX_PASSAGES if model.n_layer * model.n_head <= MANY_HEADS else MAX_PASSAGES_LARGE


def _too_few(question: str, halves: Sequence[Sequence[PassageItem]], left_out: dict[str, dict[str, int]]) -> str:
    """Return why a question cannot be tested on the choosing and the tested half, with the counts; "" if it can."""
    one, both = ("one person", "a woman and a man") if question == "gender" else ("one thing", "one and several things")
    problems = list[str]()
    counts = list[str]()

    # Passages of each kind, and documents in each half.
    for kind, name, needed in zip(KINDS, (one, both), (MIN_ONE, MIN_TWO), strict=True):
        n_passages = 0
        n_documents = []
        for half in halves:
            documents = [item.passage.doc for item in half if item.passage.kind == kind]
            n_passages += len(documents)
            n_documents.append(len(set(documents)))
        counts.append(f"{n_passages} passages with {name} (needed: {needed})")
        if n_passages < needed:
            reasons = sorted(left_out[kind].items(), key=lambda reason: -reason[1])[:1]
            problems += [f"{count:,} with {name} left out: {reason}" for reason, count in reasons] or [""]
        elif min(n_documents) < MIN_CLUSTERS:
            fewest = min(n_documents)
            problems.append(f"those with {name}: only {fewest} documents in one half (needed: {MIN_CLUSTERS})")

    # Entities of each class in the tested half.
    tested = PassageItems(list(halves[1]))
    n_entities = min(tested.n_entities(0), tested.n_entities(1))
    if not problems and n_entities < MIN_CLUSTERS:
        problems.append(
            f"only {n_entities} different entities of one class in the tested half (needed: {MIN_CLUSTERS})"
        )
    if not problems:
        return ""
    return "; ".join([f"{QUESTION_NAMES[question]}: {' and '.join(counts)}", *filter(None, problems)])


# The study of one question


def study_next_pronoun(
    model: ObservableModel,
    untrained: Iterable[ObservableModel],
    tokenizer: Tokenizer,
    bos_id: int,
    question: str,
    passages: Sequence[Passage],
    documents: Sequence[tuple[str, str]],
    config: ProbeConfig,
    progress: Progress = lambda stage, share: None,
) -> NextPronounResult | str:
    """Choose the head that decides the next pronoun on half of the documents, and test it on the other half.

    `passages` are those of one question in `documents`, (name, text) each; `bos_id` is the token before every text.
    `untrained` are `config.n_untrained` models of the same shape.

    Returns:
        the result; or a sentence with the counts, if there are too few passages.

    """
    progress("reading passages", 0.0)
    items = question_items(model, tokenizer, bos_id, question, passages, config)
    if items.problem:
        return items.problem
    return study_passage_items(model, untrained, items, question, documents, config, progress)


def study_passage_items(
    model: ObservableModel,
    untrained: Iterable[ObservableModel],
    items: QuestionItems,
    question: str,
    documents: Sequence[tuple[str, str]],
    config: ProbeConfig,
    progress: Progress = lambda stage, share: None,
) -> NextPronounResult | str:
    """Choose a head on one half of the items and test it on the other; arguments and result as above."""
    meter = Meter(progress)
    meter.total = planned_work(model, items, config)

    # All heads, or of many those with the largest direct effect; the largest edge effect is chosen.
    meter.begin("choosing a head")
    choosing = Half(model, items.choosing, config.tokens_per_batch, meter)
    candidates = choose_candidates(model, choosing)
    if not candidates:
        return f"{QUESTION_NAMES[question]}: the direct effects of the heads are not known for this kind of model"
    singles = [[head] for head in candidates]
    effects_of_choosing = choosing.edge_effects(singles)

    # The tested half: every candidate's edges cut, also in untrained models.
    meter.begin("testing")
    tested = Half(model, items.tested, config.tokens_per_batch, meter)
    effects = tested.edge_effects(singles)
    of_untrained = _effects_of(untrained, items.tested, singles, config, meter)
    tests = choose_and_test(effects_of_choosing, effects, largest_mean, of_untrained, config)
    best = tests.chosen[0]
    chosen = candidates[best[0]]

    # Everything else for the chosen head, and for heads that share the work.
    meter.begin("what the head decides")
    one = _follow_twin(tested, chosen, config)
    largest_untrained = max(tests.untrained_t, default=0.0)
    of_head = _measure_set(tested, [chosen], one.follows_twin, largest_untrained, config, float(tests.tested.p[best]))
    meter.begin("sets of heads")
    curve = _grow_set(choosing, tested, candidates, config) if tested.two.items else []
    of_set = None
    if len(curve) > 1:
        grown = [head for head, _, _ in curve]
        of_set = _measure_set(tested, grown, one.follows_twin, largest_untrained, config)
    reaches = bool(curve) and curve[-1][1] >= MIN_SET_SHARE

    # Only a set that reaches its share can take the place of the head.
    judged, unit = of_head, "head"
    if reaches and of_set is not None and of_head.verdict != SUPPORTED and of_set.verdict == SUPPORTED:
        judged, unit = of_set, "set"
    choices = [_whom_it_picks("no earlier pronoun", [choosing.sites_two, tested.sites_two], config)]
    if items.earlier:
        earlier = Sites(model, items.earlier, config.tokens_per_batch)
        choices.append(_whom_it_picks("an earlier pronoun", [earlier], config))
    picked = _whom_it_picks("tested", [tested.sites_two], config)
    rules = _rule_accuracies(tested.two.items, documents, question)
    clusterings = tested.all.clusterings
    return NextPronounResult(
        question=QUESTION_NAMES[question],
        site=SITE,
        layer=chosen.layer,
        head=chosen.head,
        verdict=judged.verdict,
        evidence_level=judged.evidence_level,
        unit=unit,
        p_corrected=judged.p,
        n=len(tested.all.items),
        n_one=len(tested.one.items),
        n_two=len(tested.two.items),
        n_documents=len(set(clusterings[0])),
        n_entities=(tested.all.n_entities(0), tested.all.n_entities(1)),
        effective_clusters=(
            _effective_number(clusterings[0]),
            _effective_number(clusterings[1]),
            _effective_number(clusterings[2]),
        ),
        follows_twin=one.follows_twin,
        right_in_both=one.right_in_both,
        head_share_of_one=one.head_share,
        interchanged=one.interchanged,
        choices=choices,
        author_accuracy=picked.author,
        nearest_accuracy=rules["nearest"],
        rules=rules,
        author_where_nearest_is_wrong=picked.author_where_wrong,
        n_nearest_is_wrong=picked.n_wrong,
        weight_correlation=weight_correlation(tested, chosen),
        chosen=of_head,
        head_set=of_set,
        set_reaches=reaches,
        curve=curve,
        untrained_t=tests.untrained_t,
        candidates=_tested_candidates(candidates, effects, tests),
        left_out=items.left_out,
        examples=_typical_examples(tested, chosen, judged.heads),
    )


def planned_work(model: ObservableModel, items: QuestionItems, config: ProbeConfig) -> float:
    """Return about how much work a study is, in unedited passes over one text; 0 if it cannot be made."""
    if items.problem:
        return 0.0
    n_heads = model.n_layer * model.n_head
    n_candidates = n_heads if n_heads <= ALL_HEADS else MAX_CANDIDATES
    n_choosing, n_tested = len(items.choosing), len(items.tested)
    n_texts = 2 * (n_choosing + n_tested * (1 + config.n_untrained))
    of_cuts = 2 * n_candidates * EDIT_COST * n_texts
    of_sets = MAX_SET * n_candidates * EDIT_COST * n_choosing
    return n_texts + of_cuts + of_sets


def choose_candidates(model: ObservableModel, choosing: Half) -> list[Head]:
    """Return the heads to edit: all, or of many those of the largest direct effect; none if that is not known."""
    heads = [Head(layer, head) for layer in range(model.n_layer) for head in range(model.n_head)]
    if len(heads) <= ALL_HEADS:
        return heads
    direct = np.abs(choosing.direct_effects().mean(axis=0))  # [L, H]
    if not np.isfinite(direct).all():
        return []
    order = np.argsort(-direct.ravel(), kind="stable")[:MAX_CANDIDATES]
    return [heads[i] for i in order]


def largest_mean(sample: Sample) -> list[Place]:
    """Return the candidate with the largest mean."""
    return [(int(sample.values.mean(axis=0).argmax()),)]


def _effects_of(
    models: Iterable[ObservableModel],
    items: Sequence[PassageItem],
    sets: Sequence[Sequence[Head]],
    config: ProbeConfig,
    meter: Meter,
) -> Iterator[Sample]:
    """Yield the edge effects of each untrained model."""
    for number, model in enumerate(models, 1):
        meter.begin(f"untrained model {number}")
        yield Half(model, items, config.tokens_per_batch, meter).edge_effects(sets)


def _tested_candidates(
    candidates: Sequence[Head], effects: Sample, tests: HeadTests
) -> list[tuple[Head, float, float, float]]:
    """Return each candidate with its mean edge effect, t and p on the tested half."""
    rows = []
    for i, head in enumerate(candidates):
        rows.append((head, float(effects.values[:, i].mean()), float(tests.tested.t[i]), float(tests.tested.p[i])))
    return rows


def _effective_number(labels: np.ndarray) -> float:
    """Return the effective number of clusters, 1 / sum of squared shares."""
    shares = np.unique(labels, return_counts=True)[1] / len(labels)
    return float(1 / (shares**2).sum())


# Passages with one entity


@dataclass(frozen=True)
class _OneEntity:
    """What the model and one head do in passages with one entity; fields as in `NextPronounResult`."""

    follows_twin: Estimate
    right_in_both: float
    head_share: Estimate
    interchanged: Estimate


def _follow_twin(tested: Half, head: Head, config: ProbeConfig) -> _OneEntity:
    """Measure whether the margin follows the twin, and what a head does there."""
    one = tested.one
    measured = tested.sites_one.measure([[head]], ["cut", "interchanged"])
    clean = decision(one.items, measured.clean)  # [N]
    meant_cut, _ = role_cuts(one.items, measured)  # [N, 1]
    moved = (clean - decision(one.items, measured.interchanged)[:, 0]) / 2
    changes_sides = measured.clean[:, 0] * measured.clean[:, 1] < 0
    is_right_in_both = (clean > 0) & changes_sides
    designs = one.designs()
    return _OneEntity(
        follows_twin=estimate_mean(np.heaviside(clean, 0.5), designs, config),
        right_in_both=float(is_right_in_both.mean()),
        head_share=estimate_ratio(clean - meant_cut[:, 0], clean, designs, config),
        interchanged=estimate_ratio(moved, clean, designs, config),
    )


# Passages with two entities: whom does the model pick?


def _whom_it_picks(stratum: str, sites: Sequence[Sites], config: ProbeConfig) -> Choice:
    """Return whom the model picks in the passages of some sites; they have two entities, and at least one is given."""
    items = PassageItems([item for part in sites for item in part.items])
    clean = np.concatenate([part.clean for part in sites])  # [N, 2]
    is_right = np.heaviside(decision(items.items, clean), 0.5)
    is_wrong = np.array([item.passage.nearest != item.passage.meant for item in items.items])
    where_wrong = NOT_KNOWN
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


def _rule_accuracies(
    items: Sequence[PassageItem], documents: Sequence[tuple[str, str]], question: str
) -> dict[str, float]:
    """Return how often simple rules pick the author's entity; "last words" is counted in the other documents."""
    accuracies = {}
    for name in ("nearest", "first", "subject"):
        is_right = [getattr(item.passage, name) == item.passage.meant for item in items]
        accuracies[name] = float(np.mean(is_right))
    tested_documents = {item.passage.doc for item in items}
    ngram = ngram_rule([document for document in documents if document[0] not in tested_documents], question)
    predicted = np.array([ngram(item.passage) for item in items])  # 1: the first class, 1/2: undecided
    meant = np.array([item.passage.meant for item in items])
    accuracies["last words"] = float(np.where(predicted == 0.5, 0.5, predicted == (meant == 0)).mean())
    return accuracies


def weight_correlation(tested: Half, head: Head) -> float:
    """Return the correlation between a head's difference of attention and the margin; nan if either is constant."""
    weights = tested.sites_two.entity_weights(head)  # [N, 2 texts, 2 classes]
    difference = weights[..., 0] - weights[..., 1]
    clean = tested.sites_two.clean  # [N, 2 texts]
    if np.ptp(difference) == 0 or np.ptp(clean) == 0:
        return float("nan")
    return float(np.corrcoef(difference.ravel(), clean.ravel())[0, 1])


# Heads, alone and together


def _measure_set(
    tested: Half,
    heads: Sequence[Head],
    follows: Estimate,
    untrained_t: float,
    config: ProbeConfig,
    corrected_p: float | None = None,
) -> SetResult:
    """Test some heads together on the tested half.

    Without `corrected_p` they are a set, whose p is doubled: it is tested after the head.
    """
    # Cutting the edges to the entities, in all passages.
    effects = tested.edge_effects([heads])
    test = effects.test(config)
    p = min(1.0, 2 * float(test.p[0])) if corrected_p is None else corrected_p
    t = float(test.t[0])

    # Passages with two entities: which edges carry the margin, and does it follow the weights?
    two = tested.two
    measured = tested.sites_two.measure([heads], ["cut", "exchanged", "content_cut"])
    clean = decision(two.items, measured.clean)  # [N]
    meant, other = role_cuts(two.items, measured)  # [N, 1] each
    has_content = np.array([all(item.content_word) for item in two.items])
    content = np.where(has_content, decision(two.items, measured.content_cut)[:, 0], clean)
    moved, total = exchange_terms(measured)  # [N, 1], [N]

    # Shares of the size of the margin: signed by the author's pronoun, its mean would be near 0 in a weak model.
    size = np.abs(clean)
    designs = two.designs()
    meant_cut = estimate_ratio(clean - meant[:, 0], size, designs, config)
    other_cut = estimate_ratio(clean - other[:, 0], size, designs, config)
    content_cut = estimate_ratio(content - meant[:, 0], size, designs, config)
    share = estimate_ratio(moved[:, 0], total, designs, config)
    shares = {"meant_cut": meant_cut, "other_cut": other_cut, "content_cut": content_cut, "share": share}
    criteria = decision_criteria(follows, p, t, untrained_t, **shares)
    level, verdict = decision_verdict(criteria)
    return SetResult(
        heads=list(heads),
        edge_effect=estimate_mean(effects.values[:, 0], effects.designs, config),
        p=p,
        t=t,
        **shares,
        flips=estimate_mean(flips(measured)[:, 0], designs, config),
        verdict=verdict,
        evidence_level=level,
        criteria=criteria,
    )


def _grow_set(
    choosing: Half, tested: Half, candidates: Sequence[Head], config: ProbeConfig
) -> list[tuple[Head, float, Estimate]]:
    """Add heads one by one, each time the one that raises the share exchanged most on the choosing half.

    Ends with the smallest set that exchanges MIN_SET_SHARE on the choosing half; else if no head adds to the set, or
    with MAX_SET heads. Returns (head, share on the choosing half, share on the tested half) of each step.
    """
    heads = list[Head]()
    shares = list[float]()
    while len(heads) < min(MAX_SET, len(candidates)) and max(shares, default=0.0) < MIN_SET_SHARE:
        remaining = [head for head in candidates if head not in heads]
        sets = [[*heads, head] for head in remaining]
        moved, total = exchange_terms(choosing.sites_two.measure(sets, ["exchanged"]))  # [N, C], [N]
        if not total.any():
            return []  # the model's margin is the same in passage and twin: nothing to exchange
        of_sets = moved.mean(axis=0) / total.mean()
        if of_sets.max() <= max(shares, default=0.0):
            break  # no head adds to the set
        heads.append(remaining[int(of_sets.argmax())])
        shares.append(float(of_sets.max()))

    # Every step once on the tested half.
    sets = [heads[: n + 1] for n in range(len(heads))]
    moved, total = exchange_terms(tested.sites_two.measure(sets, ["exchanged"]))
    designs = tested.two.designs()
    curve = []
    for n, (head, share) in enumerate(zip(heads, shares, strict=True)):
        curve.append((head, share, estimate_ratio(moved[:, n], total, designs, config)))
    return curve


def _typical_examples(tested: Half, head: Head, heads: Sequence[Head], n: int = 3) -> list[PassageExample]:
    """Return tested passages with a typical effect of exchanging the weights of `heads`, and the weights of `head`.

    The candidates are the 20 % of the passages whose share exchanged is nearest to the median. Those with the highest
    probability of a pronoun are returned, because elsewhere another word comes next.
    """
    # Passages near the median share.
    sites = tested.sites_two
    moved, total = exchange_terms(sites.measure([heads], ["exchanged"]))
    shares = moved[:, 0] / np.maximum(total, np.finfo(float).tiny)
    distance = np.abs(shares - np.median(shares))
    nearest = np.argsort(distance, kind="stable")[: max(n, len(shares) // 5)]

    # Among them, the ones where a pronoun is likely.
    weights = sites.entity_weights(head)  # [N, 2 texts, 2 classes]
    probabilities = sites.probabilities(heads)  # [N, 2 texts, 2 (unedited, exchanged), 2 forms]
    of_pronouns = probabilities[nearest, 0, 0].sum(-1)
    examples = []
    for i in nearest[np.argsort(-of_pronouns, kind="stable")[:n]]:
        passage = sites.items[i].passage
        clean, exchanged = probabilities[i, 0].tolist()
        last_mentions = [passage.text[slice(*group[-1])] for group in passage.mentions]
        examples.append(
            PassageExample(
                text=passage.text,
                forms=passage.forms,
                entities=(last_mentions[0], last_mentions[1]),
                weights=tuple(weights[i, 0].tolist()),
                clean=tuple(clean),
                exchanged=tuple(exchanged),
            )
        )
    return examples


# A head chosen elsewhere


def confirm_decision(
    model: ObservableModel,
    tokenizer: Tokenizer,
    bos_id: int,
    question: str,
    passages: Sequence[Passage],
    heads: Sequence[Head],
    config: ProbeConfig,
) -> Confirmation | str:
    """Test a head or a set on all passages with two entities; a sentence with the counts if there are too few."""
    # Enough passages?
    items = make_passage_items(
        passages,
        "two",
        tokenizer=tokenizer,
        bos_id=bos_id,
        max_tokens=model.context_length,
        seed=config.seed,
        limit=_limits(model)["two"],
    )
    n_documents = len({item.passage.doc for item in items.items})
    n_entities = items.n_entities(0), items.n_entities(1)
    if len(items.items) < MIN_TWO or min(n_documents, *n_entities) < MIN_CLUSTERS:
        return (
            f"{QUESTION_NAMES[question]}: {len(items.items)} passages with one of each class (needed: {MIN_TWO}), of "
            f"{n_documents} documents, with {n_entities[0]} and {n_entities[1]} different entities "
            f"(needed: {MIN_CLUSTERS} of each)"
        )

    # One test of the edges, and what the model picks.
    measured = Sites(model, items.items, config.tokens_per_batch).measure([heads], ["cut"])
    designs = items.designs()
    effects = Sample(signed_edge_effects(items.items, measured), items.clusterings, designs)
    test = effects.test(config)
    clean = decision(items.items, measured.clean)  # [N]
    meant, other = role_cuts(items.items, measured)  # [N, 1] each
    return Confirmation(
        question=QUESTION_NAMES[question],
        heads=list(heads),
        n=len(items.items),
        edge_effect=estimate_mean(effects.values[:, 0], designs, config),
        t=float(test.t[0]),
        p=float(test.p[0]),
        meant_cut=estimate_mean(clean - meant[:, 0], designs, config),
        other_cut=estimate_mean(clean - other[:, 0], designs, config),
        picks_meant=estimate_mean(np.heaviside(clean, 0.5), designs, config),
    )
