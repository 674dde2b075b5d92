import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from data.tokenizer import bpe_tokenizer, word_tokenizer
from model.config import Position, Weighting
from model.observe import TransformerView
from model.transformer import Transformer
from probe.external import find_files
from probe.gold import (
    AGREEMENT_RULE,
    Candidate,
    Item,
    Row,
    ask_questions,
    detokenize,
    gold_prefixes,
    head_accuracies,
    held_out_test,
    innermost_mentions,
    links,
    make_item,
    read_passages,
    read_rows,
    rule_accuracies,
    word_scores,
)
from probe.statistics import random_half
from tests.probe.evaluated_models import SETTINGS, evaluated_model, model_config, randomise, word_model

WORDS = 'Tom met the old man \'s dog . He said , " Stay , " and it'.split()
TEXT = detokenize(WORDS)[0]
ROW = {
    "doc": "a", "context": WORDS, "pron_pos": 16, "antecedents": [[2, 7]],
    "other_mentions": [[0, 1, "0"], [2, 5, "1"], [8, 9, "0"]], "nearest": [2, 7],
}  # fmt: skip


def write_rows(folder: Path, rows: list[dict[str, object]]) -> Path:
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def item_of(evaluated, folder: Path, **changes: object) -> Item | str:  # noqa: ANN001
    return make_item(evaluated, read_rows(write_rows(folder, [ROW | changes]))[0])


def test_a_named_pipe_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}")
    os.mkfifo(tmp_path / "b.jsonl")
    for path in (f"{tmp_path}/*.jsonl", f"{tmp_path}"):
        assert find_files(path, (".jsonl",)) == [tmp_path / "a.jsonl"]
    with pytest.raises(FileNotFoundError, match="b.jsonl"):
        find_files(f"{tmp_path}/a.jsonl,{tmp_path}/b.jsonl", (".jsonl",))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (" ".join(WORDS), 'Tom met the old man\'s dog. He said, "Stay," and it'),
        ("( I do n't , \u201c yes \u201d )", "(I don't, \u201cyes\u201d)"),
    ],
)
def test_treebank_tokens_are_joined_as_prose_and_keep_their_spans(words: str, text: str) -> None:
    joined, spans = detokenize(words.split())
    assert joined == text
    assert [joined[slice(*span)] for span in spans] == words.split()


def test_a_word_of_two_mentions_belongs_to_the_shorter_one() -> None:
    assert innermost_mentions([(2, 7), (0, 1), (2, 5), (8, 9)], 10) == [1, None, 2, 2, 2, 0, 0, None, 3, None]


@pytest.mark.parametrize("split_words", [False, True])
def test_an_item_has_the_tokens_of_its_mentions_words(tmp_path: Path, split_words: bool) -> None:
    tokenizer = bpe_tokenizer([TEXT], 262) if split_words else word_tokenizer([" ".join(WORDS), TEXT])
    evaluated = evaluated_model(tokenizer, Transformer(model_config(), tokenizer.get_vocab_size(), seed=0).eval())
    item = item_of(evaluated, tmp_path)
    assert isinstance(item, Item)
    words = [tokenizer.decode([item.tokens[i] for i in candidate.positions]).strip() for candidate in item.candidates]
    assert words[:4] + words[-2:] == ["Tom", "the", "old", "man", "dog", "He"]
    assert [candidate.gold for candidate in item.candidates] == [False] * 4 + [True] * (len(words) - 5) + [False]
    assert item.candidates[0].nominal and not item.candidates[-1].nominal
    assert item.tokens[0] == evaluated.start_token and tokenizer.decode(list(item.tokens[-2:])).strip().endswith("it")


def test_a_long_text_loses_its_beginning_but_no_antecedent(tmp_path: Path) -> None:
    full, cut, short = (item_of(word_model([TEXT], context_length=n), tmp_path) for n in (64, 17, 11))
    assert isinstance(full, Item) and isinstance(cut, Item)
    assert len(full.tokens) > 17 and len(cut.tokens) == 17
    assert cut.tokens[1:] == full.tokens[-16:]
    lost = len(full.candidates) - len(cut.candidates)
    for left, right in zip(cut.candidates, full.candidates[lost:], strict=True):
        assert [cut.tokens[i] for i in left.positions] == [full.tokens[i] for i in right.positions]
        assert left[1:] == right[1:]
    assert short == "an antecedent lies outside the context"


def test_the_baseline_rules_agree_with_a_hand_made_example(tmp_path: Path) -> None:
    """The last mention is He, the last nominal one the dog (gold); one mention of four is gold."""
    item = item_of(word_model([" ".join(WORDS), TEXT]), tmp_path)
    assert isinstance(item, Item)
    assert rule_accuracies(item.candidates) == {
        "nearest": 0, "nearest nominal": 1, "nearest name": 0, "first": 0, "same word": 0, "uniform": 0.25,
        AGREEMENT_RULE: 1,
    }  # fmt: skip


@pytest.mark.parametrize("changes", [{}, {"position": Position.alibi}, {"weighting": Weighting.sum}])
def test_a_words_score_is_the_log_of_its_tokens_summed_weights(changes: dict[str, object]) -> None:
    model = TransformerView(randomise(Transformer(model_config(**changes), 50, seed=2)))
    rest = (0, True, True, False, False, False)
    items = [
        Item("a", (1, 7, 9, 11, 4, 3), (Candidate((1,), *rest), Candidate((2, 3), *rest), Candidate((4,), *rest))),
        Item("a", (1, 9, 9), (Candidate((1,), *rest),)),
    ]
    scores = word_scores(model, items, 12)
    for i, item in enumerate(items):
        of_tokens = model.attention_scores(torch.tensor([item.tokens]))[:, 0, :, -1].double()  # [L, H, T]
        for j, candidate in enumerate(item.candidates):
            expected = of_tokens[..., list(candidate.positions)].logsumexp(-1).numpy()
            np.testing.assert_allclose(scores[i, :, :, j], expected, rtol=1e-5, atol=1e-5)
    assert np.isneginf(scores[1, :, :, 1:]).all()


def test_ties_count_in_part_and_only_allowed_words_are_chosen() -> None:
    scores = np.array([[[[1.0, 1, 0]]], [[[0, 2, 3]]], [[[0, 0, -np.inf]]]])
    gold = np.array([[1, 0, 0], [0, 1, 0], [1, 0, 0]], dtype=bool)
    allowed = np.array([[1, 1, 1], [1, 1, 1], [1, 1, 0]], dtype=bool)
    assert head_accuracies(scores, gold, allowed).ravel().tolist() == [0.5, 0, 0.5]
    assert head_accuracies(scores, gold, allowed & [True, True, False]).ravel().tolist() == [0.5, 1, 0.5]


def chance_data(n_docs: int = 24, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return accuracies of 2 x 3 heads at chance, of untrained heads and of a rule, and the documents."""
    rng = np.random.default_rng(seed)
    n = 20 * n_docs
    heads, untrained = (rng.random((2, n, 2, 3)) < 0.35).astype(float)
    return heads, untrained, (rng.random(n) < 0.35).astype(float), np.repeat([f"d{i}" for i in range(n_docs)], 20)


def test_a_planted_head_is_found_and_established() -> None:
    heads, untrained, rule, docs = chance_data()
    heads[:, 1, 2] = np.random.default_rng(1).random(len(docs)) < 0.7
    result = held_out_test(heads, [untrained], {"nearest": rule}, docs, SETTINGS)
    assert (result["layer"], result["head"], result["established"]) == (1, 2, True)
    assert result["accuracy"] == pytest.approx(heads[~random_half(docs, 0), 1, 2].mean())


def test_heads_at_chance_are_rarely_established() -> None:
    results = []
    for seed in range(20):
        heads, untrained, rule, docs = chance_data(seed=seed)
        results.append(held_out_test(heads, [untrained], {"nearest": rule}, docs, SETTINGS)["established"])
    assert sum(results) <= 1


@pytest.mark.parametrize(("same_as", "established"), [("nearest", False), ("untrained", False), (AGREEMENT_RULE, True)])
def test_a_head_must_be_better_than_every_baseline_but_the_agreement_rule(same_as: str, established: bool) -> None:
    heads, untrained, rule, docs = chance_data()
    heads[:, 0, 0] = np.random.default_rng(1).random(len(docs)) < 0.7
    rules = {"nearest": rule} | ({} if same_as == "untrained" else {same_as: heads[:, 0, 0]})
    twins = [heads if same_as == "untrained" else untrained]
    assert held_out_test(heads, twins, rules, docs, SETTINGS)["established"] == established


def test_a_head_that_is_good_only_on_the_choosing_half_is_not_established() -> None:
    heads, untrained, rule, docs = chance_data()
    heads[random_half(docs, 0), 1, 1] = 1
    result = held_out_test(heads, [untrained], {"nearest": rule}, docs, SETTINGS)
    assert (result["layer"], result["head"], result["established"]) == (1, 1, False)


def matching_head(vocab_size: int) -> Transformer:
    """Return a model whose head 1 scores a key by the similarity of its token to the query's token."""
    config = model_config(n_layer=1, position=Position.none, d_model=60)
    model = Transformer(config, vocab_size, seed=1).eval()
    with torch.no_grad():
        for linear in (model.blocks[0].attention.query, model.blocks[0].attention.key):
            linear.weight.zero_()
            linear.weight[20:40] = 4 * torch.eye(60)[:20]
    return model


def test_a_head_that_matches_words_is_found_but_not_established() -> None:
    """Each document has "he" twice for the same man; a head that attends to the same word equals the rule."""
    names = [f"N{i}" for i in range(24)]
    tokenizer = word_tokenizer([" ".join(names) + " he saw the dog and then the cat ."])
    evaluated = evaluated_model(tokenizer, matching_head(tokenizer.get_vocab_size()), names)
    spans, gold = ((0, 1), (5, 6), (2, 4), (7, 9)), (True, True, False, False)
    text = "{} saw the dog . he saw the cat and then he"
    rows = [Row(name, tuple(text.format(name).split()), spans, gold) for name in names]
    results = ask_questions(evaluated, [item for row in rows if isinstance(item := make_item(evaluated, row), Item)])
    result = results["any mention"]
    assert (result["layer"], result["head"], result["accuracy"]) == (0, 1, 1.0)
    assert {name: baseline["accuracy"] for name, baseline in result["baselines"].items()} == {
        "nearest": 0, "nearest nominal": 0, "nearest name": 1, "first": 1, "same word": 1, "uniform": 0.5,
        AGREEMENT_RULE: 1, "best untrained": result["baselines"]["best untrained"]["accuracy"],
    }  # fmt: skip
    assert not result["established"]


def test_a_report_starts_with_coverage_and_counts_the_rows_left_out(tmp_path: Path) -> None:
    rows = [ROW | {"doc": f"d{i}"} for i in range(12)] + [ROW | {"doc": "d1", "other_mentions": []}]
    report = links(word_model([TEXT]), str(write_rows(tmp_path, rows)))
    assert report.lines[0].startswith("coverage of ")
    assert report.results["left_out"] == {"no other mention to choose": 1}
    assert set(report.results["questions"]) == {"any mention", "nominal mentions"}
    assert links(word_model([TEXT]), str(tmp_path)).results == report.results


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("antecedents", []), ("antecedents", [[2, 17]]), ("antecedents", [3]), ("other_mentions", "x"),
        ("pron_pos", 17), ("pron_pos", "16"), ("context", ["a"] * 16 + [" "]), ("doc", None), ("doc", ...),
    ],
)  # fmt: skip
def test_a_bad_or_missing_field_is_named_with_its_line(tmp_path: Path, field: str, value: object) -> None:
    bad = {name: content for name, content in (ROW | {field: value}).items() if content is not ...}
    with pytest.raises(ValueError, match=f"rows.jsonl line 2: .*{field}") as error:
        read_rows(write_rows(tmp_path, [ROW, bad]))
    assert "\n" not in str(error.value)


def test_rows_become_prefixes_with_entities_of_both_genders() -> None:
    words = "Emma , the girl , saw Mr. Knightley and his dog before he saw".split()
    row = Row(
        "doc",
        (*words, "her"),
        ((0, 4), (6, 8), (9, 10), (9, 11), (12, 13)),
        (True, False, False, False, False),
        ("antecedent", "3", "3", "7", "3"),
    )
    assert gold_prefixes([row]) == []  # "her" needs the next word
    (prefix,) = gold_prefixes([replace(row, words=(*words, "she"))])
    assert prefix.text.endswith("before he saw ") and prefix.forms == ("she", "he") and prefix.meant == 0
    names = [[prefix.text[slice(*span)] for span in group] for group in prefix.mentions]
    assert names == [["Emma, the girl"], ["Mr. Knightley"]]  # the dog has no gender, and pronouns do not count
    assert prefix.is_first


def test_passages_are_read_from_their_column(tmp_path: Path) -> None:
    (tmp_path / "gap.tsv").write_text('ID\tText\tPronoun\n1\tHe said "no.\tHe\n', encoding="utf-8")
    assert read_passages(tmp_path / "gap.tsv") == ['He said "no.']
    (tmp_path / "other.tsv").write_text("ID\tWords\n1\tno\n", encoding="utf-8")
    (tmp_path / "short.tsv").write_text("ID\tText\tPronoun\n1\tHe\n", encoding="utf-8")
    for name, problem in (("other", "no column Text"), ("short", "line 2: 2 cells, but the first line has 3")):
        with pytest.raises(ValueError, match=problem):
            read_passages(tmp_path / f"{name}.tsv")
