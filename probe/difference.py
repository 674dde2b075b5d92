"""What differs between two models of one shape on the same items, for example before and after fine-tuning.

answer      half of the change of the answer margin between the two texts of a pair, in nats
effect      how much of the margin a head moves, in nats: by attention its weights on both mentions change places,
            by edges its edges to the entities are cut
attention   by attention only: pronoun contrast of a head, in nats. A head without output keeps it
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from data.pairs import Items
from model.observe import ObservableModel
from probe import attention_study, edge_study
from probe.attention import measure_heads
from probe.config import ProbeConfig
from probe.edge_study import Half, candidates_of
from probe.edits import PASS_ERROR, all_heads, alone, measure_margins, screened
from probe.questions import DEV, HEADLINE, TESTED, Question
from probe.results import Change, Head
from probe.statistics import sample_of

MAX_CANDIDATES = 8  # heads of each model whose effects are measured by attention, if it has more than EDIT_ALL
N_DEV_BLOCKS = 16  # blocks for the choice of the candidates
MAX_BLOCKS = 200  # evenly spaced
# A measure, its C heads (None: the model, C = 1), N cases, and the numbers of both models, [N, C] each.
_Measured = tuple[str, Sequence[Head | None], Items, list[np.ndarray]]


def difference(
    before: ObservableModel, after: ObservableModel, items: Items, question: Question, config: ProbeConfig
) -> list[Change]:
    """Return what differs between two models for one question."""
    measure = _by_attention if question.outcome == "attention" else _by_edges
    changes = []
    for name, heads, cases, numbers in measure((before, after), items, question, config):
        changed = numbers[1] - numbers[0]  # [N, C]
        changed[np.abs(changed) <= PASS_ERROR] = 0  # rounding
        sample = sample_of(cases, changed)
        test = sample.test(config, two_sided=True)
        facts: dict[str, Any] = {"question": question.name, "description": question.description}
        facts |= {"measure": name, "n": len(changed)}
        means = [of_model.mean(axis=0).tolist() for of_model in numbers]
        columns = zip(heads, sample.means(config), *means, test.t.tolist(), test.p.tolist(), strict=True)
        for head, estimate, old, new, t, p in columns:
            values: dict[str, Any] = {"before": old, "after": new, "t": t, "p": p, "smallest_p": test.smallest_p}
            changes.append(Change(**facts, **values, head=head, difference=estimate))
    return changes


def _by_attention(
    models: Sequence[ObservableModel], items: Items, question: Question, config: ProbeConfig
) -> list[_Measured]:
    """Return the measures; cases are the blocks, for answers and effects the comparable pairs, both evenly spaced."""
    tested = spread_blocks(items.of(question.name, HEADLINE), MAX_BLOCKS)
    heads = all_heads(models[0])

    # Answers and effects, the mean over both texts of a pair: [N, 1] and [N, C].
    measured: list[_Measured] = []
    pairs = tested.comparable()
    has_few = len(heads) <= attention_study.EDIT_ALL
    edited = heads if has_few else _strongest(models, items.of(question.name, DEV), config)
    if pairs.pairs and edited:
        margins = [measure_margins(model, pairs, alone(edited), ["swap"], config.tokens_per_batch) for model in models]
        measured.append(("answer", [None], pairs, [of_model.total[:, None] / 2 for of_model in margins]))
        measured.append(("effect", edited, pairs, [of_model.lost("swap") for of_model in margins]))

    # The pronoun contrast of every head on every block, [N_b, L H].
    contrasts = []
    for model in models:
        contrast = measure_heads(model, tested, config.tokens_per_batch).scores().contrast
        contrasts.append(contrast.reshape(len(contrast), -1))
    return [*measured, ("attention", heads, tested, contrasts)]


def _by_edges(
    models: Sequence[ObservableModel], items: Items, question: Question, config: ProbeConfig
) -> list[_Measured]:
    """Return the measures; cases are the passages."""
    heads = all_heads(models[0])
    dev = items.of(question.name, DEV)
    tested = items.of(question.name, TESTED)
    # With few heads nothing is chosen, and both halves are used; else those with the largest direct effects are cut.
    if len(heads) <= edge_study.EDIT_ALL:
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
    return [("answer", [None], half.items, answers), ("effect", heads, half.items, effects)]


def spread_blocks(items: Items, most: int) -> Items:
    """Return up to `most` whole blocks of two pairs, evenly spaced."""
    n_available = len(items) // 2
    blocks = np.linspace(0, n_available - 1, min(most, n_available)).round().astype(int)
    return items.take((2 * blocks[:, None] + np.arange(2)).ravel())


def _strongest(models: Sequence[ObservableModel], dev: Items, config: ProbeConfig) -> list[Head]:
    """Return the heads that move most of the margin on dev, MAX_CANDIDATES of each model."""
    dev = spread_blocks(dev, N_DEV_BLOCKS)
    pairs = dev.comparable()
    chosen: dict[Head, None] = {}
    for model in models if pairs.pairs else ():
        # The heads with the largest difference of weights
        differences = measure_heads(model, dev, config.tokens_per_batch).rows.weight_difference()
        heads = screened(differences, above=attention_study.EDIT_ALL, most=attention_study.MAX_EDITED)
        margins = measure_margins(model, pairs, alone(heads), ["swap"], config.tokens_per_batch)
        effects = np.abs(margins.lost("swap").mean(axis=0))
        order = np.argsort(-effects, kind="stable")[:MAX_CANDIDATES]
        chosen |= dict.fromkeys(heads[i] for i in order)
    return sorted(chosen)
