"""Attention: does a head attend more to the antecedent, and does the answer depend on it?

For each question a head is chosen on dev, tested once on every part of the test items, and judged on the headline. All
heads of all models are measured once for all questions. Axes: N_b blocks, L layers, H heads per layer.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from data.pairs import CONTROL, Cell, Items, Word
from model.observe import ObservableModel
from probe.attention import SET, HeadScores, Scores, best_head, measure_heads
from probe.behaviour import answer_values, answer_with_words_shuffled, measure_payoffs, resolved_share
from probe.carry import find_carrier
from probe.config import ProbeConfig
from probe.edits import (
    DOSES,
    EDIT_ALL,
    MAX_CANDIDATES,
    MIN_GAIN,
    PASS_ERROR,
    EditedPairs,
    all_heads,
    alone,
    curve_of,
    grown,
    screened,
)
from probe.outcome import Case, Column, Compared, Job, Measured, Outcome, point_of
from probe.questions import DEV, HEADLINE, MAX_OTHER_TYPE, MAX_P, MIN_SHARE, SAME_WORDS, Question
from probe.results import (
    CARRIED,
    MAX_SAME_ANSWER,
    NOT_KNOWN,
    SUPPORTED,
    Curve,
    Estimate,
    Finding,
    Head,
    Part,
    Shown,
    Tested,
    TestedModel,
    Values,
    percent,
    show,
)
from probe.rules import fit_rules, score_rules, selectivity
from probe.statistics import chosen_again, estimate_ratios, mean_and_range, sample_of
from probe.weights import head_types
from training.metrics import HeadPoint

MAX_EDITED = 32  # of more than EDIT_ALL heads only those with the largest difference of attention weights are edited,
N_DEV_PAIRS_MANY = 16  # on about so many pairs of dev
N_DEV_PAIRS = 64  # the same of fewer heads
MIN_SHARE_OF_ALL = 0.8  # swap of a set on dev, as a share of that of all edited heads together
MAX_COMPARED = 8  # heads of each of two models whose effects are compared, if it has more than EDIT_ALL
N_COMPARED_DEV_BLOCKS = 16  # for the choice of these heads
MAX_COMPARED_BLOCKS = 200  # evenly spaced
N_SIGN_FLIPS = 400  # behind the bar during training
MIN_NAMED = 0.2  # of the answer, the lower end of the interval: else no head is named; our convention, as for the swap
TABLE_KEEPS = 0.8  # with the words shuffled: a table of words keeps at least this share of the answer above chance,
SENTENCE_KEEPS = 0.2  # and an answer that needs the sentence at most this one; our conventions
_EDITS = (*DOSES, "carries", "cut_meant", "cut_other", "zero")
_IN_GRIDS = ("accuracy", "block_accuracy", "contrast")
_TYPE_NAMES = {"previous": "a previous-token", "induction": "an induction"}
_HEADLINE_ITEMS = "with nouns that no pronoun referred to in training, in sentence frames that training never used"
_UNSELECTED_ITEMS = "with words and sentence frames its head was not selected on"  # unknown training data


class AttentionOutcome(Outcome):
    """Heads that attend to the antecedent."""

    name = "attention"
    verbs = ("links", "link")
    levels = {
        "E0": "an attention pattern only",
        "E1": "beats every simple rule",
        "E2": "follows what decides, on held-out items",
        "E3": "the model's answer depends on this attention edge",
    }
    columns = {
        "accuracy [95 %]": Column("accuracy", ".3f", has_interval=True),
        "p": Column("p", ".4f"),
        "swap": Column("swap", ".2f"),
        "carries": Column("carries", ".2f"),
        "answer": Column("answer_accuracy", ".2f", part=HEADLINE),
        "link": Column("link_share", ".2f"),
    }
    over_seeds = (
        "accuracy",
        "block_accuracy",
        "contrast",
        "swap",
        f"{SAME_WORDS} resolved_share",
        f"{HEADLINE} resolved_share",
        f"{HEADLINE} answer_shuffled",
    )
    legend = """\
accuracy: the antecedent gets more attention than each other mention (chance: 0.5; of three: 1/3), in the sentences
held out for it. p: corrected for all heads, doubled for a set. swap: the share of the answer that flips if the head's
weights on both words are exchanged. carries: the share that follows if its output changes places with that in the
other sentence. answer: how often the model is right. link: the share of its strong weights in many texts that are
this link. carried: heads carry the answer, but are not shown to look at the antecedent. E0 to E3: docs/probe.md."""

    def problem(self, question: Question, items: Items) -> str:
        missing = {DEV, HEADLINE} - set(items.parts(question.name))
        return f"{question.name}: no items in the part {' and '.join(sorted(missing))}" if missing else ""

    def cases(self, job: Job, questions: Sequence[Question]) -> Iterator[Case]:
        if not questions:
            return
        # Untrained models, which may not fit, are first, one in memory at a time: dev and headline only.
        config = job.config
        names = {question.name for question in questions}
        needed = job.items.where(lambda pair: pair.question in names and pair.part in (DEV, HEADLINE))
        untrained = []
        for number in range(config.n_untrained):
            job.progress("untrained models", number / (1 + config.n_untrained))
            model = job.untrained(config.seed + number)
            untrained.append(measure_heads(model, needed, config.tokens_per_batch))
        job.progress("the heads at all texts", config.n_untrained / (1 + config.n_untrained))
        trained = measure_heads(job.model, job.items, config.tokens_per_batch, weighs_values=True)
        types = head_types(job.model, job.items.cells[0].tokens[0], config.seed)

        for number, question in enumerate(questions):
            job.progress(question.name, number / len(questions))
            yield _AttentionCase(question, job, trained, untrained, types)

    def opening(self, finding: Finding) -> str:
        of_link = super().opening(finding)
        if finding.verdict != CARRIED:
            return of_link
        assert finding.carrier is not None
        return f"The answer is carried by {' and '.join(map(str, finding.carrier.heads))}. {of_link}"

    def sentences(self, finding: Finding, model: TestedModel) -> list[str]:
        heads = " and ".join(map(str, finding.judged.heads))
        subject = f"{heads} attends" if finding.unit == "head" else f"The weights of {heads} together go"
        is_of_stories = model.trained_on == "stories" and finding.file is None
        items = _HEADLINE_ITEMS if is_of_stories else _UNSELECTED_ITEMS
        accuracy = percent(finding.judged.values["accuracy"])
        text = (
            f"{subject} to the antecedent more than to the other mention in {accuracy} of {finding.n} items {items}; "
            f"{finding.best_rule_sentence}"
        )
        if "accuracy" in finding.untrained:
            text += f", the best heads of untrained models in {100 * finding.untrained['accuracy'].value:.1f} %"
        return [f"{text}.", *filter(None, [self.what_it_needs(finding), self.what_carries(finding)])]

    def what_it_needs(self, finding: Finding) -> str:
        values = finding.parts[HEADLINE].values
        if "answer_shuffled" not in values or not (values["answer_accuracy"].low or 0.0) > 0.5:
            return ""
        answer, shuffled = values["answer_accuracy"], values["answer_shuffled"]
        kept = (shuffled.value - 0.5) / (answer.value - 0.5)
        needed = "Part of this needs the sentence"
        if kept >= TABLE_KEEPS:
            needed = "A table of words is enough"
        elif kept <= SENTENCE_KEEPS:
            needed = "This needs the sentence"
        after = f"with the earlier words shuffled in {percent(shuffled)}"
        return f"{needed}: the answer is right in {percent(answer)}, {after}."

    def what_carries(self, finding: Finding) -> str:
        carrier = finding.carrier
        if carrier is None:
            return ""
        carries = show(carrier.values["carries"].value)
        if not (carrier.values["carries"].low or 0.0) > MIN_NAMED:
            heads = " and ".join(map(str, carrier.heads))
            return f"No head is shown to carry the answer: {carries} of it follows the best that were found, {heads}."
        parts = []
        for head, share, (read, *_) in zip(carrier.heads, carrier.each, carrier.reads, strict=True):
            parts.append(f"{head} ({show(share.value)}) reads {read.word} (weight {show(read.weight)})")
        fed = "it" if len(carrier.heads) == 1 else "them"
        for feed in carrier.feeds:
            parts.append(f"{feed.head} at {feed.place} feeds {fed} ({show(feed.share.value)})")
        same = carrier.values.get("same_answer", NOT_KNOWN).value
        if abs(same) > MAX_SAME_ANSWER:
            parts.append(f"but with outputs of other texts that have the same answer {show(same)} of it is lost")
        return f"What carries {carries} of the answer: {'; '.join(parts)}."

    def targets(self, cell: Cell) -> tuple[Word, ...]:
        return cell.meant

    def limits(self, finding: Finding) -> list[str]:
        if finding.level == "E3":
            return []
        return ["that the model's answer depends on this head: attention alone is not a cause"]

    def differences(
        self, models: Sequence[ObservableModel], items: Items, question: Question, config: ProbeConfig
    ) -> list[Compared]:
        """Return the measures; cases are the blocks, for answers and effects the comparable pairs, evenly spaced."""
        tested = _spread_blocks(items.of(question.name, HEADLINE), MAX_COMPARED_BLOCKS)
        heads = all_heads(models[0])
        n_tokens = config.tokens_per_batch

        # Answers and effects, the mean over both texts of a pair: [N, 1] and [N, C].
        measured: list[Compared] = []
        pairs = tested.comparable()
        edited = heads
        if len(heads) > EDIT_ALL:
            edited = _strongest(models, items.of(question.name, DEV), n_tokens)
        if pairs.pairs and edited:
            margins = [EditedPairs(model, pairs, n_tokens).margins(alone(edited), ["swap"]) for model in models]
            answers = [of_model.total[:, None] / 2 for of_model in margins]
            effects = [of_model.lost("swap") for of_model in margins]
            measured += [Compared("answer", [None], pairs, answers), Compared("effect", edited, pairs, effects)]

        # The contrast of every head on every block, [N_b, C].
        contrasts = []
        for model in models:
            contrast = measure_heads(model, tested, n_tokens).scores().contrast
            contrasts.append(contrast[:, *np.array(heads).T])
        return [*measured, Compared("attention", heads, tested, contrasts)]

    def point(self, model: ObservableModel, items: Items, tokens_per_batch: int) -> HeadPoint:
        scores = measure_heads(model, items, tokens_per_batch).scores()
        best = best_head(scores)
        contrast = scores.contrast.mean(axis=0)
        if np.isnan(contrast).any():
            raise FloatingPointError("a contrast is not finite")
        accuracy = scores.accuracy.mean(axis=0)
        values = {
            "accuracy": float(accuracy[best]),
            "block_accuracy": float(scores.block_accuracy.mean(axis=0)[best]),
            "contrast": float(contrast[best]),
            "bar": sample_of(items, scores.accuracy).chance_level(N_SIGN_FLIPS, seed=0),
        }

        if all(cell.payoff is not None for cell in items.cells):
            margins, losses = measure_payoffs(model, items.cells, tokens_per_batch)
            values["answer_accuracy"] = float(np.heaviside(margins, 0.5).mean())
            share = resolved_share(losses, items.cells)
            values |= {} if share is None else {"resolved_share": share}
        return point_of(best, {"accuracy": accuracy, "contrast": contrast}, values)


class _AttentionCase(Case):
    tests_every_set = False

    def __init__(
        self,
        question: Question,
        job: Job,
        trained: HeadScores,
        untrained: list[HeadScores],
        head_types: dict[str, np.ndarray],
    ) -> None:
        """`untrained` are scores at dev and the headline, `head_types` [L, H] by type."""
        self.question = question
        self.model = job.model
        self.config = job.config
        self.decode = job.decode
        self.trained = trained
        self.untrained = untrained
        self.head_types = head_types
        self.dev = self.part(DEV)
        self.tested = self.part(HEADLINE)
        self.rules = fit_rules(self.dev.items)
        self.head = best_head(self.dev.scores())
        self.p_values, self.smallest_p = _p_values(self.tested.scores(), self.tested.items, self.config)

    def part(self, name: str) -> HeadScores:
        return self.trained.of(self.question.name, name)

    @cached_property
    def answers(self) -> dict[str, Values]:
        """The values of the model's own answers on every part of the tested items."""
        return {name: answer_values(self.model, self.part(name).items, self.config) for name in self.parts}

    def choose(self) -> list[Head]:
        return [self.head]

    @cached_property
    def pairs(self) -> EditedPairs:
        return EditedPairs(self.model, self.tested.items.comparable(), self.config.tokens_per_batch)

    @cached_property
    def dev_pairs(self) -> EditedPairs:
        """Pairs of dev, evenly spaced, on which heads are added to sets."""
        items = self.dev.items.comparable()
        n_pairs = N_DEV_PAIRS if len(all_heads(self.model)) <= EDIT_ALL else N_DEV_PAIRS_MANY
        return EditedPairs(self.model, items.some(n_pairs), self.config.tokens_per_batch)

    @cached_property
    def parts(self) -> dict[str, Part]:
        """The scores of the head on every part of the tested items."""
        by_part = {}
        for name in self.trained.items.parts(self.question.name):
            if name == DEV:
                continue
            tested = self.part(name)
            by_part[name] = self._scored(tested, self.head)
            accuracies = sample_of(tested.items, tested.scores().accuracy)
            bar = accuracies.chance_level(self.config.n_bootstrap, self.config.seed)
            by_part[name].values["bar"] = Estimate(bar)
        return by_part

    def measure(self, heads: Sequence[Head]) -> Measured:
        smallest_p = self.smallest_p
        if len(heads) == 1:
            scored = dict(self.parts[HEADLINE].values)
        else:
            scored = self._scored(*self.tested.joined(heads)).values
            scored |= {name: Estimate(min(1.0, 2 * scored[name].value)) for name in self.p_values}
            smallest_p *= 2

        effects = self._effects(heads)
        mass = float(np.mean([self.tested.rows.mass[:, *head].mean() for head in heads]))
        values = scored | {"mass": Estimate(mass)} | self._beyond_control(heads) | effects
        values |= self.answers[HEADLINE]
        values["selectivity"] = Estimate(self._selectivity(heads))
        if len(heads) == 1:
            keys = self.dev.scores().keys
            design = self.dev.items.designs(len(keys[0]))[0]
            values["chosen_again"] = Estimate(chosen_again(keys, design, self.config.seed))
        instead = {}
        if effects and "swap" not in effects:
            instead["causal_edge"] = "the model's answer is not shown to follow what decides, so this was not tested"
        remarks = {}
        if smallest_p >= MAX_P:
            n_clusters = min(len(np.unique(labels)) for labels in self.tested.items.clusterings())
            remarks["pronoun_flip"] = f"no p of {n_clusters} frames or words can be below {show(smallest_p)}"
        return Measured(values, self._exclusions(heads), instead, remarks)

    def grow(self, head: Tested) -> Curve:
        if head.verdict == SUPPORTED and head.value("swap") >= MIN_SHARE:
            return []
        if not self.dev_pairs.items.pairs or not self.pairs.items.pairs:
            return []
        heads = screened(self.dev.rows.weight_difference(), above=EDIT_ALL, most=MAX_EDITED)

        # Later heads can repair the loss of one, so sets are edited.
        steps = grown(self.dev_pairs.exchanged, heads, least_gain=MIN_GAIN, most=MAX_CANDIDATES)
        if not steps:
            return []
        moved, total = self.dev_pairs.exchanged([heads])
        self.least_swap = MIN_SHARE_OF_ALL * float(moved.mean() / total.mean())
        return curve_of(steps, self.pairs.exchanged, self.pairs.items, self.config)

    def facts(self, judged: Tested) -> dict[str, Any]:
        for name, part in self.parts.items():
            part.values.update(self.answers[name])
        headline = self.parts[HEADLINE]
        headline.values.update(answer_with_words_shuffled(self.model, self.tested.items, self.config))
        carrier = None
        if "swap" in judged.values:  # else the model does not know the answer
            carrier = find_carrier(self.dev_pairs, self.pairs, self.config, self.decode)
        scores = self.tested.scores()
        grids = {name: getattr(scores, name).mean(axis=0).tolist() for name in _IN_GRIDS}
        return {
            "n": len(self.tested.items.cells),
            "clusters": self.tested.items.n_clusters(),
            "smallest_p": self.smallest_p,
            "untrained": self._untrained(),
            "rules": headline.rules,
            "grids": grids | {"p": self.p_values["p"].tolist()},
            "parts": self.parts,
            "examples": _median_block(self.tested, self.head),
            "carrier": carrier,
        }

    def _exclusions(self, heads: Sequence[Head]) -> list[str]:
        """Return why nothing may be claimed; an excluded head excludes the set."""
        exclusions = []
        contrasts = self.tested.scores().contrast
        for head in heads:
            types = {name: float(grid[head]) for name, grid in self.head_types.items()}
            contrast = float(contrasts[:, *head].mean())
            weighted = float(self.tested.rows.value_log_ratio[:, *head].mean())
            reasons = exclusions_of(self.question, types, contrast, weighted)
            exclusions += [f"{head}: {reason}" if len(heads) > 1 else reason for reason in reasons]
        return exclusions

    def _untrained(self) -> Values:
        """Return the headline scores of the untrained models' own best dev heads: mean and range."""
        means: dict[str, list[float]] = {"accuracy": [], "block_accuracy": []}
        for untrained in self.untrained:
            head = best_head(untrained.of(self.question.name, DEV).scores())
            scores = untrained.of(self.question.name, HEADLINE).scores()
            for name, by_model in means.items():
                by_model.append(float(getattr(scores, name)[:, *head].mean()))
        return {name: mean_and_range(by_model) for name, by_model in means.items()}

    def _beyond_control(self, heads: Sequence[Head]) -> Values:
        """Return how much higher the contrast is than in the texts without the link; empty without such texts."""
        control = self.part(CONTROL)
        if not control.items.pairs:
            return {}
        tested, place = self.tested.joined(heads)
        without_link, _ = control.joined(heads)
        beyond = (tested.scores().contrast - without_link.scores().contrast)[:, *place]
        return {"beyond_control_text": sample_of(tested.items, beyond).mean(self.config)}

    def _selectivity(self, heads: Sequence[Head]) -> float:
        """Return how much better the best head is than with random labels, or a set, which these may choose too."""
        dev = self.dev
        test = self.part(SAME_WORDS)
        if not test.items.pairs:
            # A file of the user's own has no test items with these words: every second dev block of each word pair
            names = [" ".join(pair.clusters[1:]) for pair in dev.items.pairs[::2]]
            by_pair = np.argsort(names, kind="stable")
            dev, test = (dev.take_blocks(np.sort(half)) for half in (by_pair[::2], by_pair[1::2]))
        sampling = (self.config.n_controls, self.config.seed)
        if len(heads) == 1:
            return selectivity(dev, test, *sampling)
        return selectivity(dev.with_set(heads), test.with_set(heads), *sampling, SET)

    def _scored(self, tested: HeadScores, place: Head) -> Part:
        """Return the scores of the head or set at `place`, its lead over the best rule, its p, and the rules."""
        # Scores by block, [N_b] each, and the lead: resampled together.
        scores = tested.scores()
        of_rules = score_rules(self.rules, tested.items)
        best_rule = max(of_rules.values(), key=lambda of_rule: of_rule.accuracy.mean())
        by_block = {name: of_heads[:, *place] for name, of_heads in scores._asdict().items()}
        by_block["lead"] = by_block["accuracy"] - best_rule.accuracy
        estimates = sample_of(tested.items, np.stack(list(by_block.values()), axis=1)).means(self.config)
        values = dict(zip(by_block, estimates, strict=True))
        p_values, _ = _p_values(scores, tested.items, self.config)
        values |= {name: Estimate(float(p[place])) for name, p in p_values.items()}
        accuracy_of_rules = {name: float(of_rule.accuracy.mean()) for name, of_rule in of_rules.items()}
        return Part(n=len(tested.items.cells), values=values, rules=accuracy_of_rules)

    def _effects(self, heads: Sequence[Head]) -> Values:
        """Return what edits of heads take from the answer, as shares of its change; empty without comparable pairs."""
        items = self.pairs.items
        if not items.pairs:
            return {}
        margins = self.pairs.margins([heads], _EDITS)
        values = {"answer": sample_of(items, margins.total / 2).mean(self.config)}
        # If its interval reaches 0, the model treats the texts of a pair alike, and there are no shares.
        if not (values["answer"].low or 0.0) > PASS_ERROR:
            return values
        lost = {name: margins.lost(name)[:, 0] for name in (*_EDITS, "specificity")}
        return values | estimate_ratios(lost, margins.total, items, self.config)


def exclusions_of(question: Question, head_type: Mapping[str, float], contrast: float, weighted: float) -> list[str]:
    """Return why nothing may be claimed of a head: it is of another known type, or its values contradict its attention.

    `head_type` are its mean weights on random tokens; `weighted` is the contrast of weights times lengths of values.
    """
    reasons = []
    for name, words in _TYPE_NAMES.items():
        weight = head_type.get(name, 0.0)
        if name in question.exclusions and weight > MAX_OTHER_TYPE:
            reasons.append(f"no claim: it is {words} head (weight {show(weight)}; at most {MAX_OTHER_TYPE})")
    if "value_contrast" in question.exclusions and contrast * weighted < 0:
        contrasts = f"contrasts {show(contrast)} and {show(weighted)}"
        reasons.append(f"no claim: attention and value-weighted attention disagree ({contrasts})")
    return reasons


def _p_values(scores: Scores, items: Items, config: ProbeConfig) -> tuple[dict[str, np.ndarray], float]:
    """Return p of all columns of scores [N_b, ...], and the smallest p that is possible."""
    # A link must pass both tests: above 1/2 in pair accuracy, above 0 in contrast. Its p is the larger one.
    pairs = sample_of(items, scores.pair_accuracy).test(config, centre=0.5)
    contrasts = sample_of(items, scores.contrast).test(config)
    p_values = {"p_pair_accuracy": pairs.p, "p_contrast": contrasts.p, "p": np.maximum(pairs.p, contrasts.p)}
    return p_values, max(pairs.smallest_p, contrasts.smallest_p)


def _median_block(tested: HeadScores, head: Head) -> list[Shown]:
    """Return the texts of the block of median contrast, so that the example shown is no better than half of all."""
    contrasts = tested.scores().contrast[:, *head]
    middle = (len(contrasts) - 1) // 2
    shown = []
    for pair in tested.items.take_blocks(np.argsort(contrasts, kind="stable")[[middle]]).pairs:
        shown += [Shown.of("median", text, cell) for text, cell in zip(pair.texts, pair.cells, strict=True)]
    return shown


def _spread_blocks(items: Items, most: int) -> Items:
    """Return up to `most` whole blocks of two pairs, evenly spaced."""
    n_available = len(items) // 2
    return items.take_blocks(np.linspace(0, n_available - 1, min(most, n_available)).round().astype(int))


def _strongest(models: Sequence[ObservableModel], dev: Items, tokens_per_batch: int) -> list[Head]:
    """Return the heads that move most of the margin on dev, MAX_COMPARED of each model."""
    dev = _spread_blocks(dev, N_COMPARED_DEV_BLOCKS)
    pairs = dev.comparable()
    chosen: dict[Head, None] = {}
    for model in models if pairs.pairs else ():
        differences = measure_heads(model, dev, tokens_per_batch).rows.weight_difference()
        heads = screened(differences, above=EDIT_ALL, most=MAX_EDITED)
        margins = EditedPairs(model, pairs, tokens_per_batch).margins(alone(heads), ["swap"])
        effects = np.abs(margins.lost("swap").mean(axis=0))
        order = np.argsort(-effects, kind="stable")[:MAX_COMPARED]
        chosen |= dict.fromkeys(heads[i] for i in order)
    return sorted(chosen)
