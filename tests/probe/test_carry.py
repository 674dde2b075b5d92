"""What carries the answer is found wherever it looks, with what feeds it; nothing is named where nothing carries."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from data.pairs import Cell, Items
from extras.others.own_model import OwnModel
from model.observe import TransformerView
from probe.carry import _place_masks
from probe.claim import claim_of
from probe.edits import EditedPairs
from probe.outcomes import OUTCOMES
from probe.questions import DEV, HEADLINE, QUESTIONS
from probe.results import CARRIED, Carrier, Estimate, Head
from probe.study import study
from tests.extras.page.sample import MODEL
from tests.probe.factories import SETTINGS, block_of, planted, story_model, story_pairs, untrained_view

START, FIRST_IS_MEANT, SECOND_IS_MEANT, BY, PRONOUN = range(5)
NOUNS = range(5, 11)  # each has an answer of its own:
ANSWERS = range(11, 17)


class Circuit(OwnModel):
    """Two layers of two heads that answer like `verb`: the cause before the second noun says which one is meant.

    L0H0 at the second noun reads the cause and marks the noun with it. L1H1 at the pronoun takes the marked noun, else
    the other. As a relay L0H1 writes the meant noun at "by", and L1H1 reads it there. Twice: L1H0 does what
    L1H1 does, and one of them is enough. The other heads write nothing.
    """

    n_layer, n_head, context_length, vocab_size = 2, 2, 16, 17
    device = torch.device("cpu")

    def __init__(self, *, is_relay=False, is_twice=False):
        self.module = nn.Module()  # it computes nothing
        self.is_relay = is_relay
        self.is_twice = is_twice

    def run(self, tokens, attend):
        stream = torch.nn.functional.one_hot(tokens, 17).float()
        is_noun = ((tokens >= NOUNS[0]) & (tokens <= NOUNS[-1])).float()
        is_second = is_noun * (is_noun.cumsum(1) == 2)
        cause = (tokens == SECOND_IS_MEANT).float() - (tokens == FIRST_IS_MEANT).float()

        # Layer 0: the mark, +1 or -1, of the cause; for a relay the noun that the cause says.
        is_first = is_noun * (is_noun.cumsum(1) == 1)
        so_far = cause.cumsum(1)[..., None]  # at each query, whatever comes later
        says_noun = torch.where(so_far > 0, is_second[:, None], is_first[:, None])
        scores = 20 * torch.stack([cause.abs()[:, None].expand_as(says_noun), says_noun], 1)
        values = torch.stack([cause[..., None].expand_as(stream), stream], 1)
        marks, named = attend(0, stream, scores, values).unflatten(-1, (2, -1)).unbind(2)
        mark = marks[..., 0] * is_second
        at_by = named * (tokens == BY)[..., None]

        # Layer 1: at the pronoun, the noun that is marked, else the other; or "by".
        looks = mark[:, None] - is_first[:, None] * mark.cumsum(1)[..., None]
        read = stream
        if self.is_relay:
            looks = (tokens == BY).float()[:, None].expand_as(looks)
            read = stream + at_by
        other_looks = looks if self.is_twice else is_noun[:, None].expand_as(looks)
        scores = 20 * torch.stack([other_looks, looks], 1)
        other, copied = attend(1, stream, scores, torch.stack([read, read], 1)).unflatten(-1, (2, -1)).unbind(2)
        copied = (copied + other * self.is_twice).clamp(max=1)
        logits = torch.zeros(*tokens.shape, 17)
        logits[..., ANSWERS[0] :] = 5 * copied[..., NOUNS[0] : ANSWERS[0]]
        return logits, copied


def circuit_pairs(part):
    """Return blocks of two nouns with the cause between them; the order of the nouns and the cause change."""
    pairs = []
    for number, (one, other) in enumerate(((5, 6), (7, 8), (9, 10), (5, 8), (7, 10), (9, 6))):
        cells = []
        for order, is_second in product((0, 1), (0, 1)):
            nouns = (one, other) if order == 0 else (other, one)
            cause = SECOND_IS_MEANT if is_second else FIRST_IS_MEANT
            words = ((1,), (4,))
            answers = [(ANSWERS[noun - NOUNS[0]],) for noun in nouns]
            tokens = (START, nouns[0], cause, BY, nouns[1], BY, PRONOUN)
            facts = {"meant": (words[is_second],), "other": (words[1 - is_second],), "target": answers[is_second][0]}
            cells.append(Cell(tokens, 6, answers=answers[is_second], foils=answers[1 - is_second], payoff=6, **facts))
        labels = (f"{part}{number % 3}", f"{part} noun {one}", f"{part} noun {other}")
        pairs += block_of(number, cells, question="verb", part=part, clusters=labels)
    return pairs


def found_in(model):
    items = Items(circuit_pairs(DEV) + circuit_pairs(HEADLINE))
    [finding] = study(model, lambda seed: model, items, [QUESTIONS["verb"]], SETTINGS, decode=str).findings
    assert finding.carrier is not None
    return finding, finding.carrier


def test_the_two_steps_of_a_planted_circuit_are_found():
    finding, carrier = found_in(Circuit())
    assert carrier.heads == finding.judged.heads == [Head(1, 1)]
    values = {name: carrier.values[name].value for name in ("carries", "keeps", "same_answer")}
    assert values == pytest.approx({"carries": 1, "keeps": 1, "same_answer": 0}, abs=0.01)
    read, other, *_ = carrier.reads[0]
    assert read == ("the antecedent", pytest.approx(1, abs=0.01), pytest.approx(0.5, abs=0.01)) and other.lost < 0.01
    [feed] = carrier.feeds
    assert (feed.head, feed.place) == (Head(0, 0), "the second mention")
    assert feed.share.value == pytest.approx(0.5, abs=0.01)  # without a mark both nouns get the same weight
    sentence = OUTCOMES["attention"].what_carries(finding)
    carries = "What carries 1 of the answer: L1H1 (1) reads the antecedent (weight 1)"
    assert sentence == f"{carries}; L0H0 at the second mention feeds it (0.5)."
    assert sentence in OUTCOMES["attention"].sentences(finding, MODEL)


def test_a_head_that_carries_the_answer_from_another_word_is_named_with_it():
    finding, carrier = found_in(Circuit(is_relay=True))
    assert carrier.heads == [Head(1, 1)] and carrier.values["carries"].value == pytest.approx(1, abs=0.01)
    assert carrier.reads[0][0].word == f"“{BY}”"
    assert (finding.verdict, finding.judged.verdict) == (CARRIED, "not established")
    claim = claim_of(finding, MODEL)
    assert claim.startswith(
        "The answer is carried by L1H1. No attention head is shown to link a pronoun to its antecedent;"
    )
    assert f"What carries 1 of the answer: L1H1 (1) reads “{BY}” (weight 1)" in claim
    assert {(feed.head, feed.place) for feed in carrier.feeds} == {(Head(0, 1), "all other words")}


def test_carried_needs_half_of_the_answer_and_little_of_another_text_with_the_same():
    for low, same, passes in ((0.5, 0.15, True), (0.49, 0.0, False), (0.9, 0.16, False), (0.9, -0.16, False)):
        values = {"carries": Estimate(0.95, low, 1.0), "same_answer": Estimate(same)}
        assert Carrier(heads=[], values=values, each=[], reads=[], feeds=[]).passes == passes
    assert Carrier(heads=[], values={"carries": Estimate(0.9, 0.8, 1.0)}, each=[], reads=[], feeds=[]).passes


def test_without_another_pair_of_the_same_answer_there_is_no_control():
    pairs = EditedPairs(Circuit(), Items(circuit_pairs(HEADLINE)[:1]), 4096)
    moved, _ = pairs.exchanged([[Head(1, 1)]], "same_answer")
    assert np.isnan(moved).all()


def test_a_third_noun_counts_as_no_first_or_second_mention_wherever_it_stands():
    words = {"first": (2,), "second": (4,), "third": (1,)}  # the bystander stands before both
    cells = [Cell((0, 7, 5, BY, 6, PRONOUN), 5, meant=(words["first"],), other=(words["second"],)) for _ in range(2)]
    cells = [replace(cell, bystanders=(words["third"],)) for cell in cells]
    masks = _place_masks(cells, torch.tensor([cell.tokens for cell in cells]))
    places = {name: mask[0].nonzero().flatten().tolist() for name, mask in masks.items() if mask.any()}
    expected = {"the first mention": [2], "the second mention": [4], "another mention": [1]}
    assert places == expected | {"all other words": [3], "the query": [5]}


@pytest.mark.parametrize("layer", [0, 1])
def test_a_model_of_one_step_names_no_head_that_feeds(layer):
    model = TransformerView(planted("coreference", layer=layer, head=2))
    items = story_pairs("study", "number")
    [finding] = study(model, untrained_view, items, [QUESTIONS["number"]], SETTINGS).findings
    assert finding.carrier is not None and finding.carrier.heads == [Head(layer, 2)]
    assert finding.carrier.values["carries"].low == pytest.approx(1, abs=0.05)
    assert finding.carrier.feeds == []


def test_random_weights_carry_nothing():
    view = TransformerView(story_model())
    items = story_pairs("study")
    for finding in study(view, untrained_view, items, list(QUESTIONS.values()), SETTINGS).findings:
        sentence = OUTCOMES["attention"].what_carries(finding)
        assert sentence == "" or sentence.startswith("No head is shown to carry the answer")
        assert finding.verdict != CARRIED
