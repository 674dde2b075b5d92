"""The live section of the page shows what torch computes, after typing and after each change."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote_plus

import pytest
import torch

from extras.page.page import page as page_of
from extras.page.shown import Live
from model.edits import cut_link, exchange_links, remove_head
from model.observe import HeadEdit, TransformerView
from probe.questions import FRIGHTENED_OR_FEARED
from probe.sentences import word_attention
from settings.typed_json import to_json
from tests.extras.page import sample
from tests.extras.page.conftest import Opened, Show, open_at, shown_weights
from training.metrics import WeightHistory
from training.weight_history import pack_rows

CONTENT = sample.content()
LIVE = CONTENT.live.model
TEXT = FRIGHTENED_OR_FEARED[0].text  # "One sunny day, the cat frightened the dog because it"
JSON = to_json(LIVE)
VIEW = sample.model_of(JSON)
read = partial(sample.read, JSON)


def expected_words(text: str, edits: list[HeadEdit] | None = None, model: TransformerView = VIEW) -> list[str]:
    logits = model.logits(torch.tensor([read(text).tokens]), edits=edits or [])[0, -1]
    chances = logits.softmax(-1).topk(5)
    names = {LIVE.tokenizer.start: "(end of the text)", LIVE.tokenizer.unknown: "a word it does not know"}
    words = [names.get(i, LIVE.tokenizer.vocabulary[i]) for i in chances.indices.tolist()]
    return [f"{word} {chance:.2f}" for word, chance in zip(words, chances.values.tolist(), strict=True)]


def n_changes(view: Opened) -> int:
    return view.find(".edits li").count()


def test_clicks_on_lines_and_heads_show_what_torch_computes_and_are_taken_back(show: Show) -> None:
    it, cat, dog = (read(TEXT).words.index(word) for word in ("it", "cat", "dog"))
    removed, cut = remove_head(1, 2), cut_link(0, 1, it, [cat])
    with show() as view:

        def check_edits(*edits: HeadEdit) -> None:
            assert view.next_words() == expected_words(TEXT, list(edits)) and n_changes(view) == len(edits)

        view.find("#live-text").press_sequentially(" ")
        view.press("Remove L1H2")
        view.pick("L0H1")
        view.line("cat").click()
        check_edits(removed, cut)
        assert view.next_words("live-before") == expected_words(TEXT)
        view.line("dog").click()  # the second line of the head: both change places
        check_edits(removed, exchange_links(0, 1, it, [cat], [dog]))
        view.press("Undo")
        check_edits(removed, cut)
        view.line("dog").click(modifiers=["Shift"])  # cut as well
        check_edits(removed, cut, cut_link(0, 1, it, [dog]))
        view.find("h1").click()
        view.page.keyboard.press("Control+z")  # not in the field, in which something was typed
        check_edits(removed, cut)
        view.line("cat").click()
        check_edits(removed)
        view.press("Put back L1H2")
        check_edits()
        assert view.find("#live-before").count() == 0
        view.check()


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_a_click_on_an_arc_moves_lines_and_bars_unless_unwanted(motion: str, show: Show) -> None:
    top = """(path) => {
      const { x, y } = path.getPointAtLength(path.getTotalLength() / 2).matrixTransform(path.getScreenCTM());
      return [x, y];
    }"""
    moved = "document.getAnimations().map((each) => each.effect.target.matches('#live-next i, .arc')).length"
    with show(reduced_motion=motion) as view:
        line = view.find("[data-name^=line-]:has(path.arc)").last  # the thickest
        position = int(line.get_attribute("data-name").removeprefix("line-"))
        view.page.mouse.click(*line.locator("path.arc").evaluate(top))
        assert (view.page.evaluate(moved) > 0) == (motion == "no-preference")
        assert f"“{read(TEXT).words[position]}” cut" in view.find(".edits").inner_text()
        assert view.next_words() == expected_words(TEXT, [cut_link(0, 1, 11, [position])])


def test_the_slider_s_label_is_the_step_of_the_weights_that_are_shown(show: Show) -> None:
    earlier = zip(LIVE.earlier.steps, LIVE.earlier.data, strict=True)
    models = {f"step {step}": sample.model_of(JSON, data) for step, data in earlier}
    with show() as view:
        label = view.find("#step-name")
        for position, (name, model) in enumerate((models | {f"step {LIVE.step:,}, trained": VIEW}).items()):
            view.find("#step").fill(str(position))
            assert (label.inner_text(), view.next_words()) == (name, expected_words(TEXT, model=model))
            for layer, head in ((0, 1), (1, 2)):
                view.pick(f"L{layer}H{head}")
                row = word_attention(model, read(TEXT))[layer, head, -1]
                assert view.word_weights() == shown_weights(row, len(row) - 1)
        view.find("#play").click()
        assert label.inner_text() == "step 0"
        view.find("#step").press("End")  # the first key or click counts
        assert "trained" in label.inner_text()
        view.find("#play").click()
        view.find("#step-name:has-text('trained')").wait_for()
        assert "play" in view.find("#play").inner_text()


def test_the_rounded_weights_of_a_larger_model_are_named_and_near(show: Show) -> None:
    parameters = list(VIEW.model.parameters())
    packed = [pack_rows((parameter * scale for parameter in parameters), LIVE.shape["d_model"]) for scale in (0.5, 1)]
    earlier = WeightHistory([100, 400], packed, "int8")
    models = [sample.model_of(JSON | {"earlier": {"type": "int8"}}, data) for data in packed]
    for exact, rounded in zip(parameters, models[1].model.parameters(), strict=True):
        rows = exact.view(-1, LIVE.shape["d_model"])
        unit = rows.abs().amax(1, keepdim=True) / 127
        assert ((rounded.view_as(rows) - rows).abs() <= 0.501 * unit).all()
    with show(replace(CONTENT, live=Live(replace(LIVE, earlier=earlier), ""))) as view:
        for position, model in enumerate(models):
            view.find("#step").fill(str(position))
            assert view.find("#step-name").inner_text() == f"step {earlier.steps[position]}, rounded"
            assert view.next_words() == expected_words(TEXT, model=model)
        view.check()


def test_a_comparison_shows_the_next_words_of_both_models(show: Show) -> None:
    past = replace(LIVE.earlier, steps=[0], data=LIVE.earlier.data[:1])
    words = {"after": expected_words(TEXT), "before": expected_words(TEXT, model=sample.model_of(JSON, past.data[0]))}
    with show(replace(CONTENT, live=Live(replace(LIVE, earlier=past, before="runs/old"), ""))) as view:
        for position, (shown, other) in enumerate([("before", "after"), ("after", "before")]):
            view.find("#step").fill(str(position))
            assert view.find("#step-name").inner_text().startswith(f"{shown}: ")
            assert (view.next_words(), view.next_words("live-other")) == (words[shown], words[other])
        view.press("Remove L1H2")
        assert view.next_words("live-before") == words["after"] and not view.next_words("live-other")
        view.find("#step").fill("0")
        view.find("#share summary").click()
        code = view.find("#live-code").text_content()
        assert 'open_model("runs/old"' in code and "float16" in code and view.find("#play").count() == 0


def test_unknown_words_a_text_beyond_the_context_and_an_empty_one(show: Show) -> None:
    with show() as view:
        view.type("The zebra sat")
        assert "zebra" in view.find("#live-notes").inner_text()
        assert view.find(".lines .unknown").text_content() == "zebra"
        view.find("#live-how summary").first.click()
        assert view.find("#live-how th button").all_inner_texts() == ["(start)", "The", "(unknown)", "sat"]
        view.type("the cat " * 20)
        assert "reads 23 tokens" in view.find("#live-notes").inner_text()
        assert view.next_words() == expected_words(" ".join(["the cat"] * 20)[: 8 * 11 + 3])
        view.type("")
        assert view.next_words() == expected_words("")
        view.check()


def test_a_link_restores_text_head_changes_and_step(show: Show) -> None:
    state = "text=The+cat+slept.+It&head=L1H3&query=4&target=2&remove=L0H1&exchange=L1H3.4.2.1.25&step=100"
    with show() as view:
        text = view.find("#live-text")
        open_at(view, state)
        assert text.input_value() == "The cat slept. It" and n_changes(view) == 2
        assert "step 100" in view.find("#step-name").inner_text()
        words = view.next_words()
        view.find("#share summary").click()
        link = view.find("#live-link").input_value()
        assert "head=L1H3&query=4&" in link
        open_at(view, link)
        view.find("#share summary").click()
        assert view.next_words() == words and view.find("#live-link").input_value() == link
        view.page.goto(f"{view.url}#text=The+dog")  # the head of the finding
        view.find(".pick[aria-pressed=true][data-name=L0H1]").wait_for()
        assert text.input_value() == "The dog" and n_changes(view) == 0
        open_at(view, "step=100")  # with the sentence of the page
        assert (text.input_value(), view.find("#step-name").inner_text()) == (LIVE.text, "step 100")
        open_at(view, "text=the zebra&step=99&head=L7H7&query=9&cut=L0H0.9.8")
        notes = view.find("#live-notes").inner_text()
        for said in ("zebra", "no step 99", "no head L7H7", "no query 9", "1 of the link's changes"):
            assert said in notes


def test_a_link_opens_a_stored_sentence_and_an_impossible_one_is_harmless(show: Show) -> None:
    with show() as view:
        open_at(view, "yours-1")
        text = view.find("#live-text")
        assert text.input_value() == "The fox thanked the hen because it was kind."
        assert view.find("#stored select").input_value() == "yours-1"
        assert text.evaluate("(field) => field.getBoundingClientRect().bottom <= innerHeight")
        for state in ("text=The+cat&query=-1&target=1.5&cut=L0H0&step=", "text=a&cut=L0H0&exchange=x&remove=",
                      "text=The+cat+sat&exchange=L0H0.3.2.1.101",
                      "text=a&head=L9H9&cut=L9H9.1.2&step=7&query=99&toString=1", "text=%ff%00"):  # fmt: skip
            open_at(view, state)
            assert len(view.next_words()) == 5 and n_changes(view) == 0 and view.complaints == []


def test_the_python_lines_make_the_same_changes(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    with show(replace(CONTENT, live=Live(replace(LIVE, chosen_tokenizer="own.json"), ""))) as view:
        open_at(view, "text=The+cat+slept.+It&remove=L0H1&exchange=L1H3.4.2.1.75&cut=L0H0.5.3")
        expected = view.next_words()
        view.find("#share summary").click()
        code = view.find("#live-code").text_content()
    printed: list[str] = []
    facts = LIVE.tokenizer
    run = SimpleNamespace(model=VIEW, tokenize=read, decode=facts.vocabulary.__getitem__, unknown=facts.unknown)
    monkeypatch.setattr("antecedent_lab.api.open_model", lambda name, tokenizer, device: run)
    exec(code, {"print": lambda *parts: printed.append(f"{parts[0]} {parts[1]:.2f}")})  # the page's own lines
    assert printed == expected and 'tokenizer="own.json"' in code


def test_hostile_texts_stay_text(show: Show) -> None:
    vocabulary = [*LIVE.tokenizer.vocabulary[:-4], *sample.HOSTILE[:4]]
    model = replace(LIVE, tokenizer=replace(LIVE.tokenizer, vocabulary=vocabulary), source=sample.HOSTILE[0])
    with show(replace(CONTENT, live=Live(model, ""))) as view:
        for text in (*sample.HOSTILE[:-1], "\ud800 lone", "x" * 6000, "\u2028\u2029"):
            view.find("#live-text").evaluate("(field, text) => (field.value = text)", text)
            view.find("#live-text").dispatch_event("input")
            view.page.evaluate("new Promise((resolve) => setTimeout(resolve, 0))")
            assert view.find("#live-next li").count() == 5
        assert view.find("img, iframe, base").count() == 0
        assert view.page.evaluate("window.hacked") is None
        view.check()


@pytest.mark.parametrize(("scheme", "width"), [("dark", 1280), ("light", 390)])
def test_the_edited_page_passes_an_accessibility_check(show: Show, scheme: str, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    with show(color_scheme=scheme, viewport={"width": width, "height": 800}) as view:
        view.type(f"{TEXT} zebra")
        view.press("Remove L0H1")
        view.line("cat").click()
        for summary in view.find("summary").all():
            summary.click()
        assert axe.Axe().run(view.page).response["violations"] == []
        assert view.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        open_at(view, "lesson=4")
        assert axe.Axe().run(view.page).response["violations"] == []


def test_every_control_is_reached_and_used_by_keyboard(show: Show) -> None:
    with show() as view:

        def press_at(place: str, *keys: str) -> str:
            """Return what has the focus after pressing keys at an element."""
            if place:
                view.find(place).focus()
            for key in keys:
                view.page.keyboard.press(key)
            of_focus = "(({ dataset, id, labels }) => dataset.name ?? (id || labels?.[0].innerText) ?? '')"
            return view.page.evaluate(f"{of_focus}(document.activeElement)")

        view.find("#live-how summary").first.click()
        reached = [press_at("#live-text")]
        while "Question" not in reached and len(reached) < 80:
            reached.append(press_at("", "Tab"))
        controls = "word-11 L0H1 remove-L0H0 play step card-3 guess-0 row-6 Question"
        assert set(controls.split()) <= set(reached)
        assert sum(name.startswith("line-") for name in reached) == 1  # one stop; the arrow keys move on
        assert press_at("[data-name=line-6]", "Enter") == "line-6"
        assert "“cat” cut" in view.find(".edits").inner_text()
        press_at("[data-name=line-6]", *["ArrowRight"] * 3, "Enter")
        assert view.next_words() == expected_words(TEXT, [exchange_links(0, 1, 11, [6], [9])])
        press_at("[data-name=undo]", "Enter", "Enter")
        assert n_changes(view) == 0
        assert press_at("[data-name=word-11]", "Home", "ArrowRight", " ") == "word-1"
        assert "“One”" in view.find("#live-lines h2").inner_text()
        press_at("[data-name=L0H1]", "ArrowDown", "ArrowRight", "Enter")
        assert view.find(".pick[aria-pressed=true]").get_attribute("data-name") == "L1H2"


def test_a_long_text_is_shown_from_its_end_and_stays_where_the_reader_scrolls(show: Show) -> None:
    with show(viewport={"width": 390, "height": 844}) as view:
        view.type("the cat sat on the mat because it " * 3)
        region = view.find("#live-lines .scroll")
        end = region.evaluate("(part) => part.scrollLeft")
        assert end > 0
        region.evaluate("(part) => (part.scrollLeft = 5)")
        view.line("cat").evaluate("(end) => end.parentNode.dispatchEvent(new MouseEvent('click'))")
        assert n_changes(view) == 1 and region.evaluate("(part) => part.scrollLeft") == 5
        view.type("the cat sat on the mat because they " * 3)
        assert region.evaluate("(part) => part.scrollLeft") == pytest.approx(end, abs=40)


def test_lines_are_those_of_the_last_word_and_a_pronoun_is_one_click_away(show: Show) -> None:
    with show() as view:
        view.type("The cat slept. It was the dog")
        assert "from “dog”" in view.find("#live-lines h2").inner_text()
        view.find(".word", has_text="It").click()
        assert "from “It”" in view.find("#live-lines h2").inner_text()


def test_the_address_follows_what_is_typed_and_cut_so_that_a_reload_keeps_it(show: Show) -> None:
    with show() as view:
        opened = view.page.evaluate("history.length")
        assert view.page.url == view.url  # until something is changed
        view.find("#live-text").press_sequentially(" The cat")
        view.type("The cat slept. It")
        view.pick("L1H3")
        view.line("cat").click()
        view.press("Remove L0H1")
        view.page.wait_for_url("**remove=L0H1**")
        assert view.page.evaluate("history.length") == opened
        words = view.next_words()
        view.page.reload()
        assert (view.text(), view.next_words(), n_changes(view)) == ("The cat slept. It", words, 2)
        view.type("The __ slept.")  # a gap is kept too, though the model reads the text before it
        view.page.wait_for_url("**__**")
        view.page.reload()
        assert view.text() == "The __ slept."


def test_a_lesson_opens_on_the_text_of_its_address_and_keeps_it_in_a_reload(show: Show) -> None:
    text = "The dog frightened the cat because it"
    with show() as view:
        open_at(view, f"lesson=3&text={quote_plus(text)}")
        assert view.text() == text and view.find("[data-name=card-3][aria-pressed=true]").is_visible()
        view.find("[data-name=card-4]").click()
        view.page.wait_for_url("**lesson=4&text=**")
        view.type(f"{text} purred")
        view.page.wait_for_url("**purred**")
        view.page.reload()
        assert view.text() == f"{text} purred" and view.find("[data-name=card-4][aria-pressed=true]").is_visible()
        view.press("The whole page")
        view.find("#verdict").wait_for()
        assert view.text() == f"{text} purred"
        view.page.wait_for_url("**#text=**")


def test_an_address_that_is_opened_is_not_lost_to_the_state_before_it(show: Show) -> None:
    opened = """() => {
      const timers = [];
      const { setTimeout } = window;
      window.setTimeout = (act) => timers.push(act);
      document.querySelector("[data-name=remove-L0H1]").click();
      window.setTimeout = setTimeout;
      location.hash = "lesson=3";
      timers.forEach((act) => act()); // due before the page hears of its new address
      return timers.length;
    }"""
    with show() as view:
        assert view.page.evaluate(opened) == 1
        view.find("[data-name=card-3][aria-pressed=true]").wait_for()


def test_a_long_text_is_scrolled_to_the_word_that_is_looked_from(show: Show) -> None:
    shown = """word => {
      const [inner, outer] = [word, word.closest(".scroll")].map((part) => part.getBoundingClientRect());
      return inner.left >= outer.left && inner.right <= outer.right;
    }"""
    text = quote_plus("the cat sat on the mat because it " * 3)
    with show(viewport={"width": 390, "height": 844}) as view:
        for query in (23, 3, 12, 0):
            open_at(view, f"text={text}&query={query}")
            word = view.find("#live-lines .word[aria-pressed=true]")
            assert word.get_attribute("data-name") == f"word-{query}" and word.evaluate(shown), query
            region = view.find("#live-lines .scroll")
            assert region.evaluate("(part) => part.scrollWidth > part.clientWidth")


def test_changes_stay_with_their_words(show: Show) -> None:
    with show() as view:
        for head in ("L0H0", "L1H3"):
            view.pick(head)
            view.line("cat").click()
        view.press("Remove L1H3")
        view.type("The dog slept. It")
        assert "2 of your changes" in view.find("#live-notes").inner_text()
        assert view.next_words() == expected_words("The dog slept. It", [remove_head(1, 3)])


def test_after_a_cut_a_click_on_a_word_exchanges(show: Show) -> None:
    with show() as view:
        view.line("dog").click()
        assert view.find(".end.asked").first.evaluate("end => getComputedStyle(end).stroke") != "none"
        assert "Now click another word" in view.find("#invitation").inner_text()
        view.find(".word", has_text="cat").click()
        assert "“dog” and “cat” exchanged" in view.find(".edits").inner_text()
        assert view.find(".end.asked").count() == 0
        view.find(".word", has_text="dog").click()  # nothing is pending: look from there
        assert "from “dog”" in view.find("#live-lines h2").inner_text()


def test_a_model_of_characters_has_every_card(show: Show) -> None:
    facts = LIVE.tokenizer
    letters = [" ", *(chr(ord("Ā") + i) for i in range(1, len(facts.vocabulary)))]
    text = " ".join(letters[1:6])
    characters = replace(facts, kind="characters", vocabulary=letters)
    with show(replace(CONTENT, live=Live(replace(LIVE, tokenizer=characters, text=text, verb_groups=[]), ""))) as view:
        for card in range(1, 9):
            view.find(f"[data-name=card-{card}]").click()
            guesses = view.find("#cards [data-name^=guess-]")
            if card < 8 or guesses.count():  # the last card needs a head that looks at a word
                guesses.last.click()
                assert view.find("#cards table").count() == 1, card
        view.check()


def test_a_share_of_the_weights_is_exchanged(show: Show) -> None:
    it, cat, dog = (read(TEXT).words.index(word) for word in ("it", "cat", "dog"))
    with show() as view:
        open_at(view, f"text={quote_plus(TEXT)}&exchange=L0H1.{it}.{cat}.{dog}")
        for percent in (50, 0):
            view.find("[data-name=dose-0]").fill(str(percent))
            edit = exchange_links(0, 1, it, [cat], [dog], share=percent / 100)
            assert view.next_words() == expected_words(TEXT, [edit])
        assert view.next_words() == view.next_words("live-before")
        assert sum("0 % exchanged" in title for title in view.titles()) == 2
        assert "0 % exchanged" in view.find(".edits").inner_text()


def test_a_saved_picture_opens_alone_and_shows_what_the_page_shows(show: Show, browser: Any, tmp_path: Path) -> None:
    with show() as view:
        view.line("cat").click()
        view.find("#share summary").click()
        for kind in ("svg", "png"):
            with view.page.expect_download() as saved:
                view.find(f"#save-{kind}").click()
            saved.value.save_as(tmp_path / f"picture.{kind}")
        shown = view.find(".arc.cut").evaluate("arc => getComputedStyle(arc).stroke")
        words = view.find(".lines .word text").all_text_contents()
        answers, others = view.next_words(), view.next_words("live-before")
    picture = browser.new_page()
    picture.goto((tmp_path / "picture.svg").as_uri())
    assert picture.locator(".arc.cut").evaluate("arc => getComputedStyle(arc).stroke") == shown
    texts = picture.locator("text").all_text_contents()
    caption = " · ".join(texts[len(words) :])
    assert set(words) < set(texts) and f"Antecedent (Apache-2.0): {CONTENT.run.name}, step " in caption
    assert [each for each in [*answers, *others] if each not in caption] == []
    assert "cut" in caption and picture.locator(".hit").count() == 0
    rings = picture.locator(".asked")  # they ask for a click
    assert rings.count() > 5 and rings.first.evaluate("end => getComputedStyle(end).stroke") == "none"
    picture.close()
    assert (tmp_path / "picture.png").read_bytes()[:4] == b"\x89PNG"


def test_in_a_frame_of_another_page_there_are_lines_and_next_words_only(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text(page_of(CONTENT), encoding="utf-8")
    source = "report.html#embed&text=The+cat+slept.+It&cut=L0H0.5.3&step=100"
    (tmp_path / "frame.html").write_text(f'<iframe src="{source}" width="700" height="400"></iframe>')
    outer = browser.new_page()
    outer.goto((tmp_path / "frame.html").as_uri())
    frame = outer.frame_locator("iframe")
    frame.locator("#live-before").wait_for()  # the change of the address
    assert frame.locator(".lines .word text").all_text_contents()[1:] == ["The", "cat", "slept", ".", "It"]
    assert [frame.locator(part).is_visible() for part in ("#live-text", "#verdict", ".lines")] == [False, False, True]
    source = frame.locator("#source")
    assert (
        source.is_visible()
        and source.inner_text() == f"Antecedent: {CONTENT.run.name}, step 100, head L0H1. Open the page"
    )
    assert "embed" not in source.locator("a").get_attribute("href")
    outer.close()


@pytest.mark.parametrize(
    "state", ["", "text=&", "remove=L1H1", "query=2", "text=The+cat+slept.+It+was+the+dog+that", "step=0"]
)
def test_the_first_sentence_says_only_what_is_drawn(state: str, show: Show) -> None:
    with show() as view:
        open_at(view, state)
        said = view.find("#invitation").inner_text()
        looked = re.search(r"looks from “(.*?)” to “(.*?)” \((\d\.\d\d)\)", said)
        words = view.find(".lines .word text").all_text_contents()
        if looked:
            assert words[view.word_weights().index(max(view.word_weights()))] == looked[2]
            assert float(looked[3]) == max(view.word_weights()) >= 0.3
        else:
            assert said == ""
        if "next word:" in said:
            assert view.next_words()[0].startswith(re.search(r"next word: “(.*?)”", said)[1])
            assert words[-1] == looked[1]


def test_a_step_back_after_another_text_is_about_its_words(show: Show) -> None:
    with show() as view:
        view.line("cat").click()
        view.line("cat").click()
        view.type("The cat")
        view.find("#title").click()
        view.page.keyboard.press("Control+z")
        assert n_changes(view) == 0 and view.next_words() == expected_words("The cat")
        view.check()


def test_a_printed_page_keeps_its_colours_and_cuts_no_line(show: Show) -> None:
    with show(viewport={"width": 1280, "height": 720}) as view:
        view.page.emulate_media(media="print", color_scheme="dark")
        view.page.set_viewport_size({"width": 700, "height": 990})  # A4
        paper = view.find("body").evaluate("body => getComputedStyle(body).backgroundColor")
        bar = view.find(".bar-track i").first
        assert paper == "rgb(251, 250, 247)"
        assert bar.evaluate("bar => getComputedStyle(bar).printColorAdjust") == "exact"
        box = view.find("svg.lines").bounding_box()
        assert box["x"] + box["width"] <= 700 and not view.find("#live-chips").is_visible()
        view.find("#live-how summary").nth(1).evaluate("summary => (summary.parentNode.open = true)")
        cells = view.find("#live-how table").nth(1).bounding_box()
        assert cells["x"] + cells["width"] <= 700
        view.find(".heads-row").evaluate("heads => heads.classList.add('many')")
        assert view.find(".heads-row").evaluate("heads => getComputedStyle(heads).maxHeight") == "none"
        query = view.find("#live-how thead").first  # which is printed again on each page
        assert "query" in query.text_content() and query.locator(".cells").count() == 1


def test_a_lesson_is_about_the_sentence_and_the_changes_that_are_there(show: Show) -> None:
    text = "The dog frightened the cat because it"
    with show() as view:
        view.type(text)
        view.page.get_by_role("link", name="Lesson").click()
        view.find("[data-name=card-7]").click()
        view.find("[data-name=card-7][aria-pressed=true]").wait_for()
        assert (view.text(), view.next_words()) == (text, expected_words(text))
        view.press("The whole page")
        view.find("#verdict").wait_for()
        assert view.text() == text
        view.press("Remove L1H2")
        view.find("[data-name=card-7]").click()
        view.find("#cards [data-name^=guess-]").last.click()
        it, cat, dog = (read(text).words.index(word) for word in ("it", "cat", "dog"))
        edits = [remove_head(1, 2), exchange_links(0, 1, it, [cat], [dog])]
        assert view.next_words() == expected_words(text, edits)
        first = [words[0].rpartition(" ")[0] for words in (expected_words(text, edits[:1]), view.next_words())]
        assert view.find("#cards tbody td").all_inner_texts() == first
        view.find("[data-name=dose-1]").fill("50")  # the answer stays
        assert view.find("#cards tbody td").all_inner_texts() == first


def test_a_gap_is_typed_over(show: Show) -> None:
    with show() as view:
        view.find(".chip.frame").first.click()
        view.page.keyboard.type("bus")
        assert view.text() == "The bus frightened the __ because it"


def test_on_a_phone_the_first_next_word_stands_beside_the_field_and_is_written(show: Show) -> None:
    with show(viewport={"width": 390, "height": 430}) as view:
        first = view.find("#live-first button")
        assert first.inner_text() == view.next_words()[0]
        before = view.text()
        first.click()
        assert view.text().startswith(before + " ")
