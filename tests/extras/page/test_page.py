"""The report page: it shows the numbers of its content, works offline and with the keyboard, and runs no data."""

import json
import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256

import pytest

from antecedent_lab import open_model
from extras.page.page import page
from extras.page.shown import Live
from probe.sentences import word_attention
from settings.errors import UserError
from settings.typed_json import to_json
from tests.extras.page import sample
from tests.extras.page.conftest import shown_weights

CONTENT = sample.content()
TEXT = page(CONTENT)


STORED = sample.content(live=False)
SENTENCES = {sentence.id: sentence for sentence in STORED.sentences}


def weights_of(name):
    return sample.unpacked(SENTENCES[name].weights, len(SENTENCES[name].words))  # [L, H, W, W]


def test_the_policy_allows_the_page_s_own_script_and_style_only():
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', TEXT)[1]
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        source = re.search(rf"<{tag}>(.*?)</{tag}>", TEXT, re.DOTALL)[1]
        assert f"{directive} 'sha256-{b64encode(sha256(source.encode()).digest()).decode()}'" in policy
    assert policy.startswith("default-src 'none'; ") and policy.count("sha256-") == 2
    assert not re.search(r"unsafe|wasm|blob:|https?:", policy)
    assert set(re.findall(r"https?://[^\s\"']*", TEXT)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(|fetch\(", source)


def test_hostile_texts_add_no_tag_no_attribute_and_no_script_and_the_json_no_markup(show):
    text = page(sample.hostile())
    embedded = re.search(r'id="content">(.*?)</script>', text, re.DOTALL)[1]
    assert json.loads(embedded) == json.loads(json.dumps(to_json(sample.hostile())))
    assert embedded.isascii() and not set("<>&") & set(embedded)
    names = "[...document.querySelectorAll('*')].flatMap((node) => [node.tagName, ...node.getAttributeNames()])"
    with show(TEXT, java_script_enabled=False) as plain:
        expected = {*plain.page.evaluate(names)}
    with show(text, java_script_enabled=False) as written:
        assert {*written.page.evaluate(names)} == expected
    with show(text) as view:
        for typed in (*sample.HOSTILE[:-1], "\ud800 lone", "x" * 6000, "\u2028\u2029"):
            view.type(typed)
            assert len(view.next_words()) == 5
        assert view.find("img, iframe, base").count() == 0
        assert view.page.evaluate("window.hacked") is None


def test_without_scripts_the_claim_and_the_tables_are_readable(show):
    with show(java_script_enabled=False) as view:
        assert "links a pronoun to its antecedent" in view.said("h1")
        view.click("#evidence > summary")
        cells = set(view.find("td, th").all_inner_texts())
        assert {"0.999 [0.969, 0.999]", "0.477 [0.439, 0.519]", "– not measured", "✓ met", "best simple rule"} <= cells
        assert not view.find("#stored").is_visible() and not view.find("#live").is_visible()


def test_stored_sentences_and_questions_are_chosen_from_lists(view):
    view.click("#evidence > summary")
    view.pick("L1H2")
    sentence = SENTENCES["worked-number-2"]
    they = sentence.words.index("They")
    view.find("#stored select").select_option(sentence.id)
    assert view.text() == sentence.text
    assert view.weights() == shown_weights(weights_of(sentence.id)[1, 2, they], they)
    view.type("The dog slept.")
    assert view.find("#stored select").input_value() == "–"

    # A question shows its claim and its head.
    question = view.page.get_by_label("Question")
    question.select_option(index=1)
    assert view.said("[data-question] .badge:visible").endswith("suggestive")
    question.select_option(index=2)
    assert view.picked() == "L{}H{}".format(*CONTENT.findings[2].place)


def test_without_a_live_model_the_lines_show_the_stored_weights(show):
    yours = [each for each in STORED.sentences if each.id == "yours-1"]
    live = Live(None, "No: <b>elsewhere</b>.")
    with show(replace(STORED, sentences=yours, live=live, findings=[])) as view:
        assert view.find("#live-text").count() == 0
        assert view.said(".live-reason") == "No: <b>elsewhere</b>."
        view.pick("L1H2")
        view.click("#live-lines [data-name=word-5]")
        assert view.weights() == shown_weights(weights_of("yours-1")[1, 2, 5], 5)


def test_a_layer_without_attention_has_no_heads_on_the_page(show):
    sentences = [replace(each, weights=[[], *each.weights[1:]]) for each in STORED.sentences]
    with show(replace(STORED, sentences=sentences, findings=[])) as view:
        names = [pick.get_attribute("data-name") for pick in view.find(".pick").all()]
        assert names == [f"L1H{head}" for head in range(sample.N_HEAD)]
        assert view.picked() == names[0]


def test_one_sentence_is_shown_in_a_frame_of_a_notebook(show, trained_run):
    opened = open_model(trained_run, device="cpu")
    text = "Lily met Tom. She"
    frame = opened.show(text)
    assert len(repr(frame)) < 200 and len(frame) < 200_000
    with show(f"<!doctype html><meta charset=utf-8>{frame._repr_html_()}") as view:
        weights = word_attention(opened.model, opened.tokenize(text))  # [L, H, W, W]
        shown = view.weights(view.page.frame_locator("iframe"))
        assert shown == shown_weights(weights[0, 0, -1], weights.shape[-1] - 1)
    with pytest.raises(UserError, match="has [0-9]+ tokens; the model reads"):
        opened.show(text * 200)
