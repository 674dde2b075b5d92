"""Links: does a head attend more to the antecedent than to the distractor, and does the answer depend on it?

For each question a head is chosen on dev, tested once on every hold-out, and judged on the headline. The items are the
stories or blocks of sentences in English.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data.errors import UserError
from data.links import LinkItem, Word, is_flipped
from model.observe import ObservableModel
from probe.baselines import Rule, best_baseline, fit_rules, score_rules, selectivity
from probe.behaviour import behaviour_study
from probe.causal import causal_study
from probe.config import ProbeConfig
from probe.contract import check_contract
from probe.head_sets import joint_specificity, smallest_set
from probe.items import EMPTY, HEADLINE, QUESTIONS, UNDECIDED, Question, questions_with_items
from probe.results import (
    AttentionResult,
    BehaviourResult,
    BestBaseline,
    ContractResult,
    DevScores,
    Head,
    HeadSet,
    HeadTable,
    HeadType,
    HoldoutResult,
    MedianBlock,
    MentionMass,
    QuestionResult,
    RuleScores,
    SetScores,
    ShownSentence,
    UntrainedScores,
)
from probe.scores import (
    HeadRows,
    Scores,
    best_head,
    check_blocks,
    joint_log_ratio,
    measure_heads,
    score,
    score_heads,
)
from probe.statistics import (
    CLUSTERINGS,
    MaxT,
    chance_level,
    count_clusters,
    mean_interval,
    similar_heads,
    story_clusters,
    story_designs,
)
from probe.study import Sample
from probe.verdict import SUPPORTED, Evidence, judged, judged_set
from probe.weights import entropies, head_types, score_asymmetry, weights_study

_SHOWN_SCORES = ("accuracy", "block_accuracy", "pronoun_contrast")


@dataclass(frozen=True)
class HeadScores:
    """What every head of a model does on some items, by question and hold-out."""

    items: Sequence[LinkItem]
    rows: HeadRows

    @cached_property
    def _groups(self) -> dict[tuple[str, str, str, str], list[int]]:
        """Indices of the items by family, site, level and hold-out."""
        groups = defaultdict(list)
        for i, item in enumerate(self.items):
            groups[item.family, item.site, item.level, item.holdout].append(i)
        return dict(groups)

    def holdouts(self, question: Question) -> list[str]:
        """Return the hold-outs of a question, in the order of the items."""
        names: dict[str, None] = {}
        for index in self._groups.values():
            first = self.items[index[0]]
            if question.matches(first):
                names[first.holdout] = None
        return list(names)

    def index(self, question: Question, holdout: str) -> np.ndarray:
        """Return the indices of the items of a question and hold-out."""
        found: list[int] = []
        for level in question.levels:
            found += self._groups.get((question.family, question.site, level, holdout), [])
        return np.array(sorted(found), dtype=int)

    def select(self, question: Question, holdout: str) -> tuple[list[LinkItem], HeadRows]:
        """Return the items of a question and hold-out, and their rows."""
        index = self.index(question, holdout)
        return [self.items[i] for i in index], self.rows.take(index)

    def scores(self, question: Question, holdout: str) -> Scores:
        """Return the scores of every head [N_b, L, H]; ValueError unless the items are whole blocks."""
        items, rows = self.select(question, holdout)
        check_blocks(items)
        return score_heads(rows)


@dataclass(frozen=True)
class _LinkContext:
    """Everything that a question about links is answered from."""

    model: ObservableModel
    dev: HeadScores
    test: HeadScores
    untrained: list[tuple[HeadScores, HeadScores]]  # for each untrained model: dev and headline
    head_types: dict[str, np.ndarray]  # [L, H] by type
    config: ProbeConfig

    @property
    def resampling(self) -> tuple[int, int]:
        """The number of resamplings and their seed."""
        return self.config.n_bootstrap, self.config.seed

    @property
    def sizes(self) -> dict[str, int]:
        """The settings of the causal tests."""
        return {name: getattr(self.config, name) for name in ("tokens_per_batch", "n_bootstrap", "seed")}


@dataclass(frozen=True)
class LinkStudy:
    """All results about links, and what every head does at every item."""

    contract: ContractResult
    attention: AttentionResult
    behaviour: list[BehaviourResult]
    selected: list[QuestionResult]
    dev: HeadScores
    test: HeadScores


def study_links(
    model: ObservableModel,
    untrained: Iterable[ObservableModel],
    dev: Sequence[LinkItem],
    test: Sequence[LinkItem],
    config: ProbeConfig,
    progress: Callable[[str, float], None] = lambda question, share: None,
    questions: Sequence[Question] = QUESTIONS,
) -> LinkStudy:
    """Study all of the `questions` that have items, with `model` in float32.

    Heads are chosen on the items of `dev` in the hold-out "iid" and tested on those of `test`, once. Each of the
    `untrained` models of the same shape chooses its own best head on dev; they are consumed one at a time. `progress`
    is called with each stage and its finished share: first reading the texts, then the questions.

    Raises:
        UserError: the recorded attention is not the attention the model uses, so nothing may be reported.

    """
    # With few frames a question may lack items in one of the two parts; then it is left out.
    questions = questions_with_items(questions, [item for item in dev if item.holdout == "iid"])
    questions = questions_with_items(questions, [item for item in test if item.holdout == HEADLINE])
    context = make_context(model, untrained, questions, dev, test, config, progress)
    violations = check_contract(model, context.test.items)

    # One question after the other.
    selected: list[QuestionResult] = []
    for number, question in enumerate(questions):
        progress(question.name, number / len(questions))
        selected.append(study_link(question, context))

    # What does not depend on a question.
    texts = _texts_of_one_length(context.test.items)
    asymmetry = score_asymmetry(model)
    return LinkStudy(
        contract=ContractResult(**violations, undecided=check_undecided(context.test)),
        attention=AttentionResult(
            entropy=entropies(model, texts).tolist(),
            score_asymmetry=None if asymmetry is None else asymmetry.tolist(),
        ),
        behaviour=behaviour_study(model, test, config),
        selected=selected,
        dev=context.dev,
        test=context.test,
    )


def make_context(
    model: ObservableModel,
    untrained: Iterable[ObservableModel],
    questions: Sequence[Question],
    dev: Sequence[LinkItem],
    test: Sequence[LinkItem],
    config: ProbeConfig,
    progress: Callable[[str, float], None] = lambda stage, share: None,
) -> _LinkContext:
    """Measure every head of every model at the items of the questions; untrained models on dev and the headline."""

    def matching(items: Sequence[LinkItem], wanted: Sequence[Question], *holdouts: str) -> list[LinkItem]:
        in_holdouts = [item for item in items if not holdouts or item.holdout in holdouts]
        return [item for item in in_holdouts if any(question.matches(item) for question in wanted)]

    # The trained model reads every hold-out, and the sites at which nothing is decided yet.
    dev_items = matching(dev, questions, "iid")
    test_items = matching(test, (*questions, EMPTY))
    test_items += without_bystanders(matching(test, UNDECIDED, "iid"))
    headline_items = matching(test, questions, HEADLINE)

    def measure(of_model: ObservableModel, items: Sequence[LinkItem]) -> HeadScores:
        return HeadScores(items, measure_heads(of_model, items, config.tokens_per_batch))

    progress("the heads at all texts", 0.0)
    dev_scores = measure(model, dev_items)
    test_scores = measure(model, test_items)
    of_untrained = []
    for number, other in enumerate(untrained, 1):
        progress("untrained models", number / (1 + config.n_untrained))
        of_untrained.append((measure(other, dev_items), measure(other, headline_items)))
    return _LinkContext(
        model=model,
        dev=dev_scores,
        test=test_scores,
        untrained=of_untrained,
        head_types=head_types(model, dev[0].tokens[0], config.seed),
        config=config,
    )


def study_link(question: Question, context: _LinkContext) -> QuestionResult:
    """Choose the head on dev, test it on every hold-out, run the causal tests, and judge it on the headline."""
    # Choose on dev; the rules are fitted there too.
    dev_items, dev_rows = context.dev.select(question, "iid")
    dev_scores = context.dev.scores(question, "iid")
    place = Head(*best_head(dev_scores))
    rules = fit_rules(dev_items)

    # Test on every hold-out, and all heads on the headline.
    holdouts: dict[str, HoldoutResult] = {}
    for holdout in context.test.holdouts(question):
        holdouts[holdout], table = _score_holdout(question, holdout, context, place, rules)
        if holdout == HEADLINE:
            heads = table

    # Controls and causal tests of the chosen head on the headline.
    items, rows = context.test.select(question, HEADLINE)
    contrasts = context.test.scores(question, HEADLINE).pronoun_contrast
    unlinked = context.test.select(EMPTY, HEADLINE)[1].mass
    types = {name: float(values[place]) for name, values in context.head_types.items()}
    model, sizes = context.model, context.sizes
    head_set = None
    if question.watched:
        head_set = smallest_set(model, dev_items, items, dev_rows.weight_difference(), **sizes)
    result = judged(
        QuestionResult(
            question=question.name,
            family=question.family,
            site=question.site,
            layer=place.layer,
            head=place.head,
            dev=DevScores(**{name: float(getattr(dev_scores, name)[:, *place].mean()) for name in _SHOWN_SCORES}),
            test=holdouts,
            heads=heads,
            similar=similar_heads(contrasts, place),
            median=_median_block(question, context, place),
            selectivity=_selectivity(question, context),
            head_type=HeadType(**types),
            mass=MentionMass(
                linked=float(rows.mass[:, *place].mean()),
                unlinked=float(unlinked[:, *place].mean()) if len(unlinked) else None,
            ),
            causal=causal_study(model, items, *place, **sizes),
            head_set=head_set,
            weights=weights_study(model, items, *place, seed=context.config.seed),
            unit="head",
            verdict="",
            evidence_level="",
            reasons=[],
            criteria=[],
            own=question.own,
        )
    )

    # Heads may share the work, so that none is supported alone.
    found = result.head_set
    if result.verdict == SUPPORTED or found is None or len(found.heads) == 1:
        return result
    return judged(replace(result, head_set=_tested_set(result, found, question, context, rules)))


def _tested_set(
    result: QuestionResult, found: HeadSet, question: Question, context: _LinkContext, rules: Mapping[str, Rule]
) -> HeadSet:
    """Return a set of two heads or more with its scores and its verdict; `result` is that of the chosen head."""
    items, rows = context.test.select(question, HEADLINE)

    # The set is one more column, whose weights are the sum of its heads' weights: [N_b, heads + 1].
    ratio = joint_log_ratio(rows, found.heads)
    scores = score(ratio, ratio, (ratio > 0).astype(float))
    of_heads = score_heads(rows)
    clusters = story_clusters(items[::4])
    clusterings = [clusters[name] for name in CLUSTERINGS]
    designs = story_designs(clusters)

    def test(name: str, centre: float) -> MaxT:
        columns = [getattr(of_heads, name).reshape(len(clusterings[0]), -1), getattr(scores, name)[:, None]]
        return Sample(np.hstack(columns), clusterings, designs).test(context.config, centre=centre)

    # Doubled, because the set is tested after the head.
    pairs = test("pair_accuracy", 0.5)
    contrasts = test("pronoun_contrast", 0.0)
    p_pair = min(1.0, 2 * float(pairs.p[-1]))
    p_contrast = min(1.0, 2 * float(contrasts.p[-1]))

    # Means and intervals, and the lead over the best rule: resampled together.
    rule_scores = score_rules(rules, items)
    lead = scores.accuracy - rule_scores[best_baseline(rule_scores)].accuracy
    columns = np.stack([scores.accuracy, scores.block_accuracy, scores.pronoun_contrast, lead], axis=1)
    accuracy, block_accuracy, contrast, lead_interval = mean_interval(columns, designs, *context.resampling).T.tolist()

    # The control with random labels may choose any head, or the set: columns as above, [N, 1, heads + 1].
    (chosen_on, chosen_rows), (scored_on, scored_rows) = _same_words(question, context)
    margins = []
    for part in (chosen_rows, scored_rows):
        of_set = joint_log_ratio(part, found.heads)[:, None]
        margins.append(np.hstack([part.attention_margin.reshape(len(of_set), -1), of_set])[:, None])
    set_column = Head(0, margins[0].shape[-1] - 1)
    config = context.config

    # At pronouns without an antecedent every head of the set has to rest.
    unlinked = context.test.select(EMPTY, HEADLINE)[1].mass
    shares = []
    if len(unlinked):
        shares = [float(unlinked[:, *head].mean() / rows.mass[:, *head].mean()) for head in found.heads]
    specificity, specificity_interval = joint_specificity(context.model, items, found.heads, **context.sizes)
    set_scores = SetScores(
        accuracy=float(scores.accuracy.mean()),
        accuracy_interval=tuple(accuracy),
        block_accuracy=float(scores.block_accuracy.mean()),
        block_accuracy_interval=tuple(block_accuracy),
        pronoun_contrast=float(scores.pronoun_contrast.mean()),
        pronoun_contrast_interval=tuple(contrast),
        lead_interval=tuple(lead_interval),
        p_pair_accuracy=p_pair,
        p_pronoun_contrast=p_contrast,
        p_corrected=max(p_pair, p_contrast),
        smallest_p=2 * max(pairs.smallest_p, contrasts.smallest_p),
        selectivity=selectivity(
            chosen_on, margins[0], scored_on, margins[1], config.n_controls, config.seed, set_column
        ),
        unlinked_share=max(shares, default=None),
        edge_specificity=specificity,
        edge_specificity_interval=specificity_interval,
    )
    members = [_member_evidence(context, rows, of_heads, head) for head in found.heads]
    is_constant = result.causal is not None and result.causal.attention_swap is None
    return judged_set(
        replace(found, scores=set_scores),
        members,
        count_clusters(clusters),
        answer_is_constant=is_constant,
        must_rest=question.own is None or "rests_without_antecedent" not in question.own.guards_off,
    )


def _member_evidence(context: _LinkContext, rows: HeadRows, scores: Scores, head: Head) -> Evidence:
    """Return what can exclude one head of a set from any claim; `rows` and `scores` are those of the headline."""
    return Evidence(
        previous=float(context.head_types["previous"][head]),
        induction=float(context.head_types["induction"][head]),
        pronoun_contrast=float(scores.pronoun_contrast[:, *head].mean()),
        value_weighted_contrast=float(rows.value_log_ratio[:, *head].mean()),
    )


def _score_holdout(
    question: Question, holdout: str, context: _LinkContext, place: Head, rules: Mapping[str, Rule]
) -> tuple[HoldoutResult, HeadTable]:
    """Return the scores of one head on a hold-out, and the scores and p of all heads."""
    items, rows = context.test.select(question, holdout)
    scores = score_heads(rows)
    clusters = story_clusters(items[::4])
    clusterings = [clusters[name] for name in CLUSTERINGS]
    designs = story_designs(clusters)

    # A link must pass both tests: above 1/2 in pair accuracy, above 0 in contrast.
    pairs = Sample(scores.pair_accuracy, clusterings, designs).test(context.config, centre=0.5)
    contrasts = Sample(scores.pronoun_contrast, clusterings, designs).test(context.config)
    p_pair = float(pairs.p[place])
    p_contrast = float(contrasts.p[place])
    flipped = np.array([is_flipped(item) for item in items])
    result = HoldoutResult(
        n_items=len(items),
        clusters=count_clusters(clusters),
        **_head_and_rules(scores, items, place, rules, context),
        chance_level=chance_level(scores.accuracy, clusterings, 0.5, *context.resampling),
        accuracy_flipped=float(np.heaviside(rows.attention_margin[flipped][:, *place], 0.5).mean()),
        value_weighted_contrast=float(rows.value_log_ratio[:, *place].mean()),
        p_pair_accuracy=p_pair,
        p_pronoun_contrast=p_contrast,
        p_corrected=max(p_pair, p_contrast),
        smallest_p=max(pairs.smallest_p, contrasts.smallest_p),
        untrained=_untrained(question, context) if context.untrained and holdout == HEADLINE else None,
    )
    table = HeadTable(
        **{name: getattr(scores, name).mean(axis=0).tolist() for name in _SHOWN_SCORES},
        p_pair_accuracy=pairs.p.tolist(),
        p_pronoun_contrast=contrasts.p.tolist(),
    )
    return result, table


def _head_and_rules(
    scores: Scores, items: Sequence[LinkItem], place: Head, rules: Mapping[str, Rule], context: _LinkContext
) -> dict[str, Any]:
    """Return the fields of `HoldoutResult` about a head's scores, those of the rules, and its lead over the best."""
    rule_scores = score_rules(rules, items)
    best = best_baseline(rule_scores)

    # Scores of the head by block, [N_b] each, and its lead over the best rule: resampled together.
    values = {field.name: getattr(scores, field.name)[:, *place] for field in fields(Scores)}
    lead = values["accuracy"] - rule_scores[best].accuracy
    columns = np.stack([*values.values(), lead], axis=1)
    designs = story_designs(story_clusters(items[::4]))
    *intervals, lead_interval = mean_interval(columns, designs, *context.resampling).T.tolist()

    result: dict[str, Any] = {}
    for (name, value), interval in zip(values.items(), intervals, strict=True):
        result[name] = float(value.mean())
        result[f"{name}_interval"] = tuple(interval)
    baselines = {}
    for rule, of_rule in rule_scores.items():
        baselines[rule] = RuleScores(
            accuracy=float(of_rule.accuracy.mean()),
            pair_accuracy=float(of_rule.pair_accuracy.mean()),
            block_accuracy=float(of_rule.block_accuracy.mean()),
        )
    result["baselines"] = baselines
    result["best_baseline"] = BestBaseline(best, baselines[best].accuracy, tuple(lead_interval))
    return result


def _untrained(question: Question, context: _LinkContext) -> UntrainedScores:
    """Return the headline scores of the untrained models' own best dev heads: mean, interval over models, range."""
    results = []
    for dev, test in context.untrained:
        place = best_head(dev.scores(question, "iid"))
        scores = test.scores(question, HEADLINE)
        results.append((scores.accuracy[:, *place].mean(), scores.block_accuracy[:, *place].mean()))
    accuracy, block_accuracy = np.array(results).T
    designs = [(np.arange(len(accuracy)),)]
    low, high = mean_interval(accuracy, designs, *context.resampling).tolist()
    return UntrainedScores(
        n_models=len(accuracy),
        accuracy=float(accuracy.mean()),
        accuracy_interval=(low, high),
        accuracy_range=(float(accuracy.min()), float(accuracy.max())),
        block_accuracy=float(block_accuracy.mean()),
        block_accuracy_range=(float(block_accuracy.min()), float(block_accuracy.max())),
    )


def _median_block(question: Question, context: _LinkContext, place: Head) -> MedianBlock:
    """Return the headline block of median pronoun contrast, so that the example shown is no better than half of all."""
    values = context.test.scores(question, HEADLINE).pronoun_contrast[:, *place]
    middle = int(np.argsort(values, kind="stable")[(len(values) - 1) // 2])
    items = context.test.select(question, HEADLINE)[0][4 * middle : 4 * middle + 4]
    sentences = []
    for item in items:
        antecedents = [list(word) for word in item.antecedents]
        distractors = [list(word) for word in item.distractors]
        sentences.append(ShownSentence(item.text, item.query, antecedents, distractors))
    return MedianBlock(
        holdout=HEADLINE,
        block=items[0].block,
        pronoun_contrast=float(values[middle]),
        n_blocks=len(values),
        sentences=sentences,
    )


def _selectivity(question: Question, context: _LinkContext) -> float:
    """Return how much better the best head is than with random labels."""
    (chosen_on, chosen_rows), (scored_on, scored_rows) = _same_words(question, context)
    margins = chosen_rows.attention_margin, scored_rows.attention_margin
    config = context.config
    return selectivity(chosen_on, margins[0], scored_on, margins[1], config.n_controls, config.seed)


def _same_words(
    question: Question, context: _LinkContext
) -> tuple[tuple[list[LinkItem], HeadRows], tuple[list[LinkItem], HeadRows]]:
    """Return the items on which the control task chooses a head and those on which it scores it: the same words.

    A file of the user's own has no test items with the words of dev, so every second dev block of each pair is scored.
    """
    items, rows = context.dev.select(question, "iid")
    if "iid" in context.test.holdouts(question):
        return (items, rows), context.test.select(question, "iid")
    by_pair = np.argsort([item.pair for item in items[::4]], kind="stable")
    choosing, scoring = (
        np.sort(4 * blocks[:, None] + np.arange(4), axis=None) for blocks in (by_pair[::2], by_pair[1::2])
    )
    return ([items[i] for i in choosing], rows.take(choosing)), ([items[i] for i in scoring], rows.take(scoring))


def without_bystanders(items: Sequence[LinkItem]) -> list[LinkItem]:
    """Return the items without distractors that no cell of the same block and order means.

    At undecided sites a head that prefers such a distractor is wrong in both cells, so its accuracy would fall below
    1/2 although it has read nothing.
    """
    meant: dict[tuple[str, int, int], set[Word]] = defaultdict(set)
    for item in items:
        meant[item.site, item.block, item.order].update(item.antecedents)
    reduced = []
    for item in items:
        words = meant[item.site, item.block, item.order]
        distractors = tuple(word for word in item.distractors if word in words)
        reduced.append(replace(item, distractors=distractors))
    return reduced


def check_undecided(scores: HeadScores) -> dict[str, float]:
    """Return the largest distance from accuracy 1/2 of any head at each undecided site: exactly 0.

    Raises:
        UserError: the distance is not 0, so the row has read later tokens.

    """
    distances = {}
    for question in questions_with_items(UNDECIDED, scores.items):
        for holdout in scores.holdouts(question):
            accuracy = scores.scores(question, holdout).accuracy.mean(axis=0)  # [L, H]
            distance = float(np.abs(accuracy - 0.5).max())
            if distance > 0:
                raise UserError(f"no report for this model: {question.name} is decided before its cue is read")
            distances[question.name] = distance
    return distances


def _texts_of_one_length(items: Sequence[LinkItem], n_texts: int = 256) -> Tensor:
    """Return up to `n_texts` different, evenly spaced texts [B, T] of the most common length."""
    by_length: dict[int, dict[tuple[int, ...], None]] = defaultdict(dict)
    for item in items:
        by_length[len(item.tokens)][tuple(item.tokens)] = None
    most_common = max(by_length, key=lambda length: len(by_length[length]))
    texts = list(by_length[most_common])
    step = max(1, len(texts) // n_texts)
    return torch.tensor(texts[::step][:n_texts])
