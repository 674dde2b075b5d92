"""Questions by attention: does a head attend more to the antecedent, and does the answer depend on it?

For each question a head is chosen on dev, tested once on every part of the test items, and judged on the headline. All
heads of all models are measured once for all questions. Axes: N_b blocks, L layers, H heads per layer.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from data.errors import UserError
from data.own_file import CONTROL
from data.pairs import Items
from model.observe import ObservableModel
from probe.attention import SET, HeadScores, Scores, best_head, measure_heads
from probe.batches import Progress
from probe.behaviour import answer_values
from probe.config import ProbeConfig
from probe.contract import check_contract
from probe.edits import PASS_ERROR, Sets, alone, curve_of, grown, measure_margins, screened
from probe.questions import DEV, HEADLINE, NO_ANTECEDENT, SAME_WORDS, UNDECIDED, Question
from probe.results import Curve, Estimate, Finding, Grid, Head, Part, Shown, Tested, Values
from probe.rules import Rule, fit_rules, score_rules, selectivity
from probe.statistics import estimate_ratios, mean_and_range, sample_of
from probe.verdict import SUPPORTED, exclusions_of, is_enough, judged, unit_of
from probe.weights import head_types

EDIT_ALL = 64  # with more heads than this, edits of all of them take too long:
MAX_EDITED = 32  # only those with the largest difference of attention weights are edited,
N_DEV_PAIRS_MANY = 16  # on so many pairs of dev, at most twice as many
N_DEV_PAIRS = 64  # the same of fewer heads
MAX_CANDIDATES = 16  # for a set: those that move dev most alone
MIN_GAIN = 0.02  # a head that adds less to the joint swap does not share the work
MIN_SHARE_OF_ALL = 0.8  # swap of a set on dev, as a share of that of all heads together
_EDITS = ("swap", "cut_meant", "cut_other", "zero")
_IN_GRIDS = ("accuracy", "block_accuracy", "contrast")


@dataclass(frozen=True)
class _Context:
    """Everything that the questions are answered from."""

    model: ObservableModel
    trained: HeadScores
    untrained: list[HeadScores]  # at dev and the headline
    head_types: dict[str, np.ndarray]  # [L, H] by type
    config: ProbeConfig

    def of(self, question: Question, part: str) -> HeadScores:
        return self.trained.of(question.name, part)


def study_attention(
    model: ObservableModel,
    untrained: Iterable[ObservableModel],
    items: Items,
    questions: Sequence[Question],
    config: ProbeConfig,
    progress: Progress,
) -> tuple[list[Finding], HeadScores, dict[str, float]]:
    """Return the findings, what every head does at every pair, and the instrument's errors.

    `untrained` are models of the same shape, consumed one at a time; each chooses its own best head on dev. UserError
    if the recorded attention is not the attention the model uses, so that nothing may be reported.
    """
    # Every head of every model at all texts; untrained models at dev and the headline only.
    progress("the heads at all texts", 0.0)
    trained = measure_heads(model, items, config.tokens_per_batch)
    names = {question.name for question in questions}
    needed = items.where(lambda pair: pair.question in names and pair.part in (DEV, HEADLINE))
    of_untrained = []
    for number, untrained_model in enumerate(untrained, 1):
        progress("untrained models", number / (1 + config.n_untrained))
        of_untrained.append(measure_heads(untrained_model, needed, config.tokens_per_batch))
    tested = items.where(lambda pair: pair.part != DEV)
    contract = check_contract(model, tested.cells) | _check_undecided(trained)

    # One question after the other
    types = head_types(model, items.cells[0].tokens[0], config.seed)
    context = _Context(model, trained, of_untrained, types, config)
    findings = []
    for number, question in enumerate(questions):
        progress(question.name, number / len(questions))
        findings.append(_study(question, context))
    return findings, trained, contract


def _study(question: Question, context: _Context) -> Finding:
    """Choose the head on dev, test it on every part, edit it, and judge it on the headline."""
    # Choose on dev; the rules are fitted there too.
    config = context.config
    dev = context.of(question, DEV)
    head = best_head(dev.scores())
    rules = fit_rules(dev.items)

    # Test on every part, and all heads on the headline.
    by_part = {}
    for name in context.trained.items.parts(question.name):
        if name != DEV:
            by_part[name] = _score_part(context.of(question, name), head, rules, config)
    tested = context.of(question, HEADLINE)
    scores = tested.scores()
    p_values, smallest_p = _p_values(scores, tested.items, config)

    # Controls, edits and weights of the chosen head on the headline; then what may be claimed.
    of_head = _tested([head], by_part[HEADLINE].values, smallest_p, question, context)

    # Heads may share the work, so that none is supported alone. The set is tested after the head, so its p are doubled.
    curve, of_all = ([], 0.0) if is_enough(of_head) else _curve(dev, tested.items, context)
    of_set = None
    if of_head.verdict != SUPPORTED and len(curve) > 1:
        heads = [added for added, *_ in curve]
        values = _scored(tested.with_set(heads), SET, score_rules(rules, tested.items), config)
        values |= {name: Estimate(min(1.0, 2 * values[name].value)) for name in p_values}
        of_set = _tested(heads, values, 2 * smallest_p, question, context)
    for name, part in by_part.items():
        part.values.update(answer_values(context.model, context.of(question, name).items, config))
    grids: dict[str, Grid] = {name: getattr(scores, name).mean(axis=0).tolist() for name in _IN_GRIDS}
    return Finding(
        **question.words_of_findings,
        unit=unit_of(of_head, of_set, curve, MIN_SHARE_OF_ALL * of_all),
        head=of_head,
        set=of_set,
        curve=curve,
        n=len(tested.items.cells),
        clusters=tested.items.n_clusters(),
        smallest_p=smallest_p,
        untrained=_untrained(question, context),
        rules=by_part[HEADLINE].rules,
        grids=grids | {"p": p_values["p"].tolist()},
        parts=by_part,
        examples=_median_block(tested, head),
    )


def _tested(heads: Sequence[Head], scored: Values, smallest_p: float, question: Question, context: _Context) -> Tested:
    """Return what a head does on the headline, or several together, judged; `scored` are its scores there."""
    # Weights on mentions, controls, edits and matrices
    tested = context.of(question, HEADLINE)
    effects = _effects(heads, tested.items, context)
    values = {**scored, **_mass(heads, question, context), **_beyond_control(heads, question, context), **effects}
    values["selectivity"] = Estimate(_selectivity(heads, question, context))

    # An excluded head excludes the set.
    exclusions = []
    for head in heads:
        types = {name: float(grid[head]) for name, grid in context.head_types.items()}
        contrast = float(tested.scores().contrast[:, *head].mean())
        weighted = float(tested.rows.value_log_ratio[:, *head].mean())
        reasons = exclusions_of(question, types, contrast, weighted)
        exclusions += [f"{head}: {reason}" if len(heads) > 1 else reason for reason in reasons]
    return judged(
        Tested(list(heads), values),
        question,
        exclusions,
        smallest_p=smallest_p,
        n_clusters=min(tested.items.n_clusters().values()),
        answer_is_constant=bool(effects) and "swap" not in effects,
    )


# Scores


def _p_values(scores: Scores, items: Items, config: ProbeConfig) -> tuple[dict[str, np.ndarray], float]:
    """Return p of all columns of scores [N_b, ...], and the smallest p that is possible."""
    # A link must pass both tests: above 1/2 in pair accuracy, above 0 in contrast. Its p is the larger one.
    pairs = sample_of(items, scores.pair_accuracy).test(config, centre=0.5)
    contrasts = sample_of(items, scores.contrast).test(config)
    p_values = {"p_pair_accuracy": pairs.p, "p_contrast": contrasts.p, "p": np.maximum(pairs.p, contrasts.p)}
    return p_values, max(pairs.smallest_p, contrasts.smallest_p)


def _scored(tested: HeadScores, head: Head, of_rules: Mapping[str, Scores], config: ProbeConfig) -> Values:
    """Return the scores of one head, its lead over the best rule, and its p."""
    # Scores of the head by block, [N_b] each, and its lead over the best rule: resampled together.
    scores = tested.scores()
    best_rule = max(of_rules.values(), key=lambda of_rule: of_rule.accuracy.mean())
    by_block = {field.name: getattr(scores, field.name)[:, *head] for field in fields(Scores)}
    by_block["lead"] = by_block["accuracy"] - best_rule.accuracy
    estimates = sample_of(tested.items, np.stack(list(by_block.values()), axis=1)).means(config)
    p_values, _ = _p_values(scores, tested.items, config)
    of_head = {name: Estimate(float(p[head])) for name, p in p_values.items()}
    return dict(zip(by_block, estimates, strict=True)) | of_head


def _score_part(tested: HeadScores, head: Head, rules: Mapping[str, Rule], config: ProbeConfig) -> Part:
    """Return the scores of one head on a part of the items, with those of the rules."""
    of_rules = score_rules(rules, tested.items)
    values = _scored(tested, head, of_rules, config)
    accuracies = sample_of(tested.items, tested.scores().accuracy)
    values["bar"] = Estimate(accuracies.chance_level(config.n_bootstrap, config.seed))
    accuracy_of_rules = {name: float(scores.accuracy.mean()) for name, scores in of_rules.items()}
    return Part(n=len(tested.items.cells), values=values, rules=accuracy_of_rules)


def _untrained(question: Question, context: _Context) -> Values:
    """Return the headline scores of the untrained models' own best dev heads: mean and range."""
    means: dict[str, list[float]] = {"accuracy": [], "block_accuracy": []}
    for untrained in context.untrained:
        head = best_head(untrained.of(question.name, DEV).scores())
        scores = untrained.of(question.name, HEADLINE).scores()
        for name, by_model in means.items():
            by_model.append(float(getattr(scores, name)[:, *head].mean()))
    return {name: mean_and_range(by_model) for name, by_model in means.items()}


def _mass(heads: Sequence[Head], question: Question, context: _Context) -> Values:
    """Return the weight on all mentions, and that without an antecedent relative to it, for the worst of the heads."""
    linked = context.of(question, HEADLINE).rows.mass
    values = {"mass": Estimate(float(np.mean([linked[:, *head].mean() for head in heads])))}
    unlinked = context.trained.of(NO_ANTECEDENT, HEADLINE).rows.mass
    if len(unlinked):
        shares = [float(unlinked[:, *head].mean() / linked[:, *head].mean()) for head in heads]
        values["unlinked_share"] = Estimate(max(shares))
    return values


def _beyond_control(heads: Sequence[Head], question: Question, context: _Context) -> Values:
    """Return how much higher the contrast is than in the texts without the link; empty without such texts."""
    tested, control = (context.of(question, part) for part in (HEADLINE, CONTROL))
    if not control.items.pairs:
        return {}
    head = heads[0]
    if len(heads) > 1:
        head, tested, control = SET, tested.with_set(heads), control.with_set(heads)
    beyond = (tested.scores().contrast - control.scores().contrast)[:, *head]
    return {"beyond_control_text": sample_of(tested.items, beyond).mean(context.config)}


def _selectivity(heads: Sequence[Head], question: Question, context: _Context) -> float:
    """Return how much better the best head is than with random labels, or a set, which these may choose too."""
    dev = context.of(question, DEV)
    test = context.of(question, SAME_WORDS)
    if not test.items.pairs:
        # A file of the user's own has no test items with these words: every second dev block of each pair of words
        names = [" ".join(pair.clusters[1:]) for pair in dev.items.pairs[::2]]
        by_pair = np.argsort(names, kind="stable")
        halves = [2 * np.sort(blocks)[:, None] + np.arange(2) for blocks in (by_pair[::2], by_pair[1::2])]
        dev, test = (dev.take(half.ravel()) for half in halves)
    config = context.config
    if len(heads) == 1:
        return selectivity(dev, test, config.n_controls, config.seed)
    return selectivity(dev.with_set(heads), test.with_set(heads), config.n_controls, config.seed, SET)


# Edits


def _effects(heads: Sequence[Head], items: Items, context: _Context) -> Values:
    """Return what edits of heads take from the answer, as shares of its change; empty without comparable pairs."""
    pairs = items.comparable()
    if not pairs.pairs:
        return {}
    config = context.config
    margins = measure_margins(context.model, pairs, [heads], _EDITS, config.tokens_per_batch)
    values = {"answer": sample_of(pairs, margins.total / 2).mean(config)}
    # If its interval reaches 0, the model treats the texts of a pair alike, and there are no shares.
    if not (values["answer"].low or 0.0) > PASS_ERROR:
        return values
    lost = {name: margins.lost(name)[:, 0] for name in (*_EDITS, "specificity")}
    return values | estimate_ratios(lost, margins.total, pairs, config)


def _curve(dev: HeadScores, tested: Items, context: _Context) -> tuple[Curve, float]:
    """Return heads that were added one by one, with their joint swap on dev and tested, and the swap of all on dev."""
    dev_pairs = dev.items.comparable()
    pairs = tested.comparable()
    if not dev_pairs.pairs or not pairs.pairs:
        return [], 0.0
    differences = dev.rows.weight_difference()
    heads = screened(differences, above=EDIT_ALL, most=MAX_EDITED)
    n_pairs = N_DEV_PAIRS if differences.size <= EDIT_ALL else N_DEV_PAIRS_MANY
    dev_pairs = dev_pairs.take(range(0, len(dev_pairs), max(1, len(dev_pairs) // n_pairs)))

    def swaps(items: Items, sets: Sets) -> tuple[np.ndarray, np.ndarray]:
        margins = measure_margins(context.model, items, sets, ["swap"], context.config.tokens_per_batch)
        return margins.lost("swap"), margins.total

    # Later heads can repair the loss of one, so sets are edited. Candidates: those that move the answer most alone.
    candidates = heads
    if len(heads) > MAX_CANDIDATES:
        moved, _ = swaps(dev_pairs, alone(heads))
        order = np.argsort(-moved.mean(axis=0), kind="stable")[:MAX_CANDIDATES]
        candidates = [heads[i] for i in order]
    steps = grown(lambda sets: swaps(dev_pairs, sets), candidates, least_gain=MIN_GAIN)
    if not steps:
        return [], 0.0
    moved, total = swaps(dev_pairs, [candidates])
    of_all = float(moved.mean() / total.mean())

    return curve_of(steps, lambda sets: swaps(pairs, sets), pairs, context.config), of_all


# For the report, and checks


def _median_block(tested: HeadScores, head: Head) -> list[Shown]:
    """Return the texts of the block of median contrast, so that the example shown is no better than half of all."""
    contrasts = tested.scores().contrast[:, *head]
    middle = int(np.argsort(contrasts, kind="stable")[(len(contrasts) - 1) // 2])
    shown = []
    for pair in tested.items.pairs[2 * middle : 2 * middle + 2]:
        shown += [Shown.of("median", text, cell) for text, cell in zip(pair.texts, pair.cells, strict=True)]
    return shown


def _check_undecided(scores: HeadScores) -> dict[str, float]:
    """Return the largest distance from accuracy 1/2 of any head at each undecided site; UserError if it is not 0."""
    distances = {}
    for question in UNDECIDED:
        for name in scores.items.parts(question):
            accuracy = scores.of(question, name).scores().accuracy.mean(axis=0)  # [L, H]
            distances[question] = float(np.abs(accuracy - 0.5).max())
            if distances[question] > 0:  # the row has read later tokens
                raise UserError(f"no report for this model: {question} is decided before its cue is read")
    return distances
