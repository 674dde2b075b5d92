"""Hostile text stays text: in training, on the terminal, in the page and as names of files."""

import json
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.program import run_program
from tests.report.conftest import Markup

# Markup, terminal control, special tokens, right-to-left marks, shell, paths, templates, spreadsheet formulas.
FRAGMENTS = [
    "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<!--<script>", "'><iframe src=//e.invalid>",
    "<style>@import 'https://e.invalid'</style>", "<base href=https://e.invalid/>", "[it](javascript:alert(1))",
    "![it](https://e.invalid/a.png)", "{{script}}", "${oc.env:HOME}", "<|endoftext|>", "<|unknown|>", "<pad></s>[SEP]",
    "\u202eti saw tac ehT\u202c", "\u200bi\u200bt\ufeff", "עברית it", "i\u0335t" + "\u0301" * 40, "\x1b[31mit\x1b[0m",
    "\x1b]0;title\x07", "\x1b[2J\x1b[H", "\x9b31m", "\x07\x08\x7f", "\r\x1b[Kerror: it", "a\x85b\u2028c\x0be\x0cf",
    "=cmd|'/c calc'!A1", "../../../../etc/passwd", "$(touch executed)", "`touch executed`", "; touch executed;",
    "{0.__class__}", "%s%n", "' OR 1=1 --", "!!python/object/apply:os.system [touch]", "\\u003cscript\\u003e",
    "&lt;script&gt;", "\ue000\uffff\U0010ffff", "🙂🏳️‍🌈", "\x00it\x00",
]  # fmt: skip
TEXTS = [*FRAGMENTS, *(f"The cat saw {fragment} and it ran." for fragment in FRAGMENTS), "w" * (1 << 20)]
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")
SMALL_TEXT = [
    "data=text", "data.path=hostile.jsonl", "data.validation_fraction=0.2", "model=nano", "model.context_length=64",
    "max_steps=2", "eval_every_steps=2", "tokens_per_batch=512", "validation_tokens=300", "sample_tokens=40",
    "data.vocab_size=400", "cache_dir=cache", "sample_prompt=\x1b[31m it",
]  # fmt: skip
KINDS = ["bpe", "words", "characters"]


def active(html: str) -> Counter[str]:
    """Counts the elements and attributes of a page that can run or fetch something."""
    page = Markup(html)
    elements = ("script", "iframe", "object", "embed", "base", "link", "img", "style", "meta")
    found = [tag for tag in page.tags if tag in elements]
    for name, value in page.attributes:
        if (name in ("src", "href") and "//" in value) or name.startswith("on") or "javascript:" in value:
            found.append(name)
    return Counter(found)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of each kind of tokenizer, trained on the hostile texts."""
    folder = tmp_path_factory.mktemp("hostile") / "here"
    folder.mkdir()
    (folder / "hostile.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    for kind in KINDS:
        result = run_program("train.py", *SMALL_TEXT, f"data.tokenizer={kind}", f"out={kind}", cwd=folder)
        assert result.status == 0 and not CONTROL.search(result.out + result.err), result.err
    return folder


@pytest.mark.slow
def test_a_hostile_sentence_adds_nothing_active_to_page_and_terminal(folder: Path) -> None:
    page = folder / "bpe" / "probe" / "report.html"
    assert run_program("eval.py", "run=bpe", 'text="The cat sat. It"', "cache_dir=cache", cwd=folder).status == 0
    expected = active(page.read_text())
    assert expected.keys() == {"link", "meta", "script", "style"} and expected["script"] == 2
    for fragment in FRAGMENTS:
        text = fragment.replace("\0", "").replace("$", "")  # no argument can hold a null, and ${ is Hydra's
        result = run_program("eval.py", "run=bpe", f"text={text} it", cwd=folder)
        assert result.status in (0, 2), result.err
        assert not CONTROL.search(result.out + result.err)
        assert active(page.read_text()) == expected  # after each text, since the page keeps only the newest


def test_a_run_with_a_hostile_name_controls_no_terminal(folder: Path, tmp_path: Path) -> None:
    for name in ("a\x1b[31mb", "\u202e<script>", "a, b"):
        shutil.copytree(folder / "characters", tmp_path / name)
        result = run_program("eval.py", f"run={tmp_path / name}", f"cache_dir={folder / 'cache'}", cwd=folder)
        assert result.status == 0 and not CONTROL.search(result.out + result.err), result
