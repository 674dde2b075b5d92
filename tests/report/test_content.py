"""The page's content: cut to size with every cut said, finite, and whole where little is known."""

from typing import Any

import pytest

from data.stories.lint import word_spans
from data.tokenizer import with_end
from probe.sentences import Sentence
from probe.verdict import MAX_P
from report import content as room
from report.content import Found, content, rounded
from report.sentences import Pen, own, showcase
from tests.probe.story_items import planted, tokenizer

RUN = {"name": "x", "step": 7}


def sentence(name: str, n_characters: int, kept: int | None = None) -> dict[str, Any]:
    return {
        "id": name,
        "group": "own",
        "text": name,
        "weights": {"kept": kept, "data": "A" * n_characters},
        "word_weights": None,
    }


def shown(found: dict[str, Any]) -> list[str]:
    return [one["id"] for one in found["sentences"]]


def test_nothing_known_gives_a_page_all_the_same() -> None:
    found = content(Found(run=RUN, sentences=[]))
    assert found["questions"] == found["sentences"] == found["caps"] == [] and found["emergence"] is None
    assert found["run"] == RUN and found["lab"] is found["seeds"] is None


def test_sentences_without_room_are_left_out_group_by_group_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_MOST_SENTENCES", 1000)
    groups = [[sentence(f"{name}-{i}", size) for i in range(2)] for name, size in (("a", 400), ("b", 150), ("c", 100))]
    found = content(Found(run=RUN, sentences=groups))
    assert shown(found) == ["a-0", "a-1", "c-0", "c-1"]
    (cap,) = found["caps"]
    assert cap.startswith("2 sentences are left out")


def test_what_a_long_text_keeps_is_said() -> None:
    groups = [[sentence("a", 4, kept=9)], [sentence("b", 4, kept=5)], [sentence("c", 4)]]
    (cap,) = content(Found(run=RUN, sentences=groups))["caps"]
    assert "its 5 to 9 largest weights" in cap
    (cap,) = content(Found(run=RUN, sentences=groups[:1]))["caps"]
    assert "its 9 largest weights" in cap


@pytest.mark.parametrize(("most", "steps"), [(200, list(range(20))), (100, [*range(0, 20, 2), 19])])
def test_a_film_is_thinned_to_every_nth_step_and_keeps_its_end(
    most: int, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "_MOST_FILM", most)
    data = [[f"AAAAAAAA{step:02}"] for step in range(20)]
    film = {"texts": [{"text": "It ran"}], "steps": list(range(20)), "data": data}
    metrics = [{"split": "validation", "step": 0, "loss": 1.0}]
    some = [sentence("It ran", 4), sentence("It sat", 4)]
    found = content(Found(run=RUN, sentences=[some], film=film, metrics=metrics))
    kept = found["emergence"]["film"]
    assert kept == {"steps": steps, "texts": ["It ran"], "data": [data[step] for step in steps]}
    assert [one["film"] for one in found["sentences"]] == [0, None]
    assert [cap for cap in found["caps"] if "11 of 20 steps" in cap] == found["caps"] and bool(found["caps"]) == (
        most == 100
    )


def test_curves_are_those_that_every_probe_has() -> None:
    def own(value: float) -> dict[str, Any]:
        return {
            "layer": 0,
            "head": 1,
            "luck": 0.6,
            "accuracy_heads": [[value, 1.0]],
            "pronoun_contrast_heads": [[0.0, 2.0]],
        }

    metrics = [
        {"split": "train", "step": 0, "loss": 2.0},
        {
            "split": "probe",
            "step": 0,
            "number": own(0.5),
            "later_cue": own(0.1),
            "V_S1_payoff": {"model": 2.0, "bayes": 1.0},
        },
        {"split": "validation", "step": 0, "loss": 2.0, "floor": 1.5},
        {"split": "probe", "step": 4, "number": own(float("nan")), "V_S1_payoff": {"model": 1.5, "bayes": 1.0}},
        {"split": "validation", "step": 4, "loss": 1.8},
    ]
    found = content(Found(run=RUN, sentences=[], metrics=metrics))["emergence"]
    assert found["steps"] == [0, 4] and list(found["curves"]) == ["number"] and found["film"] is None
    curve = found["curves"]["number"]
    assert curve["accuracy"] == [[[0.5, 1.0]], [[None, 1.0]]] and curve["best"] == [[0, 1], [0, 1]]
    assert curve["rho"] is None and curve["payoff"] == {"model": [2.0, 1.5], "bayes": [1.0, 1.0]}
    assert found["loss"] == {"steps": [0, 4], "validation": [2.0, 1.8], "floor": None}


def test_numbers_are_finite_and_rounded_however_deep() -> None:
    found = rounded({"a": [0.123456, (float("inf"), 3)], "b": {"c": float("nan")}})
    assert found == {"a": [0.1235, [None, 3]], "b": {"c": None}}
    assert rounded([0.5285016, -3.01246, 0.00123456789], 6) == [0.528502, -3.01246, 0.00123457]


@pytest.mark.parametrize("decimals", [4, 6])
@pytest.mark.parametrize("n_flips", [100, 500, 2000, 10_000])
def test_a_corrected_p_below_its_bar_stays_there(n_flips: int, decimals: int) -> None:
    every = [hits / (1 + n_flips) for hits in range(1, n_flips)]
    assert [p < MAX_P for p in rounded(every, decimals)] == [p < MAX_P for p in every]


def pen(unknown: str | None = None) -> Pen:
    """Return a model of the stories; `unknown` is a word that it is told not to know."""

    def cut(text: str) -> Sentence:
        return Sentence(*with_end(tokenizer(), text), word_spans(text))

    token = None if unknown is None else tokenizer().token_to_id(unknown)
    return Pen(planted("coreference"), cut, str, token, lambda text: [])


def test_the_showcase_is_left_out_where_a_word_of_it_is_unknown() -> None:
    assert {name: len(some) for name, some in showcase(pen()).items()} == {"number": 4, "later_cue": 4}
    assert list(showcase(pen("mat"))) == ["number"]


def test_a_sentence_without_a_pronoun_asks_for_no_word_and_an_unknown_one_is_named() -> None:
    found = own(pen("cat"), 1, "The cat sat")
    assert found["asked"] == [] and found["words"] == ["(start)", "The", "cat", "sat"] and len(found["next"]) == 5
    assert found["notes"] == ["the model does not know cat: each reads as unknown"]
