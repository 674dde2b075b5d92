"""Edges: which head decides the next word? Read one word before "she" or "he", on passages and twins.

Each passage is compared with its twin, in which every entity has a counterpart of the other class. So whatever ignores
the entities cancels: a model that does not know them follows the twin in half of the passages. With many heads, direct
logit attribution (Elhage et al. 2021) ranks them, and only the best are edited. Axes: N pairs, C sets of heads.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from data.pairs import Items
from extras.english.passages import ngram_rule
from extras.english.questions import TESTED, UNKNOWN_TO_MODEL
from model.observe import ObservableModel
from probe.config import ProbeConfig
from probe.edits import DOSES, EditedPairs, Sets, all_heads, alone, curve_of, grown, screened
from probe.outcome import CannotTestError, Case, Column, Compared, Job, Measured, Outcome, point_of
from probe.questions import DEV, MIN_SHARE, Question
from probe.results import NOT_KNOWN, Curve, Estimate, Finding, Head, Part, Shown, Tested, TestedModel, percent
from probe.rules import preferred
from probe.statistics import Sample, chosen_again, estimate_ratios, sample_of
from training.metrics import HeadPoint

MIN_PASSAGES = 40  # with one entity, and with two; fewer give no test
MIN_CLUSTERS = 9  # documents and entities of each class in a half: with 8 no p is below 2 / 2^8
EDIT_ALL = 32  # with more heads than this,
MAX_EDITED = 8  # only so many are edited
N_EXAMPLES = 3


class EdgeOutcome(Outcome):
    """Heads whose edges to the entities decide the next word."""

    name = "edge"
    verbs = ("copies", "copy")
    levels = {
        "E0": "the model's pronoun is not shown to follow the entities",
        "E1": "the model's pronoun follows the entities",
        "E2": "cutting the head's edges moves the pronoun, on held-out documents",
        "E3": "what this head copies decides the pronoun",
    }
    columns = {
        "swap [95 %]": Column("swap", ".2f", has_interval=True),
        "flips": Column("flips", ".2f"),
        "author's entity": Column("author", ".2f", has_rule=True),
        "p": Column("p", ".4f"),
    }
    over_seeds = ("swap", "flips", "follows", "author", "nearest")
    legend = """\
swap: share of the decision that changes sides if the head's attention to the two entities is exchanged; flips: of
the more probable pronouns. p: corrected for all heads, doubled for a set. Verdicts: docs/english.md, docs/probe.md."""

    def problem(self, question: Question, items: Items) -> str:
        found = []  # how many there are, of what, and how many are needed
        for people, passages in zip(("one person", "a woman and a man"), _one_and_two(items), strict=True):
            dev, tested = passages.of(question.name, DEV), passages.of(question.name, TESTED)
            n_documents = min(dev.n_clusters()["documents"], tested.n_clusters()["documents"])
            found.append((len(dev) + len(tested), f"passages with {people}", MIN_PASSAGES))
            found.append((n_documents, f"documents with {people} in one half", MIN_CLUSTERS))
        _, *of_classes = items.of(question.name, TESTED).n_clusters().values()
        found.append((min(of_classes), "different entities of one class in the tested half", MIN_CLUSTERS))
        problems = [f"{n} {what} (needed: {least})" for n, what, least in found if n < least]
        if not problems:
            return ""
        for reason, n in Counter(items.reasons(question.name)).most_common(1):
            problems.append(f"{n:,} left out: {reason}")
        return f"{question.name}: {'; '.join(problems)}"

    def cases(self, job: Job, questions: Sequence[Question]) -> Iterator[Case]:
        for question in questions:
            yield _EdgeCase(question, job)

    def sentences(self, finding: Finding, model: TestedModel) -> list[str]:
        judged = finding.judged
        swap = judged.values["swap"]
        exchanged = f"{swap.value:.2f} [{swap.low:.2f}, {swap.high:.2f}]"
        return [
            f"The model follows the person in {percent(judged.values['follows'])} of {finding.clusters['one']} "
            "passages that mention one.",
            f"In {finding.clusters['two']} passages with one of each class, exchanging the attention weights on the "
            f"two moves a share of {exchanged} of the decision to the other side and changes the more probable pronoun "
            f"in {judged.value('flips'):.0%}; corrected p {judged.value('p'):.4f}.",
            f"The person that the model picks is the author's in {judged.value('author'):.0%} of them; "
            f"{finding.best_rule_sentence}.",
        ]

    def opening(self, finding: Finding) -> str:
        if finding.verdict == UNKNOWN_TO_MODEL:
            return "The model does not know the next word: its choice is not shown to follow the persons before it"
        return super().opening(finding)

    def limits(self, finding: Finding) -> list[str]:
        return [
            "that the head finds the person whom the author means: one that copies from anybody passes the same bars"
        ]

    def differences(
        self, models: Sequence[ObservableModel], items: Items, question: Question, config: ProbeConfig
    ) -> list[Compared]:
        """Return the measures; cases are the passages."""
        heads = all_heads(models[0])
        dev = items.of(question.name, DEV)
        tested = items.of(question.name, TESTED)
        # With few heads nothing is chosen, and both halves are used; else those of the largest direct effects are cut.
        if len(heads) <= EDIT_ALL:
            tested = dev + tested
        else:
            candidates = [candidates_of(model, Half(model, dev, config.tokens_per_batch)) for model in models]
            heads = sorted(set().union(*candidates))
        answers = []
        effects = []
        for model in models:
            half = Half(model, tested, config.tokens_per_batch)
            answers.append(np.concatenate([half.one.clean, half.two.clean]).mean(axis=1)[:, None])
            effects.append(half.edge_effects(alone(heads)).values)
        return [Compared("answer", [None], half.items, answers), Compared("effect", heads, half.items, effects)]

    def point(self, model: ObservableModel, items: Items, tokens_per_batch: int) -> HeadPoint:
        """Return the share of the answer that each head's swap moves, not held out; the head named has the largest."""
        passages = Half(model, items, tokens_per_batch)
        heads = all_heads(model)
        moved, total = passages.two.swaps(alone(heads))
        if not np.isfinite(total).all() or not np.isfinite(moved).all():
            raise FloatingPointError("a margin is not finite")

        # Without a decision to exchange there are no shares.
        mean = total.mean()
        shares = moved.mean(axis=0) / mean if mean > 0 else np.zeros(len(heads))
        values = {
            "swap": float(shares.max()),
            "margin": float(mean / 2),
            "follows": float(passages.follows.mean()),
        }
        return point_of(heads[int(shares.argmax())], {"swap": shares.reshape(model.n_layer, model.n_head)}, values)


class Half:
    """The passages of one part, with the unedited pass of a model over them."""

    def __init__(self, model: ObservableModel, items: Items, tokens_per_batch: int) -> None:
        self.one, self.two = (EditedPairs(model, passages, tokens_per_batch) for passages in _one_and_two(items))
        self.items = self.one.items + self.two.items

    def edge_effects(self, sets: Sets) -> Sample:
        """Return how far the edges to an entity move the margin to its side, the mean of the entities, [N, C] in nats.

        In the order of `items`. It does not use the author's pronoun.
        """
        of_one = self.one.margins(sets, ["cut_meant"]).lost("cut_meant")
        of_two = self.two.margins(sets, ["cut_meant", "cut_other"]).lost("specificity") / 2
        return sample_of(self.items, np.concatenate([of_one, of_two]))

    @property
    def follows(self) -> np.ndarray:
        """Whether the answer follows the one entity into the twin, [N]; 1/2 for a tie."""
        return np.asarray(np.heaviside(self.one.clean.mean(axis=1), 0.5))


def _one_and_two(items: Items) -> tuple[Items, Items]:
    """Return the passages with one entity, and those with two."""
    return items.where(lambda pair: not pair.has_two), items.where(lambda pair: pair.has_two)


class _EdgeCase(Case):
    """One question about the edges of a model's heads: chosen on one half of the documents, tested on the other."""

    least_swap = MIN_SHARE

    def __init__(self, question: Question, job: Job) -> None:
        self.question = question
        self.job = job
        self.config = job.config

    def _half(self, part: str) -> Half:
        return Half(self.job.model, self.job.items.of(self.question.name, part), self.config.tokens_per_batch)

    def choose(self) -> list[Head]:
        self.job.progress("choosing a head", 0.0)
        half = self._half(DEV)
        self.candidates = candidates_of(self.job.model, half)
        effects = half.edge_effects(alone(self.candidates))
        self.head = self.candidates[effects.values.mean(axis=0).argmax()]
        self.chosen_again = chosen_again([effects.values], effects.designs[0], self.config.seed)
        self.steps = grown(half.two.swaps, self.candidates)
        self.dev_items, self.dev_margins = half.two.items, half.two.clean
        del half  # a gigabyte in a model of 135 million weights

        self.job.progress("testing", 0.4)
        self.tested = self._half(TESTED)
        self.effects = self.tested.edge_effects(alone(self.candidates))
        self.test = self.effects.test(self.config)
        return [self.head]

    def measure(self, heads: Sequence[Head]) -> Measured:
        config = self.config
        one, two = self.tested.one, self.tested.two
        effects = self.tested.edge_effects([heads])
        test = effects.test(config)

        # Passages with two entities; without a content word, to cut its edge takes nothing.
        margins = two.margins([heads], [*DOSES, "cut_meant", "cut_other", "cut_control"])
        lost = {name: margins.lost(name)[:, 0] for name in ("cut_meant", "cut_other")}
        lost["beyond_control"] = lost["cut_meant"] - margins.lost("cut_control")[:, 0]
        exchanged = {name: margins.swaps(name)[0][:, 0] for name in DOSES}
        _, total = margins.swaps()

        values = {
            "follows": sample_of(one.items, self.tested.follows).mean(config),
            **_part_of(two.items, two.clean, config).values,
            # Shares of the margin's size: signed by the author's pronoun, its mean would be near 0 in a weak model.
            **estimate_ratios(lost, np.abs(margins.total / 2), two.items, config),
            **estimate_ratios(exchanged, total, two.items, config),
            "flips": sample_of(two.items, margins.flips()[:, 0]).mean(config),
            "edge_effect": effects.means(config)[0],
            "t": Estimate(float(test.t[0])),
            "p": Estimate(min(1.0, 2 * float(test.p[0]))),  # a set is tested after the head
        }
        if len(heads) == 1:
            values["p"] = Estimate(float(self.test.p[self.candidates.index(heads[0])]))
            values["chosen_again"] = Estimate(self.chosen_again)
        return Measured(values)

    def grow(self, head: Tested) -> Curve:
        two = self.tested.two
        return curve_of(self.steps, two.swaps, two.items, self.config)

    def facts(self, judged: Tested) -> dict[str, Any]:
        tested = self.tested
        two = tested.two
        both_margins = np.vstack([self.dev_margins, two.clean])

        model = self.job.model
        columns = {"edge_effect": self.effects.values.mean(axis=0), "t": self.test.t, "p": self.test.p}
        grids = {}
        for name, values in columns.items():
            grid = np.full((model.n_layer, model.n_head), np.nan)  # heads that were not edited
            grid[*np.array(self.candidates).T] = values
            grids[name] = grid.tolist()

        n_heads = len(all_heads(model))
        n_edited = len(self.candidates)
        few = f"of {n_heads} heads only {n_edited} were edited: those with the largest direct effect on dev"
        return {
            "n": len(tested.items),
            "clusters": {"one": len(tested.one.items), "two": len(two.items)} | tested.items.n_clusters(),
            "left_out": self.job.items.reasons(self.question.name),
            "smallest_p": self.test.smallest_p,
            "rules": _rules(two.items, self.job.documents),
            "grids": grids,
            "parts": {"both halves": _part_of(self.dev_items + two.items, both_margins, self.config)},
            "examples": _typical(two, self.head, judged.heads),
            "notes": [few] if n_edited < n_heads else [],
        }


def candidates_of(model: ObservableModel, choosing: Half) -> list[Head]:
    """Return the heads to edit: all, or of many those of the largest direct effect."""
    heads = all_heads(model)
    if len(heads) <= EDIT_ALL:
        return heads
    of_passages = [choosing.one.direct_effects(), choosing.two.direct_effects()]
    direct = np.abs(np.concatenate(of_passages).mean(axis=0))
    if not np.isfinite(direct[list(model.attention_layers)]).all():
        raise CannotTestError("the direct effects of the heads are not known for this kind of model")
    return screened(direct, above=EDIT_ALL, most=MAX_EDITED)


def _part_of(items: Items, margins: np.ndarray, config: ProbeConfig) -> Part:
    """Return how often margins [N, 2] pick whom the author means, and so where the last one is not meant."""
    is_right = np.heaviside(margins.mean(axis=1), 0.5)
    nearest = preferred("nearest", items)
    wrong = np.flatnonzero(nearest < 0)
    values = {"author": sample_of(items, is_right).mean(config), "author_where_nearest_wrong": NOT_KNOWN}
    if len(wrong):
        values["author_where_nearest_wrong"] = sample_of(items.take(wrong), is_right[wrong]).mean(config)
    return Part(n=len(items), values=values, rules=rule_accuracies(items, "nearest"))


def rule_accuracies(items: Items, *rules: str) -> dict[str, float]:
    """Return how often simple rules pick the author's entity."""
    return {name: float((preferred(name, items) > 0).mean()) for name in rules}


def _rules(items: Items, documents: Sequence[tuple[str, str]]) -> dict[str, float]:
    """Return how often simple rules pick the author's entity; "last words" is counted in the other documents."""
    tested_documents = set(items.clusterings()[0])
    last_words = ngram_rule([document for document in documents if document[0] not in tested_documents])
    is_right = [1 - abs(last_words(pair.texts[0]) - pair.meant) for pair in items.pairs]
    return rule_accuracies(items, "nearest", "first", "subject") | {"last words": float(np.mean(is_right))}


def _typical(sites: EditedPairs, head: Head, heads: Sequence[Head]) -> list[Shown]:
    """Return passages with a typical effect of exchanging the weights of `heads`, and the weights of `head`."""
    # The 20 % of the passages whose share exchanged is nearest to the median.
    moved, total = sites.swaps([heads])
    shares = moved[:, 0] / np.maximum(total, np.finfo(float).tiny)
    distance = np.abs(shares - np.median(shares))
    nearest = np.argsort(distance, kind="stable")[: max(N_EXAMPLES, len(shares) // 5)]

    # Among them, those with the highest probability of a pronoun: elsewhere another word comes next.
    weights, probabilities = sites.shown(head, heads)
    of_pronouns = probabilities[nearest, 0].sum(-1)
    examples = []
    for i in nearest[np.argsort(-of_pronouns, kind="stable")[:N_EXAMPLES]]:
        pair = sites.items.pairs[i]
        text = pair.texts[0].rstrip(" ")  # the pronoun's token has the space
        persons = [_surface(text, pair.clusters[1 + side]) for side in (pair.meant, 1 - pair.meant)]
        unedited, exchanged = probabilities[i, :, :: 1 - 2 * pair.meant].tolist()  # in the order of pair.forms
        shown = Shown.of(
            "typical",
            text,
            pair.cells[0],
            weights=dict(zip(persons, weights[i].tolist(), strict=True)),
            next=list(zip(pair.forms, unedited, strict=True)),
            exchanged=list(zip(pair.forms, exchanged, strict=True)),
        )
        examples.append(shown)
    return examples


def _surface(text: str, entity: str) -> str:
    """Return an entity as a text writes it last: "Anna" for "anna"."""
    forms = re.findall(rf"\b{re.escape(entity)}\b", text, re.IGNORECASE)
    return str(forms[-1]) if forms else entity
