"""Words are aligned with the tokens of every tokenizer, and gold links become items in these tokens."""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache

import pytest
from data.links import Link, LinkedText, LinkItem, Span, is_flipped, link_items, token_spans
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from data.stories import generate_split
from data.tokenizer import bpe_tokenizer, character_tokenizer, end_id, word_tokenizer
from data.words import word_spans
from tests.data.small_corpora import CONFIG as STORIES
from tests.data.small_corpora import all_links, full_stories

CONFIG = replace(STORIES, n_test_frames=2, n_test_pairs=2)
TEXT = "The naïve cat 🙂🙃 sat near  the buses.\n\tIt purred, “ja”!"
MAKERS = {"words": word_tokenizer, "characters": character_tokenizer, "bpe": lambda texts: bpe_tokenizer(texts, 270)}


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("seed", range(3))
def test_the_tokens_of_a_word_spell_it_and_no_token_has_two_words(kind: str, seed: int) -> None:
    draw = random.Random(seed)
    text = " ".join(draw.choices(TEXT.split(), k=29)) + draw.choice(["", " ", "\n"])
    offsets = MAKERS[kind]([TEXT, text]).encode(text).offsets
    spans = [span for _, span in word_spans(text)]
    draw.shuffle(spans)
    words = token_spans(text, offsets, spans)
    in_words = [index for word in words for index in word]
    assert len(in_words) == len(set(in_words))
    for (start, end), word in zip(spans, words, strict=True):
        assert list(word) == list(range(word[0], word[-1] + 1))
        assert text[offsets[word[0]][0] : offsets[word[-1]][1]].strip() == text[start:end]
    outside = set(range(len(offsets))) - set(in_words)
    assert all(not text[slice(*offsets[index])].strip() for index in outside)


def test_a_token_with_the_space_before_a_word_belongs_to_the_word() -> None:
    assert token_spans("a cat", [(0, 0), (0, 1), (1, 5)], [(0, 1), (2, 5), (0, 1)]) == [(1,), (2,), (1,)]
    assert token_spans("a cat", [(0, 1), (1, 3), (3, 3), (3, 5)], [(2, 5)]) == [(1, 3)]  # (3, 3): a special token


@pytest.mark.parametrize(
    ("offsets", "spans", "word"),
    [
        ([(0, 5)], [(0, 1), (2, 5)], "a"),
        ([(0, 1), (1, 4)], [(2, 5)], "cat"),
        ([(0, 1)], [(2, 5)], "cat"),
        ([(0, 1), (2, 5)], [(0, 3), (2, 5)], "a c"),
    ],
)
def test_a_word_without_tokens_for_itself_is_named(offsets: list[Span], spans: list[Span], word: str) -> None:
    with pytest.raises(ValueError, match=f"'{word}'"):
        token_spans("a cat", offsets, spans)


@cache
def story_rows() -> list[LinkedText]:
    return generate_split(CONFIG, "test") + generate_split(CONFIG, "test_others")


@cache
def texts() -> list[str]:
    return [story.text for story in generate_split(CONFIG, "train")]


def llama_tokenizer(*, mistral: bool = False) -> Tokenizer:
    """Returns a tokenizer in the layout of Llama 2: spaces are marks before words, put in by the normalizer.

    In the layout of Mistral the pre-tokenizer puts them in.
    """
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()])
    special = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=756, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(texts(), trainer)
    if mistral:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        tokenizer.pre_tokenizer = None
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


SUBWORDS: dict[str, Callable[[], Tokenizer]] = {
    "GPT-2": lambda: bpe_tokenizer(texts(), 900),
    "Llama": llama_tokenizer,
    "Mistral": lambda: llama_tokenizer(mistral=True),
}


@pytest.fixture(scope="module", params=list(SUBWORDS))
def subwords(request: pytest.FixtureRequest) -> tuple[Tokenizer, list[LinkItem]]:
    tokenizer = SUBWORDS[request.param]()
    return tokenizer, link_items(story_rows(), tokenizer, 0)


@cache
def word_items() -> tuple[Tokenizer, list[LinkItem]]:
    """Returns a tokenizer of whole words and the items of test stories of all families."""
    tokenizer = word_tokenizer(row.text for row in full_stories()["train"])
    return tokenizer, link_items(full_stories()["test"], tokenizer, end_id(tokenizer))


def test_items_of_one_token_words_hold_the_ids_of_their_link() -> None:
    tokenizer, items = word_items()
    token, rows = tokenizer.token_to_id, full_stories()["test"]
    assert len(items) == len(all_links(rows)) > 300
    for item, (row, link) in zip(items, all_links(rows), strict=True):
        assert item.answers == tuple(map(token, link.answers)) and item.foils == tuple(map(token, link.foils))
        assert item.surprisal == tuple(link.surprisal)
        assert item.target == (token(row.text[slice(*link.payoff)]) if link.payoff else None)


def test_the_tokens_of_each_mention_spell_it(subwords: tuple[Tokenizer, list[LinkItem]]) -> None:
    tokenizer, items = subwords
    n_several = 0
    for item, (_, link) in zip(items, all_links(story_rows()), strict=True):
        for side in ("antecedents", "distractors"):
            for word, span in zip(getattr(item, side), getattr(link, side), strict=True):
                text = tokenizer.decode([item.tokens[position] for position in word], skip_special_tokens=False)
                assert text.strip() == item.text[slice(*span)]
                n_several += len(word) > 1
        text = tokenizer.decode(list(item.tokens[1 : item.query + 1]), skip_special_tokens=False)
        assert text.strip() == item.text[: link.query[1]]
    assert n_several > 100  # words of several tokens are covered


def test_answers_and_foils_are_different_tokens_and_the_target_is_no_foil(
    subwords: tuple[Tokenizer, list[LinkItem]],
) -> None:
    items = [item for item in subwords[1] if item.payoff is not None]
    assert len(items) > 250
    for item in items:
        assert item.answers and item.foils and not set(item.answers) & set(item.foils)
        assert len(item.tokens) == item.payoff + 1 and item.target not in item.foils


def undecided(items: Iterable[LinkItem]) -> set[tuple[str, str, str]]:
    """Returns the (family, level, site) with a block of which two cells of one order are equal up to the query."""
    prefixes: dict[tuple, list[tuple[int, ...]]] = defaultdict(list)
    for item in items:
        if item.antecedents:
            place = (item.family, item.level, item.site)
            prefixes[*place, item.block, item.order].append(item.tokens[: item.query + 1])
    return {place[:3] for place, cells in prefixes.items() if len(cells) == 2 and cells[0] == cells[1]}


def test_the_clue_comes_before_the_query_except_at_the_undecided_sites() -> None:
    assert undecided(word_items()[1]) == {
        ("agreement", "number", "before_pronoun"), ("agreement", "gender", "before_pronoun"),
        ("later_cue", "later_cue", "pronoun"),
    }  # fmt: skip


def item_of(answers: list[str], foils: list[str], text: str = "It ran") -> tuple[LinkItem, dict[str, int]]:
    """Returns the item of a text with its second word as payoff, in the tokens "▁r", "▁s", "an", "at" and letters."""
    merges = [("▁", "r"), ("a", "n"), ("▁", "s"), ("a", "t")]
    vocabulary = {token: i for i, token in enumerate(["<s>", *map("".join, merges), "▁", *"AIarntshugm"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    link = Link(
        level="number", site="pronoun", pronoun=(0, 2), query=(0, 2), antecedents=(), distractors=(), subject=None,
        payoff=(3, len(text)), answers=tuple(answers), foils=tuple(foils), surprisal=(1.0,),
    )  # fmt: skip
    (item,) = link_items([LinkedText(text, (link,), "agreement", "iid", "a", "a b", 0, 0)], tokenizer, 0)
    return item, vocabulary


def test_a_token_that_begins_an_answer_and_a_foil_is_left_out() -> None:
    item, ids = item_of(["ran", "sat"], ["rang", "hum"])
    assert item.answers == (ids["▁s"],) and item.foils == (ids["▁"],)
    assert (item.payoff, item.target, len(item.tokens)) == (2, ids["▁r"], 3)


@pytest.mark.parametrize(("answers", "foils"), [(["ran", "sat"], ["rang"]), (["ran"], ["rang"])])
def test_an_item_without_a_token_for_one_side_has_no_payoff(answers: list[str], foils: list[str]) -> None:
    item, _ = item_of(answers, foils)
    assert (item.payoff, item.target, item.foils, item.surprisal) == (None, None, (), ())


def test_words_that_begin_alike_are_measured_at_the_first_different_token() -> None:
    item, ids = item_of(["ran"], ["rum"])
    assert (item.answers, item.foils) == ((ids["an"],), (ids["u"],))
    assert (item.payoff, item.target, item.tokens) == (3, ids["an"], (0, ids["I"], ids["t"], ids["▁r"]))


def test_a_token_of_the_space_alone_is_the_first_token_of_the_next_word() -> None:
    item, ids = item_of(["hum"], ["ran"], text="It hum")
    assert (item.answers, item.foils) == ((ids["▁"],), (ids["▁r"],))
    assert (item.payoff, item.target, item.tokens) == (2, ids["▁"], (0, ids["I"], ids["t"]))
    item, ids = item_of(["hum"], ["tug"], text="It hum")
    assert (item.answers, item.foils, item.payoff) == ((ids["h"],), (ids["t"],), 3)


def test_the_surprisal_is_known_only_for_a_word_of_one_token_that_begins_no_other_word(
    subwords: tuple[Tokenizer, list[LinkItem]],
) -> None:
    tokenizer, items = subwords

    def tokens(word: str) -> list[int]:
        return tokenizer.encode(f"It {word}").ids[len(tokenizer.encode("It").ids) :]

    n_known = n_unknown = 0
    for item, (_, link) in zip(items, all_links(story_rows()), strict=True):
        if item.payoff is not None:
            word = tokens(item.text[slice(*link.payoff)])
            words = [*link.answers, *link.foils]
            n_same_start = sum(tokens(candidate)[0] == word[0] for candidate in words)
            is_known = len(word) == 1 and n_same_start == 1
            assert item.surprisal == (tuple(link.surprisal) if is_known else ())
            n_known, n_unknown = n_known + is_known, n_unknown + (not is_known)
    assert n_unknown > 100 and n_known > 0


def test_the_surprisal_of_a_word_is_not_that_of_a_token_that_begins_two_words() -> None:
    assert item_of(["r"], ["hum"], text="It r")[0].surprisal == (1.0,)
    assert item_of(["r", "ran"], ["hum"], text="It r")[0].surprisal == ()


def test_a_tokenizer_that_cannot_encode_a_story_is_a_value_error() -> None:
    tokenizer = Tokenizer(models.WordLevel({"It": 0}))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(ValueError, match="tokenizer cannot encode|no tokens for itself"):
        link_items(story_rows()[:4], tokenizer, 0)


def test_the_antecedent_is_the_second_mention_in_the_flipped_half_of_each_block() -> None:
    n_flipped: dict[tuple[int, str], list[bool]] = defaultdict(list)
    for item in word_items()[1]:
        if item.antecedents and item.family == "agreement":
            assert is_flipped(item) == (min(item.antecedents) > min(item.distractors))
            n_flipped[item.block, item.site].append(is_flipped(item))
    assert {(len(cells), sum(cells)) for cells in n_flipped.values()} == {(4, 2)}
