"""The two reports in docs/: up to date with the script, consistent in themselves, and working offline."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from data.typed_json import from_json
from probe.sentences import next_tokens, word_attention
from report.page import PageContent, page
from tests.report.conftest import Opened, Show
from tests.report.sample import model_of, read, unpacked

DOCS = Path(__file__).parents[2] / "docs"
REPORTS = {"stories": DOCS / "report.html", "english": DOCS / "report_english.html"}

SIZES = [(1280, 720), (390, 844)]
LESSON_WORDS = re.compile(r"\b(E\d|dev|headline|nats|distractor)\b")
PUPIL = """\
The cat is|The dog ran after the cat. It|I like|I have a dog. He|My mother is|He|She was|They
Tom and Anna went to the park. They|Anna has a cat. She|The boy saw a|The girl was sad because she
Once upon a time there was a|One day, the|The sun is|It was raining, so|The cat sat on the mat because it was
The ball is red. It|Ben likes to play football. He|The teacher said|We went to the beach and|The bird can|The fish
My name is|What is|Hello|Lily gave Tom a|The dogs barked. They|The car is fast. It|The king and the queen
In the morning, I|The baby was crying. She|When the bus came,|Lucy met Jack. He|The buses were late, so
The mouse ran away from the cat because it was|A big lion|The children played in the garden. They|My brother and I
The tree is|Mum said that|I am|You are|The horse was tired, so it|The trucks stood near the house. They
The frog jumped. It|Sam was happy because he|Where is the|The phone rang. It|the cat and the dog"""

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
        assert re.match(r"“she” is [0-9.]+ times as probable as “he” \(log p", before)
        assert "p(she): “ she” + “She” + “ She”." in before  # the tokens that are meant
        view.page.get_by_role("button", name="Find the line that decides").click()
        view.page.keyboard.press("Enter")
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


def first_word(view: Opened) -> str:
    return " ".join(view.page.locator("#live-next li").first.inner_text().split())


@each_report
@pytest.mark.parametrize("size", SIZES)
def test_sentence_lines_and_next_words_are_on_the_first_screen(name: str, size: tuple[int, int], show: Show) -> None:
    width, height = size
    with show(text_of(name), viewport={"width": width, "height": height}) as view:
        for part in (
            "#live-text",
            "#live-lines path.arc:not(.faint)",
            "#live-next li >> nth=0",
            "#live-next li >> nth=4",
        ):
            box = view.page.locator(part).first.bounding_box()
            assert box["x"] >= 0 and box["x"] + box["width"] <= width, part
            assert box["y"] >= 0 and box["y"] + box["height"] <= height, part
        before = view.page.locator("#live-next").inner_text()
        view.line("Anna" if name == "english" else "cat").click()
        assert view.page.locator("#live-next").inner_text() != before
        thirty = " ".join(["the", "cat", "sat", "near", "a", "bus"] * 5)
        view.type(thirty)
        words = view.page.locator("#live-lines .word")
        assert words.count() == 31 and view.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert words.last.bounding_box()["x"] + 10 <= width


def test_the_link_is_moved_to_the_other_noun_by_clicks(show: Show) -> None:
    with show(text_of("stories")) as view:
        before = first_word(view)
        for head in ("L0H0", "L0H1"):
            view.pick(head)
            for word in ("cat", "buses"):
                view.line(word).click()
        assert first_word(view).startswith("honked ")
        for _ in range(4):
            view.page.get_by_role("button", name="Undo").click()
        assert first_word(view) == before


def test_a_pupil_s_sentences_are_continued_by_words_and_every_chip_is_known(show: Show) -> None:
    """The unknown word follows at most 5 of 50 sentences in the page in English, and 10 in that of the stories."""
    texts = PUPIL.replace("\n", "|").split("|")
    assert len(texts) == 50
    for name, most in (("english", 5), ("stories", 10)):
        vocabulary = content_of(name)["live"]["model"]["tokenizer"]["vocabulary"]
        with show(text_of(name)) as view:
            unknown = 0
            for text in texts:
                view.type(text)
                unknown += first_word(view).startswith("(unknown)")
            assert unknown <= most
            view.type("")
            chips = view.page.locator(".chip:not(.frame)").all_inner_texts()
            assert len(chips) >= 10 and {f"Ġ{chip}" if name == "english" else chip for chip in chips} <= set(vocabulary)


@each_report
def test_a_next_word_that_is_clicked_is_written(name: str, show: Show) -> None:
    with show(text_of(name)) as view:
        field, first = view.page.locator("#live-text"), view.page.locator("#live-next button").first
        view.type("Tom and Anna went to the park. They ")
        word = first.inner_text()
        first.click()
        assert field.input_value() == f"Tom and Anna went to the park. They {word}"
        view.page.keyboard.press("Enter")  # the focus is on the next first word
        assert field.input_value().startswith(f"Tom and Anna went to the park. They {word}")
        assert len(field.input_value()) > len(f"Tom and Anna went to the park. They {word}")


def test_words_are_completed_their_case_is_mended_and_gaps_are_filled(show: Show) -> None:
    with show(text_of("stories")) as view:
        before = first_word(view)
        view.type("ONE sunny day, the Cat sat near the buses. it")  # "it" is a word of its own
        assert view.page.locator(".lines .word text").all_text_contents()[1:7] == "One sunny day , the cat".split()
        assert view.page.locator(".lines .unknown").count() == 0
        view.type("The kit")
        view.page.get_by_role("button", name="kitten", exact=True).click()
        assert view.page.locator("#live-text").input_value() == "The kitten"
        view.page.locator(".chip.frame").first.click()
        assert "Fill the gap" in view.page.locator("#live-notes").inner_text()
        for word in ("cat", "buses"):
            view.page.locator(f".chip[data-name={word}]").click()
        assert view.page.locator("#live-text").input_value() == "One sunny day, the cat sat near the buses. It"
        assert first_word(view) == before


@pytest.mark.parametrize("size", SIZES)
def test_each_lesson_opens_with_the_answer_of_the_worksheet_and_fits_the_screen(
    size: tuple[int, int], show: Show
) -> None:
    """The answers are rows of the key; only the exchange changes the kind of the word."""
    key = "".join(path.read_text() for path in DOCS.glob("*.md"))
    answers = []
    with show(text_of("stories"), viewport={"width": size[0], "height": size[1]}) as view:
        opened = first_word(view)
        view.page.get_by_role("link", name="Lesson").click()
        for number in range(1, 6):
            view.page.locator(f"#lesson:has-text('{number} of 5')").wait_for()
            answers.append(first_word(view))
            assert number == 5 or f"| {answers[-1]} |" in key
            assert not LESSON_WORDS.search(view.page.locator("body").inner_text())
            assert view.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), number
            assert view.page.evaluate("document.documentElement.scrollHeight <= innerHeight"), number
            view.page.locator("#lesson button").click()
        assert answers[:2] == [opened] * 2 and answers[3].startswith("honked ")
        assert view.page.locator("#verdict").is_visible() and first_word(view) == opened
        view.check()


def test_the_page_prints_the_numbers_of_the_derivation(show: Show) -> None:
    live = content_of("stories")["live"]["model"]
    layer, head = content_of("stories")["findings"][0]["place"]
    text = read(live, live["text"])
    scores = model_of(live).attention_scores(torch.tensor([text.tokens]))[layer, 0, head, -1].double()
    cat = int(scores.argmax())
    with show(text_of("stories")) as view:
        found = view.page.locator("#live-how .shown td").all_inner_texts()
        width = live["shape"]["d_model"] // live["shape"]["n_head"]
        shown = [scores[cat] * width**0.5, scores[cat], scores[cat].exp(), scores.softmax(0)[cat]]
        values = [float(number.replace(",", "")) for number in found[2:6]]
        assert values == pytest.approx([float(number) for number in shown], rel=1e-3, abs=0.0051)
        total = view.page.locator("#live-how .sums td").nth(1).inner_text().replace(",", "")
        assert float(total) == pytest.approx(float(scores.exp().sum()), rel=1e-3)
        view.page.locator("#live-how summary").click()
        cells = view.page.locator("#live-how details tbody tr").nth(2).locator("td").all_inner_texts()
        assert sum(map(float, cells[:-1])) == pytest.approx(float(cells[-1]), abs=1e-3)
        view.page.locator("#live-how .shown .cells").first.hover()
        title = view.page.locator("#live-how .shown .cells").first.get_attribute("title")
        assert re.fullmatch(r"key of “cat”, cell \d+: -?\d\.\d{5}", title)
        view.page.locator("[data-name=word-6]").click()  # the later words are masked
        assert view.page.locator("#live-how .masked").first.inner_text().count("−∞") == 1
