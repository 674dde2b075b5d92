"""Hostile text stays text, and files of a run are data: none of our code can execute them."""

import hashlib
import io
import json
import os
import pickle
import re
import shutil
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from tests.program import run_program
from training.checkpoint import MANIFEST

# Markup, templates, special tokens, right-to-left marks, control of a terminal
FRAGMENTS = [
    "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<!--<script>", "'><iframe src=//e.invalid>",
    "<style>@import 'https://e.invalid'</style>", "<base href=https://e.invalid/>", "[it](javascript:alert(1))",
    "![it](https://e.invalid/a.png)", "{{script}}", "${oc.env:HOME}", "<|endoftext|>", "<|unknown|>", "<pad></s>[SEP]",
    "\u202eti saw tac ehT\u202c", "\u200bi\u200bt\ufeff", "עברית it", "i\u0335t" + "\u0301" * 40, "\x1b[31mit\x1b[0m",
    "\x1b]0;title\x07", "\x1b[2J\x1b[H", "\x9b31m", "\x07\x08\x7f", "\r\x1b[Kerror: it", "a\x85b\u2028c\x0be\x0cf",
    "{0.__class__}", "\\u003cscript\\u003e", "&lt;script&gt;", "\ue000\uffff\U0010ffff", "🙂🏳️‍🌈", "\x00it\x00",
]  # fmt: skip
TEXTS = [*FRAGMENTS, *(f"The cat saw {fragment} and it ran." for fragment in FRAGMENTS), "w" * (1 << 20)]
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")
SMALL_TEXT = [
    "data=text", "data.path=hostile.jsonl", "data.validation_fraction=0.2", "model=nano", "model.context_length=64",
    "max_steps=2", "eval_every_steps=2", "tokens_per_batch=512", "validation_tokens=300",
    "data.vocab_size=400", "cache_dir=cache",
]  # fmt: skip
KINDS = ["bpe", "words", "characters"]


class Markup(HTMLParser):
    """Tags and attributes of a page, outside its own scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.attributes = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a run of each kind of tokenizer, trained on the hostile texts."""
    folder = tmp_path_factory.mktemp("hostile") / "here"
    folder.mkdir()
    (folder / "hostile.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    for kind in KINDS:
        result = run_program("train.py", *SMALL_TEXT, f"data.tokenizer={kind}", f"out={kind}", cwd=folder)
        assert result.status == 0 and not CONTROL.search(result.out + result.err), result.err
    return folder


@pytest.mark.slow
def test_a_hostile_sentence_adds_nothing_active_to_page_and_terminal(folder):
    page = folder / "bpe" / "probe" / "report.html"
    assert run_program("eval.py", "run=bpe", 'text="The cat sat. It"', "cache_dir=cache", cwd=folder).status == 0
    expected = Markup(page.read_text())
    for fragment in FRAGMENTS:
        text = fragment.replace("\0", "").replace("$", "")  # no argument can hold a null, and ${ is Hydra's
        result = run_program("eval.py", "run=bpe", f"text={text} it", cwd=folder)
        assert result.status in (0, 2), result.err
        assert not CONTROL.search(result.out + result.err)
        found = Markup(page.read_text())  # after each text, since the page keeps only the newest
        assert (found.tags, found.attributes) == (expected.tags, expected.attributes)


def test_a_run_with_a_hostile_name_controls_no_terminal(folder, tmp_path):
    run = shutil.copytree(folder / "characters", tmp_path / "a\x1b[31mb, \u202e<script>")
    result = run_program("eval.py", f"run={run}", f"cache_dir={folder / 'cache'}", cwd=folder)
    assert result.status == 0 and not CONTROL.search(result.out + result.err), result


class Call:
    """Becomes a call of `function` when it is unpickled."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


def torch_file(content, **options):
    stream = io.BytesIO()
    torch.save(content, stream, **options)
    return stream.getvalue()


def gadgets(mark):
    """Returns files that create `mark` when they are unpickled."""
    system = Call(os.system, f"touch '{mark}'")
    return {
        "os.system": torch_file({"step": 1, "model": system}),
        "old format": torch_file(system, _use_new_zipfile_serialization=False),
        "bare pickle": pickle.dumps(system),
    }


@pytest.mark.parametrize("name", gadgets(Path()))
def test_a_checkpoint_executes_nothing(name, run, cache, tmp_path):
    mark = tmp_path / "executed"
    content = gadgets(mark)[name]
    with suppress(Exception):
        torch.load(io.BytesIO(content), weights_only=False)
    assert mark.exists(), "the file would execute nothing, so the test would show nothing"
    mark.unlink()
    # The only checkpoint, with a checksum that matches
    manifest = run / "checkpoints" / MANIFEST
    entry = json.loads(manifest.read_text())["checkpoints"][-1]
    manifest.with_name(entry["file"]).write_bytes(content)
    entry["sha256"] = hashlib.sha256(content).hexdigest()
    manifest.write_text(json.dumps({"checkpoints": [entry]}))
    for command in (["train.py", f"out={run}", "resume=true", "max_steps=6"], ["eval.py", f"run={run}"]):
        assert run_program(*command, cache).error and not mark.exists()
