"""Every page of research/results is made from its JSON file, and docs/report*.html by this program: pytest research."""

import json
from dataclasses import replace
from itertools import product
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.pairs import Items
from data.stories.frames import TEXTS
from extras.english.whose import Known
from probe import results as found
from probe.edits import EditedPairs
from probe.questions import HEADLINE
from probe.results import Estimate, Finding, Head
from research.because import BecauseResults
from research.calibration import CalibrationResults
from research.curve import CurveResults
from research.deciding import DecidingResults, measured
from research.decoders import DecoderResults
from research.example_reports import REPORTS, written_again
from research.gold import GoldResults
from research.induction import InductionResults
from research.it_cat import ItCatResults
from research.lab import LabResults
from research.meaning import PARTS, MeaningResults, parts_of
from research.measure import (
    RESULTS,
    Machine,
    json_text,
    listed,
    median_range,
    page_body,
    share_range,
    short_paths,
    value_cell,
)
from research.peers import PeerResults
from research.places import PlacesResults
from research.power import DOSES, N_SUBSETS, PowerResults, lost_by_dose, subsets
from research.review import ReviewResults, lost_by_others
from research.seeds import SeedsResults, question_means, seed_head
from research.speed import SpeedResults
from research.stages import StagesResults
from research.third_noun import UNSEEN, ThirdNounResults, forms, sentence
from research.whose import WhoseResults
from research.worlds import WorldsResults
from settings.typed_json import from_json
from tests.probe.test_carry import Circuit, circuit_pairs

PAGES: dict[str, Any] = {
    "because": BecauseResults,
    "calibration": CalibrationResults,
    "deciding": DecidingResults,
    "decoders": DecoderResults,
    "lab": LabResults,
    "link_head": SeedsResults,
    "one_layer": SeedsResults,
    "stages": StagesResults,
    "meaning": MeaningResults,
    "places": PlacesResults,
    "power": PowerResults,
    "third_noun": ThirdNounResults,
    "worlds": WorldsResults,
    "whose_short": SeedsResults,
    "whose_long": SeedsResults,
    "curve": CurveResults,
    "gold": GoldResults,
    "induction": InductionResults,
    "it_cat": ItCatResults,
    "it_cat_long": ItCatResults,
    "peers": PeerResults,
    "review": ReviewResults,
    "speed": SpeedResults,
    "whose": WhoseResults,
}


@pytest.mark.parametrize(("name", "schema"), PAGES.items())
def test_a_page_and_its_json_are_made_from_the_same_rows(name: str, schema: Any) -> None:
    text = (RESULTS / f"{name}.json").read_text()
    content = json.loads(text)
    machine = from_json(Machine, content.pop("environment"), name)
    results = from_json(schema, content, name)
    _, _, below_the_command = (RESULTS / f"{name}.md").read_text().partition("\n```\n\n")
    assert page_body(results, machine) == below_the_command
    assert json_text(results, machine) == text


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_a_published_report_is_what_the_program_writes_now(report: Path) -> None:
    html = report.read_text(encoding="utf-8")
    assert written_again(html) == html, "make reports"


def test_every_file_of_results_belongs_to_a_page_that_is_checked() -> None:
    assert {path.stem for path in RESULTS.iterdir()} == PAGES.keys()


@pytest.mark.parametrize(
    ("outcome", "measure", "untrained"), [("attention", "accuracy", {"block_accuracy": 0.25}), ("edge", "swap", {})]
)
def test_the_rows_of_a_seed_are_about_what_is_judged(outcome: str, measure: str, untrained: dict[str, float]) -> None:
    head = found.Tested([Head(0, 1)], {}, verdict="not established", level="E1")
    head_set = found.Tested(
        [Head(0, 1), Head(1, 0)], {measure: Estimate(0.9, 0.8, 1.0)}, verdict="supported", level="E3"
    )
    rules = dict.fromkeys(["nearest", "first", "subject", "most frequent", "last words"], 0.5)
    of_untrained = {name: Estimate(0.25) for name in ("accuracy", *untrained)}
    words: Any = {"question": "number", "description": "", "link": "", "outcome": outcome, "clusters": {}}
    parts = {HEADLINE: found.Part(n=8, values={}, rules={})}
    finding = Finding(
        **words,
        unit="set",
        head=head,
        set=head_set,
        n=8,
        smallest_p=0.0,
        untrained=of_untrained,
        rules=rules,
        parts=parts,
    )
    row = seed_head(3, finding)
    means = question_means([finding, finding], 2)
    assert (row.head, row.values[measure], row.verdict) == ("L0H1 + L1H0", Estimate(0.9, 0.8, 1.0), "supported")
    assert (means.supported, means.as_a_set, means.values[measure]) == (2, 2, 0.9)
    assert means.rules["nearest"] == 0.5 and means.untrained | untrained == means.untrained


def test_the_texts_of_cells_and_options() -> None:
    values = [Estimate(0.5, 0.25, 0.75), Estimate(nan), Estimate(0.1), None]
    assert [value_cell(value, ".1f") for value in values] == ["0.5 [0.2, 0.8]", "-", "0.1", "-"]
    assert median_range([3, 1, 2]) == "2.0 (1.0 to 3.0)"
    assert share_range(0, 200) == "[0.0%, 1.8%]"
    assert short_paths("texts=/a/b/c.txt,d/e.txt") == "texts=b/c.txt,d/e.txt"
    assert listed("a,b") == ["a", "b"] and listed("") == []


def test_the_sentence_about_annotated_antecedents_is_what_the_page_says() -> None:
    content = json.loads((RESULTS / "gold.json").read_text())
    del content["environment"]
    rows = [row for row in from_json(GoldResults, content, "gold").rows if row.part == "all"]
    assert [row.verdict for row in rows] == ["not established", "not established", "suggestive"]
    picks = " and ".join(f"{row.values['author'].value:.2f}".removeprefix("0") for row in rows[:2])
    assert f"pick the antecedent in {picks}" in (RESULTS.parent.parent / "docs/english.md").read_text()


@pytest.mark.parametrize(("knows", "part"), [("place", "place"), ("form", "form"), ("words", "words"), ("", "")])
def test_what_a_score_knows_is_found_in_its_part(knows: str, part: str) -> None:
    rng = np.random.default_rng(0)
    n = 2000
    place, form, words, noise = rng.normal(size=(4, n))
    is_nearest = place + form + words > 0
    known = Known(is_nearest, place, form[:, None], np.arange(n) // 4)
    subject = rng.choice([-1.0, 1.0], size=n)
    rule = {"place": place, "form": form, "words": words, "": np.zeros(n)}[knows]
    versions = rng.normal(size=(3, n)) + (0 if knows == "words" else rule)
    found = parts_of(rule + noise, versions, subject, known)
    assert sum(found[name].value for name in PARTS) == pytest.approx(found["whole"].value)
    for name in PARTS:
        if (knows, name) != ("words", "form"):  # the mean of the versions and the score knows some of the words
            assert ((found[name].low or 0) > 0) == (name == part), name


def test_a_sentence_with_a_third_animal_names_its_cause_by_verb_and_voice() -> None:
    rng = np.random.default_rng(0)
    assert len(forms()) == 12 + len(UNSEEN) == 21
    for name, frames in forms().items():
        for cause in "AB":
            text, nouns = sentence(str(rng.choice(frames)), cause, rng)
            [verb] = [word for word in text.split() if word in TEXTS["BY_FIRST"] + TEXTS["BY_SECOND"]]
            assert (verb in TEXTS["BY_FIRST"]) == ((cause == "A") != ("{CAUSED}" in name)), text
            assert set(nouns) >= set("ABC") and len(set(nouns.values())) == len(nouns)
            words = text.split()
            before = [slot for slot, noun in nouns.items() if words.index(noun) < words.index(verb)]
            assert ("C" in before) == (name.index("{C") < name.index("{CAUSE")), text


def test_a_dose_moves_from_nothing_to_all_that_a_head_carries() -> None:
    pairs = EditedPairs(Circuit(), Items(circuit_pairs(HEADLINE)), 4096)
    lost = lost_by_dose(pairs, [Head(1, 1)])
    moved, total = pairs.exchanged([[Head(1, 1)]], "carries")
    assert lost[:, -1] == pytest.approx(moved[:, 0]) and lost[:, 9] == pytest.approx(total / 2)  # all, and half
    assert (np.diff(lost, axis=1) > 0).all() and lost.shape[1] == len(DOSES)


def test_other_heads_carry_more_without_a_head_that_does_the_same() -> None:
    pairs = EditedPairs(Circuit(is_twice=True), Items(circuit_pairs(HEADLINE)), 4096)
    of_others, without, both = lost_by_others(pairs, [Head(1, 1)], [Head(1, 0)]) / pairs.clean.sum(axis=1)
    assert [share.mean() for share in (of_others, without, both)] == pytest.approx([0.5, 0, 1], abs=0.01)


def test_a_subset_has_pairs_of_its_frames_and_nouns_alone() -> None:
    pair = circuit_pairs(HEADLINE)[0]
    clusters = [(f"frame {frame}", f"noun {a}", f"noun {b}") for frame, a, b in product(range(6), range(8), range(8))]
    items = Items([replace(pair, clusters=labels) for labels in clusters])
    [everything] = subsets(items, 1)
    assert everything.tolist() == list(range(len(items)))
    some = list(subsets(items, 2))
    assert len({tuple(index) for index in some}) == N_SUBSETS
    for index in some:
        chosen = {pair.clusters for pair in items.take(index).pairs}
        assert len(index) == len(chosen) == 3 * 4 * 4
        assert [len({labels[i] for labels in chosen}) for i in range(3)] == [3, 4, 4]


@pytest.mark.parametrize("is_twice", [False, True])
def test_a_line_decides_only_where_no_other_head_does_the_same(is_twice: bool) -> None:
    cells = Items(circuit_pairs(HEADLINE)).cells
    found = measured(Circuit(is_twice=is_twice), cells)
    assert found["decided"] == (not is_twice)
    assert found["lost"] == pytest.approx(0 if is_twice else 0.84, abs=0.02)
