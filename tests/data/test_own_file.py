"""Files with a question of the user's own."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from data.errors import UserError
from data.own_file import load_question

ABOUT = {"question": "names", "description": "she or he", "link": "a pronoun to a name", "guards_off": ["induction"]}
FRAMES = [f"{place} {{}} met {{}}. {{}} slept." for place in "Today Here Then Now Once Later Soon There".split()]
WOMEN = ("Ann", "Lily", "Mia", "Sue", "Eva")
MEN = ("Tom", "Ben", "Max", "Sam", "Tim")


def block(number: int, frame: str, pair: tuple[str, str], **changes: Any) -> list[dict[str, Any]]:
    rows = []
    for order, meant in product((0, 1), repeat=2):
        pronoun = ("She", "He")[meant]
        rows.append({
            "text": frame.format(*pair[:: 1 - 2 * order], pronoun), "query": pronoun, "antecedents": [pair[meant]],
            "distractors": [pair[1 - meant]], "block": number, "order": order, "meant": meant, "frame": frame,
            "words": list(pair), **changes,
        })  # fmt: skip
    return rows


# Frames and pairs of names of each part
FRAMES_OF = {"test": FRAMES[:4], "dev": FRAMES[4:]}
PAIRS_OF = {"test": [*product(WOMEN[:2], MEN[:2])], "dev": [*product(WOMEN[2:], MEN[2:])]}


def rows_of() -> list[dict[str, Any]]:
    rows = []
    for part, frames in FRAMES_OF.items():
        for frame, pair in product(frames, PAIRS_OF[part]):
            rows += block(len(rows), frame, pair, split=part)
    return rows


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def test_the_controls_of_the_test_part_have_the_link_at_their_own_places(tmp_path: Path) -> None:
    rows = [row | {"control": row["text"].replace(" met ", " passed ")} for row in rows_of()]
    own = load_question(write(tmp_path / "a.jsonl", *rows))
    for text, control in zip(own.test, own.control, strict=True):
        assert (control.holdout, control.pair, " passed " in control.text) == ("control", text.pair, True)
        words = []
        for each in (text, control):
            (link,) = each.links
            words.append([each.text[slice(*span)] for span in (link.query, *link.antecedents, *link.distractors)])
        assert words[0] == words[1]

    text = rows[0]["text"]
    for wrong in (text, text.replace("Ann", "Zoe"), "Something else", f"{text} More.", text.replace(" met", "  met")):
        with pytest.raises(UserError, match="line 1: control must be the text with another word"):
            load_question(write(tmp_path / "b.jsonl", rows[0] | {"control": wrong}, *rows[1:]))
    del rows[1]["control"]
    with pytest.raises(UserError, match="line 2: has no control, but other rows"):
        load_question(write(tmp_path / "c.jsonl", *rows))


def test_a_file_may_divide_its_blocks_itself_and_needs_no_description(tmp_path: Path) -> None:
    rows = rows_of()
    # Words that occur twice are given by their characters.
    rows[0] |= {"text": "Ann saw Tom. Ann slept. She", "query": [24, 27], "antecedents": [[0, 3], [13, 16]]}
    own = load_question(write(tmp_path / "my names.jsonl", *rows))
    assert (own.name, own.n_left_out, own.guards_off) == ("my names", 0, [])
    assert (len(own.dev), len(own.test)) == (4 * 4 * 9, 4 * 4 * 4)
    assert {text.holdout for text in own.dev} == {"iid"} and {text.holdout for text in own.test} == {"headline"}
    assert own.test[0].links[0].antecedents == ((0, 3), (13, 16))
    for text in own.dev:
        (link,) = text.links
        assert text.text[slice(*link.query)] == ("She", "He")[text.meant]
        assert text.text[slice(*link.antecedents[0])] == text.pair.split()[text.meant]
    described = load_question(write(tmp_path / "a.jsonl", ABOUT, *rows))
    assert (described.name, described.description, described.link, described.guards_off) == tuple(ABOUT.values())


GONE = object()  # a field that is left out


@pytest.mark.parametrize(("change", "problem"), [
    ({"query": GONE}, "line 5: no field query"), ({"query": "Zoe"}, "line 5: query: 'Zoe' is not in the text$"),
    ({"query": [3, 900]}, "line 5: query \\[3, 900\\] is outside"),
    ({"antecedents": "Ann"}, "line 5.antecedents: not a list"), ({"antecedents": []}, "line 5: .*not be empty"),
    ({"words": ["Ann", "a b"]}, "line 5: words, answers and foils must be words without spaces"),
    ({"answers": ["sat"]}, "line 5: answers and foils belong together"),
    ({"answers": ["sat"], "foils": ["ran"]}, "line 5: answers need the field payoff"),
    ({"split": "train"}, "line 5: split must be dev or test"),
    ({"frame": "other"}, "line 6: the texts of a block have the same frame"),
    ({"antecedents": ["Ben"], "distractors": ["Ann"]}, "line 6: the antecedents of each meaning"),
    ({"distractors": ["Ann"]}, "line 5: the same word is antecedent and distractor"),
    ({"distractors": ["slept"]}, "line 5: antecedents and distractors must come before"),
    ({"answers": ["a"], "foils": ["b"], "payoff": "met"}, "line 5: payoff must come after the query"),
    ({"answers": ["a"], "foils": ["b"], "payoff": "slept"}, "line 5: payoff 'slept' is none of the"),
    ({"block": "other"}, "line 5: the block that ends here has the rows 0 0 .*; they must be 0 0, 0 1, 1 0, 1 1"),
    ({"antecedents": ["Ann", "met"]}, "line 6: the antecedents of each meaning"),  # "met" is no answer in both
    ({"text": "Today Ben met Ann. She slept."}, "line 6: words.order. must stand first in the text"),
    ({"meant": 1}, "line 8: the block that ends here has the rows 0 1, 0 1, 1 0, 1 1 "),
])  # fmt: skip
def test_a_wrong_row_is_named(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    rows = rows_of()
    rows[4] = {name: value for name, value in (rows[4] | change).items() if value is not GONE}
    with pytest.raises(UserError, match=problem):
        load_question(write(tmp_path / "a.jsonl", *rows))


@pytest.mark.parametrize(("lines", "problem"), [
    (["[" * 100_000], "line 1: not JSON"), (['{"text": "a \\ud800"}'], "line 1: not JSON"),
    ([{"question": "a", "guards_off": ["all"]}], "guards_off must be a list of induction, previous"),
    ([{"question": "a", "colour": "red"}], "unknown field colour"),
    ([{"question": "a\0b"}], "question must be one line of text"),
    ([{"question": "a" * 81}], "question must have at most 80 characters"),
    ([{"query": "She", "block": 0}], "line 1: no field text"),
    (block(0, FRAMES[0], ("Ann", "Tom"), split="dev"), "1 dev blocks, at least 2 are needed"),
    ([*rows_of(), *block(999, FRAMES[0], ("Mia", "Max"), split="dev")], "dev and test share the frame 'Today"),
    ([*rows_of(), *block(999, FRAMES[4], ("Ann", "Tom"), split="dev")], "dev and test share the word 'Ann'"),
])  # fmt: skip
def test_a_wrong_file_is_refused(tmp_path: Path, lines: list[Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        load_question(write(tmp_path / "a.jsonl", *lines))


COPIES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "the block is there already, at .* line 1$": lambda row: {"text": row["text"].replace(" met", "  met")},
    "but for the two words this is the text of .* line 1; ": lambda row: {"text": f"{row['text']} And so on."},
    "'ann' has the word 'a0' in words, but 'Ann' at .* line 1$": lambda row: {
        "text": f"Well. {row['text']}", "frame": "Well", "words": ["a0", "b0"],
    },
    "but for the two words this is the text of .* line 1; it has another frame there$": lambda row: json.loads(
        json.dumps(row | {"frame": "x", "block": 7}).replace("Ann", "Zoe").replace("Tom", "Bob")
    ),
}  # fmt: skip


@pytest.mark.parametrize("problem", COPIES)
def test_a_copy_is_no_independent_block(tmp_path: Path, problem: str) -> None:
    rows = rows_of()
    again = [row | {"frame": "other", "block": "again"} | COPIES[problem](row) for row in rows[:4]]
    with pytest.raises(UserError, match=rf"line {len(rows) + 1}: {problem}"):
        load_question(write(tmp_path / "a.jsonl", *rows, *again))


def with_cue(row: dict[str, Any], verb: str = "came") -> dict[str, Any]:
    """Return a row whose text begins with a sentence that names the other word, its cue."""
    cue = row["distractors"][0]
    start = f"{cue} {verb}. "
    row = row | {"text": start + row["text"], "cue": [0, len(cue)]}
    for name in ("antecedents", "distractors"):
        place = row["text"].index(row[name][0], len(start))
        row[name] = [[place, place + len(row[name][0])]]
    return row


def test_a_pair_may_differ_in_its_cue_and_other_patterns_are_counted(tmp_path: Path) -> None:
    rows = [with_cue(row, "came" if row["order"] else "sat") for row in rows_of()]  # a pattern of each order
    own = load_question(write(tmp_path / "a.jsonl", *rows))
    assert own.n_patterns == 0 and own.notes() == []
    without = [{name: value for name, value in row.items() if name != "cue"} for row in rows]
    assert load_question(write(tmp_path / "a.jsonl", *without)).n_patterns == len(rows) // 2
    other = [with_cue(rows_of()[0], "came in"), *rows[1:]]
    planted = load_question(write(tmp_path / "a.jsonl", *other))
    assert planted.n_patterns == 1 and "knows the position from the sentence pattern" in planted.notes()[0]
    with pytest.raises(UserError, match="line 1: cue must come before the query"):
        load_question(write(tmp_path / "a.jsonl", rows[0] | {"cue": "slept"}, *rows[1:]))


def crossed(frames: int, pairs: list[tuple[int, int]]) -> list[dict[str, Any]]:
    rows = []
    for number, (first, second) in product(range(1, frames + 1), pairs):
        rows += block(len(rows), f"{'x' * number} {{}} met {{}}. {{}} slept.", (f"Ann{first}", f"Tom{second}"))
    return rows


PAIRED = [(i, i) for i in range(12)] + [(i, (i + 1) % 12) for i in range(4)]


@pytest.mark.parametrize("pairs", [PAIRED, [*product(range(12), range(12))]], ids=["16 pairs", "all with all"])
def test_a_crossed_design_keeps_45_percent_of_its_blocks(tmp_path: Path, pairs: list[tuple[int, int]]) -> None:
    n_blocks = 12 * len(pairs)
    own = load_question(write(tmp_path / "a.jsonl", *crossed(12, pairs)))
    kept = (len(own.dev) + len(own.test)) / 4
    assert kept >= 0.45 * n_blocks and kept + own.n_left_out == n_blocks
    # The frames, the first words and the second words of each part
    parts = [[(text.frame, *text.pair.split()) for text in texts] for texts in (own.dev, own.test)]
    dev, test = ([set(names) for names in zip(*part, strict=True)] for part in parts)
    assert not any(of_dev & of_test for of_dev, of_test in zip(dev, test, strict=True))
    assert min(map(len, test)) >= 8 and len(own.dev) >= 4 * 12


def test_what_a_file_can_show_is_listed_with_its_counts(tmp_path: Path) -> None:
    rows = crossed(12, PAIRED)
    own = load_question(write(tmp_path / "a.jsonl", ABOUT, *rows))
    dev, test = (len(texts) // 4 for texts in (own.dev, own.test))
    title, of_dev, of_test, smallest, best, note = own.check_lines(2000)
    assert title == "names: she or he" and smallest.startswith("smallest p that is possible: 0.0039;")
    assert of_dev == f"dev  {dev:5} blocks: 4 frames, 4 and 4 words"
    assert of_test == f"test {test:5} blocks: 8 frames, 8 and 8 words"
    left_out = f"note: {own.n_left_out} of 192 blocks are left out: frame and words are not all in dev, or all in test."
    assert note == left_out and best.startswith("note: the best verdict is suggestive without answers, or ")
    assert "smallest p that is possible: 0.0099;" in own.check_lines(100)[3]
    assert replace(own, control=own.test).check_lines(2000)[3] == f"control: {test} blocks without the link"
    few = load_question(write(tmp_path / "a.jsonl", *rows_of())).check_lines(2000)
    assert "smallest p that is possible: 0.2500;" in few[3]
    assert few[5].startswith("note: give test 8 frames and 8 words")
    # The order of the blocks does not matter.
    turned = [row for start in range(len(rows) - 4, -1, -4) for row in rows[start : start + 4]]
    again = load_question(write(tmp_path / "a.jsonl", *turned))
    assert {text.text for text in again.dev} == {text.text for text in own.dev}
    # Frames crossed with all pairs leave two words of each side in dev.
    all_pairs = load_question(write(tmp_path / "a.jsonl", *crossed(8, [*product(range(8), range(8))])))
    counts = ["dev      8 blocks: 2 frames, 2 and 2 words", "test   216 blocks: 6 frames, 6 and 6 words"]
    assert all_pairs.check_lines(2000)[1:3] == counts
