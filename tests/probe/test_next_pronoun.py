"""The study of the next pronoun finds the heads that were planted, and nothing in models without one."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest

from data.english import FEMININE_NAMES, MASCULINE_NAMES
from data.next_pronoun import Passage, find_passages
from data.tokenizer import end_id, word_tokenizer
from data.typed_json import to_json
from model.observe import ObservableModel, TransformerView
from probe import next_pronoun
from probe.config import Holdouts, ProbeConfig
from probe.margins import Sites
from probe.next_pronoun import study_next_pronoun
from probe.passage_items import PassageItems, make_passage_items
from probe.results import NextPronounResult
from probe.verdict import MIN_EXCHANGE, NOT_ESTABLISHED, SUPPORTED, UNKNOWN_TO_MODEL
from report.next_pronoun import NOTED_HEADS, next_pronoun_lines, screening_notes
from tests.copying_model import CopyingModel
from tests.small_models import SIZES
from tests.tiny_models import make_uniform, random_view, untrained

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
N_WORDS = TOKENIZER.get_vocab_size()
PASSAGES = [passage for name, text in DOCUMENTS for passage in find_passages(name, text, "gender")]


def copying_model(gains: Sequence[float], seed: int = 0, *, knows_gender: bool = True) -> CopyingModel:
    return CopyingModel(gains, TOKENIZER, seed=seed, knows_gender=knows_gender, context_length=64)


def study(model: ObservableModel, passages: Sequence[Passage] = PASSAGES) -> NextPronounResult | str:
    untrained = [copying_model([1.0] * model.n_head, seed, knows_gender=False) for seed in (1, 2)]
    return study_next_pronoun(model, untrained, TOKENIZER, START, "gender", passages, DOCUMENTS, CONFIG)


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
    assert [head for head, _, _ in result.curve] == result.head_set.heads
    assert result.unit == "head"  # half of the work is enough for the verdict of one


def test_the_verdict_is_that_of_a_set_where_no_single_head_is_enough() -> None:
    result = planted(0.6, 0.6, 0.6, 0.6, 0.6, 0.6)
    assert result.chosen.verdict != SUPPORTED and result.chosen.share.value < MIN_EXCHANGE
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
    read = json.loads(json.dumps(to_json(entry)))
    assert (read["question"], read["site"]) == ("next_pronoun_gender", "before_pronoun")
    assert (read["layer"], read["head"], read["verdict"], read["n"]) == (0, 1, SUPPORTED, result.n)
    assert read["share"] == pytest.approx(result.chosen.share.value, rel=1e-5)
    assert read["share_interval"] == pytest.approx([result.chosen.share.low, result.chosen.share.high], rel=1e-5)
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
    first, second, other = (random_view(N_WORDS, seed, **SIZES) for seed in (1, 2, 3))
    for model in (first, second):
        result = study_next_pronoun(model, [other], TOKENIZER, START, "gender", PASSAGES, DOCUMENTS, CONFIG)
        assert isinstance(result, NextPronounResult)
        assert result.verdict in (UNKNOWN_TO_MODEL, NOT_ESTABLISHED)


def test_a_model_with_the_same_margin_in_every_text_is_not_known() -> None:
    silent, uniform = untrained(N_WORDS, **SIZES), make_uniform(untrained(N_WORDS, **SIZES))
    for model in (silent, uniform):
        result = study(TransformerView(model))
        assert isinstance(result, NextPronounResult)
        assert (result.verdict, result.head_set, result.curve) == (UNKNOWN_TO_MODEL, None, [])
        assert result.follows_twin.value == 0.5 and np.isnan(result.chosen.share.value)
        assert "–" in "\n".join(next_pronoun_lines([result]))


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


def test_the_notes_say_how_a_planted_head_was_found_among_many() -> None:
    n_heads = NOTED_HEADS + 6
    gains = [0.1] * n_heads
    gains[50], gains[9] = 5.0, 8.0
    found = planted(*gains)
    [note] = screening_notes([found], n_heads)
    assert (found.head, found.candidates[1][0]) == (9, (0, 50))  # in the order of their effects
    assert note.startswith(f"next_pronoun_gender: of {n_heads} heads only {next_pronoun.MAX_CANDIDATES} were edited")
    assert note.endswith("L0H9 has number 1 of these effects")
    assert screening_notes([found], NOTED_HEADS) == []  # the files of smaller models stay as they were


def test_the_edited_heads_do_not_depend_on_the_tested_half() -> None:
    gains = [0.1 + 0.01 * i for i in range(next_pronoun.ALL_HEADS + 1)]
    model = copying_model(gains)
    items = next_pronoun.question_items(model, TOKENIZER, START, "gender", PASSAGES, CONFIG)
    # The tested half with the same pronoun twice: there no head has an effect.
    silent = [replace(item, forms=(item.forms[0], item.forms[0])) for item in items.tested]
    candidates = []
    for tested in (items.tested, silent):
        changed = replace(items, tested=tested)
        result = next_pronoun.study_passage_items(model, [model], changed, "gender", DOCUMENTS, CONFIG)
        assert isinstance(result, NextPronounResult)
        candidates.append([head for head, *_ in result.candidates])
    assert candidates[0] == candidates[1] == [(0, len(gains) - 1 - i) for i in range(next_pronoun.MAX_CANDIDATES)]


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


def two_items(**changes: Any) -> PassageItems:
    return make_passage_items(PASSAGES, "two", TOKENIZER, START, 64, seed=0, limit=100, **changes)


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
    short = make_passage_items(PASSAGES, "two", TOKENIZER, START, 9, seed=0, limit=100, max_share=1.0)
    assert short.left_out["longer than the context"] == len(items.items) - len(short.items) > 0
    assert max(len(text) for item in short.items for text in item.texts) == 9
