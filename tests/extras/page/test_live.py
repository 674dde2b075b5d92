"""The live section of the page shows what torch computes, after typing and after each change."""

import re
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from urllib.parse import quote_plus

import numpy as np
import pytest
import torch

from extras.page.page import page as page_of
from extras.page.shown import Live
from model.edits import cut_link, exchange_links, remove_head
from probe.deciding import deciding
from probe.questions import FRIGHTENED_OR_FEARED
from probe.sentences import word_attention
from settings.typed_json import to_json
from tests.extras.page import sample
from tests.extras.page.conftest import shown_weights

CONTENT = sample.content()
LIVE = CONTENT.live.model
TEXT = LIVE.text  # "The cat frightened the dog because it"
JSON = to_json(LIVE)
VIEW = sample.model_of(JSON)
read = partial(sample.read, JSON)
CAT, DOG, IT = (read(TEXT).words.index(word) for word in ("cat", "dog", "it"))


def content_with(**changes):
    """Return the content of the page with changes of its live model."""
    return replace(CONTENT, live=Live(replace(LIVE, **changes), ""))


def expected_words(text, *edits, model=VIEW):
    logits = model.logits(torch.tensor([read(text).tokens]), edits=edits)[0, -1]
    chances = logits.softmax(-1).topk(5)
    names = {LIVE.tokenizer.start: "(end of the text)", LIVE.tokenizer.unknown: "a word it does not know"}
    words = [names.get(i, LIVE.tokenizer.vocabulary[i]) for i in chances.indices.tolist()]
    return [f"{word} {chance:.2f}" for word, chance in zip(words, chances.values.tolist(), strict=True)]


def n_changes(view):
    return view.find(".edits li").count()


def test_clicks_on_lines_and_heads_show_what_torch_computes_and_are_taken_back(view):
    removed, cut = remove_head(1, 2), cut_link(0, 1, IT, [CAT])

    def check_edits(*edits):
        assert (view.next_words(), n_changes(view)) == (expected_words(TEXT, *edits), len(edits))

    view.find("#live-text").press_sequentially(" ")
    view.remove("L1H2")
    view.pick("L0H1")
    view.line("cat").click()
    check_edits(removed, cut)
    assert view.next_words("live-before") == expected_words(TEXT)
    view.line("dog").click()  # the second line of the head: both change places
    check_edits(removed, exchange_links(0, 1, IT, [CAT], [DOG]))
    view.press("Undo")
    check_edits(removed, cut)
    view.line("dog").click(modifiers=["Shift"])  # cut as well
    check_edits(removed, cut, cut_link(0, 1, IT, [DOG]))
    view.click("h1")
    view.page.keyboard.press("Control+z")  # not in the field, in which something was typed
    check_edits(removed, cut)
    view.line("cat").click()
    check_edits(removed)
    view.pick("L1H2")
    view.press("Put back L1H2")
    check_edits()
    assert not view.next_words("live-before")


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_a_click_moves_lines_and_bars_unless_unwanted(motion, show):
    clicked = """line => {
      line.dispatchEvent(new MouseEvent("click", { bubbles: true }));
      return document.getAnimations().some(({ effect }) => effect.target.matches("#live-next i, .arc"));
    }"""
    with show(reduced_motion=motion) as view:
        assert view.line("cat").evaluate(clicked) == (motion == "no-preference")


def test_the_slider_s_label_is_the_step_of_the_weights_that_are_shown(view):
    earlier = zip(LIVE.earlier.steps, LIVE.earlier.data, strict=True)
    models = {f"step {step}": sample.model_of(JSON, data) for step, data in earlier}
    for position, (name, model) in enumerate((models | {f"step {LIVE.step:,}, trained": VIEW}).items()):
        view.find("#step").fill(str(position))
        assert (view.said("#step-name"), view.next_words()) == (name, expected_words(TEXT, model=model))
        view.pick("L1H2")
        assert view.weights() == shown_weights(word_attention(model, read(TEXT))[1, 2, -1], IT)
    view.click("#play")
    assert view.said("#step-name") == "step 0"
    view.find("#step").press("End")  # the first key or click counts
    assert "trained" in view.said("#step-name") and "play" in view.said("#play")
    view.click("#play")
    view.find("#step-name:has-text('trained')").wait_for()
    assert "play" in view.said("#play")


def test_a_comparison_shows_the_next_words_of_both_models(show):
    past = replace(LIVE.earlier, steps=[0], data=LIVE.earlier.data[:1])
    words = {"after": expected_words(TEXT), "before": expected_words(TEXT, model=sample.model_of(JSON, past.data[0]))}
    with show(content_with(earlier=past, before="runs/old")) as view:
        for position, (shown, other) in enumerate([("before", "after"), ("after", "before")]):
            view.find("#step").fill(str(position))
            assert view.said("#step-name").startswith(f"{shown}: ")
            assert (view.next_words(), view.next_words("live-other")) == (words[shown], words[other])
        view.remove("L1H2")
        assert view.next_words("live-before") == words["after"] and not view.next_words("live-other")
        view.find("#step").fill("0")
        view.click("#share summary")
        code = view.find("#live-code").text_content()
        assert 'open_model("runs/old"' in code and "float16" in code and view.find("#play").count() == 0


def test_unknown_words_a_text_beyond_the_context_and_an_empty_one(view):
    view.type("The zebra sat")
    assert "zebra" in view.said("#live-notes")
    assert view.find(".lines .unknown").text_content() == "zebra"
    view.click("#live-how summary")
    assert view.find("#live-how th button").all_inner_texts() == ["(start)", "The", "(unknown)", "sat"]
    view.type("the cat " * 20)
    assert "reads 31 tokens" in view.said("#live-notes")
    for text, read_of_it in ((view.text(), " ".join(["the cat"] * 15 + ["the"])), ("", "")):
        view.type(text)
        assert view.next_words() == expected_words(read_of_it)


def test_a_link_restores_text_head_changes_and_step(view):
    view.at("text=The+cat+slept.+It&head=L1H3&query=4&target=2&remove=L0H1&exchange=L1H3.4.2.1&step=100")
    assert (view.text(), n_changes(view), view.said("#step-name")) == ("The cat slept. It", 2, "step 100")
    words = view.next_words()
    view.click("#share summary")
    link = view.find("#live-link").input_value()
    assert "head=L1H3&query=4&" in link
    view.at(link)
    view.click("#share summary")
    assert view.next_words() == words and view.find("#live-link").input_value() == link
    view.page.goto(f"{view.url}#text=The+dog")  # the head of the finding
    view.find(".pick[aria-pressed=true][data-name=L0H1]").wait_for()
    assert (view.text(), n_changes(view)) == ("The dog", 0)
    view.at("step=100")  # with the sentence of the page
    assert (view.text(), view.said("#step-name")) == (LIVE.text, "step 100")
    view.at("text=the zebra&step=99&head=L7H7&query=9&cut=L0H0.9.8")
    notes = view.said("#live-notes")
    for said in ("zebra", "no step 99", "no head L7H7", "no query 9", "1 of the link's changes"):
        assert said in notes


def test_a_link_opens_a_stored_sentence_and_an_impossible_one_is_harmless(view):
    view.at("yours-1")
    stored = view.find("#stored select").input_value()
    assert (view.text(), stored) == ("The fox thanked the hen because it was kind.", "yours-1")
    for state in (
        "text=The+cat&query=-1&target=1.5&cut=L0H0&step=",
        "text=a&cut=L0H0&exchange=x&remove=",
        "text=The+cat+sat&exchange=L0H0.3.2.1.50",
        "text=a&head=L9H9&cut=L9H9.1.2&step=7&query=99&toString=1",
        "text=%ff%00",
    ):
        view.at(state)
        assert (len(view.next_words()), n_changes(view)) == (5, 0)


def test_the_python_lines_make_the_same_changes(show, monkeypatch):
    with show(content_with(chosen_tokenizer="own.json")) as view:
        view.at("text=The+cat+slept.+It&remove=L0H1&exchange=L1H3.4.2.1&cut=L0H0.5.3")
        expected = view.next_words()
        view.click("#share summary")
        code = view.find("#live-code").text_content()
    printed: list[str] = []
    facts = LIVE.tokenizer
    run = SimpleNamespace(model=VIEW, tokenize=read, decode=facts.vocabulary.__getitem__, unknown=facts.unknown)
    monkeypatch.setattr("antecedent_lab.api.open_model", lambda name, tokenizer, device: run)
    exec(code, {"print": lambda *parts: printed.append(f"{parts[0]} {parts[1]:.2f}")})  # the page's own lines
    assert printed == expected and 'tokenizer="own.json"' in code


@pytest.mark.parametrize(("scheme", "width"), [("dark", 1280), ("light", 390)])
def test_the_edited_page_passes_an_accessibility_check(show, scheme, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    with show(color_scheme=scheme, viewport={"width": width, "height": 800}) as view:
        view.type(f"{TEXT} zebra")
        view.remove("L0H1")
        view.line("cat").click()
        for summary in view.find("summary").all():
            summary.click()
        assert axe.Axe().run(view.page).response["violations"] == []
        assert view.fits()
        view.at("lesson=4")
        assert axe.Axe().run(view.page).response["violations"] == []


def test_every_control_is_reached_and_used_by_keyboard(view):
    def press_at(place, *keys):
        """Return the element that has the focus after keys were pressed at another."""
        if place:
            view.find(place).focus()
        for key in keys:
            view.page.keyboard.press(key)
        of_focus = "(({ dataset, id, labels }) => dataset.name ?? (id || labels?.[0].innerText) ?? '')"
        return view.page.evaluate(f"{of_focus}(document.activeElement)")

    view.click("#live-how summary")
    reached = [press_at("#live-text")]
    while "Question" not in reached and len(reached) < 80:
        reached.append(press_at("", "Tab"))
    controls = "word-7 L0H1 remove another play step card-3 guess-0 row-6 Question"
    assert set(controls.split()) <= set(reached)
    assert sum(name.startswith("line-") for name in reached) == 1  # one stop; the arrow keys move on
    assert press_at("[data-name=line-2]", "Enter", *["ArrowRight"] * 3, "Enter") == "line-5"
    assert view.next_words() == expected_words(TEXT, exchange_links(0, 1, IT, [CAT], [DOG]))
    press_at("[data-name=undo]", "Enter", "Enter")
    assert n_changes(view) == 0
    assert press_at("[data-name=word-7]", "Home", "ArrowRight", " ") == "word-1"
    assert "from “The”" in view.said("#live-heads .rule")
    press_at("[data-name=L0H1]", "ArrowDown", "ArrowRight", "Enter")
    assert view.picked() == "L1H2"


def test_a_long_text_is_shown_at_the_word_that_is_looked_from_and_stays_where_the_reader_scrolls(show):
    text = "the cat sat on the mat because it " * 3
    is_shown = """word => {
      const [inner, outer] = [word, word.closest(".scroll")].map((part) => part.getBoundingClientRect());
      return inner.left >= outer.left && inner.right <= outer.right;
    }"""
    with show(viewport={"width": 390, "height": 844}) as view:
        view.type(text)
        region = view.find("#live-lines .scroll")
        end = region.evaluate("(part) => part.scrollLeft")
        assert end > 0
        region.evaluate("(part) => (part.scrollLeft = 5)")
        view.line("cat").dispatch_event("click")
        assert n_changes(view) == 1 and region.evaluate("(part) => part.scrollLeft") == 5
        view.type(text.replace("it", "they"))
        assert region.evaluate("(part) => part.scrollLeft") == pytest.approx(end, abs=40)
        for query in (23, 3, 12, 0):
            view.at(f"text={quote_plus(text)}&query={query}")
            assert view.find(f".word[data-name=word-{query}][aria-pressed=true]").evaluate(is_shown), query


def test_the_address_follows_what_is_typed_and_cut_so_that_a_reload_keeps_it(view):
    opened = view.page.evaluate("history.length")
    assert view.page.url == view.url  # until something is changed
    view.type("The cat slept. It")
    view.pick("L1H3")
    view.line("cat").click()
    view.remove("L0H1")
    view.page.wait_for_url("**remove=L0H1**")
    assert view.page.evaluate("history.length") == opened
    words = view.next_words()
    view.page.reload()
    assert (view.text(), view.next_words(), n_changes(view)) == ("The cat slept. It", words, 2)

    # A lesson too
    view.page.get_by_role("link", name="Lesson").click()
    view.card(4)
    view.page.wait_for_url("**lesson=4&text=The+cat+slept**")
    view.type("The dog")
    view.page.wait_for_url("**The+dog**")
    view.page.reload()
    assert view.text() == "The dog" and view.find("[data-name=card-4][aria-pressed=true]").is_visible()
    view.press("The whole page")
    view.page.wait_for_url("**#text=The+dog**")


def test_an_address_that_is_opened_is_not_lost_to_the_state_before_it(view):
    opened = """() => {
      const timers = [];
      const { setTimeout } = window;
      window.setTimeout = (act, delay) => delay && timers.push(act); // not the search for lines
      document.querySelector("[data-name=remove]").click();
      window.setTimeout = setTimeout;
      location.hash = "lesson=3";
      timers.forEach((act) => act()); // due before the page hears of its new address
      return timers.length;
    }"""
    assert view.page.evaluate(opened) == 1
    view.find("[data-name=card-3][aria-pressed=true]").wait_for()


def test_changes_stay_with_their_words(view):
    for head in ("L0H0", "L1H3"):
        view.pick(head)
        view.line("cat").click()
    view.remove("L1H3")
    view.type("The dog slept. It")
    assert "2 of your changes" in view.said("#live-notes")
    assert view.next_words() == expected_words("The dog slept. It", remove_head(1, 3))
    view.click("#title")
    view.page.keyboard.press("Control+z")  # a step back is about the words that are there
    assert n_changes(view) == 0


def test_after_a_cut_a_click_on_a_word_exchanges(view):
    view.line("dog").click()
    assert view.find(".end.asked").first.evaluate("end => getComputedStyle(end).stroke") != "none"
    assert "Now click another word" in view.said("#invitation")
    view.look_from("cat")
    assert "“dog” and “cat” exchanged" in view.said(".edits")
    assert view.find(".end.asked").count() == 0
    view.look_from("dog")  # nothing is pending
    assert "from “dog”" in view.said("#live-heads .rule")


def test_a_model_of_characters_has_every_card(show):
    letters = [" ", *(chr(ord("Ā") + i) for i in range(1, len(LIVE.tokenizer.vocabulary)))]
    characters = replace(LIVE.tokenizer, kind="characters", vocabulary=letters)
    with show(content_with(tokenizer=characters, text=" ".join(letters[1:6]), verb_groups=[])) as view:
        for card in range(1, 8):  # the last card needs a head that looks at a word
            view.card(card)
            view.press("show me")
            view.find("#cards table").wait_for(timeout=10_000)
            assert view.find("#cards table").count() == 1, card
        view.card(8)


def test_a_saved_picture_opens_alone_and_shows_what_the_page_shows(view, browser, tmp_path):
    view.line("cat").click()
    view.find("#share summary").click()
    for kind in ("svg", "png"):
        with view.page.expect_download() as saved:
            view.click(f"#save-{kind}")
        saved.value.save_as(tmp_path / f"picture.{kind}")
    stroke = "arc => getComputedStyle(arc).stroke"
    shown = view.find(".arc.cut").evaluate(stroke)
    words = view.find(".lines .word text").all_text_contents()
    answers = {*view.next_words(), *view.next_words("live-before")}
    picture = browser.new_page()
    picture.goto((tmp_path / "picture.svg").as_uri())
    assert picture.locator(".arc.cut").evaluate(stroke) == shown
    texts = picture.locator("text").all_text_contents()
    caption = " · ".join(texts[len(words) :])
    assert set(words) < set(texts) and f"Antecedent (Apache-2.0): {CONTENT.run.name}, step " in caption
    assert [each for each in answers if each not in caption] == [] and "cut" in caption
    assert picture.locator(".hit").count() == 0
    assert picture.locator(".asked").first.evaluate(stroke) == "none"  # the rings ask for a click
    picture.close()
    assert (tmp_path / "picture.png").read_bytes()[:4] == b"\x89PNG"


def test_in_a_frame_of_another_page_there_are_lines_and_next_words_only(browser, tmp_path):
    (tmp_path / "report.html").write_text(page_of(CONTENT), encoding="utf-8")
    address = "report.html#embed&text=The+cat+slept.+It&cut=L0H0.5.3&step=100"
    (tmp_path / "frame.html").write_text(f'<iframe src="{address}" width="700" height="400"></iframe>')
    outer = browser.new_page()
    outer.goto((tmp_path / "frame.html").as_uri())
    frame = outer.frame_locator("iframe")
    frame.locator("#live-before").wait_for()  # the change of the address
    assert frame.locator(".lines .word text").all_text_contents()[1:] == ["The", "cat", "slept", ".", "It"]
    assert [frame.locator(part).is_visible() for part in ("#live-text", "#verdict", ".lines")] == [False, False, True]
    source = frame.locator("#source")
    assert source.inner_text() == f"Antecedent: {CONTENT.run.name}, step 100, head L0H1. Open the page"
    assert "embed" not in source.locator("a").get_attribute("href")
    outer.close()


def test_all_rows_of_a_head_are_a_triangle_of_its_weights(view):
    view.pick("L0H1")
    view.page.get_by_text("All rows of L0H1").click()
    weights = word_attention(VIEW, read(TEXT))[0, 1]
    cells = view.find(".rows rect").evaluate_all(
        "cells => cells.map(cell => [cell.className.baseVal, cell.getAttribute('fill-opacity')])"
    )
    n_words = len(read(TEXT).words)
    assert len(cells) == n_words**2
    for (row, column), (kind, opacity) in zip(np.ndindex(n_words, n_words), cells, strict=True):
        assert kind == ("later" if column > row else "seen")
        assert column > row or float(opacity) == pytest.approx(weights[row, column], abs=1e-4)
    assert view.find(".rows title").last.text_content() == f"it to it: {weights[-1, -1]:.2f}"


SENTENCES = [
    TEXT,
    "The dog feared the cat because it",
    "The cat sat near the buses. It",
    "The buses were near the cat. They",
    "Lily met Tom. She",
    "Tom met Lily near the dog. She",
    "The",
]


@pytest.mark.parametrize("text", SENTENCES)
def test_which_line_decides_is_what_python_computes(view, text):
    found = deciding(VIEW, read(text), LIVE.tokenizer.vocabulary.__getitem__)
    view.type(text)
    view.searched()
    said = view.said("#invitation")
    first, *others = found.lines
    if found.decides:
        before, after = round(100 * found.chance), round(100 * (found.chance - first.lost))
        does = "decides" if first.lost >= 2 * max(0, *(line.lost for line in others)) else "takes most of"
        assert said.startswith(f"The line {first} {does}") and re.search(f"Cut: {before}\xa0% → {after}\xa0%", said)
        losses = [0, *(line.lost for line in others)]
        assert f"take at most {round(100 * max(losses))} point" in said
        assert ("or add" in said) == (-min(losses) >= 0.005)
    else:
        assert said.startswith("No single line decides") and f"none of {len(found.lines)} takes 10 points" in said
        assert found.pair is None or all(str(line) in said for line in found.pair)
    expected = {(str(line.head), line.word): line.lost for line in found.lines}
    shown = view.lost({head for head, _ in expected})
    assert shown == {line: pytest.approx(expected[line], abs=1e-4) for line in shown} and shown


def test_a_guess_about_another_sentence_comes_before_the_colours_and_is_counted(view):
    orange = "lines => lines.filter(line => !line.style.getPropertyValue('--strong').includes(' 0%')).length"
    results, seen = [False, True], {view.text()}
    while results:
        view.press("Guess which line decides")
        view.searched()
        assert view.text() not in seen or seen.clear()  # another one, until all have been shown
        seen.add(view.text())
        found = deciding(VIEW, read(view.text()), str)
        view.pick(str(found.lines[0].head))
        if not found.decides:
            assert "No single line" in view.said("#invitation")
            continue
        assert "To which word" in view.said("#invitation") and view.find("#turn").count() == 0
        assert view.find("#live-lines .link").evaluate_all(orange) == 0 and "−" not in view.said("#live-heads")
        options = view.find("#invitation .chip").all()
        is_right = results.pop()
        wanted = [(option.inner_text() == f"“{found.lines[0].word}”") == is_right for option in options]
        options[wanted.index(True)].click()
        assert view.find("#live-lines .link").evaluate_all(orange) > 0
        counted = f"{'right' if is_right else 'wrong'}: 1 of {2 - len(results)}."
        assert counted in view.said("#live-notes")


def test_the_change_that_the_page_proposes_turns_the_next_word_and_is_taken_back(view):
    view.type(TEXT)
    view.searched()
    before = view.next_words()
    view.find("#turn").dblclick()  # the second click is none: other buttons have moved there
    assert view.next_words()[0].split()[0] != before[0].split()[0] and n_changes(view) == 1 and view.text() == TEXT
    view.press("Undo")
    assert view.next_words() == before
    view.find("#turn").focus()
    for _ in range(2):  # then Undo has the focus
        view.page.keyboard.press("Enter")
    assert view.next_words() == before


def test_a_click_makes_it_say_a_word_or_says_that_no_change_does(view):
    view.type(FRIGHTENED_OR_FEARED[0].text)
    said = set()
    others = [item.get_attribute("data-name") for item in view.find("#live-next button").all()][1:]
    for name in others:
        place = int(name.removeprefix("next-"))
        view.click("[data-name=say]")
        word = view.next_words()[place].split()[0]
        view.click(f"[data-name={name}]")
        view.find("#live-notes:not(:has-text('Looking'))").wait_for()
        note = view.said("#live-notes")
        if "None of" in note:
            said.add("none")
            assert n_changes(view) == 0 and f"makes it say “{word}”" in note
        else:
            said.add("found")
            assert n_changes(view) == 1 and view.next_words()[0].split()[0] == word and f"it says “{word}”" in note
            view.press("Undo")
    assert "found" in said


def test_a_printed_page_keeps_its_colours_and_cuts_no_line(view):
    view.searched()
    view.page.emulate_media(media="print", color_scheme="dark")
    view.resize({"width": 700, "height": 990})  # A4
    for part, style, value in (
        ("body", "backgroundColor", "rgb(251, 250, 247)"), (".bar-track i", "printColorAdjust", "exact"),
        (".heads-row", "maxHeight", "none"),
    ):  # fmt: skip
        element = view.find(part).first
        element.evaluate("node => node.classList.add('many')")  # heads, which scroll on a screen
        assert element.evaluate(f"node => getComputedStyle(node).{style}") == value
    view.find("#live-how summary").nth(1).evaluate("summary => (summary.parentNode.open = true)")
    for part in (view.find("svg.lines"), view.find("#live-how table").nth(1)):
        box = part.bounding_box()
        assert box["x"] + box["width"] <= 700
    assert not view.find("#live-chips").is_visible() and view.find("#invitation .line-name").first.is_visible()
    column, heads = view.find("#stage").bounding_box(), view.find("#live-heads").bounding_box()
    assert heads["x"] == column["x"] and heads["y"] > column["y"] + column["height"]  # one below the other
    query = view.find("#live-how thead").first  # which is printed again on each page
    assert "query" in query.text_content() and query.locator(".cells").count() == 1
    view.page.emulate_media(media="screen", color_scheme="light")


def test_a_lesson_is_about_the_sentence_and_the_changes_that_are_there(view):
    text = "The dog frightened the cat because it"
    view.type(text)
    view.page.get_by_role("link", name="Lesson").click()
    view.card(7)
    assert (view.text(), view.next_words()) == (text, expected_words(text))
    view.press("The whole page")
    view.find("#verdict").wait_for()
    view.remove("L1H2")
    view.pick("L0H1")
    view.card(7)
    view.press("show me")
    cat, dog, it = (read(text).words.index(word) for word in ("cat", "dog", "it"))
    edits = [remove_head(1, 2), exchange_links(0, 1, it, [cat], [dog])]
    assert view.next_words() == expected_words(text, *edits)
    first = [words[0].rpartition(" ")[0] for words in (expected_words(text, edits[0]), view.next_words())]
    assert view.find("#cards tbody td").all_inner_texts() == first
