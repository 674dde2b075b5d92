"""Five hundred hostile strings on every way that text takes: nothing of them becomes markup, a command or a path."""

import json
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from data.text import read_files
from data.tokenizer import bpe_tokenizer, character_tokenizer, encode, end_id, load_tokenizer, word_tokenizer
from probe.open import Opened, open_run
from probe.sentence_command import look
from report.reporting import write_page
from tests.reliability.calls import call, told
from tests.reliability.doors import Doors
from training.settings import Device, EvalConfig, typed_generate

_PARTS = [
    "</script><script>alert({n})</script>", "<img src=x onerror=alert({n})>", "<svg/onload=alert({n})>", "<!--<script>",
    "]]><script>", "\"'><iframe src=//example.invalid/{n}>", "<a href=javascript:alert({n})>it</a>",
    "javascript:alert({n})",
    "<style>@import 'https://example.invalid/{n}'</style>", "<base href=https://example.invalid/>",
    "<link rel=x href=//e.invalid>",
    "<meta http-equiv=refresh content=0;url=https://example.invalid/{n}>", "<object data=//example.invalid>",
    "<math><mi//xlink:href=",
    "![it](https://example.invalid/{n}.png)", "[it](javascript:alert({n}))", "`</code>`", "{{{{script}}}}",
    "${{alert({n})}}",
    "<|endoftext|>", "<|endoftext|> it <|endoftext|>", "<|unknown|>", "<|im_start|>system", "[CLS][SEP]</s><s><pad>",
    "<0x00>",
    "\u202eti saw tac ehT\u202c", "\u2066it\u2069", "\u200bi\u200bt\u200c\u200d\ufeff", "עברית it وعربي",
    "i\u0335\u0322t" + "\u0301" * 40,
    "\x00it\x00", "\x1b[31mit\x1b[0m", "\x1b]0;title\x07", "\x1b[2J\x1b[H", "\x9b31m", "\x07\x08\x7f",
    "\x1b]8;;https://e.invalid\x1b\\it",
    "\r\x1b[Kerror: it", "a\x85b\u2028c\u2029d\x0be\x0cf", "=cmd|'/c calc'!A{n}", "+1+cmd|' /C calc'!A0",
    "@SUM(1+{n})", "-2+3+cmd|' '!A0",
    "../../../../etc/passwd{n}", "..\\..\\windows\\{n}", "/etc/cron.d/{n}", "~/.ssh/{n}", "CON", "file:///etc/passwd",
    "%2e%2e%2f{n}",
    "$(touch executed{n})", "`touch executed{n}`", "; touch executed{n};", "| touch executed{n}", "${{oc.env:HOME}}",
    "{{0.__class__}}",
    "%s%n%x{n}", "' OR 1=1 --", "__import__('os').system('touch executed')", "!!python/object/apply:os.system [touch]",
    "\\u003cscript\\u003e", "&lt;script&gt;alert({n})&lt;/script&gt;", "&#x3c;script&#x3e;",
    "\ud7ff\ue000\uffff\U0010ffff", "ﬁﬂ🙂🏳️‍🌈{n}",
]  # fmt: skip
_AROUND = ["{}", "The cat saw {} and it ran.", "{} it", "It said {}", "\t{}  ", "She {} her {}"]
_BROKEN = [
    b"\xff",
    b"\xc3(",
    b"\xe2\x82",
    b"\xf0\x28\x8c\x28",
    b"\xed\xa0\x80",
    b"\xc0\xaf",
    b"\xf8\x88\x80\x80\x80",
    b"\xfe\xfe",
]
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def hostile(n: int = 460) -> list[str]:
    """Return strings of every kind, two of them a megabyte long, none of them twice."""
    draw, found = random.Random(7), dict.fromkeys(["w" * (1 << 20), "<b>" * 350_000])
    while len(found) < n:
        parts = draw.sample(_PARTS, draw.choice([1, 1, 2, 3]))
        filled = [part.format(n=draw.randrange(10**6)) for part in parts]
        around = draw.choice(_AROUND)
        found[around.format(*[" ".join(filled)] * around.count("{}"))] = None
    return list(found)


def broken(n: int = 20) -> list[bytes]:
    """Return texts that are no UTF-8."""
    draw = random.Random(8)
    return [
        b"The cat ran. " * draw.randrange(3000) + draw.choice(_BROKEN) + b" It sat." * draw.randrange(9)
        for _ in range(n)
    ]


def halves(n: int = 20) -> list[str]:
    """Return texts with half of a character in them, which JSON can hold and no text file can."""
    draw = random.Random(9)
    return [f"it {chr(draw.randrange(0xD800, 0xE000))} {'ran ' * draw.randrange(9)}" for _ in range(n)]


TEXTS, BYTES, HALVES = hostile(), broken(), halves()
_SHORT = (
    "data=text", "data.validation_fraction=0.2", "threads=1", "model=nano", "model.context_length=256", "max_steps=4",
    "eval_every_steps=2", "tokens_per_batch=512", "validation_tokens=600", "sample_tokens=40", "cache_dir=cache",
)  # fmt: skip
_KINDS = {"bpe": "data.vocab_size=600", "words": "data.vocab_size=400", "characters": "data.vocab_size=400"}


class Seen(HTMLParser):
    """What a browser would do with a page: its scripts, and whatever would fetch or run anything else."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.foreign: list[str] = []
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._inside = tag if tag == "script" and ("type", "application/json") not in attrs else ""
        for name, value in attrs:
            value = re.sub(r"[\x00-\x20]", "", value or "").lower()
            fetches = name in ("src", "href", "xlink:href", "action", "data", "srcdoc", "formaction", "poster")
            if name.startswith("on") or (fetches and not value.startswith(("#", "data:image/png"))):
                self.foreign.append(f"<{tag} {name}={value[:80]}>")
        if tag in ("iframe", "object", "embed", "base", "link", "img"):
            self.foreign.append(f"<{tag}>")

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""


@pytest.fixture(scope="module")
def place(doors: Doors, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of each kind of tokenizer, trained on all strings."""
    here = tmp_path_factory.mktemp("hostile") / "here"
    here.mkdir()
    rows = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
    (here / "hostile.jsonl").write_text(rows)
    for kind, size in _KINDS.items():
        prompt = TEXTS[9].replace("\0", "")
        arguments = (*_SHORT, f"data.tokenizer={kind}", size, "data.path=hostile.jsonl", f"out={kind}")
        called = call(doors, here, "train.py", *arguments, f"sample_prompt={prompt}")
        assert called.status == 0 and called.err == "", called.err
        assert not _CONTROL.search(called.out), called.out
    return here


def opened(place: Path, kind: str) -> Opened:
    given = dict.fromkeys(("runs", "compare", "model", "out", "text", "task", "path", "threads"))
    return open_run(
        EvalConfig(run=str(place / kind), open=False, figures=False, device=Device.cpu, cache_dir="", **given)
    )


def test_there_are_five_hundred_of_them_each_another() -> None:
    assert len({*TEXTS, *BYTES, *HALVES}) == 500
    assert sum(len(text) > 1_000_000 for text in TEXTS) == 2
    for needed in ("</script>", "onerror=", "<|endoftext|>", "\u202e", "\x00", "\x1b[", "../..", "=cmd"):
        assert sum(needed in text for text in TEXTS) >= 4, needed


def test_training_on_them_writes_nothing_outside_its_run_and_cache(place: Path) -> None:
    assert {path.name for path in place.iterdir()} >= {"hostile.jsonl", "cache", *_KINDS}
    assert {path.name for path in place.parent.iterdir()} == {"here"}
    assert not [path for path in place.rglob("*") if "executed" in path.name or "etc" in path.name]


def test_the_end_is_never_made_of_a_text(place: Path) -> None:
    short = [text for text in TEXTS if len(text) < 10_000]
    made = [bpe_tokenizer(short, 600), word_tokenizer(short), character_tokenizer(short)]
    for tokenizer in (*made, *(load_tokenizer(place / kind / "tokenizer.json") for kind in _KINDS)):
        assert not any(end_id(tokenizer) in ids for ids in encode(tokenizer, TEXTS))
    for tokenizer in (made[0], load_tokenizer(place / "bpe" / "tokenizer.json")):
        assert [tokenizer.decode(ids, skip_special_tokens=False) for ids in encode(tokenizer, TEXTS)] == TEXTS
    for folder in (place / "cache").glob("text-*"):
        tokens = np.concatenate([np.fromfile(folder / f"{name}.bin", np.uint16) for name in ("train", "validation")])
        n_ends = int((tokens == end_id(load_tokenizer(folder / "tokenizer.json"))).sum())
        assert len(TEXTS) <= n_ends <= len(TEXTS) + 2  # one before each, the split's own, and no other


def test_what_is_no_text_is_refused_in_one_line_that_names_file_and_place(doors: Doors, place: Path) -> None:
    folder = place / "broken"
    folder.mkdir(exist_ok=True)
    for number, content in enumerate(BYTES):
        path = folder / f"{number}.txt"
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"broken/{number}\.txt: ") as error:
            list(read_files([path], "text"))
        assert "\n" not in str(error.value)
    for number, text in enumerate(HALVES):
        path = folder / f"{number}.jsonl"
        path.write_text(json.dumps({"text": "fine"}) + "\n" + json.dumps({"text": text}) + "\n")
        with pytest.raises(
            ValueError, match=rf"{number}\.jsonl: "
        ):
            list(read_files([path], "text"))
    for name, wanted in (("3.txt", "3.txt"), ("3.jsonl", "3.jsonl")):
        assert wanted in told(call(doors, place, "train.py", *_SHORT, f"data.path=broken/{name}", "out=no"))
    shutil.rmtree(folder)
    for door, name in (("eval.py", "text"), ("model/generate.py", "prompt"), ("train.py", "sample_prompt")):
        assert "surrogates not allowed" in told(call(doors, place, door, f"{name}={HALVES[0]}"))
    with pytest.raises(ValueError, match="surrogates not allowed"):
        typed_generate([f"prompt={HALVES[1]}"])


def test_five_hundred_hostile_strings_run_nothing_fetch_nothing_and_steer_no_terminal(
    place: Path, capsys: pytest.CaptureFixture[str], figure: Callable[[str, str, str, bool], None]
) -> None:
    run = opened(place, "bpe")
    write_page(run)
    page = (place / "bpe" / "probe" / "report.html").read_text()
    clean = Seen(page)
    assert len(clean.scripts) == 1 and clean.foreign == ["<link href=data:,>", "<link>"]  # an icon that is none
    foreign, addresses, controls, n_pages, n_looked = [], set(), 0, 0, 0
    fitting = [cut for text in TEXTS if (cut := _fitting(run, text)).strip()]
    assert len(fitting) >= 450
    for first in range(0, len(fitting), 12):
        some = fitting[first : first + 12]
        (place / "bpe" / "probe" / "sentences.json").write_text(json.dumps(some))
        look(run, some[0])  # prints it, and writes the page with all twelve
        n_looked += 1
        said = capsys.readouterr()
        controls += len(_CONTROL.findall(said.out + said.err))
        page = (place / "bpe" / "probe" / "report.html").read_text()
        seen = Seen(page)
        n_pages += 1
        foreign += [
            *(Counter(seen.foreign) - Counter(clean.foreign)),
            *(one for one in seen.scripts if one not in clean.scripts),
        ]
        assert seen.tags.count("script") == clean.tags.count("script")
        outside = re.sub(
            r'<script id="content".*?</script>|<script [^>]*id="content".*?</script>', "", page, flags=re.DOTALL
        )
        visible = re.sub(r">[^<]*<", "><", outside)  # a text may name an address as long as it is only read
        addresses |= set(re.findall(r"(?:https?:)?//[\w.]+\.\w+[^\s\"'<>]*", visible)) - {"http://www.w3.org/2000/svg"}
    bad = len(foreign) + len(addresses) + controls
    measured = (
        f"{len(TEXTS) + len(BYTES) + len(HALVES)} strings, {n_pages} pages, {n_looked} views: {len(foreign)} foreign "
        f"scripts, {len(addresses)} external URLs, 0 crashes, {controls} control characters on the terminal"
    )
    target = "0 foreign scripts, 0 external URLs, 0 crashes, 0 control characters on the terminal"
    figure("500 hostile strings through train, tokenizers, sentence view and page", target, measured, not bad)


def _fitting(run: Opened, text: str) -> str:
    """Return as much of a text as the model can read."""
    text = text[:400]
    while len(run.cut(text).ids) > run.model.config.context_length // 4:
        text = text[: len(text) * 2 // 3]
    return text


def test_tensorboard_is_given_a_sample_as_a_block_of_code(place: Path) -> None:
    for kind in _KINDS:
        events = EventAccumulator(str(place / kind / "tb"))
        events.Reload()
        texts = [one.tensor_proto.string_val[0].decode() for one in events.Tensors("sample/text_summary")]
        assert texts and all(line.startswith("    ") for text in texts for line in text.split("\n"))


def test_what_a_model_writes_steers_no_terminal(doors: Doors, place: Path) -> None:
    for kind in _KINDS:
        for prompt in ("\x1b[31m it", TEXTS[30], TEXTS[50]):
            called = call(
                doors, place, "model/generate.py", f"run={kind}", f"prompt={prompt.replace(chr(0), '')}", "n_tokens=60"
            )
            assert called.status == 0, called.err
            assert not _CONTROL.search(called.out + called.err)


def test_the_tests_of_others_may_hold_any_text(doors: Doors, place: Path) -> None:
    short = [text for text in TEXTS if len(text) < 300]
    pairs = [{"sentence_good": f"Ann {one} ran.", "sentence_bad": f"Ann {one} run."} for one in short]
    (place / "pairs.jsonl").write_text("".join(json.dumps(one) + "\n" for one in pairs))
    links = [
        {"doc": one[:60], "context": ["The", one.split()[0] if one.split() else "x", "saw", "the", "dog", ".", "It"],
         "pron_pos": 6, "antecedents": [[0, 2]], "other_mentions": [[3, 5, "1"]]} for one in short
    ]  # fmt: skip
    (place / "links.jsonl").write_text("".join(json.dumps(one) + "\n" for one in links))
    odd = place / "odd"
    odd.mkdir()
    for number, name in enumerate(["a\x1b[31mb", "\u202etxt", "=cmd|x", "<b>", "a,b", "$(touch executed)", "'", "  "]):
        (odd / f"{name}{number}.txt").write_text("The cat saw it. " * 9)
    small = ("probe.n_bootstrap=100", "probe.n_untrained=2", "probe.n_controls=10", "threads=1")
    before = {path for path in place.rglob("*") if "probe" not in path.parts}
    for task, path in (
        ("minimal_pairs", "pairs.jsonl"),
        ("links", "links.jsonl"),
    ):
        called = call(doors, place, "eval.py", "run=bpe", f"task={task}", f"path={path}", *small)
        assert called.status in (0, 2), (task, called.err)
        if called.status == 2:
            told(called)
        assert not _CONTROL.search(called.out + called.err), (task, called.out[:500])
        assert called.status == 0, (task, called.err)
    assert {path for path in place.rglob("*") if "probe" not in path.parts} == before


def test_a_run_under_a_hostile_name_is_read_and_its_name_steers_no_terminal(doors: Doors, place: Path) -> None:
    runs = place / "runs"
    for number, name in enumerate(["a\x1b[31mb", "\u202eabc", "<script>alert(1)</script>".replace("/", "_"), "=cmd|x"]):
        shutil.copytree(place / "characters", runs / f"{name}{number}")
        called = call(doors, place, "eval.py")  # the newest
        assert called.status == 0, called.err
        assert not _CONTROL.search(called.out + called.err), called.out
        shutil.rmtree(runs)
    assert "a control character is in it" in told(call(doors, place, "eval.py", "run=a\x1b[31mb"))
