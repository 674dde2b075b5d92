"""What differs between two models of one shape on the same items, for example before and after fine-tuning.

Three numbers are measured in both models, and their differences are tested:

    answer      half of the change of the answer margin between two texts that differ in their antecedent, in nats
    effect      how much of the margin a head moves: links: its weights on antecedent and distractor are exchanged;
                next pronoun: its edges to the entities are cut; in nats
    attention   links only: pronoun contrast of a head, in nats

The test of each measure is the two-sided max-T sign-flip test of `probe.statistics` on the differences of the cases,
corrected for the search over all its heads. A head whose output is removed keeps its attention: only its effect
changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from data.links import LinkItem
from model.observe import ObservableModel
from probe.config import ProbeConfig
from probe.head_sets import joint_swaps, screened_heads
from probe.interventions import PASS_ERROR, pair_up
from probe.margins import decision
from probe.next_pronoun import ALL_HEADS, Half, Meter, Progress, choose_candidates
from probe.passage_items import PassageItem
from probe.results import Estimate, Head, TestedModel
from probe.scores import check_blocks, measure_heads, score_heads
from probe.statistics import CLUSTERINGS, Design, mean_interval, story_clusters, story_designs
from probe.study import Sample

MAX_HEADS = 64  # in models with more heads, the effect is measured of MAX_CANDIDATES heads of each model
MAX_CANDIDATES = 8
COMPARISON_VERSION = 1
N_DEV_BLOCKS = 16  # of which those candidates are chosen
MAX_BLOCKS = 200  # evenly spaced


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A number in two models, and the paired test of its difference."""

    measure: str  # "answer", "effect" or "attention"
    head: Head | None  # None: of the whole model
    before: float  # mean, in nats
    after: float
    difference: Estimate
    t: float
    p: float  # two-sided, corrected for all heads of this measure
    n: int  # cases
    smallest_p: float  # that is possible with so few clusters


@dataclass(frozen=True, slots=True)
class QuestionChanges:
    """What differs between two models for one question."""

    question: str
    description: str
    changes: list[Change]


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoModels:
    """The content of comparison.json."""

    schema_version: int
    before: TestedModel
    after: TestedModel
    settings: ProbeConfig
    fingerprint: str  # of the items
    warnings: list[str]
    missing: list[str]  # a sentence for each question that could not be asked
    questions: list[QuestionChanges]


@dataclass(frozen=True)
class _Measured:
    """A number of C heads, or of the whole model (C = 1), for each of N cases."""

    values: np.ndarray  # [N, C]
    clusterings: Sequence[np.ndarray]  # each [N]
    designs: Sequence[Design]


def compare_links(
    before: ObservableModel,
    after: ObservableModel,
    dev: Sequence[LinkItem],
    test: Sequence[LinkItem],
    config: ProbeConfig,
) -> list[Change]:
    """Return what differs between two models at the items of one question, whole blocks in `dev` and `test`.

    Cases are the blocks of `test`, for answers and effects the pairs of texts that differ in their antecedent. Without
    answers in the items only the attention is compared.
    """
    check_blocks(test)
    test = spread_blocks(test, MAX_BLOCKS)
    heads = _all_heads(before)
    models = (before, after)

    # Attention: the pronoun contrast of every head on every block, [N_b, L H].
    clusters = story_clusters(test[::4])
    clusterings, designs = [clusters[name] for name in CLUSTERINGS], story_designs(clusters)
    attention = []
    for model in models:
        contrasts = score_heads(measure_heads(model, test, config.tokens_per_batch)).pronoun_contrast
        attention.append(_Measured(contrasts.reshape(len(contrasts), -1), clusterings, designs))
    changes = _changes("attention", heads, attention, config)

    # Answers and effects, the mean over both texts of a pair: [N_p, 1] and [N_p, C].
    pairs, _ = pair_up(test)
    if not pairs:
        return changes
    edited = heads if len(heads) <= MAX_HEADS else _strongest(models, spread_blocks(dev, N_DEV_BLOCKS), config)
    if not edited:  # no answers on dev
        return changes
    clusters = story_clusters(pairs[::2])
    clusterings, designs = [clusters[name] for name in CLUSTERINGS], story_designs(clusters)
    answers, effects = [], []
    for model in models:
        moved, total = joint_swaps(model, pairs, [[head] for head in edited], config.tokens_per_batch)
        answers.append(_Measured(_pair_means(total[:, None] / 2), clusterings, designs))
        effects.append(_Measured(_pair_means(moved), clusterings, designs))
    return [*_changes("answer", [None], answers, config), *_changes("effect", edited, effects, config), *changes]


def compare_passages(
    before: ObservableModel,
    after: ObservableModel,
    choosing: Sequence[PassageItem],
    tested: Sequence[PassageItem],
    config: ProbeConfig,
    progress: Progress = lambda stage, share: None,
) -> list[Change]:
    """Return what differs between two models one word before a pronoun.

    In models with many heads those with the largest direct effects on `choosing` in either model are cut, and compared
    on `tested`; with few heads nothing is chosen, and all passages are used.
    """
    # Heads whose edges are cut
    heads = _all_heads(before)
    if len(heads) <= ALL_HEADS:
        tested = [*choosing, *tested]
    else:
        candidates: dict[Head, None] = {}
        for name, model in (("before", before), ("after", after)):
            meter = Meter(progress)
            meter.begin(f"choosing heads, the model {name}")
            candidates |= dict.fromkeys(choose_candidates(model, Half(model, choosing, config.tokens_per_batch, meter)))
        heads = sorted(candidates)

    # Margins [N, 1] and edge effects [N, C]
    answers, effects = [], []
    for name, model in (("before", before), ("after", after)):
        meter = Meter(progress)
        meter.begin(f"the model {name}")
        half = Half(model, tested, config.tokens_per_batch, meter)
        sample = half.edge_effects([[head] for head in heads])
        margins = [decision(sites.items, sites.clean) for sites in (half.sites_one, half.sites_two)]
        answers.append(_Measured(np.concatenate(margins)[:, None], sample.clusterings, sample.designs))
        effects.append(_Measured(sample.values, sample.clusterings, sample.designs))
    return [*_changes("answer", [None], answers, config), *_changes("effect", heads, effects, config)]


def spread_blocks(items: Sequence[LinkItem], n_blocks: int) -> list[LinkItem]:
    """Return `n_blocks` whole blocks of four items, evenly spread, or all if there are fewer."""
    n_available = len(items) // 4
    blocks = np.linspace(0, n_available - 1, min(n_blocks, n_available)).round().astype(int)
    return [items[4 * block + cell] for block in blocks for cell in range(4)]


def _all_heads(model: ObservableModel) -> list[Head]:
    return [Head(layer, head) for layer in range(model.n_layer) for head in range(model.n_head)]


def _strongest(models: Sequence[ObservableModel], dev: Sequence[LinkItem], config: ProbeConfig) -> list[Head]:
    """Return the heads that move most of the margin on dev, MAX_CANDIDATES of each model."""
    pairs, _ = pair_up(dev)
    chosen: dict[Head, None] = {}
    for model in models if pairs else ():
        # Of those with the largest difference of weights
        heads = screened_heads(measure_heads(model, dev, config.tokens_per_batch).weight_difference())
        moved, _ = joint_swaps(model, pairs, [[head] for head in heads], config.tokens_per_batch)
        order = np.argsort(-np.abs(moved.mean(axis=0)), kind="stable")[:MAX_CANDIDATES]
        chosen |= dict.fromkeys(heads[i] for i in order)
    return sorted(chosen)


def _pair_means(values: np.ndarray) -> np.ndarray:
    """Return the mean of both items of each pair, [N_p, C], from values [N, C]."""
    means: np.ndarray = values.reshape(-1, 2, values.shape[1]).mean(axis=1)
    return means


def _changes(
    measure: str, heads: Sequence[Head | None], models: Sequence[_Measured], config: ProbeConfig
) -> list[Change]:
    """Return the means of every head in both `models`, before and after, with the test of their difference."""
    before, after = models
    difference = after.values - before.values  # [N, C]
    difference[np.abs(difference) <= PASS_ERROR] = 0  # rounding
    test = Sample(difference, before.clusterings, before.designs).test(config, two_sided=True)
    low, high = mean_interval(difference, before.designs, config.n_bootstrap, config.seed)  # [C] each
    changes = []
    for i, head in enumerate(heads):
        changes.append(
            Change(
                measure=measure,
                head=head,
                before=float(before.values[:, i].mean()),
                after=float(after.values[:, i].mean()),
                difference=Estimate(float(difference[:, i].mean()), float(low[i]), float(high[i])),
                t=float(test.t[i]),
                p=float(test.p[i]),
                n=len(difference),
                smallest_p=test.smallest_p,
            )
        )
    return changes
