"""Files of every kind, sound and broken, to documents."""

import gzip
import json
import os
import random
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.documents import local_sources, read_pieces
from data.tokenizer import END


def documents(path: Path, column: str = "text") -> list[str]:
    found: list[str] = []
    for text, begins in read_pieces(local_sources(str(path)), column):
        if begins:
            found.append(text)
        else:
            found[-1] += text
    return found


def rows(kind: str, values: list[str | None]) -> bytes:
    if kind == "jsonl":
        return b"".join(json.dumps({"n": i, "text": text}).encode() + b"\n" for i, text in enumerate(values))
    if kind == "csv":
        cells = ["" if text is None else '"' + text.replace('"', '""') + '"' for text in values]
        return b"n,text\r\n" + b"".join(f"{i},{cell}\r\n".encode() for i, cell in enumerate(cells))
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": range(len(values)), "text": pa.array(values, pa.string())}), sink)
    return sink.getvalue().to_pybytes()


def packed(content: bytes, compression: str) -> bytes:
    if compression == "gz":  # of two members, as cat a.gz b.gz makes it
        return gzip.compress(content[:7]) + gzip.compress(content[7:])
    return b"".join(pa.compress(part, codec="zstd", asbytes=True) for part in (content[:7], content[7:]))


ODD = ["NA", 'say "no",\r\nit\rsaid', "a\x00b\x07\x1b\x0c\x85\u2028c", "naïve 🙂", f"{END}\n{END}", " two  spaces "]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_a_row_is_a_document_whatever_stands_in_it_and_rows_without_text_are_none(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"rows.{kind}"
    path.write_bytes(rows(kind, [ODD[0], None, "", *ODD[1:]]))
    assert documents(path) == [text.replace("\r\n", "\n").replace("\r", "\n") for text in ODD]


@pytest.mark.parametrize("compression", ["gz", "zst"])
@pytest.mark.parametrize("kind", ["txt", "jsonl", "csv"])
def test_a_packed_file_reads_as_it_does_unpacked_and_a_cut_one_is_one_line(
    tmp_path: Path, kind: str, compression: str
) -> None:
    texts = [f"{i} " + "".join(random.Random(i).choices("abcdefgh \n", k=400)) + "." for i in range(500)]
    plain = f"\n{END}\n".join(texts).encode() if kind == "txt" else rows(kind, [*texts])
    (tmp_path / f"a.{kind}").write_bytes(plain)
    path = tmp_path / f"b.{kind}.{compression}"
    path.write_bytes(packed(plain, compression))
    assert documents(path) == documents(tmp_path / f"a.{kind}")
    assert len(documents(path)) == 500
    path.write_bytes(packed(plain, compression)[:-2000])
    with pytest.raises(ValueError, match=rf"b.{kind}.{compression} cannot be read as \w+: Truncated"):
        documents(path)


def test_utf8_with_a_mark_and_utf16_with_one_are_read_and_line_ends_are_made_one(tmp_path: Path) -> None:
    text = "ein Bär\r\nzwei\rdrei 🙂\n"
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        (tmp_path / "a.txt").write_bytes(text.encode(encoding))
        assert documents(tmp_path / "a.txt") == ["ein Bär\nzwei\ndrei 🙂\n"]
    (tmp_path / "a.txt").write_bytes(b"\xfe\xff" + text.encode("utf-16-be"))
    assert documents(tmp_path / "a.txt") == ["ein Bär\nzwei\ndrei 🙂\n"]


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"caf\xe9 au lait", 3),
        (b"\xef\xbb\xbfcaf\xe9", 6),
        (b"x" * 3_000_001 + b"\xff", 3_000_001),
        (("é" * 524_287).encode() + b"\n" + "é".encode() + b"\xff", 1_048_577),  # a character across two blocks
        (b"cut \xc3", 4),
        ("cut".encode("utf-16") + b"\x00", 8),
    ],
)
def test_text_in_another_encoding_is_refused_with_the_byte_and_a_way_out(
    tmp_path: Path, content: bytes, place: int
) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(ValueError, match=rf"a\.txt cannot be read as text: byte {place} \(from 0\) .* iconv") as raised:
        documents(tmp_path / "a.txt")
    assert "\n" not in str(raised.value)


BROKEN = {
    "a.txt": [
        ("x".encode("utf-32"), "UTF-32"),
        (
            "no mark".encode("utf-16-le"),
            "it looks like UTF-16 without its mark: convert it first, as in iconv -f UTF-16LE ",
        ),
        ("no mark".encode("utf-16-be"), "as in iconv -f UTF-16BE "),
    ],
    "a.jsonl": [
        (b'{"text": "a"}\n{"te', "line 2 is not JSON"),
        (b'[{"text": "a"}]', "line 1 is not an object"),
        (b'{"story": "a", "n": 1}', "data.column=text is not in it, only story, n"),
        (b'{"text": 5}', "line 1: data.column=text holds int, not text"),
        (rb'{"text": "\ud83d"}', "half of a character"),
        (b"[" * 100_000, "cannot be read as json"),
        (b'{"text": ' + b"9" * 5000 + b"}", "line 1 is not JSON"),
        (b'{"text": "\xff"}', "byte 10"),
    ],
    "a.csv": [
        (b"n;text\n1;a\n", "data.column=text is not in it, only n;text"),
        (b'n,text\n1,"two\nlines"\n1,"never closed\n\n\n', "cannot be read as csv: the row that begins in line 4: un"),
        (b'n,text\n1,"a"b\n', "cannot be read as csv: the row that begins in line 2: "),
        (b'"n,text\n', "cannot be read as csv: the row that begins in line 1: "),
    ],
    "a.parquet": [(b"", "cannot be read as parquet"), (b"PAR1" * 9, "cannot be read as parquet")],
    "a.txt.gz": [(b"plain text", "cannot be read as text")],
    "a.txt.zst": [(b"plain text", "cannot be read as text")],
}


@pytest.mark.parametrize(("name", "content", "why"), [(name, *one) for name, some in BROKEN.items() for one in some])
def test_a_broken_file_is_one_line_that_names_it_and_what_is_wrong(
    tmp_path: Path, name: str, content: bytes, why: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError) as raised:
        documents(tmp_path / name)
    message = str(raised.value)
    assert str(tmp_path / name) in message and why in message and "\n" not in message and len(message) < 600


def test_columns_of_numbers_are_no_text_and_a_missing_one_is_named_beside_those_there_are(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(rows("parquet", ["a"]))
    with pytest.raises(ValueError, match="row 1: data.column=n holds int, not text"):
        documents(tmp_path / "a.parquet", "n")
    with pytest.raises(ValueError, match="data.column=story is not in it, only n, text"):
        documents(tmp_path / "a.parquet", "story")


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv", "a.txt.gz", "a.csv.zst"])
def test_an_empty_file_holds_no_document(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    assert documents(tmp_path / name) == []


def test_only_a_line_of_a_txt_file_that_holds_the_end_alone_parts_documents(tmp_path: Path) -> None:
    text = f"one {END} still one\n{END}x\n  {END} \t\ntwo\n\n{END}\n{END}\nthree{END}"
    (tmp_path / "a.txt").write_text(text)
    assert documents(tmp_path / "a.txt") == [f"one {END} still one\n{END}x\n", "two\n\n", f"three{END}"]


def test_the_rest_of_a_long_line_is_no_line_of_its_own(tmp_path: Path) -> None:
    text = "x" * 8185 + f" {END}\ny\n"  # cut before the space
    (tmp_path / "a.txt").write_text(text)
    assert [len(piece) for piece, _ in read_pieces(local_sources(str(tmp_path / "a.txt")), "text")][0] > 8185
    assert documents(tmp_path / "a.txt") == [text]


@pytest.mark.parametrize("seed", range(12))
def test_pieces_of_any_text_join_to_it_and_stay_short_enough_for_a_tokenizer(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    alphabet = ["\n"] * (seed % 3) + [" "] * (seed % 4) + ["a", "é", "🙂", "\x00", "\u2028", "\x0b"]
    text = "".join(draw.choices(alphabet, k=40_000)) + END + "x" * 30_000 + " " + END
    (tmp_path / "a.txt").write_text(text, newline="")
    pieces = list(read_pieces(local_sources(str(tmp_path / "a.txt")), "text"))
    assert "".join(piece for piece, _ in pieces) == text
    assert [begins for _, begins in pieces] == [True] + [False] * (len(pieces) - 1)
    assert max(len(piece) for piece, _ in pieces) < 2 << 13


def test_a_folder_means_what_lies_under_it_in_order_and_each_file_once(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.jsonl", "a/y.txt.gz", ".hidden/c.txt", "a/.d.txt", "notes.md", "a/e.parquet.gz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    names = [str(Path(one.place).relative_to(tmp_path)) for one in local_sources(str(tmp_path))]
    assert names == ["a/y.txt.gz", "a/z.jsonl", "b.txt"]
    assert local_sources(f"{tmp_path}/b.txt, {tmp_path}, {tmp_path}/**/*.txt")[0].place.endswith("b.txt")
    assert len(local_sources(f"{tmp_path}/b.txt,{tmp_path},{tmp_path}/**/*.txt")) == 3
    kinds = {(one.kind, one.compression) for one in local_sources(str(tmp_path))}
    assert kinds == {("text", "gz"), ("json", None), ("text", None)}
    (tmp_path / "with, comma.txt").write_text("x")
    assert len(local_sources(str(tmp_path / "with, comma.txt"))) == 1
    (tmp_path / "another name.txt").symlink_to(tmp_path / "b.txt")
    assert len(local_sources(f"{tmp_path}/b.txt,{tmp_path}/another name.txt,{tmp_path}/a/../b.txt")) == 1


def test_names_longer_than_a_name_can_be_and_homes_of_nobody_are_files_that_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{letter * 60}.txt" for letter in "abcde"]
    for name in names:
        (tmp_path / name).write_text("x")
    monkeypatch.chdir(tmp_path)  # so that no slash stands between the commas
    assert [one.place for one in local_sources(",".join(names))] == names
    for path in ("x" * 300 + ".txt", "~nobody-of-this-name/a.txt"):
        with pytest.raises(FileNotFoundError, match=r"data\.path: no text found at "):
            local_sources(path)


def test_what_is_no_regular_file_is_refused_before_it_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    os.mkfifo(tmp_path / "b.txt")
    for path in (tmp_path / "b.txt", tmp_path / "*.txt", tmp_path, f"{tmp_path}/a.txt,{tmp_path}/b.txt"):
        with pytest.raises(ValueError, match=r"data\.path: \S+/b\.txt is no regular file"):
            local_sources(str(path))
    (tmp_path / "b.txt").rename(tmp_path / ".b.txt")
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere.txt")
    assert [Path(one.place).name for one in local_sources(str(tmp_path))] == ["a.txt"]  # no text is left out by this


def test_a_row_group_of_any_size_is_read_in_bounded_memory(tmp_path: Path) -> None:
    draw = random.Random(0)
    (tmp_path / "a.parquet").write_bytes(rows("parquet", [draw.randbytes(2000).hex() for _ in range(5000)]))
    assert pq.ParquetFile(tmp_path / "a.parquet").num_row_groups == 1
    tracemalloc.start()
    n_read = sum(len(text) for text, _ in read_pieces(local_sources(str(tmp_path / "a.parquet")), "text"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert n_read == 20_000_000 and peak < 4_000_000


def test_an_ending_in_capitals_is_the_same_ending(tmp_path: Path) -> None:
    (tmp_path / "A.TXT").write_text("a dog")
    (tmp_path / "b.JSONL.GZ").write_bytes(gzip.compress(b'{"text": "a cat"}'))
    assert [text for text, _ in read_pieces(local_sources(str(tmp_path)), "text")] == ["a dog", "a cat"]
