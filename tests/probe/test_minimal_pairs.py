import json
from pathlib import Path

import pytest
import torch

from data.errors import UserError
from data.text import text_files
from model.observe import TransformerView
from probe.minimal_pairs import (
    FileScores,
    Pair,
    context_free_ceiling,
    load_pairs,
    log_probabilities,
    measure_minimal_pairs,
    score_file,
)
from probe.opened_model import OpenedModel
from tests.probe.evaluated_models import SETTINGS, bpe_model, word_model
from tests.tiny_models import make_uniform

PAIRS = [
    Pair(f"{name} {verb} {good}.", f"{name} {verb} {bad}.")
    for names, good, bad in (
        ("Ann Mary Jane Ruth Eva", "herself", "himself"),
        ("Tom Jon Paul Carl Max", "himself", "herself"),
    )
    for name in names.split()
    for verb in ("saw", "hurt", "liked")
]
SWAPPED = [Pair(pair.bad, pair.good) for pair in PAIRS]
TEXTS = [text for pair in PAIRS for text in (pair.good, pair.bad)]


def scores_of(opened: OpenedModel, pairs: list[Pair], words: frozenset[str] | None = None) -> FileScores:
    return score_file(opened, words, "x.jsonl", pairs, SETTINGS)


def accuracy_of(scores: FileScores) -> float:
    assert scores.accuracy is not None
    return scores.accuracy.value


def write_blimp(path: Path, pairs: list[Pair]) -> Path:
    path.write_text("".join(json.dumps({"sentence_good": p.good, "sentence_bad": p.bad}) + "\n" for p in pairs))
    return path


@pytest.mark.parametrize("pairs", [PAIRS, SWAPPED])
def test_a_model_with_equal_probabilities_scores_exactly_one_half(pairs: list[Pair]) -> None:
    result = scores_of(word_model(TEXTS, make_uniform), pairs)
    assert accuracy_of(result) == 0.5 and result.n_ties == len(pairs)


def test_words_that_the_tokenizer_cannot_distinguish_tie_and_are_not_covered() -> None:
    text = "Ann Mary Jane Ruth Eva Tom Jon Paul Carl Max saw hurt liked ."
    result = scores_of(word_model([text]), PAIRS, frozenset(text.split()))
    assert accuracy_of(result) == 0.5 and result.n_ties == len(PAIRS)
    assert result.n_covered == 0 and result.accuracy_covered is None


def test_a_score_is_the_log_probability_of_the_sentence_after_the_start_token() -> None:
    opened = word_model(TEXTS)
    ids = opened.encode(PAIRS[0].good)
    logs = opened.model.logits(torch.tensor([ids])).log_softmax(-1)[0]
    expected = sum(float(logs[i, ids[i + 1]]) for i in range(len(ids) - 1))
    assert len(ids) == 5
    assert log_probabilities(opened.model, [ids], 64)[0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("make", [bpe_model, word_model])
@pytest.mark.parametrize("tokens_per_batch", [1, 40, 333])
def test_batch_size_does_not_change_a_score(make, tokens_per_batch: int) -> None:  # noqa: ANN001
    opened = make(TEXTS)
    ids = [opened.encode(text) for text in TEXTS]
    expected = log_probabilities(opened.model, ids, 10_000)
    assert log_probabilities(opened.model, ids, tokens_per_batch) == pytest.approx(expected, rel=1e-5)


def test_the_ceiling_is_the_share_of_the_more_frequent_word() -> None:
    """By hand: herself beats himself in 3 of 5 pairs, herself beats itself in 1 of 1: (3 + 1) / 6."""
    words = [("herself", "himself")] * 3 + [("himself", "herself")] * 2 + [("herself", "itself")]
    pairs = [Pair(f"{i} saw {good}.", f"{i} saw {bad}.") for i, (good, bad) in enumerate(words)]
    assert context_free_ceiling(pairs) == pytest.approx(4 / 6)


def test_there_is_no_ceiling_if_the_word_order_differs() -> None:
    assert context_free_ceiling([Pair("i saw the wolf", "the wolf saw i")]) is None


def test_a_model_that_learned_the_pairs_is_above_the_ceiling_and_on_swapped_pairs_below() -> None:
    opened = word_model(TEXTS)
    assert isinstance(opened.model, TransformerView)
    model = opened.model.model
    learned = torch.tensor([opened.encode(pair.good) for pair in PAIRS])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(learned[:, :-1]).mT, learned[:, 1:]).backward()
        optimizer.step()
    right, wrong = (scores_of(opened, pairs) for pairs in (PAIRS, SWAPPED))
    assert right.context_free_ceiling == 0.5
    assert accuracy_of(right) > 0.9 and right.above_ceiling is True
    assert accuracy_of(wrong) < 0.1 and wrong.above_ceiling is False


def test_covered_pairs_have_only_differing_words_of_the_training_text() -> None:
    words = frozenset("Ann saw herself himself .".split())
    result = scores_of(bpe_model(TEXTS), [*PAIRS[:3], Pair("Ann saw itself.", "Ann saw herself.")], words)
    assert result.n_covered == 3
    # 32 words, of which hurt, hurt, liked, liked and itself are new
    assert result.coverage.n_words == 32 and result.coverage.seen_words == pytest.approx(27 / 32)


def test_coverage_is_none_without_the_training_words() -> None:
    result = scores_of(bpe_model(TEXTS), PAIRS)
    assert result.coverage.seen_words is result.n_covered is result.accuracy_covered is None


def test_pairs_longer_than_the_context_are_left_out_and_counted() -> None:
    long = Pair("Ann " * 9 + "herself.", "Ann " * 9 + "himself.")
    result = scores_of(word_model(TEXTS, context_length=5), [*PAIRS, long])
    assert (result.n_pairs, result.n_too_long) == (len(PAIRS), 1)  # four tokens and the start token fit


def test_every_file_is_scored_and_the_coverage_is_that_of_all_sentences(tmp_path: Path) -> None:
    write_blimp(tmp_path / "a.jsonl", PAIRS)
    write_blimp(tmp_path / "b.jsonl", [Pair("Ann " * 99 + "herself.", "Ann " * 99 + "himself.")])
    scores = measure_minimal_pairs(word_model(TEXTS), None, str(tmp_path), SETTINGS)
    assert [(file.n_pairs, file.n_too_long) for file in scores.files] == [(len(PAIRS), 0), (0, 1)]
    assert scores.files[1].accuracy is None
    assert scores.coverage.n_words == 4 * 2 * len(PAIRS) + 2 * 101
    assert scores.to_json()["files"][0]["file"] == str(tmp_path / "a.jsonl")


def test_zorro_files_have_the_bad_sentence_first(tmp_path: Path) -> None:
    file = tmp_path / "zorro.txt"
    file.write_text("will Mark want herself ?\nwill Mark want himself ?\n", encoding="utf-8-sig")
    assert load_pairs(file) == [Pair("will Mark want himself ?", "will Mark want herself ?")]


def test_blimp_files_name_the_good_sentence(tmp_path: Path) -> None:
    assert load_pairs(write_blimp(tmp_path / "b.jsonl", PAIRS)) == PAIRS


def test_multiblimp_files_are_tables_with_quotes(tmp_path: Path) -> None:
    """The fields sen and wrong_sen of MultiBLiMP (Jumelet et al. 2025); quotes are doubled as pandas writes them."""
    file = tmp_path / "nld.tsv"
    rows = [
        "sen\tprefix\thead\tswap_head\twrong_sen\tphenomenon",
        "Daar loopt de man.\tDaar\tloopt\tlopen\tDaar lopen de man.\tSV-#",
        '"""Ik ga"", zei ze."\t"""Ik"\tga\tgaat\t"""Ik gaat"", zei ze."\tSV-P',
    ]
    file.write_text("\n".join(rows) + "\n")
    assert load_pairs(file) == [
        Pair("Daar loopt de man.", "Daar lopen de man."),
        Pair('"Ik ga", zei ze.', '"Ik gaat", zei ze.'),
    ]
    assert text_files(str(tmp_path), "path", (".tsv",)) == [file] == text_files(str(file), "path", (".tsv",))


@pytest.mark.parametrize("name", ["missing.tsv", "pairs.csv", "empty"])
def test_a_path_without_pairs_names_the_endings_that_are_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "pairs.csv").write_text("good,bad\n")
    (tmp_path / "empty").mkdir()
    with pytest.raises((FileNotFoundError, UserError), match=r"^path=.*readable are \.jsonl \.tsv \.txt$"):
        measure_minimal_pairs(word_model(TEXTS), None, str(tmp_path / name), SETTINGS)


@pytest.mark.parametrize(
    ("name", "text", "where"),
    [
        ("a.tsv", "sen\thead\nHe runs.\truns\n", "a.tsv: no column wrong_sen; it has sen, head"),
        ("a.tsv", "sen\twrong_sen\nHe runs.\n", "line 2: fewer columns"),
        ("a.tsv", "sen\twrong_sen\n", "no row below"),
        ("a.txt", "one\ntwo\nthree\n", "line 3"),
        ("a.txt", "", "a.txt"),
        ("a.txt", "same\nsame\n", "line 2"),
        ("a.txt", "Once there was a dog.\nIt ran home.\nThe sun rose.\nNo one saw it go.\n", "a.txt"),
        ("a.jsonl", '{"sentence_good": "a"}\n', "line 1: .*sentence_bad"),
        ("a.jsonl", '{"sentence_good": "a", "sentence_bad": 3}\n', "line 1: .*sentence_bad"),
        ("a.jsonl", '{"sentence_good": "a", "sentence_bad": "b"}\n{"sen', "line 2"),
        ("a.jsonl", "[1]\n", "line 1"),
    ],
)
def test_a_bad_file_is_refused_in_one_line_that_names_the_place(
    tmp_path: Path, name: str, text: str, where: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=where) as error:
        load_pairs(tmp_path / name)
    assert name in str(error.value) and "\n" not in str(error.value)
