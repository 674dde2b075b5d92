"""The probe itself: choose a head on dev, then test it once, on every hold-out, beside what knows nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from data.links import LinkItem
from model.transformer import Transformer
from probe.baselines import BASELINES, score_baseline
from probe.config import ProbeConfig
from probe.readout import Rows, read_margins, read_rows
from probe.scores import Scores, best_head, check_blocks, score
from probe.significance import cluster_interval, luck_line

HEADLINE = "headline"  # antecedents and frames that training never used


@dataclass(frozen=True, slots=True)
class Question:
    """One thing to ask of every head; sites are never pooled."""

    name: str
    family: str
    site: str
    levels: tuple[str, ...]

    def picks(self, item: LinkItem) -> bool:
        """Whether `item` asks this question."""
        return item.family == self.family and item.site == self.site and item.level in self.levels


QUESTIONS = (
    Question("V at S1", "V", "S1", ("L1", "L2")),
    Question("V at S1, it/they", "V", "S1", ("L1",)),
    Question("V at S1, he/she", "V", "S1", ("L2",)),
    Question("R at S2", "R", "S2", ("R",)),
)
# Nothing before this site decides, so its rows are the same for both answers: a check of the instrument, not a result.
UNREADABLE = Question("R at S1", "R", "S1", ("R",))


@dataclass(frozen=True, slots=True)
class Reading:
    """A model's rows on some items, ready to be scored by question and hold-out."""

    items: Sequence[LinkItem]
    rows: Rows

    def scores(self, question: Question, holdout: str) -> tuple[Scores, np.ndarray]:
        """Return the scores of every head and the template of every block; ValueError without whole blocks."""
        index = self.index(question, holdout)
        some = [self.items[i] for i in index]
        check_blocks(some)
        rows = self.rows.take(index)
        scores = score(rows.preference, rows.selects, rows.strict)
        return scores, np.array([item.template for item in some[::4]])

    def index(self, question: Question, holdout: str) -> np.ndarray:
        """Return the places of the items of a question and hold-out."""
        return np.array([i for i, one in enumerate(self.items) if question.picks(one) and one.holdout == holdout])

    def holdouts(self, question: Question) -> list[str]:
        """Return the hold-outs of a question in the order in which they stand."""
        return list(dict.fromkeys(item.holdout for item in self.items if question.picks(item)))


def study(
    model: Transformer,
    untrained: Sequence[Transformer],
    dev: Sequence[LinkItem],
    test: Sequence[LinkItem],
    config: ProbeConfig,
) -> tuple[dict[str, Any], dict[str, Reading]]:
    """Probe `model` and return (results for probe.json, readings by split).

    Args:
        model: trained, in eval mode, float32.
        untrained: models of the same shape that never saw a text, each allowed to choose its own best head on dev.
        dev: items to choose heads on.
        test: items to test the chosen heads on, once.
        config: resamplings and seeds.

    """
    asked_at = (*QUESTIONS, UNREADABLE)
    dev = [item for item in dev if item.holdout == "iid" and any(question.picks(item) for question in asked_at)]
    test = [item for item in test if any(question.picks(item) for question in asked_at)]
    readings = _read_both(model, dev, test, config)
    questions = [question for question in QUESTIONS if any(question.picks(one) for one in test)]
    asked = [[one for one in some if any(q.picks(one) for q in questions)] for some in (dev, test)]
    compared = [one for one in asked[1] if one.holdout in ("iid", HEADLINE)]
    blank = [_read_both(one, asked[0], compared, config) for one in untrained]
    selected = [_ask(question, readings, blank, config) for question in questions]
    once = [item for item in test if not UNREADABLE.picks(item)]  # an R story asks at two sites and answers once
    margins = read_margins(model, once, config.tokens_per_batch)
    return {"behaviour": _behaviour(once, margins, config), "selected": selected}, readings


def _read_both(
    model: Transformer, dev: Sequence[LinkItem], test: Sequence[LinkItem], config: ProbeConfig
) -> dict[str, Reading]:
    return {
        name: Reading(items, read_rows(model, items, config.tokens_per_batch))
        for name, items in (("dev", dev), ("test", test))
    }


def _ask(
    question: Question, readings: dict[str, Reading], blank: list[dict[str, Reading]], config: ProbeConfig
) -> dict[str, Any]:
    """Choose the head on dev and return its test scores by hold-out, beside those of everything that knows nothing."""
    chosen_on, _ = readings["dev"].scores(question, "iid")
    layer, head = best_head(chosen_on)
    by_holdout = {}
    for holdout in readings["test"].holdouts(question):
        scores, templates = readings["test"].scores(question, holdout)
        items = [readings["test"].items[i] for i in readings["test"].index(question, holdout)]
        values = {name: getattr(scores, name)[:, layer, head] for name in Scores.__dataclass_fields__}
        found: dict[str, Any] = {"n_items": len(items), "n_templates": len(set(templates))}
        found |= {name: float(value.mean()) for name, value in values.items()}
        for name in ("sel1", "f4"):
            found[f"{name}_interval"] = cluster_interval(values[name], templates, config.n_bootstrap, config.seed)
        pairs = np.array([item.pair for item in items[::4]])
        found["luck_sel1"] = luck_line(scores.sel1, (templates, pairs), 0.5, config.n_bootstrap, config.seed)
        found["baselines"] = {name: _means(score_baseline(rule, items)) for name, rule in BASELINES.items()}
        if holdout in ("iid", HEADLINE):
            found["untrained"] = _untrained(question, holdout, blank, config)
        by_holdout[holdout] = found
    dev = {name: float(getattr(chosen_on, name)[:, layer, head].mean()) for name in ("sel1", "f4", "dd")}
    return {
        "question": question.name,
        "family": question.family,
        "site": question.site,
        "layer": layer,
        "head": head,
    } | {
        "dev": dev,
        "test": by_holdout,
    }


def _means(scores: Scores) -> dict[str, float]:
    return {name: float(getattr(scores, name).mean()) for name in ("sel1", "f2", "f4")}


def _untrained(
    question: Question, holdout: str, blank: list[dict[str, Reading]], config: ProbeConfig
) -> dict[str, Any]:
    """Return how the untrained models' own best dev heads do on test: mean, its interval over models, and range."""
    sel1, f4 = [], []
    for readings in blank:
        layer, head = best_head(readings["dev"].scores(question, "iid")[0])
        scores, _ = readings["test"].scores(question, holdout)
        sel1.append(float(scores.sel1[:, layer, head].mean()))
        f4.append(float(scores.f4[:, layer, head].mean()))
    return {
        "n_models": len(blank),
        "sel1": float(np.mean(sel1)),
        "sel1_interval": cluster_interval(np.array(sel1), np.arange(len(sel1)), config.n_bootstrap, config.seed),
        "sel1_range": (min(sel1), max(sel1)),
        "f4": float(np.mean(f4)),
        "f4_range": (min(f4), max(f4)),
    }


def _behaviour(items: Sequence[LinkItem], margins: np.ndarray, config: ProbeConfig) -> list[dict[str, Any]]:
    """Return how often the model itself prefers the antecedent's continuations, by family, level and hold-out."""
    found = []
    keys = dict.fromkeys((one.family, one.level, one.holdout) for one in items if one.payoff is not None)
    for family, level, holdout in keys:
        index = [
            i
            for i, one in enumerate(items)
            if (one.family, one.level, one.holdout) == (family, level, holdout) and one.payoff is not None
        ]
        right = (margins[index] > 0) + 0.5 * (margins[index] == 0)
        templates = np.array([items[i].template for i in index])
        interval = cluster_interval(right, templates, config.n_bootstrap, config.seed)
        entry = {
            "family": family,
            "level": level,
            "holdout": holdout,
            "n": len(index),
            "n_templates": len(set(templates)),
        }
        found.append(entry | {"pair_accuracy": float(right.mean()), "interval": interval})
    return found
