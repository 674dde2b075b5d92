"""Files and stories to token arrays, once."""

import gc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data import corpus as corpus_module
from data.config import TextConfig, TokenizerKind
from data.corpus import CLASSES, Corpus, load_corpus, load_rows, load_split
from data.documents import local_sources, read_pieces
from data.links import link_items
from data.stories import language_of
from data.stories.floor import Floor, words
from data.tokenizer import END, end_id
from tests.data.test_stories import CONFIG as STORIES

CONFIG = replace(STORIES, n_validation_stories=160, n_test_templates=2, n_test_pairs=1)


def text_config(path: Path, **changes: object) -> TextConfig:
    common = {
        "source": "text",
        "path": str(path),
        "validation_path": None,
        "validation_fraction": 0.1,
        "column": "text",
        "max_bytes": None,
        "tokenizer_path": None,
    }
    return TextConfig(**(common | {"tokenizer": TokenizerKind.characters, "vocab_size": 300} | changes))


def decoded(corpus: Corpus, split: str) -> str:
    tokens = getattr(corpus, split).tokens
    return corpus.tokenizer.decode(tokens.tolist(), skip_special_tokens=False)


def test_characters_of_one_file_are_split_ninety_to_ten(tmp_path: Path) -> None:
    text = "".join(chr(97 + i % 23) + ("\n" if i % 17 == 0 else "") for i in range(1003))
    (tmp_path / "input.txt").write_text(text)
    corpus = load_corpus(text_config(tmp_path / "input.txt"), tmp_path / "cache")
    cut = int(len(text) * 0.9)
    assert decoded(corpus, "train") == END + text[:cut]
    assert decoded(corpus, "validation") == END + text[cut:]
    assert corpus.validation.n_bytes == len(text) - cut


def test_documents_are_parted_and_never_cut_in_two_by_the_split(tmp_path: Path) -> None:
    documents = [f"story {i} has {'many ' * i}words." for i in range(20)]
    (tmp_path / "a.txt").write_text("\n<|endoftext|>\n".join(documents))
    corpus = load_corpus(text_config(tmp_path / "a.txt", tokenizer=TokenizerKind.bpe), tmp_path / "cache")
    train, validation = (decoded(corpus, split).split(END)[1:] for split in ("train", "validation"))
    assert [one.strip("\n") for one in train + validation] == documents
    assert validation


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_rows_of_jsonl_and_parquet_are_documents(tmp_path: Path, kind: str) -> None:
    from datasets import Dataset

    rows = Dataset.from_dict({"story": ["One.", "Two <|endoftext|> still two.\n\nYes.", "Three."]})
    path = tmp_path / f"rows.{kind}"
    rows.to_json(path) if kind == "jsonl" else rows.to_parquet(path)
    pieces = list(read_pieces(local_sources(str(path)), "story"))
    assert pieces == [("One.", True), ("Two <|endoftext|> still two.\n\nYes.", True), ("Three.", True)]
    with pytest.raises(ValueError, match="data.column=text is not in"):
        list(read_pieces(local_sources(str(path)), "text"))


def test_long_documents_come_in_pieces_that_join_to_the_whole(tmp_path: Path) -> None:
    text = "".join(f"line {i} é\r\n" if i % 3 else "\n" for i in range(20000))
    (tmp_path / "long.txt").write_bytes(text.encode())
    pieces = list(read_pieces(local_sources(str(tmp_path / "long.txt")), "text"))
    assert len(pieces) > 2 and [begins for _, begins in pieces] == [True] + [False] * (len(pieces) - 1)
    assert "".join(piece for piece, _ in pieces) == text.replace("\r\n", "\n")


def test_a_folder_a_glob_and_a_list_mean_files(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.md"):
        (tmp_path / name).write_text("x")
    both = [tmp_path / "a.txt", tmp_path / "b.txt"]
    means = local_sources(str(tmp_path))
    assert means == local_sources(f"{tmp_path}/*.txt") == local_sources(f"{both[0]},{both[1]}")
    assert [source.place for source in means] == [str(path) for path in both]
    with pytest.raises(FileNotFoundError, match="no text found"):
        local_sources(str(tmp_path / "nothing.txt"))
    with pytest.raises(ValueError, match="is not one of"):
        local_sources(str(tmp_path / "c.md"))


def test_text_that_is_not_utf8_or_empty_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    cases = [("bad.txt", b"abc \xff\xfe", "UTF-8"), ("empty.txt", b"", "no text")]
    cases += [
        ("bad.jsonl", b'{"text": "a"}\n{"te', "bad.jsonl cannot be read"),
        ("bad.parquet", b"PAR1", "bad.parquet"),
    ]
    for name, content, message in cases:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=message):
            load_corpus(text_config(tmp_path / name), tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_corpus_is_tokenized_once_and_again_when_its_content_changes(tmp_path: Path) -> None:
    path = tmp_path / "input.txt"
    path.write_text("some text " * 50)
    first = load_corpus(text_config(path), tmp_path / "cache")
    stamp = (first.folder / "train.npy").stat().st_mtime_ns
    again = load_corpus(text_config(path), tmp_path / "cache")
    assert (again.folder / "train.npy").stat().st_mtime_ns == stamp
    path.write_text("other text" * 50)
    assert load_corpus(text_config(path), tmp_path / "cache").fingerprint != first.fingerprint


def test_a_text_that_lies_elsewhere_is_the_same_text(tmp_path: Path) -> None:
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        for name in ("a.txt", "b.txt"):
            (tmp_path / folder / name).write_text(f"some {name}, and more of it.\n" * 30)
    first, moved, otherwise = (
        load_corpus(text_config(folder, validation_path=held_out and str(held_out)), tmp_path / "cache")
        for folder, held_out in (
            (tmp_path / "here" / "a.txt", tmp_path / "here" / "b.txt"),
            (tmp_path / "there" / "a.txt", tmp_path / "there" / "b.txt"),
            (tmp_path / "here", None),
        )
    )
    assert first.fingerprint == moved.fingerprint and first.folder == moved.folder
    assert otherwise.fingerprint != first.fingerprint


def test_what_files_are_read_as_and_which_are_held_out_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    for split, names in (("train", "ab"), ("validation", "cd")):
        (tmp_path / split).mkdir()
        for name in names:
            (tmp_path / split / f"{name}.txt").write_text(f'{{"text": "{name} is some text"}}\n')
    config = text_config(tmp_path / "train", validation_path=str(tmp_path / "validation"))
    before = load_corpus(config, tmp_path / "cache")
    (tmp_path / "validation" / "c.txt").rename(tmp_path / "train" / "c.txt")  # the same files in the same order
    moved = load_corpus(config, tmp_path / "cache")
    assert moved.train.n_bytes == before.train.n_bytes // 2 * 3 and moved.fingerprint != before.fingerprint
    (tmp_path / "train" / "c.txt").rename(tmp_path / "train" / "c.jsonl")
    renamed = load_corpus(config, tmp_path / "cache")
    assert renamed.train.n_bytes < moved.train.n_bytes and renamed.fingerprint != moved.fingerprint


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return load_corpus(CONFIG, tmp_path_factory.mktemp("cache"))


def test_stories_lie_end_to_end_with_an_end_before_each(corpus: Corpus) -> None:
    end = end_id(corpus.tokenizer)
    for split in (corpus.train, corpus.validation):
        assert (np.asarray(split.tokens)[np.asarray(split.starts)] == end).all()
        assert (np.asarray(split.tokens) == end).sum() == len(split.starts)


def test_validation_follows_the_mix_and_leaves_hold_outs_out(corpus: Corpus) -> None:
    rows = load_split(corpus, "validation")
    assert set(rows["holdout"]) == {"iid", ""}  # stories without a pronoun have no place in the design
    assert len(corpus.validation.starts) - 1 == len(rows)


def test_what_learning_needs_is_written_first_and_the_probes_splits_when_asked_for(tmp_path: Path) -> None:
    corpus = load_corpus(CONFIG, tmp_path)
    stories = corpus.folder / "stories"
    assert {path.name for path in stories.iterdir()} == {"train", "validation"}
    dev = load_split(corpus, "dev")
    assert {path.name for path in stories.iterdir()} == {"train", "validation", "dev"}
    assert {"iid", "headline"} == set(dev["holdout"])
    assert load_split(corpus, "dev")["text"][:] == dev["text"][:]


def test_rows_read_without_datasets_are_those_that_it_reads(corpus: Corpus) -> None:
    rows = load_rows(corpus, "dev")
    assert rows == list(load_split(corpus, "dev")) and any(row["links"] for row in rows)
    assert load_rows(corpus, "dev", ["text"]) == [{"text": row["text"]} for row in rows]


def test_payoffs_are_the_class_of_the_words_only_the_antecedent_explains(corpus: Corpus) -> None:
    classes, tokens = np.asarray(corpus.validation.classes), np.asarray(corpus.validation.tokens)
    payoffs = {corpus.tokenizer.id_to_token(int(i)) for i in tokens[classes == CLASSES.index("payoff")]}
    expected = {
        row["text"][slice(*link["payoff"])]
        for row in load_split(corpus, "validation")
        for link in row["links"]
        if link["payoff"]
    }
    assert payoffs == expected
    assert set(np.unique(classes)) == set(range(len(CLASSES)))


def test_the_floor_lies_under_its_own_tokens(corpus: Corpus) -> None:
    split = corpus.validation
    floor = Floor(language_of(CONFIG, "dev", "iid"), CONFIG.skew)
    mixed = load_split(corpus, "validation")["text"][:]
    assert len(mixed) == len(split.starts) - 1 and len(split.floor) == len(split.tokens)
    assert np.isnan(split.floor[0]) and not np.isnan(split.floor[1:]).any() and (split.floor[1:] > -1e-6).all()
    for i in range(0, len(mixed), 7):
        tokens = split.tokens[split.starts[i] + 1 : split.starts[i + 1] + 1]
        assert [corpus.tokenizer.id_to_token(int(token)) for token in tokens] == [*words(mixed[i]), END]
        own = split.floor[split.starts[i] + 1 : split.starts[i + 1] + 1]
        np.testing.assert_allclose(own, floor.surprisal(mixed[i])[0], rtol=1e-6, atol=1e-6)


def test_items_stand_at_their_words_and_stop_before_the_payoff(corpus: Corpus) -> None:
    end = end_id(corpus.tokenizer)
    items = link_items(load_split(corpus, "test"), corpus.tokenizer, end)
    words = corpus.tokenizer.id_to_token
    for item in items[::5]:
        assert item.tokens[0] == end
        assert words(item.tokens[item.query]).lower() in ("it", "they", "she", "he") or item.site != "pronoun"
        if item.payoff is not None:
            assert len(item.tokens) == max(item.query, item.payoff) + 1
        assert item.text.split()[0] == words(item.tokens[1])


def test_the_collector_rests_while_stories_are_told_and_not_for_longer() -> None:
    with pytest.raises(RuntimeError, match="broke"), corpus_module._uncollected():
        assert not gc.isenabled()
        raise RuntimeError("broke")
    assert gc.isenabled()
    gc.disable()
    try:
        with corpus_module._uncollected():
            pass
        assert not gc.isenabled()  # whoever had turned it off keeps it so
    finally:
        gc.enable()
