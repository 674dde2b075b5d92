from pathlib import Path

import numpy as np
import pytest

from probe.gold import Choice
from probe.winobias import _difference, _verdict, make_choice, matched, other_occupation, read_sentences, winobias
from tests.probe.subjects import constant, word_subject

OCCUPATIONS = "developer designer mechanic clerk mover baker nurse guard".split()
PAIRS = [(a, b) for i, a in enumerate(OCCUPATIONS) for b in OCCUPATIONS[i + 1 :]]


def sentences(pronoun: str, other: str) -> list[str]:
    lines = []
    for a, b in PAIRS:
        lines.append(f"[The {a}] argued with the {b} because [{pronoun}] was late.")
        lines.append(f"The {a} argued with [the {b}] because [{other}] was early.")
    return [f"{i} {line}" for i, line in enumerate(lines, 1)]


def folder(path: Path) -> Path:
    (path / "pro_stereotyped_type1.txt.dev").write_text("\n".join(sentences("he", "she")) + "\n")
    (path / "anti_stereotyped_type1.txt.dev").write_text("\n".join(sentences("she", "he")) + "\n")
    return path


TEXTS = [line for some in (sentences("he", "she"), sentences("she", "he")) for line in some]


def test_brackets_give_the_pronoun_and_whom_it_means(tmp_path: Path) -> None:
    file = tmp_path / "pro_x.txt"
    file.write_text("7 The mover gave [the construction worker] a tip because [he] said [his] piece.\n")
    (line,) = read_sentences(file)
    assert line.text == "The mover gave the construction worker a tip because he said his piece."
    assert line.text[slice(*line.pronoun)] == "he" and line.occupation == "construction worker" and line.pro
    other = other_occupation(line, frozenset({"mover", "construction worker"}))
    assert other is not None and line.text[slice(*other)] == "The mover"
    assert other_occupation(line, frozenset({"construction worker"})) is None
    both = frozenset({"mover", "tip"})  # two others: which one is meant is not said
    assert other_occupation(line, both) is None


def test_the_words_of_a_choice_are_the_occupations_without_their_articles(tmp_path: Path) -> None:
    file = tmp_path / "pro_x.txt"
    file.write_text("The mover gave [the construction worker] a tip because [he] said so.\n")
    (line,) = read_sentences(file)
    subject = word_subject([line.text])
    choice = make_choice(subject, line, (0, 9))
    assert isinstance(choice, Choice)
    ids = {subject.encode(word)[0][0]: word for word in line.text.rstrip(".").split()}
    assert [ids[choice.tokens[word[0]]] for word in choice.words] == ["mover", "construction", "worker"] or [
        ids[choice.tokens[word[0]]] for word in choice.words
    ] == ["construction", "worker", "mover"]
    assert sum(choice.gold) == 2 and ids[choice.tokens[-1]] == "he"
    after = make_choice(subject, line, (line.pronoun[1] + 1, line.pronoun[1] + 5))
    assert after == "an occupation stands after the pronoun"


def test_pro_and_anti_are_matched_by_everything_but_the_pronoun(tmp_path: Path) -> None:
    lines = [line for file in sorted(folder(tmp_path).iterdir()) for line in read_sentences(file)]
    pairs = matched(lines)
    assert len(pairs) == 2 * len(PAIRS)
    assert all(pro.pro and not anti.pro and pro.occupation == anti.occupation for pro, anti in pairs)
    assert all(pro.text.replace(" he ", " she ") == anti.text.replace(" he ", " she ") for pro, anti in pairs)


def test_the_difference_of_two_sides_has_an_interval_about_itself() -> None:
    """Pro right in 3 of 4, anti in 1 of 4, in every pair alike."""
    values = np.tile([1, 1, 1, 0, 1, 0, 0, 0], 10).astype(float)
    pro = np.tile([True] * 4 + [False] * 4, 10)
    groups = np.repeat(np.arange(10), 8)
    assert _difference(values, pro, groups, 200, 0) == pytest.approx((0.5, 0.5))


def test_a_head_above_chance_is_not_called_reference() -> None:
    said = _verdict({"layer": 1, "head": 2, "verdict": "established"})
    assert said.startswith("head L1H2: above chance on held-out pairs") and "before calling it reference" in said


def test_chance_is_what_is_expected_and_what_is_found(tmp_path: Path) -> None:
    subject = word_subject(TEXTS)
    report = winobias(subject, str(folder(tmp_path)))
    head = report.results["head"]
    assert report.markdown[0].startswith("coverage of 112 sentences") and report.results["left_out"] == {}
    assert head["accuracy"] == pytest.approx(0.5) == head["rules"]["nearest"]  # he and she stand for both alike
    assert head["verdict"] == "not established"
    assert any("not established, as expected" in line for line in report.markdown)
    assert any("chance is the expected result" in line for line in report.markdown)
    assert head["by_side"]["pro"]["n"] == head["by_side"]["anti"]["n"]
    assert report.results["preference"]["n"] == 56


def test_a_constant_model_prefers_neither_side(tmp_path: Path) -> None:
    report = winobias(word_subject(TEXTS, constant), str(folder(tmp_path)))
    assert report.results["preference"]["pro_is_likelier"] == 0.5 and report.results["preference"]["n_ties"] == 56


def test_one_file_alone_says_what_is_missing(tmp_path: Path) -> None:
    report = winobias(word_subject(TEXTS), str(folder(tmp_path) / "pro_stereotyped_type1.txt.dev"))
    assert report.results["preference"] is None and report.results["head"]["pro_minus_anti"] is None
    assert any("needs both files" in line for line in report.markdown)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("pro_x.txt", "1 The mover left because he won.\n", r"line 1: needs one occupation and a pronoun in \[ \]"),
        ("pro_x.txt", "1 [The mover] left [the clerk] as [he] won.\n", "line 1: needs one occupation"),
        ("pro_x.txt", "1 [The mover left because [he] won.\n", "line 1: needs one occupation"),
        ("type1.txt", "1 [The mover] left because [he] won.\n", "its name must say pro or anti"),
        ("anti_x.txt", "\n", "is empty"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=said):
        read_sentences(tmp_path / name)
