"""The two reports in docs/: up to date with the script, consistent in themselves, and working offline."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.typed_json import from_json
from probe.sentences import next_tokens, word_attention
from report.page import PageContent, page
from tests.report.conftest import Show
from tests.report.sample import model_of, read, unpacked

DOCS = Path(__file__).parents[2] / "docs"
REPORTS = {"stories": DOCS / "report.html", "english": DOCS / "report_english.html"}

each_report = pytest.mark.parametrize("name", REPORTS)


def text_of(name: str) -> str:
    return REPORTS[name].read_text(encoding="utf-8")


def content_of(name: str) -> dict[str, Any]:
    return json.loads(re.search(r'id="content">(.*?)</script>', text_of(name), re.DOTALL)[1])


@each_report
def test_a_report_is_what_the_program_writes_now_and_is_small_enough(name: str) -> None:
    content = content_of(name)
    text = text_of(name)
    assert page(from_json(PageContent, content, name)) == text, "make reports"
    assert not re.search("/tmp|/home|/root", text)  # no folder of its maker
    history = sum(map(len, content["live"]["model"]["earlier"]["data"]))
    assert len(text) <= 5_000_000 and (name == "english" or len(text) - history <= 1_300_000)


@each_report
def test_the_model_in_a_report_computes_the_attention_in_it_and_its_page_the_next_words(name: str, show: Show) -> None:
    content = content_of(name)
    live = content["live"]["model"]
    model = model_of(live)
    with show(text_of(name)) as view:
        shown = view.page.locator("#live-next li").all_inner_texts()
        expected = next_tokens(model, read(live, live["text"]).tokens, 5)
        assert [float(text.split()[-1]) for text in shown] == pytest.approx([p for _, p in expected], abs=0.0051)
        view.check()

    # The stored weights
    tolerance = 2e-5 if live["type"] == "float32" else 1e-2  # stored in two bytes; or rounded to float16
    assert len(content["sentences"]) >= 5
    for sentence in content["sentences"]:
        [weights] = word_attention(model, [read(live, sentence["text"])])
        stored = unpacked(sentence["weights"], weights.shape[:3])
        np.testing.assert_allclose(weights, stored, atol=tolerance)


def test_the_english_report_compares_she_and_he_and_cutting_the_deciding_link_changes_them(show: Show) -> None:
    with show(text_of("english")) as view:
        odds = view.page.locator("#live-odds")
        before = odds.inner_text()
        assert re.match(r"p\(she\) 0\.\d\d, p\(he\) 0\.\d\d", before)
        assert "p(she): “ she” + “She” + “ She”." in before  # the tokens that are meant
        view.page.get_by_role("button", name="Find the link that decides").click()
        view.page.get_by_role("button", name="Cut the link").click()
        first, second = (float(text) for text in re.findall(r"= (-?\d+\.\d\d)", odds.inner_text()))
        assert abs(first - second) > 0.5
        answers = view.page.locator("#live-answers")
        view.type("Anna met Ben.")
        before = answers.inner_text()
        view.type("Anna met Ben. ")  # a space at the end changes nothing
        assert answers.inner_text() == before


def test_the_pages_of_the_project_show_the_numbers_of_the_report() -> None:
    content = content_of("stories")
    live, (layer, head) = content["live"]["model"], content["findings"][0]["place"]
    shown, weights_on_meant = [], []
    for sentence in content["sentences"][:4]:
        text = read(live, sentence["text"])
        row = word_attention(model_of(live), [text])[0][layer, head, -1]
        cat, buses = (row[text.words.index(noun)] for noun in ("cat", "buses"))
        words = [word for word, _ in sentence["next"][:2]]
        shown.append(f"| {sentence['text']} | {cat:.2f} | {buses:.2f} | {', '.join(words)} |")
        weights_on_meant.append(f"{max(cat, buses):.2f}")
    attention = (DOCS / "attention.md").read_text()
    assert "\n".join(shown) in attention and f"layer {layer}, head {head} of the default" in attention
    *first, last = weights_on_meant
    readme = (DOCS.parent / "README.md").read_text()
    assert f"{', '.join(first)} and {last}, in four sentences" in readme  # the description of the picture


def test_the_answers_of_the_worksheet_are_those_of_the_page(show: Show) -> None:
    worksheet = (DOCS / "worksheet.md").read_text()
    rows = re.findall(r"^\| `(#text=.*?)` \| (.*?) \|$", worksheet, re.MULTILINE)
    removals = {f"remove=L{layer}H{head}" for layer in range(2) for head in range(2)}
    assert removals <= {address.split("&", 1)[-1] for address, _ in rows}  # answer 3b is about all of them
    with show(text_of("stories")) as view:
        for address, expected in rows:
            view.page.goto("about:blank")
            view.page.goto(f"{view.url}{address}")
            first = view.page.locator("#live-next li").first.inner_text()
            assert " ".join(first.split()) == expected, address
