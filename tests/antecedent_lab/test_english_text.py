"""antecedent_lab/english_text.py: what the files of path= are, and the passages and prefixes in them."""

import json
from pathlib import Path

from antecedent_lab.english_text import TextKind, english_text, files_of_path

TEXT = "Lily met Tom. She ran home."
GOLD = {"doc": "a", "context": "Lily met Tom . She".split(), "pron_pos": 4, "antecedents": [[0, 1]]}
CONTENTS = {
    "a.txt": (TextKind.english, TEXT),
    "rows.jsonl": (TextKind.english, json.dumps({"text": TEXT})),
    "table.tsv": (TextKind.passages, f"ID\tText\n1\t{TEXT}\n"),
    "gold.jsonl": (TextKind.gold, json.dumps(GOLD | {"other_mentions": [[2, 3]]})),
}


def test_the_kind_of_a_file_decides_how_its_text_is_read(tmp_path: Path) -> None:
    texts = {}
    for name, (kind, content) in CONTENTS.items():
        (tmp_path / name).write_text(content)
        assert files_of_path(str(tmp_path / name)) == (kind, [tmp_path / name])
        texts[name] = english_text(str(tmp_path / name), None)

    prose = texts["a.txt"]
    assert texts["rows.jsonl"] == texts["table.tsv"] == prose
    assert [text for _, text in prose.documents] == [TEXT]
    assert [prefix.entities for prefix in prose.prefixes["gender"]] == [("lily", "tom")]
    assert prose.contents.startswith("1 gender pronouns, 1 feminine, 1 masculine, 0 number pronouns")

    # Rows with gold links have no documents.
    gold = texts["gold.jsonl"]
    (passage,) = gold.passages["gender"]
    assert (passage.text, passage.meant, passage.nearest) == ("Lily met Tom. ", 0, 1)
    assert (gold.documents, len(gold.prefixes["gender"]), gold.contents) == ([], 1, "1 rows")
