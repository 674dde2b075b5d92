"""Hand-made item pairs and models for the tests of causal effects and importance."""

from itertools import product

import numpy as np
import torch

from data.links import LinkItem, Word
from model.observe import HeadEdit, TransformerView
from tests.tiny_models import random_view, untrained

V = 53
SETTINGS = {"tokens_per_batch": 60, "n_bootstrap": 101, "seed": 0}


def link(tokens: list[int], words: tuple[Word, Word], meant: int, **changes: object) -> LinkItem:
    """Return an item whose antecedent is one of two words; one word has two answers, the other three."""
    answers = ((41, 43), (44, 45, 46))
    fields = {
        "tokens": tuple(tokens), "query": len(tokens) - 1, "payoff": len(tokens) - 1, "subject": None,
        "target": answers[meant][0], "antecedents": (words[meant],), "distractors": (words[1 - meant],),
        "answers": answers[meant], "foils": answers[1 - meant], "surprisal": (), "family": "agreement",
        "level": "number", "site": "pronoun", "holdout": "iid", "frame": "t", "pair": "a b", "block": 0,
        "order": 0, "meant": meant, "text": "",
    }  # fmt: skip
    return LinkItem(**fields | changes)


def random_items() -> list[LinkItem]:
    """Return five blocks of random tokens: mentions of one to three tokens, many lengths, payoffs after the query.

    In the third block the partners differ before the query; the fourth has a third candidate that is never meant.
    """
    rng = np.random.default_rng(0)
    shapes = [
        (0, (1, 1), 2, 2, 0),
        (4, (2, 1), 3, 1, 0),
        (2, (1, 3), 1, 2, 3),
        (3, (1, 1), 5, 1, 2),
        (2, (2, 2), 2, 0, 0),
    ]
    items = []
    for block, (n_before, lengths, n_between, n_behind, n_after) in enumerate(shapes):
        names = [list(rng.integers(1, 30, n)) for n in lengths]
        gaps = [list(rng.integers(1, 30, n)) for n in (n_before, n_between, n_behind)]
        third = ((n_before - 1,),) if block == 3 else ()
        for order, meant in product((0, 1), (0, 1)):
            first = names[order]
            second = names[1 - order]
            prefix = [0, *gaps[0], *first, *gaps[1], *second, *gaps[2]]
            start = n_before + 1
            first_word = tuple(range(start, start + len(first)))
            start += len(first) + n_between
            second_word = tuple(range(start, start + len(second)))
            words = (first_word, second_word) if order == 0 else (second_word, first_word)
            prefix[-1] = 30 + meant if block == 2 else prefix[-1]
            tokens = [int(i) for i in [*prefix, 32 + meant, *range(34, 34 + n_after)]]
            place = {"block": block, "order": order, "query": len(prefix), "distractors": (words[1 - meant], *third)}
            clusters = {"frame": f"t{block % 3}", "pair": f"a{block % 2} b{block}"}
            items.append(link(tokens, words, meant, **place, **clusters))
    return items


def pair_view(**switches: object) -> TransformerView:
    return random_view(V, **{"context_length": 64} | switches)


def margin_alone(view: TransformerView, item: LinkItem, edit: HeadEdit | None, tokens: tuple[int, ...]) -> float:
    """Return the margin of the item's answers after `tokens`, read as a batch of one text."""
    logits = view.logits(torch.tensor([tokens]), None, (edit,) if edit else ())[0, item.payoff]
    probabilities = logits.double().softmax(-1)
    return float((probabilities[list(item.answers)].sum() / probabilities[list(item.foils)].sum()).log())


# A model of ten tokens in which three heads attend equally from a pronoun to the nouns of its kind. Head 0 writes the
# noun's verb, head 1 nothing, head 2 a direction that no answer uses. A large eps makes each norm the identity.
START, OTHER, VERB, PRONOUN, NOUN = 0, 1, (2, 3), (4, 5), (6, 7, 8, 9)  # nouns of kind 0, 1, 0, 1
GAIN = 3.0
OUTSIDE = 7.0  # lengths that heads 0 and 2 write at weight 1


def three_heads(strength: float = 1.0) -> TransformerView:
    """Return the model; at a query the antecedent has the score `strength`, the distractor -strength, the rest 0."""
    sizes = {"n_layer": 1, "n_head": 3, "d_model": 12, "d_mlp": 5, "context_length": 31}
    model = untrained(10, **sizes, rope_theta=1e24, norm_eps=1e12)
    attention = model.blocks[0].attention
    with torch.no_grad():
        for norm in (model.blocks[0].norm_1, model.blocks[0].norm_2, model.final_norm):
            norm.gain.fill_(1e6)
        model.token_embedding.weight.copy_(torch.eye(10, 12))
        for linear in (attention.query, attention.key, attention.value, attention.output):
            linear.weight.zero_()
        for kind, head in product((0, 1), range(3)):
            sign = 1 - 2 * kind
            nouns = list(NOUN[kind::2])
            attention.query.weight[4 * head + 1, PRONOUN[kind]] = 2.0 * sign * strength  # divided by sqrt(4)
            attention.key.weight[4 * head + 1, nouns] = sign
            attention.value.weight[4 * head + kind, nouns] = 1
        for kind in (0, 1):
            attention.output.weight[VERB[kind], kind] = GAIN
            attention.output.weight[10, 8 + kind] = OUTSIDE
    return TransformerView(model)


def noun_items() -> list[LinkItem]:
    """Return four blocks for `three_heads`: two nouns of different kind, then a pronoun; the verb is the answer."""
    items = []
    for block, pair in enumerate(((6, 7), (8, 9), (6, 9), (8, 7))):
        for order, meant in product((0, 1), (0, 1)):
            first, second = pair if order == 0 else pair[::-1]
            words = ((2,), (4,)) if order == 0 else ((4,), (2,))
            tokens = [START, OTHER, first, OTHER, second, *[OTHER] * block, PRONOUN[meant]]
            place = {"block": block, "order": order, "pair": f"{pair[0]} {pair[1]}", "frame": f"t{block}"}
            items.append(link(tokens, words, meant, **place, answers=(VERB[meant],), foils=(VERB[1 - meant],)))
    return items


def weights_by_hand(strength: float = 1.0) -> np.ndarray:
    """Return the weights [N, 2] on antecedent and distractor in `noun_items`, from the softmax by hand."""
    n_others = np.array([len(item.tokens) - 2 for item in noun_items()])
    scores = np.exp([strength, -strength])
    return scores / (scores.sum() + n_others)[:, None]
