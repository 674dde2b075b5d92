import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from model.transformer import Transformer
from probe.gold import anchors_of
from probe.minimal_pairs import Pair, blind_ceiling, log_probabilities, minimal_pairs, outcomes, read_pairs, score_file
from tests.probe.subjects import bpe_subject, constant, noisy, word_subject
from training.evaluate import mean_loss

NAMES = "Ann Mary Jane Ruth Eva".split(), "Tom John Paul Carl Max".split()
PAIRS = [
    Pair(f"{name} {verb} {good}.", f"{name} {verb} {bad}.")
    for names, good, bad in zip(NAMES, ("herself", "himself"), ("himself", "herself"), strict=True)
    for name in names
    for verb in ("saw", "hurt", "liked")
]
TEXTS = [text for pair in PAIRS for text in (pair.good, pair.bad)]


def tokens_of(subject, pairs):  # noqa: ANN001, ANN201
    return [tuple((subject.end, *subject.encode(text)[0]) for text in (pair.good, pair.bad)) for pair in pairs]


def blimp(path: Path, pairs: list[Pair]) -> Path:
    path.write_text("".join(json.dumps({"sentence_good": p.good, "sentence_bad": p.bad}) + "\n" for p in pairs))
    return path


@pytest.mark.parametrize("turned", [False, True])
def test_a_model_that_finds_everything_equally_likely_gets_exactly_one_half(turned: bool) -> None:
    pairs = [Pair(pair.bad, pair.good) for pair in PAIRS] if turned else PAIRS
    found = score_file(word_subject(TEXTS, constant), "x.jsonl", pairs)
    assert found["all"]["accuracy"] == 0.5 and found["n_ties"] == len(pairs)


def test_two_words_that_the_tokenizer_cannot_tell_apart_tie_under_any_model() -> None:
    subject = word_subject(["Ann Mary Jane Ruth Eva Tom John Paul Carl Max saw hurt liked ."])
    found = score_file(subject, "x.jsonl", PAIRS)
    assert found["all"]["accuracy"] == 0.5 and found["n_ties"] == len(PAIRS)
    assert found["n_covered"] == 0 and found["covered"] is None
    assert score_file(replace(subject, known=None), "x.jsonl", PAIRS)["n_covered"] is None


def test_a_bag_of_words_ties_where_only_the_order_differs() -> None:
    """Embeddings of one direction and different lengths: whatever is read, each word has the same probability."""
    words = [f"w{i}" for i in range(40)]
    subject = word_subject([" ".join(words)], norm_eps=1e-20)
    model = Transformer(subject.model.config, subject.model.vocab_size, seed=3).eval()
    with torch.no_grad():
        lengths = 1 + torch.rand(model.vocab_size, 1, generator=torch.Generator().manual_seed(0))
        model.token_embedding.weight.copy_(lengths * torch.linspace(0.5, 1.5, 42))
        model.final_norm.gain.fill_(0.05)
    rng = np.random.default_rng(0)
    pairs = [Pair(*(" ".join(rng.permutation(words)) for _ in range(2))) for _ in range(40)]
    found = log_probabilities(model, tokens_of(subject, pairs), 64)
    assert (outcomes(found) == 0.5).all() and (found[:, 0] != found[:, 1]).any()  # rounding alone
    single = log_probabilities(model, tokens_of(subject, [Pair("w1 w2", "w1 w3")]), 64)
    assert outcomes(single)[0] != 0.5


def test_the_score_is_the_sum_over_the_whole_sentence_with_the_end_in_front_and_none_behind() -> None:
    subject = word_subject(TEXTS)
    found = log_probabilities(subject.model, tokens_of(subject, PAIRS[:1]), 64)[0]
    for score, ids in zip(found, tokens_of(subject, PAIRS[:1])[0], strict=True):
        logs = subject.model(torch.tensor([ids])).log_softmax(-1)[0].detach()
        by_hand = sum(float(logs[i, ids[i + 1]]) for i in range(len(ids) - 1))
        assert score == pytest.approx(by_hand, abs=1e-4) and len(ids) == 5


@pytest.mark.parametrize("make", [bpe_subject, word_subject])
def test_neither_order_nor_batch_size_changes_an_outcome(make) -> None:  # noqa: ANN001
    subject = make(TEXTS)
    tokens = tokens_of(subject, PAIRS)
    order = np.random.default_rng(0).permutation(len(tokens))
    one = outcomes(log_probabilities(subject.model, tokens, 10_000))
    for size in (1, 40, 333):
        assert (outcomes(log_probabilities(subject.model, [tokens[i] for i in order], size)) == one[order]).all()
    assert 0 < one.mean() < 1


def test_good_and_bad_exchanged_are_right_where_they_were_wrong() -> None:
    subject = word_subject(TEXTS)
    there, back = (outcomes(log_probabilities(subject.model, tokens_of(subject, some), 64)) for some in (
        PAIRS, [Pair(pair.bad, pair.good) for pair in PAIRS]))  # fmt: skip
    assert (there + back == 1).all()


def test_the_blind_ceiling_is_that_of_the_word_right_more_often() -> None:
    """By hand: herself beats himself in 3 of 5, herself beats itself in 1 of 1: (3 + 1) / 6."""
    some = [("herself", "himself")] * 3 + [("himself", "herself")] * 2 + [("herself", "itself")]
    pairs = [Pair(f"{i} saw {good}.", f"{i} saw {bad}.") for i, (good, bad) in enumerate(some)]
    assert blind_ceiling(pairs) == pytest.approx(4 / 6)
    assert blind_ceiling([*pairs, Pair("i saw the wolf", "the wolf saw i")]) is None


def test_above_the_ceiling_is_said_only_of_an_interval_that_lies_above_it() -> None:
    subject = word_subject(TEXTS)
    learned = torch.tensor([good for good, _ in tokens_of(subject, PAIRS)])
    optimizer = torch.optim.AdamW(subject.model.parameters(), lr=0.01)
    for _ in range(60):  # until it has learned who herself is
        optimizer.zero_grad()
        mean_loss(subject.model(learned[:, :-1]), learned[:, 1:]).backward()
        optimizer.step()
    wrong = score_file(subject, "x.jsonl", [Pair(pair.bad, pair.good) for pair in PAIRS])
    assert wrong["all"]["accuracy"] < 0.1 and wrong["above_blind_ceiling"] is False
    found = score_file(subject, "x.jsonl", PAIRS)
    assert found["blind_ceiling"] == 0.5
    assert found["all"]["accuracy"] > 0.9 and found["above_blind_ceiling"] is True
    low, high = found["all"]["interval"]
    narrow = found["all"]["interval_over_pairs"]
    assert high - low >= narrow[1] - narrow[0] and low <= found["all"]["accuracy"] <= high + 1e-9
    assert found["all"]["interval_over_clusters"]["critical words"] is None  # one kind of pair
    assert found["all"]["n_clusters"] == {"critical words": 1, "first words": 10}


def test_covered_pairs_are_those_whose_critical_words_training_had() -> None:
    subject = replace(bpe_subject(TEXTS), known=frozenset("Ann saw herself himself .".split()))
    pairs = [*PAIRS[:3], Pair("Ann saw itself.", "Ann saw herself.")]
    found = score_file(subject, "x.jsonl", pairs)
    assert found["n_covered"] == 3
    cover = found["coverage"]
    assert cover["n_words"] == 32 and cover["seen_words"] == pytest.approx(27 / 32)  # hurt, hurt, liked, liked, itself
    blind = score_file(replace(subject, known=None), "x.jsonl", pairs)
    assert blind["coverage"]["seen_words"] is None and not blind["covered_is_known"]


def test_what_the_number_of_tokens_alone_gets_is_said() -> None:
    """Of the first pair the bad sentence is a token longer, of the second neither: (1 + 1/2) / 2."""
    subject = word_subject(["a b c d e ."])
    found = score_file(subject, "x.txt", [Pair("a b.", "a c d."), Pair("a b.", "a d.")])
    assert found["same_probability_for_every_token"] == 0.75
    uniform = replace(subject, model=constant(noisy(Transformer(subject.model.config, subject.model.vocab_size, 0))))
    assert score_file(uniform, "x.txt", [Pair("a b.", "a c d.")])["all"]["accuracy"] == 1.0


def test_a_pair_longer_than_the_context_is_left_out_and_counted() -> None:
    subject = word_subject(TEXTS, context_length=5)
    found = score_file(subject, "x.jsonl", [*PAIRS, Pair("Ann " * 9 + "herself.", "Ann " * 9 + "himself.")])
    assert found["n_too_long"] == 1 and found["all"] is not None  # five tokens with the END fit


def test_zorro_has_the_bad_sentence_first_and_blimp_names_it(tmp_path: Path) -> None:
    zorro = tmp_path / "zorro.txt"
    zorro.write_text("will Mark want herself ?\nwill Mark want himself ?\n")
    assert read_pairs(zorro) == [Pair("will Mark want himself ?", "will Mark want herself ?")]
    assert read_pairs(blimp(tmp_path / "b.jsonl", PAIRS)) == PAIRS


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.txt", "one\ntwo\nthree\n", "line 3: a bad sentence without"),
        ("a.txt", "", "is empty"),
        ("a.txt", "same\nsame\n", "line 2: both sentences are the same"),
        ("a.jsonl", '{"sentence_good": "a"}\n', "line 1: no field sentence_bad"),
        ("a.jsonl", '{"sentence_good": "a", "sentence_bad": 3}\n', "line 1: sentence_bad is not a text"),
        ("a.jsonl", '{"sentence_good": "a", "sentence_bad": "b"}\n{"sen', "line 2: not JSON"),
        ("a.jsonl", "[1]\n", "line 1: not a JSON object"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=said) as error:
        read_pairs(tmp_path / name)
    assert name in str(error.value) and "\n" not in str(error.value)


def test_published_figures_stand_beside_files_that_are_known_and_only_those(tmp_path: Path) -> None:
    assert [one.share for one in anchors_of("anaphor_gender_agreement")] == [0.439, 0.882, 0.912, 0.994, 0.96]
    assert anchors_of("mine") == ()
    blimp(tmp_path / "anaphor_gender_agreement.jsonl", PAIRS)
    blimp(tmp_path / "mine.jsonl", PAIRS)
    report = minimal_pairs(word_subject(TEXTS), str(tmp_path))
    assert report.markdown[0].startswith("coverage of all files")
    rows = [line for line in report.markdown if line.startswith("| ")]
    assert "GPT-2 99.4" in rows[2] and "GPT-2" not in rows[3]


def test_a_mark_of_the_encoding_is_no_word(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Ann saw himself\nAnn saw herself\n", encoding="utf-8-sig")
    assert read_pairs(tmp_path / "a.txt") == [Pair("Ann saw herself", "Ann saw himself")]


def test_prose_is_no_list_of_pairs(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Once there was a dog.\nIt ran home.\nThe sun rose.\nNobody saw it go.\n")
    with pytest.raises(ValueError, match="are not pairs: most share less than half their words"):
        read_pairs(tmp_path / "a.txt")
