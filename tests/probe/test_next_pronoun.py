"""The study of the next pronoun finds the heads that were planted, and nothing in models without one."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest

from benchmarks.next_pronoun_controls import CopyingModel
from data.english import FEMININE_NAMES, MASCULINE_NAMES
from data.next_pronoun import Passage, find_passages
from data.tokenizer import end_id, word_tokenizer
from data.typed_json import from_json, to_json
from model.observe import ObservableModel, TransformerView
from model.transformer import Transformer
from probe import next_pronoun, results
from probe.config import Holdouts, ProbeConfig
from probe.margins import Margins, Sites, decision, edge_effects, exchange_terms, flips, role_cuts
from probe.next_pronoun import UNKNOWN_TO_MODEL, NextPronounResult, study_question
from probe.passage_items import Item, Items, make_items
from probe.statistics import cap_clusters
from probe.verdict import NOT_ESTABLISHED, SUPPORTED
from report.next_pronoun import next_pronoun_lines
from tests.probe.evaluated_models import make_uniform, model_config, randomise

CONFIG = ProbeConfig(
    seed=0, tokens_per_batch=4096, n_bootstrap=200, n_untrained=2, n_controls=10, holdouts=Holdouts.verdict
)
FRAMES = {
    "one": ("{A} went to the quiet park. {P} slept.", "Happy people saw {A} there, and then {p} ran home."),
    "two": (
        "{A} met {B} in the quiet park. {P} slept.",
        "Yesterday {B} saw {A} under trees, and then {p} ran home.",
        "{A} came with bread. Then {B} cooked. {P} slept.",
    ),
}


def make_documents(n: int = 120, seed: int = 1) -> list[tuple[str, str]]:
    rng = Random(seed)
    names = sorted(FEMININE_NAMES)[:24], sorted(MASCULINE_NAMES)[:24]
    documents = []
    for i in range(n):
        sides = [rng.choice(names[0]), rng.choice(names[1])]
        first, meant = rng.randrange(2), rng.randrange(2)
        kind = "one" if i % 2 else "two"
        if kind == "one":
            first = meant
        pronoun = ("she", "he")[meant]
        slots = {"A": sides[first], "B": sides[1 - first], "p": pronoun, "P": pronoun.capitalize()}
        documents.append((f"d{i}", rng.choice(FRAMES[kind]).format(**slots)))
    return documents


DOCUMENTS = make_documents()
TOKENIZER = word_tokenizer([*(text for _, text in DOCUMENTS), *FEMININE_NAMES, *MASCULINE_NAMES])
START = end_id(TOKENIZER)
PASSAGES = [passage for name, text in DOCUMENTS for passage in find_passages(name, text, "gender")]


def copying_model(gains: Sequence[float], seed: int = 0, *, knows_gender: bool = True) -> CopyingModel:
    return CopyingModel(gains, TOKENIZER, seed=seed, knows_gender=knows_gender, context_length=64)


def study(model: ObservableModel, passages: Sequence[Passage] = PASSAGES) -> NextPronounResult | str:
    untrained = [copying_model([1.0] * model.n_head, seed, knows_gender=False) for seed in (1, 2)]
    return study_question(model, untrained, TOKENIZER, START, "gender", passages, DOCUMENTS, CONFIG)


@cache
def planted(*gains: float) -> NextPronounResult:
    result = study(copying_model(gains))
    assert isinstance(result, NextPronounResult), result
    return result


def test_the_planted_head_is_found_and_supported() -> None:
    result = planted(0.0, 3.0, 0.0)
    assert (result.layer, result.head, result.unit) == (0, 1, "head")
    assert (result.verdict, result.evidence_level) == (SUPPORTED, "E3")
    assert result.p_corrected < 0.01
    assert result.chosen.share.value == pytest.approx(1.0, abs=1e-3)
    assert result.chosen.flips.value > 0.9
    assert result.follows_twin.value > 0.9
    assert result.head_share_of_one.value > 0.8
    assert result.interchanged.value == pytest.approx(1.0)
    assert result.head_set is None  # one head is enough
    assert [head for head, _, _ in result.curve] == [(0, 1)] and result.set_reaches
    assert result.weight_correlation > 0.5


def test_the_head_is_found_at_every_place() -> None:
    for place in (0, 2):
        gains = [0.0, 0.0, 0.0]
        gains[place] = 3.0
        result = planted(*gains)
        assert (result.head, result.verdict) == (place, SUPPORTED)


def test_a_head_that_looks_at_persons_without_writing_has_no_effect() -> None:
    result = planted(0.0, 3.0, 0.0)
    effects = {head: effect for head, effect, _, _ in result.candidates}
    assert effects[0, 1] > 1 and abs(effects[0, 0]) < 1e-6 and abs(effects[0, 2]) < 1e-6


def test_a_head_that_writes_the_other_gender_is_not_supported() -> None:
    result = planted(0.0, -3.0, 0.0)
    assert (result.verdict, result.evidence_level) == (UNKNOWN_TO_MODEL, "E0")
    assert result.follows_twin.value < 0.1


def test_heads_that_share_the_work_are_a_set() -> None:
    result = planted(1.5, 0.0, 1.5)
    assert result.head_set is not None and set(result.head_set.heads) == {(0, 0), (0, 2)}
    assert result.head_set.share.value == pytest.approx(1.0, abs=1e-3)
    assert result.head_set.share.value > result.chosen.share.value
    assert [head for head, _, _ in result.curve] == list(result.head_set.heads)
    assert result.unit == "head"  # half of the work is enough for the verdict of one


def test_the_verdict_is_that_of_a_set_where_no_single_head_is_enough() -> None:
    result = planted(0.6, 0.6, 0.6, 0.6, 0.6, 0.6)
    assert result.chosen.verdict != SUPPORTED and result.chosen.share.value < next_pronoun.MIN_EXCHANGE
    assert result.head_set is not None and len(result.head_set.heads) == 5
    assert (result.unit, result.verdict, result.p_corrected) == ("set", SUPPORTED, result.head_set.p)
    assert result.entry()["share"] == result.head_set.share.value


def test_the_entry_has_the_named_values_and_is_written_as_json() -> None:
    result = planted(0.0, 3.0, 0.0)
    entry = result.entry()
    names = (
        "question layer head site verdict evidence_level p_corrected n share flips follows_twin author_accuracy "
        "nearest_accuracy head_set"
    )
    assert set(names.split()) <= set(entry)
    read = json.loads(json.dumps(entry))
    assert (read["question"], read["site"]) == ("next_pronoun_gender", "before_pronoun")
    assert (read["layer"], read["head"], read["verdict"], read["n"]) == (0, 1, SUPPORTED, result.n)
    assert read["share"] == result.chosen.share.value
    assert read["share_interval"] == [result.chosen.share.low, result.chosen.share.high]
    assert read["details"]["chosen"]["share"]["value"] == read["share"]


def test_the_halves_share_no_document_and_the_counts_add_up() -> None:
    result = planted(0.0, 3.0, 0.0)
    assert result.n == result.n_one + result.n_two
    assert result.n_documents == result.n  # one passage per document here
    assert result.n < len(PASSAGES) * 0.6
    assert min(result.n_entities) >= next_pronoun.MIN_CLUSTERS


@pytest.mark.parametrize("seed", range(4))
def test_heads_that_copy_something_else_than_gender_are_not_supported(seed: int) -> None:
    result = study(copying_model((2.0, 1.0), seed, knows_gender=False))
    assert isinstance(result, NextPronounResult)
    assert result.verdict in (UNKNOWN_TO_MODEL, NOT_ESTABLISHED)
    assert 0.1 < result.follows_twin.value < 0.9


def test_a_random_transformer_is_not_supported() -> None:
    def transformer(seed: int) -> TransformerView:
        return TransformerView(randomise(Transformer(model_config(), TOKENIZER.get_vocab_size(), seed=0), seed=seed))

    for seed in (1, 2):
        model = transformer(seed)
        result = study_question(model, [transformer(3)], TOKENIZER, START, "gender", PASSAGES, DOCUMENTS, CONFIG)
        assert isinstance(result, NextPronounResult)
        assert result.verdict in (UNKNOWN_TO_MODEL, NOT_ESTABLISHED)


def test_a_model_with_the_same_margin_in_every_text_is_not_known() -> None:
    def transformer() -> Transformer:
        return Transformer(model_config(), TOKENIZER.get_vocab_size(), seed=0)  # its layers write nothing yet

    for model in (TransformerView(transformer().eval()), TransformerView(make_uniform(transformer()))):
        result = study(model)
        assert isinstance(result, NextPronounResult)
        assert (result.verdict, result.head_set, result.curve) == (UNKNOWN_TO_MODEL, None, ())
        assert result.follows_twin.value == 0.5 and np.isnan(result.chosen.share.value)
        assert "–" in "\n".join(next_pronoun_lines([from_json(results.NextPronounResult, to_json(result), "")]))


def test_the_head_is_found_among_many_by_its_direct_effect() -> None:
    gains = [0.1] * (next_pronoun.ALL_HEADS + 1)
    gains[17] = 5.0
    result = planted(*gains)
    assert len(result.candidates) == next_pronoun.MAX_CANDIDATES
    assert (result.head, result.verdict) == (17, SUPPORTED)
    items = two_items()
    sites = Sites(copying_model((1.0, 0.5)), items.items, 4096)
    effects, margins = sites.direct_effects(), sites.clean  # [N, 1, 2], [N, 2]
    assert effects[:, 0, 0] == pytest.approx(2 * effects[:, 0, 1], rel=1e-4)
    assert effects.sum((1, 2)) == pytest.approx(np.abs(margins[:, 0] - margins[:, 1]) / 2, abs=1e-5)


def test_too_few_passages_are_a_sentence_with_the_counts() -> None:
    one, two = ([passage for passage in PASSAGES if passage.kind == kind] for kind in ("one", "two"))
    model = copying_model((3.0,))
    sentence = study(model, [*one, *two[:3]])
    assert isinstance(sentence, str)
    counts = f"{len(one)} passages with one person (needed: 40) and 3 passages with a woman and a man (needed: 40)"
    assert sentence == f"next_pronoun_gender: {counts}"
    assert str(study(model, [])).startswith("next_pronoun_gender: 0 passages with one person (needed: 40) and 0 ")
    one_document = [replace(passage, doc=f"d{i % 4}") for i, passage in enumerate(PASSAGES)]
    assert "those with one person: only 0 documents in one half (needed: 9)" in str(study(model, one_document))


def test_passages_of_one_kind_that_are_all_in_one_half_are_refused() -> None:
    one, two = ([passage for passage in PASSAGES if passage.kind == kind] for kind in ("one", "two"))
    clumped = [replace(passage, doc="a") for passage in two]
    assert "those with a woman and a man: only" in str(study(copying_model((3.0,)), [*one, *clumped]))


# Items


def two_items(**changes: Any) -> Items:
    return make_items(PASSAGES, "two", TOKENIZER, START, 64, seed=0, limit=100, **changes)


def test_both_texts_of_an_item_end_before_the_pronoun_and_point_at_the_entities() -> None:
    for item in two_items().items:
        for text, tokens in enumerate(item.texts):
            names = [[TOKENIZER.id_to_token(tokens[i]) for i in side] for side in item.mentions[text]]
            assert set(names[0]) <= FEMININE_NAMES and set(names[1]) <= MASCULINE_NAMES and all(names)
            assert tokens[0] == START and TOKENIZER.id_to_token(tokens[-1]) in (".", "then")
        assert [TOKENIZER.id_to_token(form).lower() for form in item.forms] == ["she", "he"]
        assert item.mentions[1] == item.mentions[0][::-1]  # the names changed places
        (word,), (same,) = item.content_word
        assert item.texts[0][word] == item.texts[1][same]


def test_passages_that_do_not_fit_are_counted() -> None:
    items = two_items(max_share=1.0)
    assert len(items.items) == sum(passage.kind == "two" for passage in PASSAGES)
    short = make_items(PASSAGES, "two", TOKENIZER, START, 9, seed=0, limit=100, max_share=1.0)
    assert short.left_out["longer than the context"] == len(items.items) - len(short.items) > 0
    assert max(len(text) for item in short.items for text in item.texts) == 9


# Measures, computed by hand


def item(meant: int, kind: str = "two", n_texts: int = 2) -> Item:
    """Return an item whose first class is mentioned at position 1, and the second at 2 if there are two entities."""
    [passage, *_] = [passage for passage in PASSAGES if (passage.kind, passage.meant) == (kind, meant)]
    if kind == "two":
        mentions = (((1,), (2,)), ((2,), (1,)))
    else:
        mentions = (((1,), ()), ((), (1,))) if meant == 0 else (((), (1,)), ((1,), ()))
    return Item(passage, ((0, 1, 2),) * n_texts, (3, 4), mentions[:n_texts], ((),) * n_texts)


def margins(clean: Any, cut: Any = None, exchanged: Any = None) -> Margins:
    """Return the margins of items with one head; what is not given is nan."""
    values = np.array(clean, dtype=float)
    unknown = np.full((*values.shape, 1), np.nan)
    of_cut = np.full((*values.shape, 2, 1), np.nan) if cut is None else np.array(cut, dtype=float)[..., None]
    of_exchange = unknown if exchanged is None else np.array(exchanged, dtype=float)[..., None]
    return Margins(values, of_cut, of_exchange, unknown, unknown)


# Passage and twin; in each, the margin with the edge to the first class cut, and to the second.
TWO = [[0.5, 3.0], [-2.0, 1.0]]


def test_the_edge_effect_is_how_far_edges_move_the_margin_to_their_class() -> None:
    measured = margins([[2.0, -1.0]], [TWO])
    # Passage: ((2 - 0.5) - (2 - 3)) / 2 = 1.25. Twin: ((-1 + 2) - (-1 - 1)) / 2 = 1.5.
    for meant in (0, 1):  # the author's pronoun does not matter
        assert edge_effects([item(meant)], measured) == pytest.approx(np.array([[1.375]]))
    # One entity: only the edge to it counts, which in the twin is of the other class. (1 - 0.25) and -(-2 + 0.5).
    first = margins([[1.0, -2.0]], [[[0.25, 1.0], [-2.0, -0.5]]])
    assert edge_effects([item(0, "one")], first) == pytest.approx(np.array([[1.125]]))
    # The second class: passage -(1 - 1) = 0, twin (-2 + 2) = 0.
    assert edge_effects([item(1, "one")], first) == pytest.approx(np.array([[0.0]]))
    # Without a twin only the passage counts.
    alone = margins([[2.0, np.nan]], [[TWO[0], [np.nan, np.nan]]])
    assert edge_effects([item(0, n_texts=1)], alone) == pytest.approx(np.array([[1.25]]))


def test_the_decision_is_half_the_difference_of_passage_and_twin_towards_the_author() -> None:
    clean = np.array([[2.0, -1.0], [2.0, -1.0], [2.0, np.nan], [2.0, np.nan]])
    items = [item(0), item(1), item(0, n_texts=1), item(1, n_texts=1)]
    assert decision(items, clean) == pytest.approx(np.array([1.5, -1.5, 2.0, -2.0]))


def test_in_the_twin_the_entity_in_the_same_place_is_the_meant_one() -> None:
    meant, other = role_cuts([item(0), item(1)], margins([[2.0, -1.0]] * 2, [TWO, TWO]))
    # Meant first: passage without its edge to the first class 0.5, twin without that to the second 1; (0.5 - 1) / 2.
    assert meant == pytest.approx(np.array([[-0.25], [-2.5]]))
    assert other == pytest.approx(np.array([[2.5], [0.25]]))


def test_the_share_exchanged_is_signed_by_the_models_own_preference() -> None:
    measured = margins([[2.0, -1.0], [-1.0, 2.0], [2.0, -1.0]], exchanged=[[-1.0, 2.0], [0.5, 1.5], [3.0, -1.5]])
    numerator, denominator = exchange_terms(measured)
    assert denominator == pytest.approx(np.array([3.0, 3.0, 3.0]))
    # Complete; ((-1.5) - 0.5) / 2 = -1 against a difference of -3; and in the wrong direction.
    assert numerator == pytest.approx(np.array([[3.0], [1.0], [-0.75]]))
    assert flips(measured) == pytest.approx(np.array([[1.0], [0.5], [0.0]]))


# Caps of clusters


def labels(text: str) -> np.ndarray:
    return np.array([label.replace("-", "") for label in text.split()], dtype=object)


def test_no_cluster_is_above_the_share_of_what_remains() -> None:
    # Three of "a" would be more than a quarter of 9; two are a quarter of 8.
    assert cap_clusters([labels("a a a a a a b c d e f g")], 0.25, 100) == [0, 1, 6, 7, 8, 9, 10, 11]
    assert cap_clusters([labels("a a a")], 0.25, 100) == [0]  # a cluster may always have one value
    names = Random(0).choices("abcdefghijklmnopqrstuvwxyz", k=400)
    first, second = np.array(names), np.array(Random(1).choices("abcdefghijklmnopqrstuvwxy", weights=range(25), k=400))
    kept = cap_clusters([first, second], 0.1, 150)
    assert 100 < len(kept) <= 150
    for clusters in (first, second):
        assert max(Counter(clusters[kept]).values()) <= 0.1 * len(kept)


def test_the_cap_keeps_the_order_and_the_limit() -> None:
    assert cap_clusters([labels("a b c d e f")], 0.5, 4) == [0, 1, 2, 3]
    assert cap_clusters([labels("a a b b"), labels("x y x y")], 0.5, 2) == [0, 3]


def test_values_without_a_label_belong_to_no_cluster() -> None:
    assert cap_clusters([labels("- - - - - -")], 0.1, 5) == [0, 1, 2, 3, 4]
    assert cap_clusters([labels("a a - - - -"), labels("- - x x y z")], 0.2, 100) == [0, 2, 4, 5]
