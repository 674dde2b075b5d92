"""Questions by edges: which head decides the next word? Read one word before "she" or "he", on passages and twins.

Each passage is compared with its twin, in which every entity has a counterpart of the other class. So whatever ignores
the entities cancels: a model that does not know them follows the twin in half of the passages. With many heads, direct
logit attribution (Elhage et al. 2021) ranks them, and only the best are edited. Axes: N pairs, C sets of heads.
"""

import re
from collections.abc import Iterable, Sequence

import numpy as np

from data.errors import UserError
from data.pairs import Items
from data.passages import ngram_rule
from model.observe import ObservableModel
from probe.batches import Progress
from probe.config import ProbeConfig
from probe.edits import Sets, Sites, alone, curve_of, grown, screened
from probe.questions import DEV, MIN_SHARE, TESTED, Question
from probe.results import NOT_KNOWN, Estimate, Finding, Grid, Head, Part, Shown, Tested, Values
from probe.rules import preferred
from probe.statistics import Sample, estimate_ratios, mean_and_range, sample_of
from probe.verdict import judged, unit_of

MIN_PASSAGES = 40  # with one entity, and with two; fewer give no test
MIN_CLUSTERS = 9  # documents and entities of each class in a half: with 8 no p is below 2 / 2^8
EDIT_ALL = 32  # with more heads than this,
MAX_EDITED = 8  # only so many are edited
N_EXAMPLES = 3


class Half:
    """The passages of one part, with the unedited pass of a model over them."""

    def __init__(self, model: ObservableModel, items: Items, tokens_per_batch: int) -> None:
        self.one = Sites(model, items.where(lambda pair: not pair.has_two), tokens_per_batch)
        self.two = Sites(model, items.where(lambda pair: pair.has_two), tokens_per_batch)
        self.items = self.one.items + self.two.items

    def edge_effects(self, sets: Sets) -> Sample:
        """Return how far the edges to an entity move the margin to its side, the mean of the entities, [N, C] in nats.

        In the order of `items`. It does not use the author's pronoun.
        """
        of_one = self.one.margins(sets, ["cut_meant"]).lost("cut_meant")
        of_two = self.two.margins(sets, ["cut_meant", "cut_other"]).lost("specificity") / 2
        return sample_of(self.items, np.concatenate([of_one, of_two]))

    def swaps(self, sets: Sets) -> tuple[np.ndarray, np.ndarray]:
        """Return `Margins.swaps` of sets of heads in the passages with two entities."""
        return self.two.margins(sets, ["swap"]).swaps()


def problem_of(question: Question, items: Items) -> str:
    """Return why a question cannot be tested on its passages, with the counts; "" if it can."""
    # Passages of each kind, and documents in each half.
    counts = []
    problems = []
    for name, has_two in (("one person", False), ("a woman and a man", True)):
        documents = []
        for half in (DEV, TESTED):
            pairs = items.of(question.name, half).pairs
            documents.append([pair.clusters[0] for pair in pairs if pair.has_two == has_two])
        n_passages = sum(map(len, documents))
        fewest = min(map(len, map(set, documents)))
        counts.append(f"{n_passages} passages with {name} (needed: {MIN_PASSAGES})")
        if n_passages < MIN_PASSAGES:
            kind = "(two)" if has_two else "(one)"
            reasons = [(n, reason) for reason, n in items.reasons(question.name).items() if reason.endswith(kind)]
            n_left_out, reason = max(reasons, default=(0, ""))
            problems.append(f"{n_left_out:,} left out: {reason}" if reason else "")
        elif fewest < MIN_CLUSTERS:
            problems.append(f"those with {name}: only {fewest} documents in one half (needed: {MIN_CLUSTERS})")

    # Entities of each class in the tested half.
    _, *of_classes = items.of(question.name, TESTED).n_clusters().values()
    if not problems and min(of_classes) < MIN_CLUSTERS:
        few = f"only {min(of_classes)} different entities of one class in the tested half"
        problems.append(f"{few} (needed: {MIN_CLUSTERS})")
    counted = f"{question.name}: {' and '.join(counts)}"
    return "; ".join([counted, *filter(None, problems)]) if problems else ""


def study_edges(
    model: ObservableModel,
    untrained: Iterable[ObservableModel],
    items: Items,
    documents: Sequence[tuple[str, str]],
    question: Question,
    config: ProbeConfig,
    progress: Progress,
) -> Finding:
    """Choose the head that decides the next word on one half of the documents, and test it on the other half.

    `documents`, (name, text) each, are where a rule counts. UserError if the direct effects of many heads are unknown.
    """
    # All heads, or of many those with the largest direct effect; the largest edge effect is chosen.
    progress("choosing a head", 0.0)
    choosing = Half(model, items.of(question.name, DEV), config.tokens_per_batch)
    candidates = candidates_of(model, choosing)
    singles = alone(candidates)
    best = int(choosing.edge_effects(singles).values.mean(axis=0).argmax())
    steps = grown(choosing.swaps, candidates)
    items_of_dev = choosing.two.items
    margins_of_dev = choosing.two.clean
    del choosing  # a gigabyte in a model of 135 million weights

    # The tested half: every candidate's edges cut, first in untrained models.
    progress("untrained models", 0.3)
    tested_items = items.of(question.name, TESTED)
    untrained_t = [_largest_t(each, tested_items, singles, config) for each in untrained]
    progress("testing", 0.6)
    tested = Half(model, tested_items, config.tokens_per_batch)
    effects = tested.edge_effects(singles)
    test = effects.test(config)

    # Everything else for the chosen head, and for heads that share the work.
    progress("what the head decides", 0.8)
    two = tested.two
    answers = _answers_of(tested, config)
    of_head = _tested(tested, [candidates[best]], question, answers, untrained_t, config, float(test.p[best]))
    curve = curve_of(steps, tested.swaps, two.items, config)
    heads = [head for head, *_ in curve]
    of_set = _tested(tested, heads, question, answers, untrained_t, config) if len(heads) > 1 else None

    unit = unit_of(of_head, of_set, curve, MIN_SHARE)
    return Finding(
        **question.words_of_findings,
        unit=unit,
        head=of_head,
        set=of_set,
        curve=curve,
        n=len(tested.items),
        clusters={"one": len(tested.one.items), "two": len(two.items)} | tested.items.n_clusters(),
        left_out=items.reasons(question.name),
        smallest_p=test.smallest_p,
        untrained={"t": mean_and_range(untrained_t)},
        rules=_rules(two.items, documents),
        grids=_grids(model, candidates, {"edge_effect": effects.values.mean(axis=0), "t": test.t, "p": test.p}),
        parts={"both halves": _part_of(items_of_dev + two.items, np.vstack([margins_of_dev, two.clean]), config)},
        examples=_typical(tested, of_head.heads[0], heads if unit == "set" else of_head.heads),
        notes=_notes(model.n_layer * model.n_head, len(candidates)),
    )


def _notes(n_heads: int, n_edited: int) -> list[str]:
    few = f"of {n_heads} heads only {n_edited} were edited: those with the largest direct effect on dev"
    return [few] if n_edited < n_heads else []


def candidates_of(model: ObservableModel, choosing: Half) -> list[Head]:
    """Return the heads to edit: all, or of many those of the largest direct effect."""
    direct = np.zeros((model.n_layer, model.n_head))
    if direct.size > EDIT_ALL:
        of_passages = [choosing.one.direct_effects(), choosing.two.direct_effects()]
        direct = np.abs(np.concatenate(of_passages).mean(axis=0))
    if not np.isfinite(direct).all():
        raise UserError("the direct effects of the heads are not known for this kind of model")
    return screened(direct, above=EDIT_ALL, most=MAX_EDITED)


def _largest_t(model: ObservableModel, items: Items, sets: Sets, config: ProbeConfig) -> float:
    """Return the largest t of the edges of one of some sets of heads."""
    return float(Half(model, items, config.tokens_per_batch).edge_effects(sets).test(config).t.max())


# What the model answers


def _answers_of(tested: Half, config: ProbeConfig) -> Values:
    """Return whether the margin follows the entities, and whom the model picks of two."""
    follows = np.heaviside(tested.one.clean.mean(axis=1), 0.5)
    values = {"follows": sample_of(tested.one.items, follows).mean(config)}
    return values | _part_of(tested.two.items, tested.two.clean, config).values


def _part_of(items: Items, margins: np.ndarray, config: ProbeConfig) -> Part:
    """Return how often margins [N, 2] pick whom the author means, and so where the last one is not meant."""
    is_right = np.heaviside(margins.mean(axis=1), 0.5)
    nearest = preferred("nearest", items)
    wrong = np.flatnonzero(nearest < 0)
    values = {"author": sample_of(items, is_right).mean(config), "author_where_nearest_wrong": NOT_KNOWN}
    if len(wrong):
        values["author_where_nearest_wrong"] = sample_of(items.take(wrong), is_right[wrong]).mean(config)
    rules = {"nearest": float((nearest > 0).mean())}
    return Part(n=len(items), values=values, rules=rules)


def _rules(items: Items, documents: Sequence[tuple[str, str]]) -> dict[str, float]:
    """Return how often simple rules pick the author's entity; "last words" is counted in the other documents."""
    accuracies = {name: float((preferred(name, items) > 0).mean()) for name in ("nearest", "first", "subject")}
    tested_documents = {pair.clusters[0] for pair in items.pairs}
    untested = [document for document in documents if document[0] not in tested_documents]
    ngram = ngram_rule(untested)
    # 1: the first class, 0: the second, 1/2: undecided
    predicted = np.array([ngram(pair.texts[0]) for pair in items.pairs])
    meant = np.array([pair.meant for pair in items.pairs])
    accuracies["last words"] = float(np.where(predicted == 0.5, 0.5, predicted == (meant == 0)).mean())
    return accuracies


# Heads, alone and together


def _tested(
    tested: Half,
    heads: Sequence[Head],
    question: Question,
    answers: Values,
    untrained_t: Sequence[float],
    config: ProbeConfig,
    corrected_p: float | None = None,
) -> Tested:
    """Return what some heads do together on the tested half, judged; `answers` are values of the whole model."""
    # All passages; the p of a set is doubled: it is tested after the head.
    effects = tested.edge_effects([heads])
    test = effects.test(config)
    t = float(test.t[0])
    p = min(1.0, 2 * float(test.p[0])) if corrected_p is None else corrected_p

    # Passages with two entities; the edge to a content word is compared where there is one.
    items = tested.two.items
    margins = tested.two.margins([heads], ["swap", "cut_meant", "cut_other", "cut_control"])
    lost = {name: margins.lost(name)[:, 0] for name in ("cut_meant", "cut_other", "cut_control")}
    has_control = np.array([bool(cell.control) for cell in items.cells]).reshape(-1, 2).all(axis=1)
    lost["beyond_control"] = lost["cut_meant"] - np.where(has_control, lost.pop("cut_control"), 0.0)

    # Shares of the size of the margin: signed by the author's pronoun, its mean would be near 0 in a weak model.
    size = np.abs(margins.decision)
    shares = estimate_ratios(lost, size, items, config)
    moved, total = margins.swaps()
    values = {
        **answers,
        **shares,
        **estimate_ratios({"swap": moved[:, 0]}, total, items, config),
        "flips": sample_of(items, margins.flips()[:, 0]).mean(config),
        "edge_effect": effects.means(config)[0],
        "t": Estimate(t),
        "p": Estimate(p),
        "t_lead": Estimate(t - max(untrained_t)),
    }
    return judged(Tested(list(heads), values), question)


# For the report


def _grids(model: ObservableModel, candidates: Sequence[Head], columns: dict[str, np.ndarray]) -> dict[str, Grid]:
    """Return numbers of the candidates as grids, nan for heads that were not edited."""
    grids = {}
    for name, values in columns.items():
        grid = np.full((model.n_layer, model.n_head), np.nan)
        grid[tuple(np.array(candidates).T)] = values
        grids[name] = grid.tolist()
    return grids


def _typical(tested: Half, head: Head, heads: Sequence[Head]) -> list[Shown]:
    """Return tested passages with a typical effect of exchanging the weights of `heads`, and the weights of `head`."""
    # The 20 % of the passages whose share exchanged is nearest to the median.
    sites = tested.two
    moved, total = tested.swaps([heads])
    shares = moved[:, 0] / np.maximum(total, np.finfo(float).tiny)
    distance = np.abs(shares - np.median(shares))
    nearest = np.argsort(distance, kind="stable")[: max(N_EXAMPLES, len(shares) // 5)]

    # Among them, those with the highest probability of a pronoun: elsewhere another word comes next.
    weights, probabilities = sites.shown(head, heads)
    of_pronouns = probabilities[nearest, 0].sum(-1)
    examples = []
    for i in nearest[np.argsort(-of_pronouns, kind="stable")[:N_EXAMPLES]]:
        pair = sites.items.pairs[i]
        text = pair.texts[0]
        of_forms = probabilities[i, :, :: 1 - 2 * pair.meant].tolist()  # in the order of pair.forms
        names = [_surface(text, pair.clusters[side]) for side in (1 + pair.meant, 2 - pair.meant)]
        shown = Shown.of(
            "typical",
            text.rstrip(" "),  # the pronoun's token has the space
            pair.cells[0],
            weights=dict(zip(names, weights[i].tolist(), strict=True)),
            next=list(zip(pair.forms, of_forms[0], strict=True)),
            exchanged=list(zip(pair.forms, of_forms[1], strict=True)),
        )
        examples.append(shown)
    return examples


def _surface(text: str, entity: str) -> str:
    """Return an entity as a text writes it last: "Anna" for "anna"."""
    forms = re.findall(rf"\b{re.escape(entity)}\b", text, re.IGNORECASE)
    return str(forms[-1]) if forms else entity
