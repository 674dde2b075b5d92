import json
from dataclasses import replace
from pathlib import Path

import pytest

from probe.gold import ANTECEDENT, GoldRow, detokenize, gold_prefixes, innermost_mentions, load_gold_rows, load_passages

WORDS = 'Tom met the old man \'s dog . He said , " Stay , " and it'.split()
ROW = {
    "doc": "a", "context": WORDS, "pron_pos": 16, "antecedents": [[2, 7]],
    "other_mentions": [[0, 1, "0"], [2, 5, "1"], [8, 9, "0"]], "nearest": [2, 7],
}  # fmt: skip


def write_rows(folder: Path, rows: list[dict[str, object]]) -> Path:
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


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
        load_gold_rows(write_rows(tmp_path, [ROW, bad]))
    assert "\n" not in str(error.value)


def test_rows_become_prefixes_with_entities_of_both_genders() -> None:
    words = "Emma , the girl , saw Mr. Knightley and his dog before he saw".split()
    row = GoldRow(
        "doc",
        (*words, "her"),
        ((0, 4), (6, 8), (9, 10), (9, 11), (12, 13)),
        (ANTECEDENT, "3", "3", "7", "3"),
    )
    assert gold_prefixes([row]) == []  # "her" needs the next word
    (prefix,) = gold_prefixes([replace(row, words=(*words, "she"))])
    assert prefix.text.endswith("before he saw ") and prefix.forms == ("she", "he") and prefix.meant == 0
    names = [[prefix.text[slice(*span)] for span in group] for group in prefix.mentions]
    assert names == [["Emma, the girl"], ["Mr. Knightley"]]  # the dog has no gender, and pronouns do not count
    assert prefix.is_first


def test_passages_are_read_from_their_column(tmp_path: Path) -> None:
    (tmp_path / "gap.tsv").write_text('ID\tText\tPronoun\n1\tHe said "no.\tHe\n', encoding="utf-8")
    assert load_passages(tmp_path / "gap.tsv") == ['He said "no.']
    (tmp_path / "other.tsv").write_text("ID\tWords\n1\tno\n", encoding="utf-8")
    (tmp_path / "short.tsv").write_text("ID\tText\tPronoun\n1\tHe\n", encoding="utf-8")
    for name, problem in (("other", "no column Text"), ("short", "line 2: 2 cells, but the first line has 3")):
        with pytest.raises(ValueError, match=problem):
            load_passages(tmp_path / f"{name}.tsv")
