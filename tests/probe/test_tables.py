"""What is shown of results: tables, lines, files, pictures for TensorBoard, and the content of the page."""

import math
import re
import shlex
from dataclasses import replace

import numpy as np
import pytest

from data.words import word_spans
from extras.page import live
from extras.page.content import MAX_SENTENCE_WEIGHTS, page_content, within_size
from extras.page.live import ENGLISH_TEXT, check_live, live_content
from probe import tables
from probe.config import ProbeConfig
from probe.questions import HEADLINE
from probe.results import MEASURES, NO_BAR, Criterion, Estimate, Head, Part, Shown
from probe.sentences import TokenizedText
from probe.tables import finding_tables, number, sentence_lines
from settings.errors import UserError
from tests.extras.page import sample
from tests.extras.page.sample import finding, results
from training.metrics import WeightHistory

NUMBER, EDGE = map(finding, ("number", "next_pronoun_gender"))


def test_a_finding_has_a_table_of_everything_that_was_measured():
    titles = [table.title for table in finding_tables(EDGE)]
    assert titles == ["Criteria, fixed in advance", "Measures", "Parts of the tested texts", "Heads together"]
    assert len(finding_tables(replace(NUMBER, curve=[], parts={}))) == 2
    with_set = replace(NUMBER, set=replace(NUMBER.head, heads=[Head(0, 1), Head(1, 0)]))
    measures = finding_tables(with_set)[1]
    assert measures.header[2:4] == ["set L0H1 + L1H0 [95 %]", "untrained models [range]"]
    [accuracy] = [row for row in measures.rows if row[0] == "accuracy"]
    assert accuracy[1:3] == ["0.999 [0.969, 0.999]"] * 2
    claims = tables.claims_markdown(results(replace(with_set, notes=["Of 200 heads"])))
    assert "**Attention head L0H1 links" in claims and "- Of 200 heads" in claims


@pytest.mark.parametrize(("value", "shown"), [
    (Estimate(0.9955, 0.98, 1.0), "0.996 [0.980, 1.000]"),
    (0.945455, "0.945"),
    (-0.0004, "-0.0004"),
    (-0.00001, "0.000"),
    (Estimate(math.nan, math.nan, 0.0), "–"),
    (None, "–"),
])  # fmt: skip
def test_a_number_has_three_digits_and_no_value_a_dash(value, shown):
    assert number(value) == shown


def test_a_bar_above_every_accuracy_says_that_no_head_can_pass():
    for bar, shown in ((1.055, NO_BAR), (1.0, NO_BAR), (0.8, "0.800")):
        values = {"accuracy": Estimate(1.0), "bar": Estimate(bar)}
        part = Part(n=8, values=values, rules={})
        found = replace(NUMBER, head=replace(NUMBER.head, values=values), parts={"iid": part})
        for table in finding_tables(found, verbose=True)[1:3]:
            assert [row[1] for row in table.rows if row[0] == "bar"] == [shown]


def test_the_evidence_names_every_rule_and_explains_each_term_where_it_stands():
    rules = dict.fromkeys(("nearest", "first", "subject", "uniform", "most frequent", "fixed offset"), 0.5)
    criteria = [Criterion("causal_edge", "E3", {"specificity_low": 0.6}, {"specificity_low": "above 0"}, "met", "")]
    criteria.append(Criterion("selective", "", {"selectivity": 0.5}, {"selectivity": "above 0.15"}, "met", ""))
    found = replace(NUMBER, head=replace(NUMBER.head, criteria=criteria), rules=rules)
    table, measures, *_ = finding_tables(found)
    assert table.rows[0][2] == "edge specificity, lower end 0.600"
    for term in ("selectivity", "specificity"):
        assert f"{MEASURES[term].label}: {MEASURES[term].meaning}" in table.note
    assert "E3: the model's answer depends on this attention edge" in table.note
    named = {row[0]: row[1:] for row in measures.rows if row[0].startswith("rule: ")}
    assert [*named] == [f"rule: {name}" for name in rules] and {cells[0] for cells in named.values()} == {"0.500"}
    assert named["rule: uniform"][-1] != named["rule: nearest"][-1]


@pytest.mark.parametrize("verbose", [False, True])
def test_rows_of_parts_that_repeat_measures_are_verbose(verbose):
    rules = dict.fromkeys(("nearest", "first"), 0.5)
    head = replace(NUMBER.head, values={"accuracy": Estimate(1.0), "lead": Estimate(0.5), "contrast": Estimate(3.0)})
    parts = {
        "iid": Part(n=8, values=head.values | {"contrast": Estimate(4.0)}, rules=rules),
        HEADLINE: Part(n=8, values=head.values, rules=rules),
    }
    found = replace(NUMBER, head=head, rules=rules, parts=parts)
    _, measures, of_parts, _ = finding_tables(found, verbose)
    of_rules = ["best simple rule", "rule: nearest", "rule: first"]
    repeated = ["lead"] if verbose else []
    assert [row[0] for row in measures.rows] == ["accuracy", "contrast", "lead", *of_rules]
    shown = of_rules if verbose else of_rules[:1]
    assert [row[0] for row in of_parts.rows] == ["texts", "accuracy", "contrast", *repeated, *shown]
    assert ["best simple rule", "0.500 (nearest, of 2)", "0.500 (nearest, of 2)"] in of_parts.rows


def with_answers(**values):
    return replace(NUMBER, parts={HEADLINE: Part(n=8, values=values, rules={})})


@pytest.mark.parametrize(("found", "title", "shown"), [
    (with_answers(answer_accuracy=Estimate(0.81, 0.7, 0.9)), "answer", "0.81"),
    (with_answers(), "answer", "–"),
    (replace(EDGE, rules={"nearest": 0.72, "last words": 0.75, "first": 0.5}), "author's entity",
     "0.50 (last words 0.75)"),
])  # fmt: skip
def test_the_summary_has_the_models_own_accuracy_and_the_best_rule(found, title, shown):
    header, row, *_ = tables.summary_lines(results(found), False)
    assert row[header.index(title) :].split("  ")[0] == shown


@pytest.mark.parametrize(("share", "is_told"), [(0.615, True), (0.9, False), (1.0, False)])
def test_the_summary_says_if_another_head_is_often_chosen(share, is_told):
    values = NUMBER.head.values | {"chosen_again": Estimate(share)}
    found = replace(NUMBER, head=replace(NUMBER.head, values=values))
    again = f"of resampled choosing sets choose {NUMBER.place} as the best single head"
    line = f"  number: 62% {again}."
    assert (line in tables.summary_lines(results(found), False)) == is_told
    assert again in tables.claims_markdown(results(found))


@pytest.mark.parametrize("effects", [None, {6: np.arange(12.0).reshape(3, 4)}])
def test_the_attention_of_a_sentence_names_nouns_and_heads(effects):
    weights = np.zeros((3, 4, 7, 7))
    weights[..., 6, :] = [0, 0.25, 0.125, 0, 0.5, 0, 0.125]
    written = "fox saw the fox . it"
    spans = word_spans(written)
    text = TokenizedText(written, list(range(7)), spans, spans)
    lines = sentence_lines(text, weights, {6: ["fox"]}, {Head(0, 0): ["number"]}, effects)
    assert lines[1].startswith("at “it”: ") and lines[1].endswith(" the weights on fox")
    heads = [" ".join(line.split()) for line in lines if line.startswith("  L")]
    names = [f"L{layer}H{head}" for layer, head in np.ndindex(3, 4)]
    assert [head.split()[0] for head in heads] == (names if effects is None else [*names[:1:-1], "L0H0"])
    chosen = heads[0] if effects is None else heads[-1]
    assert re.fullmatch(r"L0H0( 0\.00)? fox 0.75 \| fox 0.50 fox 0.25 saw 0.12 ← chosen for number", chosen)


RUN, HISTORY = sample.opened_run()
EXTERNAL = replace(RUN, settings=None, transformer=None)
MEDIAN = Shown(kind="median", text="The cat sat. It slept.", query=5, word="")
OWN = replace(NUMBER, file="own.jsonl", examples=[MEDIAN])


def test_the_page_of_a_run_has_its_notes_and_the_sentences_of_its_findings():
    content = page_content(RUN, results(OWN, warnings=["A warning."]), None, ["The dog slept."], ["A note."])
    assert content.notes == ["A note.", "A warning."]
    yours, median = content.sentences
    assert (yours.id, median.id, median.words[median.query]) == ("yours-1", "median-number-1", "It")
    untested = page_content(RUN, None, None)
    assert untested.heading == "What each head attends to" and untested.notes == list(RUN.began)


def test_the_live_model_begins_with_what_was_tested():
    for run, tested, text in (
        (RUN, NUMBER, live.STORY_TEXT),
        (RUN, OWN, "The cat sat. It"),
        (replace(RUN, data=None), EDGE, ENGLISH_TEXT),
    ):
        assert live_content(run, results(tested), None, None, []).model.text == text


def test_the_page_has_the_commands_that_make_it_again():
    tested = results(OWN, settings=ProbeConfig(n_untrained=2), data={"path": "a b.txt"})
    train, probe = page_content(replace(RUN, arguments=["data.path=c d.txt"]), tested, None).run.commands
    assert shlex.split(train)[1:] == ["train.py", "data.path=c d.txt"]
    assert shlex.split(probe)[1:] == [
        "eval.py", "run=runs/default", "path=a b.txt", "items=own.jsonl", "probe.n_untrained=2",
    ]  # fmt: skip
    assert page_content(RUN, tested, None).run.commands == [probe]  # of an earlier version, without its arguments


def test_a_model_that_the_page_cannot_run_has_a_reason():
    for model, reason in (
        (EXTERNAL, "only models of train.py and Llamas"),
        (replace(RUN, n_parameters=3_000_001), "up to 3,000,000 weights, and this one has 3,000,001"),
    ):
        for wanted in (None, True):
            content = live_content(model, None, None, wanted, [])
            assert content.model is None and reason in content.reason
        with pytest.raises(UserError, match=f"^live=true: .*{reason}"):
            check_live(model, True)
        check_live(model, None)


def test_a_small_model_is_exact_and_a_larger_one_rounded(monkeypatch):
    history = WeightHistory(
        [*HISTORY.steps, RUN.step, RUN.step + 1], [*HISTORY.data, "", ""]
    )  # the best is not the last
    model = live_content(RUN, None, history, None, []).model
    assert model.type == "float32" and model.earlier == HISTORY
    assert live_content(RUN, None, None, False, []) == live.Live(None, "")
    monkeypatch.setattr(live, "MAX_WEIGHTS_BY_DEFAULT", RUN.n_parameters - 1)
    monkeypatch.setattr(live, "MAX_HISTORY_WEIGHTS", RUN.n_parameters - 1)
    assert "live=true writes it" in live_content(RUN, None, None, None, []).reason
    assert live_content(RUN, None, None, True, []).model.type == "float16"


def test_sentences_and_earlier_steps_beyond_the_limit_are_left_out_where_they_are_closest():
    steps = [0, 5, 11, 22, 44, 88, 175, 350, 700, 1050]  # of the default run
    history = WeightHistory(steps, ["x" * (live.MAX_HISTORY_CHARACTERS // 8)] * len(steps))
    omissions: list[str] = []
    earlier = live_content(replace(RUN, step=1400), None, history, None, omissions).model.earlier
    assert earlier.steps == [0, 22, 44, 88, 175, 350, 700, 1050] and len(earlier.data) == 8
    small = replace(sample.content().sentences[0], weights=[[[1]]])
    big = replace(small, weights=[[[1] * MAX_SENTENCE_WEIGHTS]])
    assert within_size([small, big, small], omissions) == [small, small]
    of_steps, of_sentences = omissions
    assert of_steps.startswith("the weights at 2 of 10 steps") and of_sentences.startswith("1 sentences")
