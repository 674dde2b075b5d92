import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from data.tokenizer import bpe_tokenizer, word_tokenizer
from model.config import Position, Scale, Weighting
from model.observe import attention_scores
from model.transformer import Transformer
from probe.gold import (
    Choice,
    Item,
    Row,
    ask,
    choose,
    find_files,
    halves,
    held_out,
    hits,
    links,
    make_item,
    owners,
    prose,
    read_rows,
    rule_hits,
    word_scores,
)
from tests.probe.subjects import SETTINGS, config, looks_at_its_own_word, noisy, subject, word_subject

# Tom met the old man 's dog . He said , " Stay , " and it
WORDS = 'Tom met the old man \'s dog . He said , " Stay , " and it'.split()
ROW = {
    "doc": "a", "context": WORDS, "pron_pos": 16, "antecedents": [[2, 7]],
    "other_mentions": [[0, 1, "0"], [2, 5, "1"], [8, 9, "0"]], "nearest": [2, 7],
}  # fmt: skip


def row(**changes: object) -> dict[str, object]:
    return ROW | changes


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


def read(path: Path, rows: list[dict[str, object]]) -> list[Row]:
    return read_rows(write(path / "rows.jsonl", rows))


def test_what_is_no_regular_file_is_refused_before_it_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}")
    os.mkfifo(tmp_path / "b.jsonl")
    for path in (tmp_path / "b.jsonl", tmp_path / "*.jsonl", tmp_path, f"{tmp_path}/a.jsonl,{tmp_path}/b.jsonl"):
        with pytest.raises(ValueError, match=r"path: \S+/b\.jsonl is no regular file"):
            find_files(str(path), (".jsonl",))


def test_words_are_written_as_prose_is_and_each_is_found_again() -> None:
    text, spans = prose(WORDS)
    assert text == 'Tom met the old man\'s dog. He said, "Stay," and it'
    assert [text[slice(*span)] for span in spans] == WORDS
    assert prose('away , " said he . " Now go'.split())[0] == 'away," said he. "Now go'
    assert prose("( I do n't , \u201c yes \u201d )".split())[0] == "(I don't, \u201cyes\u201d)"


def test_a_word_of_two_mentions_belongs_to_the_innermost() -> None:
    assert owners([(2, 7), (0, 1), (2, 5), (8, 9)], 10) == [1, None, 2, 2, 2, 0, 0, None, 3, None]


@pytest.mark.parametrize("pieces", [False, True])
def test_a_row_becomes_the_pieces_of_its_mentions_words(tmp_path: Path, pieces: bool) -> None:
    text, _ = prose(WORDS)
    tokenizer = bpe_tokenizer([text], 262) if pieces else word_tokenizer([" ".join(WORDS), text])
    some = subject(tokenizer, Transformer(config(), tokenizer.get_vocab_size(), seed=0).eval())
    item = make_item(some, read(tmp_path, [row()])[0])
    assert isinstance(item, Item)
    ids = item.choice.tokens
    words = [tokenizer.decode([ids[place] for place in word]).strip() for word in item.choice.words]
    assert words[:4] + words[-2:] == ["Tom", "the", "old", "man", "dog", "He"]
    assert item.choice.gold == (False,) * 4 + (True,) * (len(words) - 5) + (False,)
    assert item.nominal[0] and not item.nominal[-1] and not any(item.same)
    assert tokenizer.decode(list(ids[-2:])).strip().endswith("it") and ids[0] == some.end


def test_rules_by_hand(tmp_path: Path) -> None:
    """Nearest is He; nearest nominal the dog, which is meant; one mention of four is an antecedent."""
    some = word_subject([" ".join(WORDS), prose(WORDS)[0]])
    item = make_item(some, read(tmp_path, [row()])[0])
    assert isinstance(item, Item)
    found = rule_hits(item, [True] * len(item.choice.gold))
    tom = {"first": 0, "nearest name": 0}  # he is both, and not meant
    assert found == {"nearest": 0, "nearest nominal": 1, "same word": 0, "uniform": 0.25, "same person": 1, **tom}
    nominal = rule_hits(item, item.nominal)
    assert nominal["nearest"] == 1 and nominal["uniform"] == pytest.approx(1 / 3)
    he = make_item(some, read(tmp_path, [row(context=[*WORDS[:-1], "He"], antecedents=[[8, 9]], other_mentions=[
        [0, 1, "0"], [6, 7, "1"]])])[0])  # fmt: skip
    assert isinstance(he, Item)
    assert rule_hits(he, [True] * 3) == {
        "nearest": 1, "nearest nominal": 0, "same word": 1, "uniform": pytest.approx(1 / 3), "same person": 1,
        **tom,
    }  # fmt: skip


def test_the_nearest_antecedent_that_the_file_names_is_not_what_nearest_means(tmp_path: Path) -> None:
    """LitBank's rows name the nearest antecedent: a rule that read it would always be right."""
    some = word_subject([prose(WORDS)[0]])
    ours, theirs = (make_item(some, one) for one in read(tmp_path, [row(), row(nearest=[0, 1])]))
    assert ours == theirs


def test_a_row_is_cut_at_the_left_only_where_no_antecedent_falls_away(tmp_path: Path) -> None:
    text = prose(WORDS)[0]
    whole = make_item(word_subject([text]), read(tmp_path, [row()])[0])
    cut = make_item(word_subject([text], context_length=17), read(tmp_path, [row()])[0])
    short = make_item(word_subject([text], context_length=11), read(tmp_path, [row()])[0])
    assert isinstance(whole, Item) and isinstance(cut, Item)
    assert len(whole.choice.tokens) > 17 and len(cut.choice.tokens) == 17
    assert whole.choice.tokens[-16:] == cut.choice.tokens[1:] and cut.choice.tokens[0] == whole.choice.tokens[0]
    lost = len(whole.choice.words) - len(cut.choice.words)
    assert lost > 0 and cut.mention == whole.mention[lost:] and cut.nominal == whole.nominal[lost:]
    for here, there in zip(cut.choice.words, whole.choice.words[lost:], strict=True):
        assert [cut.choice.tokens[i] for i in here] == [whole.choice.tokens[i] for i in there]
    assert short == "an antecedent lies outside the context"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"position": Position.learned},
        {"position": Position.alibi},
        {"scale": Scale.none},
        {"weighting": Weighting.sum},
        {"tie_query_key": True},
    ],
)
def test_a_words_score_is_the_log_of_the_weight_its_pieces_sum_to(changes: dict[str, object]) -> None:
    model = noisy(Transformer(config(**changes), 50, seed=2))
    choices = [
        Choice((1, 7, 9, 11, 4, 3), ((1,), (2, 3), (4,)), (True, False, False)),
        Choice((1, 9, 9), ((1,),), (True,)),
        Choice((1, 7, 9, 11, 4, 3), ((4,),), (True,)),
    ]
    found = word_scores(model, choices, 12)
    with torch.no_grad():
        for i, choice in enumerate(choices):
            scores = attention_scores(model, torch.tensor([choice.tokens]))[:, 0, :, -1].numpy()  # [L, H, T]
            for j, word in enumerate(choice.words):
                by_hand = np.logaddexp.reduce(scores[..., list(word)], axis=-1)
                np.testing.assert_allclose(found[i, :, :, j], by_hand, atol=2e-5)
            assert np.isneginf(found[i, :, :, len(choice.words) :]).all()


def test_a_model_that_was_never_trained_is_read_without_computing_its_blocks() -> None:
    model = Transformer(config(), 50, seed=2).eval()
    choice = Choice((1, 7, 9, 11, 4, 3), ((1,), (2, 3), (4,)), (True, False, False))
    scores = attention_scores(model, torch.tensor([choice.tokens]))[:, 0, :, -1].detach().numpy()
    np.testing.assert_allclose(word_scores(model, [choice], 99)[0, :, :, 2], scores[..., 4], atol=2e-5)


def test_ties_share_the_hit_and_only_what_is_asked_can_be_chosen() -> None:
    scores = np.array([[[[1.0, 1, 0]]], [[[0, 2, 3]]], [[[0, 0, -np.inf]]]])
    gold = np.array([[1, 0, 0], [0, 1, 0], [1, 0, 0]], dtype=bool)
    every = np.array([[1, 1, 1], [1, 1, 1], [1, 1, 0]], dtype=bool)
    assert hits(scores, gold, every).ravel().tolist() == [0.5, 0, 0.5]
    assert hits(scores, gold, every & [True, True, False]).ravel().tolist() == [0.5, 1, 0.5]


def made(n_docs: int = 24, per_doc: int = 20, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Return (hits of 2 x 3 heads that know nothing, nearest, untrained, documents)."""
    rng = np.random.default_rng(seed)
    n = n_docs * per_doc
    docs = np.repeat([f"d{i}" for i in range(n_docs)], per_doc)
    return (
        (rng.random((n, 2, 3)) < 0.35).astype(np.float32),
        (rng.random(n) < 0.35).astype(float),
        (rng.random((n, 2, 3)) < 0.35).astype(np.float32),
        docs,
    )


def verdict(found: np.ndarray, nearest: np.ndarray, untrained: np.ndarray, docs: np.ndarray) -> dict[str, object]:
    return held_out(found, {"nearest": nearest}, [untrained, untrained], docs, halves(docs, 0), 400, 0)


def test_a_planted_head_is_found_and_established() -> None:
    found, nearest, untrained, docs = made()
    found[:, 1, 2] = np.random.default_rng(1).random(len(docs)) < 0.7
    result = verdict(found, nearest, untrained, docs)
    assert (result["layer"], result["head"], result["verdict"], result["reasons"]) == (1, 2, "established", [])
    assert result["accuracy"] == pytest.approx(found[~halves(docs, 0), 1, 2].mean())


def test_heads_that_know_nothing_are_not_established() -> None:
    results = [verdict(*made(seed=seed)) for seed in range(20)]
    assert sum(one["verdict"] == "established" for one in results) <= 1
    assert all(one["reasons"] for one in results if one["verdict"] != "established")


def test_a_head_that_only_equals_a_rule_or_an_untrained_model_is_not_established() -> None:
    found, nearest, untrained, docs = made()
    found[:, 0, 0] = np.random.default_rng(1).random(len(docs)) < 0.7
    as_nearest = verdict(found, found[:, 0, 0].astype(float), untrained, docs)
    assert as_nearest["verdict"] == "not established" and "nearest" in as_nearest["reasons"][0]
    as_untrained = verdict(found, nearest, found, docs)
    assert as_untrained["verdict"] == "not established" and "untrained" in as_untrained["reasons"][0]


def test_what_is_true_of_the_half_to_choose_on_alone_is_not_established() -> None:
    found, nearest, untrained, docs = made()
    found[halves(docs, 0), 1, 1] = 1
    result = verdict(found, nearest, untrained, docs)
    assert (result["layer"], result["head"]) == (1, 1) and result["chosen_with"] == 1
    assert result["verdict"] == "not established"


def test_few_documents_establish_nothing_however_good_the_head() -> None:
    found, nearest, untrained, docs = made(n_docs=6)
    found[:, 1, 2] = 1
    assert verdict(found, nearest, untrained, docs)["verdict"] == "not established"


def test_a_document_lies_in_one_half_whole() -> None:
    docs = np.array(["a", "b", "c", "a", "d", "b"])
    half = halves(docs, 3)
    assert len(set(docs[half])) == 2 and not set(docs[half]) & set(docs[~half])
    assert any((halves(docs, seed) != half).any() for seed in range(9))


def test_of_equal_heads_the_first_is_chosen() -> None:
    assert choose(np.ones((4, 2, 3), dtype=np.float32)) == (0, 0)


def test_a_head_that_matches_words_is_found_and_its_rule_keeps_it_from_being_established() -> None:
    """Documents in which he is said twice and means the same man; head 1 looks at the same word, as the rule does."""
    names = [f"N{i}" for i in range(24)]
    tokenizer = word_tokenizer([" ".join(names) + " he saw the dog and then the cat ."])
    some = subject(tokenizer, looks_at_its_own_word(tokenizer.get_vocab_size()), names)
    text = "{} saw the dog . he saw the cat and then he"
    rows = [
        Row(name, tuple(text.format(name).split()), ((0, 1), (5, 6), (2, 4), (7, 9)), (True, True, False, False))
        for name in names
    ]
    results, heads = ask(some, [item for row in rows if isinstance(item := make_item(some, row), Item)])
    found = results["any mention"]["tested"]
    assert (found["layer"], found["head"], found["accuracy"]) == (0, 1, 1.0)
    knowing_nothing = {
        "nearest": 0,
        "nearest nominal": 0,
        "nearest name": 1,
        "first": 1,
        "same word": 1,
        "uniform": 0.5,
    }
    assert found["rules"] == knowing_nothing
    assert found["verdict"] == "not established" and any(one.startswith("same word") for one in found["reasons"])
    assert found["beside"]["same person"]["accuracy"] == 1
    assert set(results["nominal mentions"]["tested"]["rules"]) == {
        "nearest nominal",
        "nearest name",
        "first",
        "uniform",
    }
    assert {one["question"] for one in heads} == {"any mention", "nominal mentions"}
    assert [one["head"] for one in heads if one["question"] == "any mention" and one["chosen"]] == [1]


def test_the_report_begins_with_coverage_and_counts_what_is_left_out(tmp_path: Path) -> None:
    rows = [row(doc=f"d{i}") for i in range(12)] + [row(doc="d1", other_mentions=[])]
    some = word_subject([prose(WORDS)[0]])
    report = links(some, str(write(tmp_path / "a.jsonl", rows)))
    assert report.markdown[0].startswith("coverage of 13 pronouns in 12 documents: ")
    assert report.results["left_out"] == {"no other mention to choose": 1}
    assert report.results["questions"]["any mention"]["n"] == 12
    assert len(report.results["questions"]["any mention"]["tested"]["untrained"]) == SETTINGS.n_untrained
    assert len(report.heads) == 2 * 2 * 3
    again = links(some, str(tmp_path / "a.jsonl"))
    assert again.results == report.results


def test_rows_that_all_fall_away_are_said_and_no_error(tmp_path: Path) -> None:
    report = links(word_subject([prose(WORDS)[0]], context_length=9), str(write(tmp_path / "a.jsonl", [row()])))
    assert "no row is left to ask" in report.markdown and report.heads == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"antecedents": []}, "antecedents is empty"),
        ({"antecedents": [[2, 17]]}, r"antecedents holds \[2, 17\), which is not a span before the pronoun 16"),
        ({"antecedents": [3]}, "antecedents holds 3"),
        ({"other_mentions": "x"}, "other_mentions is not a list"),
        ({"pron_pos": 17}, "pron_pos is 17"),
        ({"pron_pos": "16"}, "pron_pos is not a whole number"),
        ({"context": ["a"] * 16 + [" "]}, "context is not a list of words"),
        ({"doc": None}, "doc is not a text"),
    ],
)
def test_a_row_that_does_not_fit_is_said_in_one_line(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=f"rows.jsonl line 2: {said}") as error:
        read(tmp_path, [row(), row(**changes)])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["doc", "context", "pron_pos", "antecedents", "other_mentions"])
def test_a_missing_field_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"line 1: no field {name}"):
        read(tmp_path, [{key: value for key, value in ROW.items() if key != name}])
