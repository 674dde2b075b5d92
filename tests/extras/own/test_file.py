"""Files with a question of the user's own."""

import json
import re
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from antecedent_lab import open_model
from antecedent_lab.sources import source_of
from extras.own import file as own_file
from extras.own.file import load_question
from extras.own.source import own_source
from probe.config import ProbeConfig
from probe.results import ProbeResults
from research import induction
from settings.errors import UserError
from tests.program import ROOT, SHORT, SMALL, run_program

ABOUT = {"question": "names", "description": "she or he"}
PATTERN = "Here {A} met {B}. <She|He> [slept|ran]"
# Two frames crossed with two pairs of words for either part
LINES: list[dict[str, Any]] = []
for part, places, pairs in (
    ("test", ["Here", "There"], [["Ann", "Tom"], ["Lily", "Ben"]]),
    ("dev", ["Now", "Then"], [["Mia", "Max"], ["Sue", "Sam"]]),
):
    for place, words in product(places, pairs):
        LINES.append({"pattern": PATTERN.replace("Here", place), "words": words, "split": part})


def load(folder, *lines):
    path = folder / "my names.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return load_question(path)


def marked(text):
    """Return a text with + behind antecedents, - behind distractors, and the marks of query and payoff."""
    link = text.link
    marks = dict.fromkeys(link.antecedents, "{}+") | dict.fromkeys(link.distractors, "{}-") | {link.query: "<{}>"}
    if link.payoff:
        marks[link.payoff] = "[{}]"
    written = text.text
    for (start, end), mark in sorted(marks.items(), reverse=True):
        written = written[:start] + mark.format(written[start:end]) + written[end:]
    return written


@pytest.mark.parametrize(("pattern", "texts"), [
    ("At {one|two}, {A} met {B}. <She|He> ran",
     ["At one, Ann+ met Tom-. <She> ran", "At two, Ann- met Tom+. <He> ran",
      "At one, Tom- met Ann+. <She> ran", "At two, Tom+ met Ann-. <He> ran"]),
    ("{A} and {B} met. {Y} gave a ball <to> [{X}]",
     ["Ann+ and Tom- met. Tom- gave a ball <to> [Ann]", "Ann- and Tom+ met. Ann- gave a ball <to> [Tom]",
      "Tom- and Ann+ met. Tom- gave a ball <to> [Ann]", "Tom+ and Ann- met. Ann- gave a ball <to> [Tom]"]),
    (["{A} saw {B}. <She|He>", "{A} was seen by {B}. <She|He>"],
     ["Ann+ saw Tom-. <She>", "Ann- saw Tom+. <He>", "Tom- was seen by Ann+. <She>", "Tom+ was seen by Ann-. <He>"]),
])  # fmt: skip
def test_a_line_is_both_orders_of_the_words_times_which_is_meant(pattern, texts, tmp_path):
    own = load(tmp_path, *LINES, {"pattern": pattern, "words": ["Ann", "Tom"], "split": "test"})
    assert [marked(text) for text in own.test[-4:]] == texts
    assert [(text.order, text.meant) for text in own.test[-4:]] == [*product((0, 1), repeat=2)]
    assert {text.holdout for text in own.dev} == {"iid"} and {text.holdout for text in own.test} == {"headline"}


def test_the_first_line_may_describe_the_question(tmp_path):
    own = load(tmp_path, *LINES)
    assert (own.name, own.description, own.n_left_out) == ("my names", "my names.jsonl", 0)
    own = load(tmp_path, ABOUT, "", *LINES)
    assert (own.name, own.description, own.head_type) == (*ABOUT.values(), "")
    assert load(tmp_path, ABOUT | {"head_type": "induction"}, *LINES).head_type == "induction"


@pytest.mark.parametrize("answers", [None, [["slept", "sat"], ["ran"]]])
def test_answers_are_the_payoffs_or_the_words_that_are_given(answers, tmp_path):
    links = [text.link for text in load(tmp_path, LINES[0] | {"answers": answers}, *LINES[1:]).test[:4]]
    first, second = map(tuple, answers or [["slept"], ["ran"]])
    assert [(link.answers, link.foils) for link in links] == [(first, second), (second, first)] * 2


def test_controls_are_texts_of_the_test_part_without_the_link(tmp_path):
    lines = [line | {"control": line["pattern"].replace("met", "passed")} for line in LINES]
    own = load(tmp_path, *lines)
    assert [marked(text) for text in own.control] == [marked(text).replace("met", "passed") for text in own.test]
    assert {text.holdout for text in own.control} == {"control"} and own.control[0].frame == own.test[0].frame
    assert own.check_lines(2000)[3] == "control: 4 blocks without the link"
    with pytest.raises(UserError, match="line 4: give all lines the field control, or none"):
        load(tmp_path, *lines[:3], LINES[3])


NO_PATTERNS = [
    "{A} met {B}. She", "{A} met {C}. <She>", "{X} met {Y}. <She>", "{A} met. <She> saw {B}", "{A} met {B}s. <She>",
    "{A} met {B}. [ran] <She>", "{A} met {B}. <>", "{A} met {B}. <a|b|c>", "{A} met {B}. <She> <ran>",
]  # fmt: skip


@pytest.mark.parametrize(("change", "problem"), [
    *(({"pattern": text}, "a pattern has {A} and later {B}") for text in NO_PATTERNS),
    ({"pattern": [PATTERN]}, "patterns: 1 values instead of 2"),
    ({"words": ["Ann", "a b"]}, "words must be two different words"),
    ({"words": ["Ann", "ann"]}, "words must be two different words"),
    ({"split": "train"}, "split must be dev or test"),
    ({"control": LINES[2]["pattern"]}, "control is the pattern itself"),
    ({"pattern": "{A} met {B}. <She>", "answers": [["a"], ["b"]]}, "answers need the [payoff]"),
    ({"answers": [["sat"], ["ran"]]}, "'slept' must be an answer"),
    ({"pattern": "{A} met {B}. <She>"}, "nothing up to the <query> says"),
    ({"pattern": "{A} met {B}. <She|She>"}, "nothing up to the <query> says"),
    ({"pattern": "{A} met {B}. <She> [ran]"}, "'ran' must be an answer"),
    # The same block again, a word in other letters, and a frame with two names
    ({"pattern": PATTERN.replace(" met", "  met"), "words": ["Ann", "Tom"]}, "the block is there already"),
    ({"pattern": "Here {A} met {B}. <He|She> [ran|slept]", "words": ["Tom", "Ann"]}, "the block is there already"),
    ({"words": ["ann", "Zoe"]}, "'ann' has the word 'ann', but 'Ann' at "),
    ({"pattern": PATTERN, "words": ["Zoe", "Bob"], "frame": "other"}, "'here _ met _.' has the frame 'other'"),
])  # fmt: skip
def test_a_wrong_line_is_named(change, problem, tmp_path):
    with pytest.raises(UserError, match=re.escape(f"line 3: {problem}")):
        load(tmp_path, *LINES[:2], LINES[2] | change)


@pytest.mark.parametrize(("lines", "problem"), [
    (["[" * 100_000], "line 1: not JSON"),
    (['{"pattern": "a \\ud800"}'], "line 1: not JSON"),
    ([ABOUT | {"colour": "red"}], "unknown field colour"),
    ([{"words": ["Ann", "Tom"]}], "line 1: no field pattern"),
    ([ABOUT | {"head_type": "other"}], "head_type: 'other' is not previous or induction"),
    ([ABOUT | {"question": "a\0b"}], "question and description must be one line of text"),
    (LINES[:5], "1 dev blocks, at least 2 are needed"),
    ([*LINES, LINES[0] | {"words": ["Mia", "Max"], "split": "dev"}], "share the frame 'here _ met _.'"),
    ([*LINES, LINES[-1] | {"words": ["Ann", "Tom"]}], "dev and test share the word 'Ann'"),
])  # fmt: skip
def test_a_wrong_file_is_refused(lines, problem, tmp_path):
    with pytest.raises(UserError, match=problem):
        load(tmp_path, *lines)


def test_a_file_with_too_many_blocks_is_not_read_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(own_file, "MOST_BLOCKS", 4)
    with pytest.raises(UserError, match="line 5: a question has at most 4 blocks"):
        load(tmp_path, *LINES[:5], "no JSON")


def test_what_a_file_can_show_is_listed_with_its_counts(tmp_path):
    crossed = []
    for i, j in product(range(12), repeat=2):
        crossed.append({"pattern": f"{'x' * i} {{A}} met {{B}}. <She|He>", "words": [f"Ann{j}", f"Tom{j}"]})
    own = load(tmp_path, ABOUT, *crossed)
    for line, facts in zip(own.check_lines(2000), (
        "names: she or he",
        "dev     16 blocks choose a head: 4 frames, 4 and 4 words",
        "test    64 blocks make the verdict: 8 frames, 8 and 8 words",
        "smallest p that is possible: 0.0039;",
        "note: without a [payoff]",
        "note: 64 of 144 blocks are left out",
    ), strict=True):  # fmt: skip
        assert line.startswith(facts)
    assert "possible: 0.0099;" in own.check_lines(100)[3]
    both_sides = []  # six words, of which two stand on both sides
    for split, i, j in product(("dev", "test"), range(8), range(4)):
        pattern = f"{split[0] * (i + 1)} {{A}} met {{B}}. <She|He>"
        both_sides.append({"pattern": pattern, "words": [f"{split}{j}", f"{split}{j + 2}"], "split": split})
    _, _, test_line, smallest, *_ = load(tmp_path, *both_sides).check_lines(2000)
    assert "8 frames, 6 and 6 words" in test_line and "possible: 0.0156;" in smallest
    repeated = load(tmp_path, LINES[0] | {"pattern": "Here {A} met {B}. {X} was sad <because>"}, *LINES[1:])
    *_, few, lacking, place = repeated.check_lines(100)
    assert few.startswith("note: give test 8 frames and 8 words of each side")
    assert lacking.startswith("note: 4 of 32 texts have no answers")
    assert place.startswith("note: In 2 of 16 pairs {X} stands before the query")


def test_the_type_of_head_that_a_question_asks_for_is_no_reason_against_it(trained_run, tmp_path):
    opened = open_model(trained_run, device="cpu")
    question = load_question(ROOT / "docs/questions/induction.jsonl")
    of_each = {}
    for head_type in ("induction", ""):
        of_each[head_type] = own_source(opened, replace(question, head_type=head_type)).questions
    assert {name: [each.exclusions for each in found] for name, found in of_each.items()} == {
        "induction": [("previous", "value_contrast")], "": [("previous", "induction", "value_contrast")]
    }  # fmt: skip


def test_the_question_about_induction_is_what_its_program_writes():
    written = (ROOT / "docs/questions/induction.jsonl").read_text()
    assert written == "".join(json.dumps(line) + "\n" for line in induction.lines())
    question = load_question(ROOT / "docs/questions/induction.jsonl")
    for text in (*question.dev, *question.test):
        words, link = text.text.split(), text.link
        last = text.text[slice(*link.query)]
        antecedent, distractor = (text.text[slice(*span)] for span in (link.antecedents[0], link.distractors[0]))
        assert words[words.index(last) + 1] == antecedent == link.answers[0] != distractor
        assert words.count(last) == 2 and words.count(distractor) == 1  # the answer stands at the end once more


@pytest.mark.slow
def test_heads_of_the_second_layer_form_in_words_that_come_again_and_one_layer_has_none(tmp_path):
    places = [f"cache_dir={tmp_path / 'cache'}", "threads=2"]
    for n_layer, verdict in ((2, "supported"), (1, "not established")):
        run = tmp_path / str(n_layer)
        arguments = [f"model.n_layer={n_layer}", "max_steps=200", f"out={run}", *places]
        trained = run_program("train.py", "experiment=induction", *arguments)
        assert trained.status == 0, trained.err
        *_, accuracy = re.findall(r"induction L\d+H\d accuracy (\S+) ", trained.out)
        evaluated = run_program("eval.py", f"run={run}", *places)  # asks the same question
        assert evaluated.status == 0, evaluated.err
        (finding,) = ProbeResults.from_json(json.loads((run / "probe/probe.json").read_text())).findings
        assert (finding.question, finding.verdict) == ("induction", verdict)
        if verdict == "supported":
            assert float(accuracy) > 0.9 and {head.layer for head in finding.judged.heads} == {1}
            page = (run / "probe/report.html").read_text()
            assert "experiment=induction" in page and "items=" not in page.split("experiment=induction")[1][:200]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["items=nowhere.jsonl"], "items=nowhere.jsonl: no such file; give FILE.jsonl"),
        (["items=docs/probe.md"], "items=docs/probe.md: no such file; give FILE.jsonl"),
        (["items=docs/questions/er_sie.jsonl"], "words that are read or answered are not in this model's vocabulary"),
        (["items=docs/questions/er_sie.jsonl", "probe_sequences=0"], "words that are read or answered"),
        (["model.context_length=16", "data=text"], "items=docs/questions/induction.jsonl: has 1"),
    ],
)
def test_a_question_that_a_run_cannot_watch_is_refused_before_a_file_is_written(cache, tmp_path, arguments, problem):
    given = ["experiment=induction", *SHORT, "probe_sequences=8", "data.n_documents=100", *arguments, cache]
    if "data=text" in arguments:
        (tmp_path / "text.txt").write_text(" ".join(induction.WORDS) * 40)
        given = [each for each in given if "n_documents" not in each]
        given += ["data.tokenizer=words", "data.vocab_size=1000", f"data.path={tmp_path / 'text.txt'}"]
    out = tmp_path / "run"
    assert problem in run_program("train.py", *given, f"out={out}").error
    assert not (out / "config.json").exists()


def test_a_run_whose_file_has_moved_says_so_and_can_go_on_with_another(cache, tmp_path):
    moved, kept = tmp_path / "moved.jsonl", ROOT / "docs/questions/induction.jsonl"
    moved.write_text(kept.read_text())
    run = tmp_path / "run"
    new = ["experiment=induction", *SHORT, "probe_sequences=8", "data.n_documents=100", f"items={moved}", cache]
    assert run_program("train.py", *new, f"out={run}").status == 0
    moved.unlink()
    asked = ["eval.py", f"run={run}", "probe.n_bootstrap=100", "probe.n_untrained=2", cache]
    assert run_program(*asked).error == f"{run}: asks items={moved}, which is not there; give items=FILE.jsonl"
    assert run_program(*asked, f"items={kept}").status == 0
    again = ["train.py", f"out={run}", "resume=true", "max_steps=5", cache]
    assert "moved.jsonl" in run_program(*again).error
    assert run_program(*again, f"items={kept}").status == 0
    assert run_program(*asked).status == 0  # it asks the new file


def test_a_run_on_stories_watches_a_question_beside_its_own_and_is_asked_its_own(cache, tmp_path):
    run = tmp_path / "run"
    items = tmp_path / "cats.jsonl"
    lines = []
    for part, places in (("dev", ["sat near", "stood beside"]), ("test", ["rested behind", "stayed close to"])):
        for place in places:
            pattern = f"One sunny day, the {{A}} {place} the {{B}}. <It|They>"
            lines.append(
                {"pattern": pattern, "words": ["cat", "buses"] if part == "dev" else ["dog", "cars"], "split": part}
            )
    items.write_text("".join(json.dumps(line) + "\n" for line in lines))
    trained = run_program("train.py", *SMALL, "probe_sequences=8", f"items={items}", f"out={run}", cache)
    assert trained.status == 0 and {"number", "cats"} <= {*re.findall(r"  (\w+) L\dH\d ", trained.out)}
    found = source_of(open_model(run, device="cpu"), ProbeConfig(), cache.removeprefix("cache_dir="))
    assert {question.name for question in found.questions} == {"verb", "number", "gender"}
