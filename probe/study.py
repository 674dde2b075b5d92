"""The probe: choose a head for each question on dev, test it once on every hold-out, and judge it on the headline."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data.links import LinkItem, Word, is_flipped
from model.observe import ObservableModel
from probe.baselines import Rule, best_baseline, fit_rules, score_rules, selectivity
from probe.behaviour import behaviour_study
from probe.causal import causal_study
from probe.config import ProbeConfig
from probe.contract import check_contract
from probe.head_sets import smallest_set
from probe.importance import importance_study
from probe.items import EMPTY, HEADLINE, QUESTIONS, UNDECIDED, Question, questions_with_items
from probe.scores import (
    HeadRows,
    Scores,
    best_head,
    check_blocks,
    measure_heads,
    score_heads,
)
from probe.statistics import (
    CLUSTERINGS,
    chance_level,
    max_t_test,
    mean_interval,
    similar_heads,
    story_clusters,
    story_designs,
)
from probe.verdict import NOT_ESTABLISHED, evidence_of, judge
from probe.weights import entropies, head_types, score_asymmetry, weights_study

_RULE_SCORES = ("accuracy", "pair_accuracy", "block_accuracy")
_MAP_SCORES = ("accuracy", "block_accuracy", "pronoun_contrast")


@dataclass(frozen=True)
class Reading:
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
        groups = [index for index in self._groups.values() if question.matches(self.items[index[0]])]
        return list(dict.fromkeys(self.items[index[0]].holdout for index in groups))

    def index(self, question: Question, holdout: str) -> np.ndarray:
        """Return the indices of the items of a question and hold-out."""
        groups = [self._groups.get((question.family, question.site, level, holdout), ()) for level in question.levels]
        return np.array(sorted(chain(*groups)), dtype=int)

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
class ProbeContext:
    """Everything that a question is answered from."""

    model: ObservableModel
    dev: Reading
    test: Reading
    untrained: list[list[Reading]]  # for each untrained model, dev and test
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


def study(
    model: ObservableModel,
    untrained: Iterable[ObservableModel],
    dev: Sequence[LinkItem],
    test: Sequence[LinkItem],
    config: ProbeConfig,
    progress: Callable[[str], None] = lambda question: None,
) -> tuple[dict[str, Any], dict[str, Reading]]:
    """Probe `model` in float32 and return (results for probe.json, readings by split).

    Heads are chosen on the items of `dev` in the hold-out "iid" and tested on those of `test`, once. Each of the
    `untrained` models of the same shape chooses its own best head on dev; they are consumed one at a time. `progress`
    is called with the name of each question before it is studied.

    Raises:
        ValueError: the recorded attention is not the attention the model uses, so nothing may be reported.

    """
    # With few frames a question may lack items in a population; then it is left out.
    questions = questions_with_items(QUESTIONS, [item for item in dev if item.holdout == "iid"])
    questions = questions_with_items(questions, [item for item in test if item.holdout == HEADLINE])
    context = make_context(model, untrained, questions, dev, test, config)
    contract, entries, importance = check_contract(model, context.test.items), [], []
    for question in questions:
        progress(question.name)
        entry = study_question(question, context)
        entries.append(entry)
        if question.watched and entry["causal"] is not None and entry["verdict"] != NOT_ESTABLISHED:
            importance.append(_importance(question, context, (entry["layer"], entry["head"])))
    texts = texts_of_one_length(context.test.items)
    results = {
        "contract": {**contract, "undecided": check_undecided(context.test)},
        "attention": {"entropy": entropies(model, texts), "score_asymmetry": score_asymmetry(model)},
        "behaviour": [asdict(result) for result in behaviour_study(model, test, config)],
        "selected": entries,
        "importance": importance,
    }
    return results, {"dev": context.dev, "test": context.test}


def make_context(
    model: ObservableModel,
    untrained: Iterable[ObservableModel],
    questions: Sequence[Question],
    dev: Sequence[LinkItem],
    test: Sequence[LinkItem],
    config: ProbeConfig,
) -> ProbeContext:
    """Read every head of every model at the items of the questions; untrained models on the headline only."""

    def matching(items: Sequence[LinkItem], wanted: Sequence[Question], *holdouts: str) -> list[LinkItem]:
        in_holdouts = [item for item in items if not holdouts or item.holdout in holdouts]
        return [item for item in in_holdouts if any(question.matches(item) for question in wanted)]

    dev_items = matching(dev, questions, "iid")
    test_items = matching(test, (*questions, EMPTY)) + without_bystanders(matching(test, UNDECIDED, "iid"))
    twin_items = matching(test, questions, HEADLINE)
    return ProbeContext(
        model=model,
        dev=Reading(dev_items, measure_heads(model, dev_items, config.tokens_per_batch)),
        test=Reading(test_items, measure_heads(model, test_items, config.tokens_per_batch)),
        untrained=[
            [Reading(items, measure_heads(twin, items, config.tokens_per_batch)) for items in (dev_items, twin_items)]
            for twin in untrained
        ],
        head_types=head_types(model, dev[0].tokens[0], config.seed),
        config=config,
    )


def study_question(question: Question, context: ProbeContext) -> dict[str, Any]:
    """Choose the head on dev, test it on every hold-out, run the causal tests, and judge it on the headline."""
    dev_scores = context.dev.scores(question, "iid")
    head = best_head(dev_scores)
    rules = fit_rules(context.dev.select(question, "iid")[0])
    entry: dict[str, Any] = {"question": question.name, "family": question.family, "site": question.site}
    entry |= {"layer": head[0], "head": head[1]}
    entry["dev"] = {name: float(getattr(dev_scores, name)[:, *head].mean()) for name in _MAP_SCORES}
    entry["test"] = {}
    for holdout in context.test.holdouts(question):
        entry["test"][holdout], heads = evaluate_head(question, holdout, context, head, rules)
        if holdout == HEADLINE:
            entry["heads"] = heads
    entry["similar"] = [
        asdict(other) for other in similar_heads(context.test.scores(question, HEADLINE).pronoun_contrast, head)
    ]
    entry |= {"median": _median_block(question, context, head)} | _controls(question, context, head)
    return entry | judge(evidence_of(entry)).entry()


def evaluate_head(
    question: Question, holdout: str, context: ProbeContext, head: tuple[int, int], rules: Mapping[str, Rule]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return probe.json's `test.<holdout>` of one head, and the scores and p of all heads [L][H]."""
    items, rows = context.test.select(question, holdout)
    scores = score_heads(rows)
    clusters = story_clusters(items[::4])
    clusterings = [clusters[name] for name in CLUSTERINGS]
    flipped = np.array([is_flipped(item) for item in items])
    result: dict[str, Any] = {
        "n_items": len(items),
        "clusters": {name: len(set(labels)) for name, labels in clusters.items()},
        **_head_and_rules(scores, items, head, rules, context),
        "chance_level": chance_level(scores.accuracy, clusterings, 0.5, *context.resampling),
        "accuracy_flipped": float(np.heaviside(rows.attention_margin[flipped][:, *head], 0.5).mean()),
        "value_weighted_contrast": float(rows.value_log_ratio[:, *head].mean()),
    }
    heads = {name: getattr(scores, name).mean(axis=0).tolist() for name in _MAP_SCORES}
    tests = {
        "p_pair_accuracy": max_t_test(scores.pair_accuracy, clusterings, 0.5, *context.resampling),
        "p_pronoun_contrast": max_t_test(scores.pronoun_contrast, clusterings, 0.0, *context.resampling),
    }
    heads |= {name: test.p.tolist() for name, test in tests.items()}
    result |= {name: float(test.p[head]) for name, test in tests.items()}
    result["p_corrected"] = max(result[name] for name in tests)  # a link must pass both tests
    result["smallest_p"] = max(test.smallest_p for test in tests.values())
    if context.untrained and holdout == HEADLINE:
        result["untrained"] = _untrained(question, holdout, context)
    return result, heads


def _head_and_rules(
    scores: Scores, items: Sequence[LinkItem], head: tuple[int, int], rules: Mapping[str, Rule], context: ProbeContext
) -> dict[str, Any]:
    """Return a head's scores with intervals, those of the rules, and the head's lead over the best rule."""
    rule_scores = score_rules(rules, items)
    best = best_baseline(rule_scores)
    values = {field.name: getattr(scores, field.name)[:, *head] for field in fields(Scores)}
    lead = values["accuracy"] - rule_scores[best].accuracy
    columns = np.stack([*values.values(), lead], axis=1)
    designs = story_designs(story_clusters(items[::4]))
    *intervals, lead_interval = mean_interval(columns, designs, *context.resampling).T.tolist()
    result: dict[str, Any] = {}
    for (name, value), interval in zip(values.items(), intervals, strict=True):
        result |= {name: float(value.mean()), f"{name}_interval": interval}
    result["baselines"] = {
        rule: {name: float(getattr(scores_of_rule, name).mean()) for name in _RULE_SCORES}
        for rule, scores_of_rule in rule_scores.items()
    }
    accuracy = result["baselines"][best]["accuracy"]
    result["best_baseline"] = {"name": best, "accuracy": accuracy, "difference_interval": lead_interval}
    return result


def _untrained(question: Question, holdout: str, context: ProbeContext) -> dict[str, Any]:
    """Return the test scores of the untrained models' own best dev heads: mean, interval over models, range."""
    results = []
    for dev, test in context.untrained:
        head = best_head(dev.scores(question, "iid"))
        scores = test.scores(question, holdout)
        results.append((scores.accuracy[:, *head].mean(), scores.block_accuracy[:, *head].mean()))
    accuracy, block_accuracy = np.array(results).T
    designs = [(np.arange(len(accuracy)),)]
    return {
        "n_models": len(accuracy),
        "accuracy": float(accuracy.mean()),
        "accuracy_interval": mean_interval(accuracy, designs, *context.resampling).tolist(),
        "accuracy_range": [float(accuracy.min()), float(accuracy.max())],
        "block_accuracy": float(block_accuracy.mean()),
        "block_accuracy_range": [float(block_accuracy.min()), float(block_accuracy.max())],
    }


def _median_block(question: Question, context: ProbeContext, head: tuple[int, int]) -> dict[str, Any]:
    """Return the headline block of median pronoun contrast, so that the example shown is no better than half of all."""
    values = context.test.scores(question, HEADLINE).pronoun_contrast[:, *head]
    middle = int(np.argsort(values, kind="stable")[(len(values) - 1) // 2])
    items = context.test.select(question, HEADLINE)[0][4 * middle : 4 * middle + 4]
    fields_shown = ("text", "query", "antecedents", "distractors")
    return {
        "holdout": HEADLINE,
        "block": items[0].block,
        "pronoun_contrast": float(values[middle]),
        "n_blocks": len(values),
        "sentences": [{name: getattr(item, name) for name in fields_shown} for item in items],
    }


def _controls(question: Question, context: ProbeContext, head: tuple[int, int]) -> dict[str, Any]:
    """Return selectivity, head types, weight on mentions, causal tests, sets and weights of a head on the headline."""
    config, model = context.config, context.model
    dev_items, dev_rows = context.dev.select(question, "iid")
    items, rows = context.test.select(question, HEADLINE)
    known = "iid" if "iid" in context.test.holdouts(question) else HEADLINE  # a control task needs words of dev
    known_items, known_rows = context.test.select(question, known)
    control = selectivity(
        dev_items, dev_rows.attention_margin, known_items, known_rows.attention_margin, config.n_controls, config.seed
    )
    causal = causal_study(model, items, *head, **context.sizes)
    head_set = smallest_set(model, dev_items, items, **context.sizes) if question.watched else None
    unlinked = context.test.select(EMPTY, HEADLINE)[1].mass
    return {
        "selectivity": control,
        "head_type": {name: float(values[head]) for name, values in context.head_types.items()},
        "mass": {
            "linked": float(rows.mass[:, *head].mean()),
            "unlinked": float(unlinked[:, *head].mean()) if len(unlinked) else None,
        },
        "causal": None if causal is None else asdict(causal),
        "head_set": None if head_set is None else asdict(head_set),
        "weights": asdict(weights_study(model, items, *head, seed=config.seed)),
    }


def _importance(question: Question, context: ProbeContext, head: tuple[int, int]) -> dict[str, Any]:
    """Return how attention weight, value norm and causal effect agree over the headline's links."""
    items, _ = context.test.select(question, HEADLINE)
    return asdict(
        importance_study(context.model, items, *head, question=question.name, holdout=HEADLINE, **context.sizes)
    )


def without_bystanders(items: Sequence[LinkItem]) -> list[LinkItem]:
    """Return the items without distractors that no cell of the same block and order means.

    At undecided sites a head that prefers such a distractor is wrong in both cells, so its accuracy would fall below
    1/2 although it has read nothing.
    """
    meant: dict[tuple[str, int, int], set[Word]] = defaultdict(set)
    for item in items:
        meant[item.site, item.block, item.order].update(item.antecedents)
    return [
        replace(item, distractors=tuple(w for w in item.distractors if w in meant[item.site, item.block, item.order]))
        for item in items
    ]


def check_undecided(reading: Reading) -> dict[str, float]:
    """Return the largest distance from accuracy 1/2 of any head at each undecided site: exactly 0.

    Raises:
        ValueError: the distance is not 0, so the row has read later tokens.

    """
    distances = {}
    for question in questions_with_items(UNDECIDED, reading.items):
        for holdout in reading.holdouts(question):
            distance = float(np.abs(reading.scores(question, holdout).accuracy.mean(axis=0) - 0.5).max())
            if distance > 0:
                raise ValueError(f"no report for this model: {question.name} is decided before its cue is read")
            distances[question.name] = distance
    return distances


def texts_of_one_length(items: Sequence[LinkItem], n_texts: int = 256) -> Tensor:
    """Return up to `n_texts` different, evenly spaced texts [B, T] of the most common length."""
    by_length: dict[int, dict[tuple[int, ...], None]] = defaultdict(dict)
    for item in items:
        by_length[len(item.tokens)][tuple(item.tokens)] = None
    most_common = max(by_length, key=lambda length: len(by_length[length]))
    texts = list(by_length[most_common])
    return torch.tensor(texts[:: max(1, len(texts) // n_texts)][:n_texts])
