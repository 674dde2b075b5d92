"""The stories' items in tokenizers of others, whose words are several pieces; and that ours are as they were."""

from functools import cache
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from data.links import LinkItem, link_items
from data.stories import as_dataset, generate_split
from data.tokenizer import bpe_tokenizer, end_id, word_tokenizer
from tests.data.test_stories import full_stories
from tests.probe.story_items import CONFIG


@cache
def default_rows() -> list[dict[str, Any]]:
    return list(as_dataset(generate_split(CONFIG, "test")))


@cache
def texts() -> list[str]:
    return [story.text for story in generate_split(CONFIG, "train")]


def of_gpt2() -> Tokenizer:
    return bpe_tokenizer(texts(), 640)


def of_llama(n_tokens: int = 500) -> Tokenizer:
    """Sentence pieces as Llama 2 has them: no pre-tokenizer, spaces written as a mark in front, bytes as a way out."""
    trained = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()])
    every_byte = [f"<0x{i:02X}>" for i in range(256)]
    special = ["<unk>", "<s>", "</s>", *every_byte]
    trained.train_from_iterator(
        texts(), trainers.BpeTrainer(vocab_size=n_tokens + 256, special_tokens=special, show_progress=False)
    )
    trained.pre_tokenizer = None
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return trained


def of_mistral() -> Tokenizer:
    """The same with the mark put in by the pre-tokenizer, which does not split, as newer files have it."""
    made = of_llama()
    made.normalizer = None
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return made


PIECES = {"GPT-2": of_gpt2, "Llama": of_llama, "Mistral": of_mistral}


@pytest.fixture(scope="module", params=list(PIECES))
def pieces(request: pytest.FixtureRequest) -> Tokenizer:
    return PIECES[request.param]()


@pytest.fixture(scope="module")
def items(pieces: Tokenizer) -> list[LinkItem]:
    return link_items(default_rows(), pieces, 0)


def links() -> list[dict[str, Any]]:
    return [link for row in default_rows() for link in row["links"]]


@pytest.mark.parametrize("full", [False, True])
def test_of_words_that_are_one_token_each_nothing_is_left_out_and_nothing_is_changed(full: bool) -> None:
    """Each item holds what its link holds, by the vocabulary alone."""
    if full:
        rows = full_stories()
        tokenizer, some = word_tokenizer(row["text"] for row in rows["train"]), list(rows["test"])
    else:
        tokenizer, some = word_tokenizer(texts()), default_rows()
    id_of = tokenizer.token_to_id
    found = link_items(some, tokenizer, end_id(tokenizer))
    expected = [(row, link) for row in some for link in row["links"]]
    assert len(found) == len(expected) > 500
    for item, (row, link) in zip(found, expected, strict=True):
        assert item.answers == tuple(map(id_of, link["answers"])) and item.foils == tuple(map(id_of, link["foils"]))
        assert item.surprisal == tuple(link["surprisal"])
        assert (item.payoff is None) == (item.target is None) == (link["payoff"] is None)
        if link["payoff"]:
            assert item.target == id_of(row["text"][slice(*link["payoff"])])


def test_every_word_of_a_link_is_its_own_pieces_and_no_neighbours(pieces: Tokenizer, items: list[LinkItem]) -> None:
    several = 0
    for item, link in zip(items, links(), strict=True):
        for side in ("antecedents", "distractors"):
            for word, span in zip(getattr(item, side), link[side], strict=True):
                written = pieces.decode([item.tokens[place] for place in word], skip_special_tokens=False)
                assert written.strip() == item.text[slice(*span)]
                several += len(word) > 1
        read = pieces.decode(list(item.tokens[1 : item.query + 1]), skip_special_tokens=False)
        assert read.strip() == item.text[: link["query"][1]]
    assert several > 100  # or this would have been no test


def test_what_pays_off_is_the_first_piece_of_what_comes_and_of_the_answers_alone(items: list[LinkItem]) -> None:
    n_payoffs = 0
    for item, link in zip(items, links(), strict=True):
        assert not set(item.answers) & set(item.foils)
        assert len(set(item.answers)) == len(item.answers) <= len(link["answers"])
        if item.payoff is None:
            continue
        n_payoffs += 1
        assert item.answers and item.foils and len(item.tokens) == item.payoff + 1
        assert item.target not in item.foils
        assert item.target in item.answers or len(item.answers) < len(link["answers"])
    assert n_payoffs > 500


def by_hand(answers: list[str], foils: list[str], text: str = "It ran") -> tuple[LinkItem, dict[str, int]]:
    """Return the item of a text, in pieces "▁r", "▁s", "an" and letters, whose payoff is its second word."""
    merges = [("▁", "r"), ("a", "n"), ("▁", "s"), ("a", "t")]
    pieces = ["<s>", *map("".join, merges), "▁", *"AIarntshugm"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    about = {
        "family": "agreement",
        "holdout": "iid",
        "template": "a",
        "pair": "a b",
        "order": 0,
        "meant": 0,
        "text": text,
    }
    link = {
        "level": "number", "site": "pronoun", "query": (0, 2), "antecedents": [], "distractors": [], "subject": None,
        "payoff": (3, len(text)), "surprisal": [1.0], "answers": answers, "foils": foils,
    }  # fmt: skip
    (item,) = link_items([about | {"links": [link]}], tokenizer, 0)
    return item, vocabulary


def test_a_piece_that_begins_an_answer_and_a_foil_is_neither() -> None:
    item, _ = by_hand(["ran", "sat"], ["rang"])
    assert (item.payoff, item.target, item.foils, item.surprisal) == (None, None, (), ())
    item, _ = by_hand(["ran"], ["rang"])  # the one begins the other, so nothing parts them
    assert (item.payoff, item.answers, item.foils) == (None, (), ())
    item, ids = by_hand(["ran", "sat"], ["rang", "hum"])
    assert item.answers == (ids["▁s"],) and item.foils == (ids["▁"],)
    assert (item.payoff, item.target, len(item.tokens)) == (2, ids["▁r"], 3)


def test_where_all_that_could_come_begins_alike_the_piece_that_parts_them_is_asked_for() -> None:
    item, ids = by_hand(["ran"], ["rum"])
    assert (item.answers, item.foils) == ((ids["an"],), (ids["u"],))
    assert (item.payoff, item.target, item.tokens) == (3, ids["an"], (0, ids["I"], ids["t"], ids["▁r"]))


def test_a_space_of_its_own_is_the_first_piece_of_the_word_behind_it_and_gives_nothing_away() -> None:
    """Who has read a lone space knows that no word comes of which a space is part."""
    item, ids = by_hand(["hum"], ["ran"], text="It hum")
    assert (item.answers, item.foils) == ((ids["▁"],), (ids["▁r"],))
    assert (item.payoff, item.target, item.tokens) == (2, ids["▁"], (0, ids["I"], ids["t"]))
    item, ids = by_hand(["hum"], ["tug"], text="It hum")
    assert (item.answers, item.foils, item.payoff) == ((ids["h"],), (ids["t"],), 3)


def test_surprise_at_whole_words_is_kept_only_where_the_word_is_one_piece_that_begins_no_other(
    pieces: Tokenizer, items: list[LinkItem]
) -> None:
    def cut(word: str) -> list[int]:
        return pieces.encode(f"It {word}").ids[len(pieces.encode("It").ids) :]

    kept = lost = 0
    for item, link in zip(items, links(), strict=True):
        if link["payoff"]:
            own = cut(item.text[slice(*link["payoff"])])
            alike = [word for word in (*link["answers"], *link["foils"]) if cut(word)[0] == own[0]]
            known = len(own) == 1 and len(alike) == 1
            assert item.surprisal == (tuple(link["surprisal"]) if known else ())
            kept, lost = kept + known, lost + (not known)
    assert lost > 100 and kept > 10


def test_a_tokenizer_that_cannot_write_a_word_is_refused_by_a_line() -> None:
    lacking = Tokenizer(models.WordLevel({"It": 0}))
    lacking.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(ValueError, match=r"the tokenizer cannot write '|has no tokens of its own"):
        link_items(default_rows()[:4], lacking, 0)
