"""The report page: it shows the numbers of its content, works offline and with the keyboard, and runs no data."""

import json
import re
from base64 import b64encode
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from data.typed_json import to_json
from probe.results import Head
from probe.sentences import EXAMPLE_BLOCK, TIRED_OR_SOFT
from report.page import PageContent, page
from tests.report import sample
from tests.report.browser import Markup, Opened, opened, running

CONTENT = sample.content()
Show = Callable[..., AbstractContextManager[Opened]]


browser = pytest.fixture(running, scope="module")


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Show:
    return lambda content=CONTENT, **settings: opened(browser, page(content), tmp_path, **settings)


def weights_of(name: str) -> Any:
    """Return the weights [L, H, W, W] that the content stores for a sentence."""
    sentence = next(sentence for sentence in CONTENT.sentences if sentence.id == name)
    return sample.unpacked(sentence.weights, (sample.N_LAYER, sample.N_HEAD, len(sentence.words)))


def head_scores(view: Opened) -> list[float]:
    """Return the number on the button of every head."""
    return [float(text) for text in view.page.locator("#heads-grid button").all_inner_texts()]


def word_weights(view: Opened) -> list[float]:
    """Return the weight printed after each word of the selected sentence."""
    texts = view.page.locator("#words button small").all_inner_texts()
    return [float(text) if text.strip() else 0.0 for text in texts]


# The file


def test_the_policy_allows_the_page_s_own_script_and_style_only() -> None:
    text = page(CONTENT)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        source = re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)[1]
        assert f"{directive} 'sha256-{b64encode(sha256(source.encode()).digest()).decode()}'" in policy
    assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy


def test_the_file_names_no_address() -> None:
    assert set(re.findall(r"https?://[^\s\"']*", page(CONTENT))) == {"http://www.w3.org/2000/svg"}


def test_the_script_never_parses_text_as_markup() -> None:
    script = re.search(r"<script>(.*?)</script>", page(CONTENT), re.DOTALL)[1]
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(|fetch\(", script)


def test_hostile_texts_add_no_tag_and_no_attribute() -> None:
    hostile, plain = Markup(page(sample.hostile())), Markup(page(CONTENT))
    assert set(hostile.tags) == set(plain.tags)
    assert {name for name, _ in hostile.attributes} == {name for name, _ in plain.attributes}
    assert not [name for name, _ in hostile.attributes if name.startswith("on")]


def test_the_embedded_json_holds_the_content_and_no_markup_and_the_page_is_utf8() -> None:
    text = page(sample.hostile())
    embedded = re.search(r'id="content">(.*?)</script>', text, re.DOTALL)[1]
    assert json.loads(embedded) == to_json(sample.hostile())
    assert embedded.isascii() and not set("<>&") & set(embedded)
    assert text.encode() == page(sample.hostile()).encode()


def test_the_tables_print_the_scores_of_the_content() -> None:
    text = page(CONTENT)
    for cell in (
        "0.999 [0.969, 0.999]",
        "all rules 0.500; agreement sieve 1.000",
        "0.477 [0.439, 0.519]",
        "– not measured",
        "✓ met",
        "-0.200",
    ):
        assert f">{cell}</bdi>" in text


# In a browser


@pytest.mark.parametrize("make", [sample.content, sample.hostile, sample.without_probe])
def test_the_page_opens_offline_without_errors_or_requests(show: Show, make: Callable[[], PageContent]) -> None:
    with show(make()) as view:
        assert view.page.locator("h1").is_visible()
        assert view.page.evaluate("window.hacked") is None
        view.check()


def test_without_scripts_the_claim_and_the_tables_are_readable(show: Show) -> None:
    with show(java_script_enabled=False) as view:
        text = view.page.locator("body").inner_text()
        assert "links a pronoun to its antecedent" in text and "0.999 [0.969, 0.999]" in text
        assert not view.page.locator("#explorer").is_visible()


def test_the_grid_shows_the_selected_score_of_every_head(show: Show) -> None:
    with show() as view:
        for score, label in (("accuracy", "accuracy"), ("block_accuracy", "block accuracy")):
            view.page.get_by_label("Colour by").select_option(label)
            expected = sum(CONTENT.questions[0].heads[score], [])
            assert head_scores(view) == pytest.approx(expected, abs=0.0051)


def test_the_cards_print_the_weights_of_the_selected_head(show: Show) -> None:
    with show() as view:
        view.page.locator("[data-head=L1H2]").click()
        label = view.page.locator(".card").first.get_attribute("aria-label")
        query, antecedent, distractor = sample.positions(EXAMPLE_BLOCK[0])
        row = weights_of("number-1")[1, 2, query]
        assert label.endswith(f"cat {row[antecedent]:.2f}, buses {row[distractor]:.2f}")


def test_a_click_on_a_word_shows_its_row_of_attention(show: Show) -> None:
    with show() as view:
        view.page.locator("#words button").nth(6).click()
        assert word_weights(view) == pytest.approx(weights_of("number-1")[0, 1, 6], abs=0.0051)


def test_the_matrix_has_a_square_for_each_word_and_earlier_word(show: Show) -> None:
    with show() as view:
        n_words = len(CONTENT.sentences[0].words)
        assert view.page.locator(".matrix rect:not(.frame)").count() == n_words * (n_words + 1) // 2


def test_a_click_in_the_matrix_colours_the_heads_by_that_weight(show: Show) -> None:
    with show() as view:
        view.page.get_by_label("Colour by").select_option("attention weight")
        view.page.locator(".matrix rect").nth(1).click()  # row 1, column 0
        assert head_scores(view) == pytest.approx(weights_of("number-1")[:, :, 1, 0].ravel(), abs=0.0051)


def test_the_slider_shows_the_scores_of_that_step(show: Show) -> None:
    with show() as view:
        step = 3
        view.page.locator("#step").fill(str(step))
        accuracy = CONTENT.training["curves"]["number"]["accuracy"][step]
        assert head_scores(view) == pytest.approx(sum(accuracy, []), abs=0.0051)


def test_the_chart_of_the_resolved_share_shows_values_below_minus_one(show: Show) -> None:
    with show() as view:
        path = view.page.locator("figure", has_text="Resolved share").locator("path.head").first.get_attribute("d")
        heights = [float(point.split()[1]) for point in path.removeprefix("M").split("L")]
        assert heights[0] > heights[10] > heights[-1]


def test_a_prefix_of_natural_text_is_shown_with_the_head_that_was_chosen_on_such_text(show: Show) -> None:
    prefix = sample.sentence("natural_gender_other-1", "natural_gender_other", "The fox met the hen. She")
    content = replace(CONTENT, sentences=[*CONTENT.sentences, replace(prefix, head=Head(1, 0))])
    with show(replace(content, opening="natural_gender_other-1")) as view:
        about = view.page.locator("#sentence")
        assert "Attention of L1H0 from “She”" in about.inner_text()
        sentences = view.page.get_by_role("combobox", name="Sentences")
        sentences.select_option("One block")
        assert "Attention of L0H1 from" in about.inner_text()
        sentences.select_option("Natural text: gender, other entity")
        assert "Attention of L1H0 from" in about.inner_text()
    with show(content) as view:
        assert "Attention of L0H1 from" in view.page.locator("#sentence").inner_text()


def test_the_charts_have_the_heads_chosen_on_natural_text_and_the_answers(show: Show) -> None:
    with show() as view:
        charts = view.page.locator("#charts figure")
        natural = charts.filter(has_text="gender contrast")
        assert natural.locator("path.head:not([d='M0 4H18'])").count() == 1
        keys = natural.locator(".key").all_inner_texts()
        assert keys == ["other heads", "L0H1, matching entity", "L1H0, other entity"]
        shares = charts.filter(has_text="share exchanged")
        assert shares.locator(".key").all_inner_texts() == ["other heads", "L1H0"]
        assert charts.filter(has_text="the model's choice 1.00").count() == 1
        assert charts.filter(has_text="The model's answers").count() == 0
        view.page.get_by_label("Question").select_option(index=1)  # without a resolved share
        assert charts.filter(has_text="The model's answers 1.00").count() == 1
        assert view.page.locator("#training .lead").count() == 0  # no weights of earlier steps


def test_choosing_a_question_shows_its_claim_its_head_and_its_sentences(show: Show) -> None:
    with show() as view:
        view.page.get_by_label("Question").select_option(index=1)
        assert view.page.locator("[data-question] .badge:visible").inner_text().endswith("suggestive")
        assert view.page.locator(".card").count() == len(TIRED_OR_SOFT)


def test_a_link_opens_the_page_at_a_sentence(show: Show) -> None:
    with show() as view:
        view.page.goto(f"{view.url}#yours-1")
        view.page.reload()
        assert view.page.locator(".card[aria-pressed=true]").inner_text().startswith("The fox")


def test_arrow_keys_move_between_heads_and_enter_selects(show: Show) -> None:
    with show() as view:
        view.page.locator("[data-head=L0H1]").focus()
        for key in ("ArrowDown", "ArrowRight", "Enter"):
            view.page.keyboard.press(key)
        assert view.page.locator("[data-head=L1H2]").get_attribute("aria-pressed") == "true"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_passes_an_accessibility_check(show: Show, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    with show(color_scheme=scheme) as view:
        violations = axe.Axe().run(view.page).response["violations"]
        assert [violation["id"] for violation in violations] == []
