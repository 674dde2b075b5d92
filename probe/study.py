"""The probe itself: choose a head on dev, test it once, on every hold-out, beside what knows nothing, and judge it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data.links import LinkItem, Word, is_flipped
from model.transformer import Transformer
from probe.baselines import Rule, baselines, best_baseline, explained, fit_rules, selectivity, surrogate
from probe.behaviour import oracle_losses, read_payoffs, rho, surprisals
from probe.causal import causal_study
from probe.config import ProbeConfig
from probe.contract import check_contract
from probe.importance import importance_study
from probe.interventions import pair_up
from probe.items import EMPTY, QUESTIONS, UNDECIDED, Question, asked
from probe.scores import Rows, Scores, Texts, best_head, check_blocks, factorial, read_rows, read_texts, score
from probe.statistics import chance_level, max_t_test, mean_interval, story_clusters, story_designs
from probe.verdict import evidence_of, judge
from probe.weights import entropies, head_types, score_asymmetry, weights_study

HEADLINE = "headline"  # antecedents and frames that training never used


@dataclass(frozen=True)
class Reading:
    """A model's rows on some items, ready to be scored by question and hold-out."""

    items: Sequence[LinkItem]
    rows: Rows

    @cached_property
    def _places(self) -> dict[tuple[str, str, str, str], list[int]]:
        """The places of the items that no question and hold-out tells apart, in the order in which they stand."""
        found: dict[tuple[str, str, str, str], list[int]] = {}
        for i, item in enumerate(self.items):
            found.setdefault((item.family, item.site, item.level, item.holdout), []).append(i)
        return found

    def scores(self, question: Question, holdout: str) -> Scores:
        """Return the scores of every head; ValueError without whole blocks."""
        check_blocks(self.picked(question, holdout))
        rows = self.rows.take(self.index(question, holdout))
        return score(rows.preference, rows.selects, rows.strict)

    def picked(self, question: Question, holdout: str) -> list[LinkItem]:
        """Return the items of a question and hold-out."""
        return [self.items[i] for i in self.index(question, holdout)]

    def index(self, question: Question, holdout: str) -> np.ndarray:
        """Return the places of the items of a question and hold-out."""
        every = self._picked(question)
        return np.array(sorted(i for some in every if self.items[some[0]].holdout == holdout for i in some), int)

    def holdouts(self, question: Question) -> list[str]:
        """Return the hold-outs of a question in the order in which they stand."""
        return list(dict.fromkeys(self.items[some[0]].holdout for some in self._picked(question)))

    def _picked(self, question: Question) -> list[list[int]]:
        return [some for some in self._places.values() if question.picks(self.items[some[0]])]


@dataclass(frozen=True, slots=True)
class Bench:
    """Everything a question is put to: the model, its readings, and the models that never saw a text."""

    model: Transformer
    dev: Reading
    test: Reading
    blank: list[tuple[Reading, Reading]]  # dev and test of each untrained model
    types: dict[str, np.ndarray]  # [L, H] by type
    config: ProbeConfig

    @property
    def luck(self) -> tuple[int, int]:
        """Resamplings and their seed."""
        return self.config.n_bootstrap, self.config.seed


def study(
    model: Transformer,
    untrained: Iterable[Transformer],
    dev: Sequence[LinkItem],
    test: Sequence[LinkItem],
    config: ProbeConfig,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[dict[str, Any], dict[str, Reading]]:
    """Probe `model` and return (results for probe.json, readings by split).

    Args:
        model: trained, in eval mode, float32.
        untrained: models of the same shape that never saw a text, each allowed to choose its own best head on dev. One
            at a time is asked for: where they are made when asked for, no two need memory.
        dev: items to choose heads on.
        test: items to test the chosen heads on, once.
        config: resamplings and seeds.
        say: is told what is being done.

    Raises:
        ValueError: the model's attention is not what its weights say it is, so nothing may be reported.

    """
    # Few frames may leave a question without items in some population: then no head is chosen, or none tested, for it.
    questions = asked(QUESTIONS, [item for item in dev if item.holdout == "iid"])
    questions = asked(questions, [item for item in test if item.holdout == HEADLINE])
    bench = make_bench(model, untrained, questions, dev, test, config)
    contract = check_contract(model, bench.test.items)
    selected = []
    for question in questions:
        say(question.name)
        selected.append(ask(question, bench))
    texts = texts_of_one_length(bench.test.items)
    results = {
        "contract": contract | {"undecided": check_undecided(bench.test)},
        "attention": {
            "entropy": entropies(model, texts).tolist(),
            "score_asymmetry": score_asymmetry(model).tolist(),
        },
        "behaviour": behaviour(model, [item for item in test if item.payoff is not None], config),
        "selected": selected,
        "importance": [
            _importance(question, bench, (one["layer"], one["head"]))
            for question, one in zip(questions, selected, strict=True)
            if question.watched and one["causal"] is not None
        ],
    }
    return results, {"dev": bench.dev, "test": bench.test}


def make_bench(
    model: Transformer,
    untrained: Iterable[Transformer],
    questions: Sequence[Question],
    dev: Sequence[LinkItem],
    test: Sequence[LinkItem],
    config: ProbeConfig,
) -> Bench:
    """Read every head of every model at the items that some question asks about."""

    def picked(items: Sequence[LinkItem], some: Sequence[Question], holdouts: tuple[str, ...] | None) -> list[LinkItem]:
        return [
            item
            for item in items
            if any(one.picks(item) for one in some) and (holdouts is None or item.holdout in holdouts)
        ]

    def read(one: Transformer, items: list[LinkItem]) -> Reading:
        return Reading(items, read_rows(one, items, config.tokens_per_batch))

    choosing = picked(dev, questions, ("iid",))
    testing = picked(test, (*questions, EMPTY), None) + only_the_two(picked(test, UNDECIDED, ("iid",)))
    compared = picked(test, questions, ("iid", HEADLINE))
    laid_out = [(items, Texts.of(items, config.tokens_per_batch)) for items in (choosing, compared)]  # for all models
    blank = []
    for one in untrained:
        on_dev, on_test = (Reading(items, read_texts(one, texts)) for items, texts in laid_out)
        blank.append((on_dev, on_test))
    types = head_types(model, dev[0].tokens[0], config.seed)
    return Bench(model, read(model, choosing), read(model, testing), blank, types, config)


def texts_of_one_length(items: Sequence[LinkItem], n_texts: int = 256) -> Tensor:
    """Return up to `n_texts` different texts [B, T] of the commonest length, in even steps from the first."""
    by_length: dict[int, dict[tuple[int, ...], None]] = defaultdict(dict)
    for item in items:
        by_length[len(item.tokens)][tuple(item.tokens)] = None
    commonest = max(by_length.values(), key=len)
    found = list(commonest)
    return torch.tensor(found[:: max(1, len(found) // n_texts)][:n_texts])


def only_the_two(items: Sequence[LinkItem]) -> list[LinkItem]:
    """Return items without the candidates that no cell of their block and order means.

    A head that prefers one of those is right in neither cell, so it would fall below 1/2 without having read on.
    """
    meant: dict[tuple[str, int, int], set[Word]] = defaultdict(set)
    for item in items:
        meant[item.site, item.block, item.order].update(item.antecedents)
    return [
        replace(item, distractors=tuple(one for one in item.distractors if one in meant[where]))
        for item in items
        for where in [(item.site, item.block, item.order)]
    ]


def check_undecided(reading: Reading) -> dict[str, float]:
    """Return the largest distance from 1/2 of any head's Sel@1 at each site where nothing is decided: exactly 0.

    Raises ValueError where it is not: a row there would have read what comes after it.
    """
    found = {}
    for question in asked(UNDECIDED, reading.items):
        for holdout in reading.holdouts(question):
            apart = float(np.abs(reading.scores(question, holdout).accuracy.mean(axis=0) - 0.5).max())
            if apart > 0:
                raise ValueError(f"nothing is reported of this model: {question.name} is decided before it is said")
            found[question.name] = apart
    return found


def ask(question: Question, bench: Bench) -> dict[str, Any]:
    """Choose the head on dev, test it on every hold-out, ask for causes, and judge it on the headline."""
    chosen_on = bench.dev.scores(question, "iid")
    head = best_head(chosen_on)
    one: dict[str, Any] = {"question": question.name, "family": question.family, "site": question.site}
    one |= {"layer": head[0], "head": head[1]}
    one["dev"] = {
        name: float(getattr(chosen_on, name)[:, *head].mean())
        for name in ("accuracy", "block_accuracy", "pronoun_contrast")
    }
    one["test"], rules = {}, fit_rules(bench.dev.picked(question, "iid"))
    for holdout in bench.test.holdouts(question):
        found = held_out(question, holdout, bench, head, rules)
        if bench.blank and holdout in ("iid", HEADLINE):
            found["untrained"] = _untrained(question, holdout, bench)
        every = found.pop("heads")  # of one hold-out they are enough to draw the map
        if holdout == HEADLINE:
            one["heads"] = every
        one["test"][holdout] = found
    one |= {"median": _median_block(question, bench, head)} | _explained(question, bench, head)
    return one | judge(evidence_of(one, HEADLINE)).entry()


def held_out(
    question: Question, holdout: str, bench: Bench, head: tuple[int, int], rules: Mapping[str, Rule]
) -> dict[str, Any]:
    """Return how one head does on items it was not chosen on, how far luck would have gone, and how every head does.

    `rules`: those that heads are held against, having learnt from dev.
    """
    items, scores = bench.test.picked(question, holdout), bench.test.scores(question, holdout)
    clusters = story_clusters(items[::4])
    words = [clusters[name] for name in ("first_words", "second_words")]
    alike = (clusters["templates"], *words)
    found: dict[str, Any] = {"n_items": len(items)}
    found["clusters"] = {name: len(set(which)) for name, which in clusters.items()}
    scored = baselines(rules, items)
    found["baselines"] = {name: _means(one) for name, one in scored.items()}
    best = best_baseline(scored)
    values = {name: getattr(scores, name)[:, *head] for name in Scores.__dataclass_fields__}
    over_best = values["accuracy"] - scored[best].accuracy
    stacked = np.stack([*values.values(), over_best], axis=1)
    intervals = mean_interval(stacked, story_designs(clusters), *bench.luck).T.tolist()
    for name, value, interval in zip(values, values.values(), intervals, strict=False):
        key = "lambda" if name == "preference" else name
        found |= {key: float(value.mean()), f"{key}_interval": interval}
    accuracy = found["baselines"][best]["accuracy"]
    found["best_baseline"] = {"name": best, "accuracy": accuracy, "difference_interval": intervals[-1]}
    rows = bench.test.rows.take(bench.test.index(question, holdout))
    found["surrogate"] = _surrogate(question, bench, head, items, rows)
    found["value_weighted_contrast"] = float(rows.value_preference[:, *head].mean())
    flipped = np.array([is_flipped(item) for item in items])
    found["accuracy_flipped"] = float(_right(rows.selects[flipped][:, *head]).mean())
    found["chance_level"] = chance_level(scores.accuracy, alike, 0.5, *bench.luck)
    found["heads"] = {
        name: getattr(scores, name).mean(axis=0).tolist() for name in ("accuracy", "block_accuracy", "pronoun_contrast")
    }
    for name, centre in (("pair_accuracy", 0.5), ("pronoun_contrast", 0)):
        tested = max_t_test(getattr(scores, name), alike, centre, *bench.luck)
        found[f"p_{name}"] = float(tested.p[head])
        found["smallest_p"] = tested.smallest_p
        found["heads"][f"p_{name}"] = tested.p.tolist()
    return found


def _median_block(question: Question, bench: Bench, head: tuple[int, int]) -> dict[str, Any]:
    """Return the block of the headline whose DD is the median for this head, the lower of two: what to show of it.

    A rule and no choice, so that the picture is as good as half of the others and no better.
    """
    values = bench.test.scores(question, HEADLINE).pronoun_contrast[:, *head]
    middle = int(np.argsort(values, kind="stable")[(len(values) - 1) // 2])
    block = bench.test.picked(question, HEADLINE)[4 * middle].block
    return {"holdout": HEADLINE, "block": block, "pronoun_contrast": float(values[middle]), "n_blocks": len(values)}


def _surrogate(
    question: Question, bench: Bench, head: tuple[int, int], items: Sequence[LinkItem], rows: Rows
) -> dict[str, float]:
    """Return what the head's own place and taste, learnt on dev, would do, and how much of the head that explains."""
    dev = bench.dev.index(question, "iid")
    learnt = bench.dev.rows.take(dev).preference[:, *head]
    predicted = surrogate(bench.dev.picked(question, "iid"), learnt, items)
    share = float(explained(rows.preference[:, *head], predicted))
    return {"accuracy": float(_right(predicted).mean()), "explained": share}


def _explained(question: Question, bench: Bench, head: tuple[int, int]) -> dict[str, Any]:
    """Return what else is known of a head on the headline: controls, kind, causes and what its weights say."""
    dev, test = bench.dev.picked(question, "iid"), bench.test.picked(question, HEADLINE)
    dev_rows, rows = (
        one.rows.take(one.index(question, holdout)) for one, holdout in ((bench.dev, "iid"), (bench.test, HEADLINE))
    )
    control = selectivity(dev, dev_rows.selects, test, rows.selects, bench.config.n_controls, bench.config.seed)
    effects = factorial(rows.preference, test)
    config = bench.config
    causal = None
    if pair_up(test)[0]:  # else nothing pays off: a tokenizer from elsewhere may begin all that could come alike
        causal = causal_study(
            bench.model,
            test,
            *head,
            tokens_per_batch=config.tokens_per_batch,
            n_bootstrap=config.n_bootstrap,
            seed=config.seed,
        )
    return {
        "selectivity": control["selectivity"],
        "coreference_share": float(effects.share[head]),
        "cues": {one.name: float(getattr(effects, one.name)[head]) for one in fields(effects)},
        "head_type": {name: float(values[head]) for name, values in bench.types.items()},
        "mass": {"linked": float(rows.mass[:, *head].mean()), "unlinked": _unlinked_mass(bench, head)},
        "causal": None if causal is None else _named(causal),
        "weights": weights_study(bench.model, test, *head, seed=config.seed),
    }


def _importance(question: Question, bench: Bench, head: tuple[int, int]) -> dict[str, Any]:
    """Return how weight, what is moved and what hangs on it agree over the headline's links."""
    config = bench.config
    found = importance_study(
        bench.model,
        bench.test.picked(question, HEADLINE),
        *head,
        tokens_per_batch=config.tokens_per_batch,
        n_bootstrap=config.n_bootstrap,
        seed=config.seed,
    )
    return {"question": question.name, "holdout": HEADLINE, "layer": head[0], "head": head[1]} | found


def _unlinked_mass(bench: Bench, head: tuple[int, int]) -> float | None:
    """Return a head's mean weight on mentions at pronouns that mean none of them."""
    index = bench.test.index(EMPTY, HEADLINE)
    return float(bench.test.rows.take(index).mass[:, *head].mean()) if len(index) else None


_EFFECTS = {
    "attention_swap": "attention_swap",
    "es": "edge_specificity",
    "resample": "head_effect",
    "denoised": "denoising",
}


def _named(causal: dict[str, Any]) -> dict[str, Any]:
    """Return the causal effects flat, each value with its interval beside it, the four of the claim by their names."""
    found: dict[str, Any] = {}
    for key, value in causal.items():
        name = _EFFECTS.get(key, key)
        if isinstance(value, dict) and set(value) == {"value", "interval", "n"}:
            found |= {name: value["value"], f"{name}_interval": value["interval"]}
        else:
            found[name] = value
    return found


def _means(scores: Scores) -> dict[str, float]:
    return {name: float(getattr(scores, name).mean()) for name in ("accuracy", "pair_accuracy", "block_accuracy")}


def _right(values: np.ndarray) -> np.ndarray:
    """Return 1 where a preference or margin is for the antecedent, 1/2 for a tie."""
    return (values > 0) + 0.5 * (values == 0)


def _untrained(question: Question, holdout: str, bench: Bench) -> dict[str, Any]:
    """Return how the untrained models' own best dev heads do on test: mean, its interval over models, and range."""
    accuracy, block_accuracy = [], []
    for dev, test in bench.blank:
        layer, head = best_head(dev.scores(question, "iid"))
        scores = test.scores(question, holdout)
        accuracy.append(float(scores.accuracy[:, layer, head].mean()))
        block_accuracy.append(float(scores.block_accuracy[:, layer, head].mean()))
    return {
        "n_models": len(bench.blank),
        "accuracy": float(np.mean(accuracy)),
        "accuracy_interval": mean_interval(np.array(accuracy), [(np.arange(len(accuracy)),)], *bench.luck).tolist(),
        "accuracy_range": (min(accuracy), max(accuracy)),
        "block_accuracy": float(np.mean(block_accuracy)),
        "block_accuracy_range": (min(block_accuracy), max(block_accuracy)),
    }


def behaviour(model: Transformer, items: Sequence[LinkItem], config: ProbeConfig) -> list[dict[str, Any]]:
    """Return how the model itself goes on at every payoff, by family, level, site and hold-out.

    A payoff that several links of a story ask about counts once, at the first site where it is decided.
    """
    first: dict[tuple[str, int | None], LinkItem] = {}
    for item in items:
        if not any(question.picks(item) for question in UNDECIDED):
            first.setdefault((item.text, item.payoff), item)
    once = list(first.values())
    margins, losses = read_payoffs(model, once, config.tokens_per_batch)
    groups: dict[tuple[str, str, str, str], list[int]] = {}
    for i, item in enumerate(once):
        groups.setdefault((item.family, item.level, item.site, item.holdout), []).append(i)
    return [
        dict(zip(("family", "level", "site", "holdout"), key, strict=True))
        | _answers([once[i] for i in index], margins[index], losses[index], config)
        for key, index in groups.items()
    ]


def _answers(items: Sequence[LinkItem], margins: np.ndarray, losses: np.ndarray, config: ProbeConfig) -> dict[str, Any]:
    clusters = story_clusters(items)
    right = _right(margins)
    interval = mean_interval(right, story_designs(clusters), config.n_bootstrap, config.seed).tolist()
    surprisal = surprisals(items)
    oracles = oracle_losses(surprisal)
    return {
        "n": len(items),
        "clusters": {name: len(set(which)) for name, which in clusters.items()},
        "accuracy": float(right.mean()),
        "interval": interval,
        "rho": rho(losses, surprisal),
        "nll": float(losses.mean()),
        "h_bayes": oracles.get("bayes"),
        "h_blind": oracles.get("blind"),
    }
