"""The page: it shows the content's own numbers, can be used by everyone, and nothing in it that is data runs."""

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from copy import deepcopy
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from report.page import page
from tests.report import sample
from tests.report.browser import Opened, opened, running

CONTENT = sample.content()
Open = Callable[..., AbstractContextManager[Opened]]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with running() as one:
        yield one


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Open:
    def open_content(content: dict[str, Any] = CONTENT, **settings: Any) -> AbstractContextManager[Opened]:
        return opened(browser, page(content), tmp_path, **settings)

    return open_content


def unpacked(data: str, kind: str, length: int) -> np.ndarray:
    """Return weights [L, H, T, T] of the packed past."""
    numbers = np.frombuffer(b64decode(data), dtype=kind).reshape(sample.N_LAYER, sample.N_HEAD, -1)
    weights = np.zeros((sample.N_LAYER, sample.N_HEAD, length, length))
    weights[..., *np.tril_indices(length)] = numbers / np.iinfo(kind).max
    return weights


def by_word(sentence: dict[str, Any], weights: np.ndarray, word: int) -> np.ndarray:
    """Return [L, H, words]: from a word's last token, summed over each word's tokens."""
    owner = np.array(sentence["owner"])
    row = weights[:, :, np.flatnonzero(owner == word)[-1]]
    return np.stack([row[..., owner == one].sum(-1) for one in range(len(sentence["words"]))], axis=-1)


def shown_weights(opened: Opened) -> dict[int, float]:
    """Return the weight beside each word that is looked at, by its place, as printed."""
    texts = opened.page.locator(".seen [role=option] .weight").all_inner_texts()
    return {place: float(found[0]) for place, text in enumerate(texts) if (found := re.match(r"[\d.]+", text))}


def above(row: np.ndarray, threshold: float = 0.02) -> dict[int, float]:
    return {place: weight for place, weight in enumerate(row) if weight >= threshold}


def head(opened: Opened, name: str) -> Any:
    return opened.page.locator(f"[data-head={name}]")


def set_range(opened: Opened, name: str, value: float) -> None:
    opened.page.locator(f"#{name}").fill(str(value))


def has_focus(opened: Opened, selector: str) -> bool:
    return opened.page.evaluate("selector => document.activeElement.matches(selector)", selector)


# What it is


def test_the_file_names_no_address_and_its_policy_lets_nothing_else_run() -> None:
    html = page(CONTENT)
    assert set(re.findall(r"https?://[^\s\"']*", html)) == {"http://www.w3.org/2000/svg"}, "a name, not a request"
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)[1]
    for tag, kind in (("style", "style-src"), ("script", "script-src")):
        source = re.search(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)[1]
        digest = b64encode(sha256(source.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy


def test_the_script_reads_no_markup_and_keeps_no_name_of_the_window() -> None:
    script = re.findall(r"<script>(.*?)</script>", page(CONTENT), re.DOTALL)
    assert len(script) == 1
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
        "fetch(",
        "XML",
    ):
        assert word not in script[0]


def test_the_content_comes_back_from_the_file_whole() -> None:
    found = re.search(r'id="content">(.*?)</script>', page(sample.hostile()), re.DOTALL)[1]
    assert json.loads(found) == sample.hostile()
    assert not set("<>&\u2028\u2029") & set(found) and found.isascii()


def test_a_page_is_the_same_each_time_and_can_be_written_as_utf8() -> None:
    assert page(sample.hostile()).encode() == page(sample.hostile()).encode()


def test_a_number_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError):
        page(CONTENT | {"caps": [float("nan")]})


@pytest.mark.parametrize("make", [sample.content, sample.long, sample.no_questions, sample.bare])
def test_every_page_opens_with_the_network_cut_and_asks_for_itself_alone(show: Open, make: Callable) -> None:
    with show(make()) as one:
        assert one.page.locator("h1").is_visible()
        one.check()


def test_without_scripts_the_claim_the_tables_and_the_limits_can_be_read(show: Open) -> None:
    with show(java_script_enabled=False) as one:
        text = one.page.locator("body").inner_text()
        for question in CONTENT["questions"]:
            assert question["claim"].split(". ")[0] in text.replace("\u00a0", " ")
        for words in ("Five criteria", "beats baselines", "headline", "0.999 [0.969, 1.000]", "understanding"):
            assert words in text
        assert not one.page.locator("#explorer").is_visible()


# What it shows


def test_the_map_shows_the_chosen_score_of_every_head(show: Open) -> None:
    with show() as one:
        heads = CONTENT["questions"][0]["heads"]
        for name, score in (("Sel@1", "accuracy"), ("DD", "pronoun_contrast"), ("F4", "block_accuracy")):
            one.page.get_by_role("radio", name=name, exact=True).check()
            printed = np.array(one.page.locator(".map button span").all_inner_texts(), dtype=float)
            np.testing.assert_allclose(printed, np.array(heads[score]).ravel(), atol=0.005001)
        label = head(one, "L0H1").get_attribute("aria-label")
        assert label.startswith("layer 0 head 1, F4 0.99") and "significant" in label and "chosen by the probe" in label
        assert "significant" not in head(one, "L1H2").get_attribute("aria-label")
        one.check()


def test_a_click_on_a_head_draws_that_heads_weights(show: Open) -> None:
    sentence = CONTENT["sentences"][0]
    weights = unpacked(sentence["weights"]["data"], "<u2", len(sentence["pieces"]))
    rows = by_word(sentence, weights, sentence["asked"][0])
    with show() as one:
        drawn = set()
        for place, layer in np.ndindex(sample.N_HEAD, sample.N_LAYER):
            head(one, f"L{layer}H{place}").click()
            expected = above(rows[layer, place])
            assert shown_weights(one) == pytest.approx(expected, abs=0.005001)
            assert one.page.locator(".lines .link").count() == len(expected)
            drawn.add(one.page.locator(".lines").inner_html())
            pair = [sentence["antecedents"][0], sentence["distractors"][0]]
            bars = one.page.locator(".mini").first.locator(".bar-value").all_inner_texts()
            np.testing.assert_allclose(np.array(bars, dtype=float), rows[layer, place, pair], atol=0.005001)
        assert len(drawn) == sample.N_LAYER * sample.N_HEAD
        one.check()


def test_a_word_of_several_pieces_looks_from_its_last_and_gets_the_sum_of_all(show: Open) -> None:
    sentence = next(one for one in CONTENT["sentences"] if one["group"] == "own")
    weights = unpacked(sentence["weights"]["data"], "<u2", len(sentence["pieces"]))
    word = next(place for place in sentence["owner"] if sentence["owner"].count(place) > 1)
    with show() as one:
        one.page.get_by_role("radio", name="Your sentences").check()
        for place in (word, len(sentence["words"]) - 1):
            one.page.locator(".looks [role=option]").nth(place).click()
            expected = above(by_word(sentence, weights, place)[sample.LINKS])
            assert word in expected and shown_weights(one) == pytest.approx(expected, abs=0.005001)
        one.check()


def test_pieces_are_drawn_as_well_as_words(show: Open) -> None:
    sentence = next(one for one in CONTENT["sentences"] if one["group"] == "own")
    assert len(sentence["pieces"]) > len(sentence["words"])
    weights = unpacked(sentence["weights"]["data"], "<u2", len(sentence["pieces"]))
    with show() as one:
        one.page.get_by_role("radio", name="Your sentences").check()
        one.page.get_by_role("radio", name="pieces").check()
        assert one.page.locator(".looks .word").all_inner_texts() == sentence["pieces"]
        one.page.locator(".looks [role=option]").last.click()
        assert shown_weights(one) == pytest.approx(above(weights[sample.LINKS][-1]), abs=0.005001)
        one.check()


def test_the_word_chosen_on_the_left_shows_its_lines_alone_and_weak_lines_are_hidden(show: Open) -> None:
    sentence = CONTENT["sentences"][0]
    weights = unpacked(sentence["weights"]["data"], "<u2", len(sentence["pieces"]))
    with show() as one:
        one.page.locator(".looks [role=option]").nth(6).hover()
        hovered = shown_weights(one)
        assert hovered == pytest.approx(above(by_word(sentence, weights, 6)[sample.LINKS]), abs=0.005001)
        one.page.locator(".looks [role=option]").nth(6).click()
        one.page.mouse.move(0, 0)
        assert shown_weights(one) == hovered
        set_range(one, "threshold", 0.3)
        assert shown_weights(one) == {place: weight for place, weight in hovered.items() if weight >= 0.3}
        one.check()


def test_the_map_can_show_the_weight_of_the_chosen_pair_of_words(show: Open) -> None:
    sentence = CONTENT["sentences"][0]
    weights = unpacked(sentence["weights"]["data"], "<u2", len(sentence["pieces"]))
    with show() as one:
        one.page.get_by_role("radio", name="weight", exact=True).check()
        one.page.locator(".looks [role=option]").nth(9).click()
        one.page.locator(".seen [role=option]").nth(4).click()
        one.page.mouse.move(0, 0)
        printed = np.array(one.page.locator(".map button span").all_inner_texts(), dtype=float)
        np.testing.assert_allclose(printed, by_word(sentence, weights, 9)[..., 4].ravel(), atol=0.005001)
        one.check()


def test_the_slider_moves_the_map_the_lines_and_the_mark_on_the_curves(show: Open) -> None:
    sentence, moving = CONTENT["sentences"][0], CONTENT["emergence"]["film"]
    curve = CONTENT["emergence"]["curves"]["number"]
    with show() as one:
        marks = []
        for step in (0, 10, 30):
            set_range(one, "step", step)
            assert one.page.locator("#step-name").inner_text() == f"step {sample.STEPS[step]:,}, on dev"
            printed = np.array(one.page.locator(".map button span").all_inner_texts(), dtype=float)
            np.testing.assert_allclose(printed, np.array(curve["accuracy"][step]).ravel(), atol=0.005001)
            weights = unpacked(moving["data"][step][sentence["film"]], "u1", len(sentence["pieces"]))
            row = by_word(sentence, weights, sentence["asked"][0])[sample.LINKS]
            assert shown_weights(one) == pytest.approx(above(row), abs=0.005001)
            read = one.page.locator("#curves .read").first.inner_text()
            assert read.endswith(f"at step {sample.STEPS[step]:,}") and float(read.split()[0]) == pytest.approx(
                curve["accuracy"][step][sample.LINKS[0]][sample.LINKS[1]], abs=0.005001
            )
            marks.append(float(one.page.locator("#curves .cursor").first.get_attribute("x1")))
        assert marks == sorted(set(marks))
        set_range(one, "step", len(sample.STEPS))
        assert "test" in one.page.locator("#step-name").inner_text()
        assert head(one, "L0H1").inner_text().strip() == "1.00"
        one.check()


def test_a_note_is_said_once_and_many_wait_to_be_opened(show: Open) -> None:
    content = deepcopy(CONTENT)
    own = next(one for one in content["sentences"] if one["group"] == "own")
    own["notes"] = [f"note {number}" for number in (1, 2, 1, 3, 4, 5)]
    with show(content) as one:
        one.page.get_by_role("radio", name="Your sentences").check()
        notes = one.page.locator("#large .note")
        assert notes.all_text_contents() == [f"note {number}" for number in range(1, 6)]
        assert [notes.nth(place).is_visible() for place in range(5)] == [True, True, True, False, False]
        one.page.get_by_text("2 more notes").click()
        assert notes.nth(4).is_visible()
        one.check()


def test_what_has_no_value_at_a_step_says_so(show: Open) -> None:
    with show() as one:
        set_range(one, "step", 3)
        one.page.get_by_role("radio", name="F4", exact=True).check()
        assert set(one.page.locator(".map button span").all_inner_texts()) == {"–"}
        assert "Not measured while training" in one.page.locator("#map-legend").inner_text()
        one.page.get_by_role("radio", name="The median block").check()
        assert "only the end was kept" in one.page.locator("#view-film").inner_text()
        one.page.get_by_role("radio", name="number").check()  # not watched while it trained
        one.page.get_by_role("radio", name="Sel@1", exact=True).check()
        assert set(one.page.locator(".map button span").all_inner_texts()) == {"–"}
        one.check()


def test_the_film_runs_to_its_end_and_stops(show: Open) -> None:
    with show() as one:
        set_range(one, "step", len(sample.STEPS) - 2)
        one.page.locator("#play").click()
        one.page.get_by_role("button", name="Play", exact=True).wait_for()
        assert one.page.locator("#step").input_value() == str(len(sample.STEPS))
        one.check()


def test_another_question_brings_its_own_claim_head_and_sentences(show: Open) -> None:
    with show() as one:
        assert one.page.locator(".card:visible").count() == 1
        one.page.get_by_role("radio", name="later_cue").check()
        assert one.page.locator(".card:visible .badge").inner_text().endswith("suggestive")
        assert one.page.locator("#why table:visible caption").first.is_visible()
        assert one.page.locator(".mini").count() == 4
        assert "tired" in one.page.locator(".mini").nth(1).inner_text()
        one.check()


def test_an_address_can_name_the_sentence_that_the_page_opens_at(show: Open) -> None:
    with show() as one:
        own = next(each for each in CONTENT["sentences"] if each["group"] == "own")
        assert one.page.locator("#large blockquote").inner_text() != own["text"]
        one.page.evaluate("id => { location.hash = id; location.reload(); }", own["id"])
        one.page.wait_for_load_state()
        assert one.page.locator("#large blockquote").inner_text() == own["text"]
        assert one.complaints == [] and len(set(one.requests)) <= 2, "the file, with and without what stands behind #"


def test_a_curve_that_leaves_its_chart_says_so_and_the_end_is_always_drawn(show: Open) -> None:
    content = deepcopy(CONTENT)
    known = content["emergence"]["curves"]["number"]
    known["rho"] = [-9.0, *[-2.5] * (len(known["rho"]) - 1)]
    with show(content) as one:
        chart = one.page.locator("#curves figure", has_text="ρ")
        assert "below -2.50 not drawn" in chart.inner_text()
        assert chart.locator(".mark").get_attribute("visibility") == "visible"
        one.check()


def test_what_could_not_be_measured_is_not_called_missed() -> None:
    content = deepcopy(CONTENT)
    criterion = content["questions"][0]["criteria"][0]
    criterion |= {"passed": False, "measured": dict.fromkeys(criterion["measured"])}
    assert page(content).count("not measured") == page(CONTENT).count("not measured") + 1


def test_every_word_that_is_asked_is_marked(show: Open) -> None:
    content = deepcopy(CONTENT)
    content["sentences"][0]["asked"] = [6, 9]
    with show(content) as one:
        marks = one.page.locator(".looks [role=option]").all_inner_texts()
        assert [place for place, text in enumerate(marks) if "asked" in text] == [6, 9]
        one.check()


def test_many_questions_stand_in_a_menu(show: Open) -> None:
    found = sample.content()
    found["questions"] = [found["questions"][0] | {"name": f"Q{i} at S1"} for i in range(9)] + [found["questions"][2]]
    with show(found) as one:
        one.page.locator("#questions select").select_option("9")
        assert one.page.locator(".card:visible .badge").inner_text().endswith("suggestive")
        one.check()


def test_a_text_of_512_tokens_shows_the_weights_that_were_kept(show: Open) -> None:
    found = sample.long()
    sentence = next(one for one in found["sentences"] if one["group"] == "own")
    length, kept = len(sentence["pieces"]), sentence["weights"]["kept"]
    assert length == 512
    shape = (sample.N_LAYER, sample.N_HEAD, length, kept, 2)
    pairs = np.frombuffer(b64decode(sentence["weights"]["data"]), dtype="<u2").reshape(shape)
    keys, values = pairs[(*sample.LINKS, length - 1)].T
    with show(found) as one:
        one.page.get_by_role("radio", name="Your sentences").check()
        one.page.locator(".looks [role=option]").last.click()
        set_range(one, "threshold", 0.01)
        expected = {int(key): value / 65535 for key, value in zip(keys, values, strict=True) if value / 65535 >= 0.01}
        assert expected and shown_weights(one) == pytest.approx(expected, abs=0.005001)
        assert one.page.locator("#all").count() == 0, "all lines of so many words would be a grey block"
        one.check()


def test_a_model_that_nothing_is_asked_of_has_a_map_by_weight(show: Open) -> None:
    with show(sample.no_questions()) as one:
        before = one.page.locator(".map button span").all_inner_texts()
        one.page.locator(".seen [role=option]").nth(2).click()
        assert one.page.locator(".map button span").all_inner_texts() != before
        assert not one.page.locator("#time").is_visible() and not one.page.locator("#timeline").is_visible()
        one.check()


# Who can use it


def test_everything_can_be_reached_and_moved_with_the_keyboard(show: Open) -> None:
    with show() as one:
        keys = one.page.keyboard
        keys.press("Tab")
        assert has_focus(one, ".skip")
        _tab_to(one, ".map button")
        assert has_focus(one, "[data-head=L0H1]"), "the one stop of the map is the head that is selected"
        keys.press("ArrowDown")
        keys.press("ArrowRight")
        assert (
            has_focus(one, "[data-head=L1H2][tabindex='0']")
            and head(one, "L0H1").get_attribute("aria-pressed") == "true"
        )
        keys.press("Enter")
        assert has_focus(one, "[data-head=L1H2][aria-pressed=true]")
        assert "layer 1 head 2" in one.page.locator("#live").inner_text()
        _tab_to(one, ".mini")
        keys.press("Tab")
        keys.press("Space")
        assert has_focus(one, ".mini:nth-child(2)[aria-pressed=true]")
        _tab_to(one, ".looks [role=option]")
        before = shown_weights(one)
        keys.press("ArrowUp")
        assert has_focus(one, ".looks [aria-selected=true]") and shown_weights(one) != before
        _tab_to(one, ".seen [role=option]")
        _tab_to(one, "#step")
        keys.press("ArrowLeft")
        assert one.page.locator("#step").get_attribute("aria-valuetext") == f"step {sample.STEPS[-1]:,}, on dev"
        one.check()


def _tab_to(one: Opened, selector: str) -> None:
    for _ in range(30):
        one.page.keyboard.press("Tab")
        if has_focus(one, selector):
            return
    raise AssertionError(f"Tab does not lead to {selector}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("make", [sample.content, sample.no_questions])
def test_axe_finds_nothing_serious(show: Open, make: Callable, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    with show(make(), color_scheme=scheme, bypass_csp=True, reduced_motion="reduce") as one:
        for details in one.page.locator("details:visible summary").all():
            details.click()
        found = axe.run(one.page).response["violations"]
        faults = [
            (one["id"], [node["html"] for node in one["nodes"]])
            for one in found
            if one["impact"] in ("serious", "critical")
        ]
        assert faults == []


def test_dark_and_light_are_the_readers_choice_and_paper_is_white(show: Open) -> None:
    def brightness(one: Opened) -> float:
        colour = one.page.evaluate("getComputedStyle(document.body).backgroundColor")
        return float(np.mean([float(part) for part in re.findall(r"[\d.]+", colour)[:3]]))

    with show(color_scheme="dark") as one:
        assert brightness(one) < 40
        one.page.emulate_media(media="print", color_scheme="dark")
        ink = one.page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--ink')").strip()
        assert ink == "#1c2024", "on paper the ink is dark"
        for hidden in ("#timeline", "#map-controls", "#questions"):
            assert not one.page.locator(hidden).is_visible()
        for kept in ("#map", "#strip", "#large", "#curves", "#limits"):
            assert one.page.locator(kept).is_visible()
        one.check()
    with show(color_scheme="light") as one:
        assert brightness(one) > 240


@pytest.mark.parametrize("make", [sample.content, sample.hostile, sample.long])
def test_a_narrow_screen_needs_no_scrolling_to_the_side(show: Open, make: Callable) -> None:
    with show(make(), viewport={"width": 360, "height": 640}) as one:
        for group in one.page.locator("#view-groups input").all():
            group.check()
            assert one.page.evaluate("document.documentElement.scrollWidth") <= 360
        one.check()


# What it must not do


def test_hostile_strings_run_nothing_and_ask_for_nothing(show: Open) -> None:
    with show(sample.hostile()) as one:
        for part in ("#questions input", "#map-controls input", "#view-groups input"):
            for choice in one.page.locator(part).all():
                choice.check()
        for button in one.page.locator(".map button").all():
            button.click()
        set_range(one, "step", 5)
        for word in one.page.locator(".looks [role=option]").all()[:14]:
            word.click()
        for summary in one.page.locator("summary:visible").all():
            summary.click()
        assert one.page.evaluate("window.hacked") is None
        counts = one.page.evaluate(
            "['script', 'style', 'img', 'a', 'base', 'iframe', 'link', 'meta[http-equiv]']"
            ".map((name) => document.querySelectorAll(name).length)"
        )
        assert counts == [2, 1, 0, 1, 0, 0, 1, 1], "no element but the page's own"
        one.check()


def test_the_policy_stops_what_would_slip_through(show: Open) -> None:
    """Should a text ever become markup, it still could not run: seen by adding some from outside."""
    with show() as one:
        one.page.evaluate(
            """() => {
              const box = document.createElement("div");
              document.body.append(box);
              box.innerHTML = "<img src=x onerror='window.hacked=1'><iframe srcdoc='<script>parent.hacked=1</script>'>";
              const script = document.createElement("script");
              script.textContent = "window.hacked = 1";
              document.body.append(script);
            }"""
        )
        one.page.wait_for_timeout(200)
        assert one.page.evaluate("window.hacked") is None
        assert sum("Content Security Policy" in line for line in one.complaints) >= 3


def test_a_word_of_ten_thousand_letters_is_cut(show: Open) -> None:
    with show(sample.hostile()) as one:
        longest = one.page.evaluate(
            "Math.max(...[...document.querySelectorAll('main bdi, .word, .mini')].map((one) => one.textContent.length))"
        )
        assert longest <= 2001
