"""The figures are real PNGs that fit a page, the same for the same numbers, and draw text as text."""

import io
import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from probe.sentences import written
from report.colours import AGAINST, FOR, Colour
from report.figures import NAMES, check_installed, draw_run, draw_seeds, word_weights

L, H = 2, 3
STEPS = [0, 40, 80]
RANDOM = np.random.default_rng(7)


def attention(length: int, n_layer: int = L, n_head: int = H) -> np.ndarray:
    """Return causal weights [L, H, T, T] whose rows sum to one."""
    raw = np.tril(RANDOM.random((n_layer, n_head, length, length)))
    return raw / raw.sum(axis=-1, keepdims=True)


def sentence(name: str, group: str, words: str, weights: np.ndarray | None = None) -> dict[str, Any]:
    """Return a sentence of one token a word, the last asked, the second meant and not the third."""
    pieces = ["(start)", *words.split()]
    weights = attention(len(pieces)) if weights is None else weights
    return {
        "id": name,
        "group": group,
        "words": pieces,
        "pieces": pieces,
        "owner": list(range(len(pieces))),
        "asked": [len(pieces) - 1],
        "antecedents": [2],
        "distractors": [3],
        "weights": written(weights),
    }


def question(name: str, n_layer: int = L, n_head: int = H) -> dict[str, Any]:
    scores = RANDOM.random((n_layer, n_head)).round(4).tolist()
    intervals = {"attention_swap": [0.9, 1.1], "zero": None, "mean": None}
    values = {"attention_swap": 1.0, "zero": -0.001, "mean": None}
    causal = [
        {"name": key, "label": f"what {key} does", "value": values[key], "interval": intervals[key]} for key in values
    ]
    heads = {"accuracy": scores, "p": (np.array(scores) < 0.3).astype(float).tolist()}
    cells = ["cell 1", "cell 2", "cell 3", "cell 4"]
    curve = "number" if name == "number" else None
    own = {"layer": 1, "head": 2, "heads": heads, "causal": causal, "curve": curve, "sentences": cells}
    return {"name": name, **own}


def curve() -> dict[str, Any]:
    of_heads = {name: RANDOM.random((len(STEPS), L, H)).tolist() for name in ("accuracy", "pronoun_contrast")}
    payoff = {"model": [6.0, 3.0, 1.0], "blind": [2.0] * 3, "nearest": [2.0] * 3, "bayes": [1.0] * 3}
    return {**of_heads, "luck": [0.7] * 3, "rho": [-3.0, None, 0.9], "payoff": payoff}


def run_content(**changed: Any) -> dict[str, Any]:
    """Return what the figures read of a page's content."""
    texts = ("the cat buses It", "the cat buses They", "the buses cat It", "the buses cat They")
    loss = {"steps": STEPS, "validation": [6.0, 2.0, 1.5], "floor": [1.1] * 3}
    return {
        "run": {"n_layer": L, "n_head": H},
        "questions": [question("number"), question("gender")],
        "sentences": [sentence(f"cell {i}", "cells", text) for i, text in enumerate(texts, 1)],
        "emergence": {"steps": STEPS, "curves": {"number": curve()}, "loss": loss},
        **changed,
    }


EMPTY: dict[str, Any] = {"run": {"n_layer": L, "n_head": H}, "questions": [], "sentences": [], "emergence": None}


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def amount(png: bytes, colour: Colour) -> int:
    """Return how many pixels have nearly this colour."""
    return int((np.abs(pixels(png).astype(int) - colour).max(axis=-1) < 24).sum())


def test_every_figure_is_a_png_of_a_page_s_width_in_print_resolution() -> None:
    drawn = draw_run(run_content())
    assert set(drawn) == NAMES - {"twins.png"}
    assert list(drawn) == ["map.png", "four_cells.png", "emergence.png", "causal.png"]
    for name, png in drawn.items():
        image = Image.open(io.BytesIO(png))
        assert image.format == "PNG" and image.width <= 7 * 300 and image.height < 10 * 300, name
        assert round(image.info["dpi"][0]) == 300
        assert pixels(png).std() > 10 and (pixels(png)[0] == 255).all(), f"{name} is blank, or runs over its edge"


def test_text_is_never_smaller_than_seven_points(monkeypatch: pytest.MonkeyPatch) -> None:
    save, seen = Figure.savefig, []

    def watched(figure: Figure, *arguments: Any, **settings: Any) -> None:
        save(figure, *arguments, **settings)
        seen.append(figure)

    monkeypatch.setattr(Figure, "savefig", watched)
    draw_run(run_content())
    sizes = [text.get_fontsize() for figure in seen for text in figure.findobj(Text) if text.get_text()]
    assert len(seen) == 4 and len(sizes) > 100 and min(sizes) >= 7


def test_the_same_numbers_give_the_same_bytes_whatever_the_reader_has_set(monkeypatch: pytest.MonkeyPatch) -> None:
    content = run_content()
    first = draw_run(content)
    monkeypatch.setitem(matplotlib.rcParams, "font.size", 19)
    monkeypatch.setitem(matplotlib.rcParams, "axes.facecolor", "black")
    assert draw_run(content) == first
    for png in first.values():
        assert set(Image.open(io.BytesIO(png)).info) == {"dpi"}  # no date, no version


def test_a_larger_weight_is_a_stronger_line() -> None:
    one, found = question("number"), []
    for weight in (0.1, 0.5, 0.9):
        weights = np.zeros((L, H, 5, 5))
        weights[1, 2, -1, 2], weights[1, 2, -1, 0] = weight, 1 - weight
        cells = [sentence(f"cell {i}", "cells", "the cat buses It", weights) for i in range(1, 5)]
        image = pixels(draw_run(EMPTY | {"questions": [one], "sentences": cells})["four_cells.png"]).astype(int)
        found.append(int((image[..., 2] - image[..., 0]).clip(0).sum()))  # blue less red: what is blue, however faint
    assert found[0] * 1.5 < found[1] and found[1] * 1.5 < found[2]


def test_the_map_is_blue_where_the_antecedent_is_preferred_and_orange_where_the_other_is() -> None:
    one = question("number")
    one["heads"]["accuracy"], one["heads"]["p"] = [[1.0, 0.5, 0.5], [0.5, 0.0, None]], None
    png = draw_run(EMPTY | {"questions": [one]})["map.png"]
    assert amount(png, FOR) > 10_000 and amount(png, AGAINST) > 10_000
    one["heads"]["accuracy"] = [[0.5] * H] * L
    png = draw_run(EMPTY | {"questions": [one]})["map.png"]
    assert amount(png, FOR) == amount(png, AGAINST) == 0


def test_a_significant_head_has_a_dot_and_the_chosen_one_a_frame() -> None:
    one = question("number")
    one["heads"]["accuracy"], inks = [[0.5] * H] * L, []
    for p in ([[1.0] * H] * L, [[1.0] * H, [0.001] * H]):
        one["heads"]["p"] = p
        inks.append(amount(draw_run(EMPTY | {"questions": [one]})["map.png"], (0, 0, 0)))
    assert inks[1] > inks[0]
    one["layer"] = 0
    assert not np.array_equal(
        *(pixels(draw_run(EMPTY | {"questions": [each]})["map.png"]) for each in (one, one | {"layer": 1}))
    )


@pytest.mark.parametrize("n_head", [16, 40])
def test_a_wide_model_s_map_still_fits_the_page(n_head: int) -> None:
    content = {"run": {"n_layer": 12, "n_head": n_head}, "questions": [question("number", 12, n_head)] * 2}
    png = draw_run(content | {"sentences": [], "emergence": None})["map.png"]
    assert pixels(png).shape[1] <= 7 * 300 and (pixels(png)[:, -1] == 255).all()


def test_what_is_not_known_is_not_drawn() -> None:
    assert draw_run(EMPTY) == {}
    loss = {"steps": [0, 9], "validation": [2.0, 1.0], "floor": None}
    assert list(draw_run(EMPTY | {"emergence": {"steps": [], "curves": {}, "loss": loss}})) == ["emergence.png"]
    assert list(draw_run(EMPTY | {"questions": [question("number") | {"causal": []}]})) == ["map.png"]


def test_a_rho_that_was_never_known_is_left_out() -> None:
    content = run_content()
    content["emergence"]["curves"]["number"]["rho"] = [None] * 3
    known = draw_run(run_content(questions=content["questions"]))["emergence.png"]
    assert draw_run(content)["emergence.png"] != known


def test_weights_of_words_are_read_back_from_their_tokens() -> None:
    weights = attention(6)
    split = {"words": ["(start)", "un", "cat", "ghost"], "pieces": list("abcdef"), "owner": [0, 1, -1, 2, 2, 2]}
    found = word_weights(split | {"weights": written(weights)}, {"n_layer": L, "n_head": H}, 1, 2)
    last, of_cat = weights[1, 2, 5], slice(3, 6)
    assert found[2] == pytest.approx([last[0], last[1], last[of_cat].sum(), 0], abs=2e-5)
    assert found[1] == pytest.approx([*weights[1, 2, 1, :2], 0, 0], abs=2e-5)
    assert not found[3].any()


def test_of_a_long_text_the_largest_weights_are_read_back() -> None:
    length, n_layer, n_head = 331, 7, 13  # so long that only some weights of a row are kept
    weights = attention(length, n_layer, n_head)
    held = written(weights)
    assert held["kept"] and held["kept"] < length
    long = {"words": ["w"] * length, "pieces": ["w"] * length, "owner": list(range(length)), "weights": held}
    found = word_weights(long, {"n_layer": n_layer, "n_head": n_head}, 6, 12)
    for row in (0, 5, 330):
        largest = np.sort(weights[6, 12, row])[-held["kept"] :]
        assert np.sort(found[row])[-held["kept"] :] == pytest.approx(largest, abs=1e-5)
        assert np.count_nonzero(found[row]) <= held["kept"]


def test_text_from_data_is_drawn_as_it_is() -> None:
    hostile = [r"$\frac{1}{$", "\x00\x1b[2J\n", "\ud800", "漢字", "w" * 10_000, "\u202eabc", "</script>"]
    cell = sentence("cell 1", "cells", "the cat buses It")
    cell["words"] = ["(start)", *hostile]
    cell["owner"] = [0, 1, 2, 3, 7]
    cell["asked"] = [7]
    some = [question("number") | {"name": name} for name in hostile]
    for one, name in zip(some, hostile, strict=True):
        one["causal"][0]["label"] = name
    content = run_content(questions=some, sentences=[cell])
    content["emergence"]["curves"]["number"]["payoff"] |= {name: [i / 9] * 3 for i, name in enumerate(hostile)}
    assert [pixels(png).shape[1] <= 2100 for png in draw_run(content).values()] == [True] * 4


def record(step: int, rise: float) -> dict[str, Any]:
    heads = np.full((L, H), rise).tolist()
    return {
        "step": step,
        "split": "probe",
        "number": {"accuracy_heads": heads, "pronoun_contrast_heads": heads, "rho": rise},
    }


def test_over_seeds_the_median_stands_out_of_a_line_for_each() -> None:
    heads = [{"layer": 0, "head": 1}, {"layer": 1, "head": 0}, {"layer": 1, "head": 2}]
    results = {"runs": ["a", "b", "c"], "questions": [{"question": "number", "heads": heads}]}
    records = {
        name: [record(step, step / 80 * end) for step in STEPS]
        for name, end in zip("abc", (0.2, 0.5, 0.9), strict=True)
    }
    drawn = draw_seeds(results, records)
    assert list(drawn) == ["emergence.png"] and draw_seeds(results, records) == drawn
    found = (np.abs(pixels(drawn["emergence.png"]).astype(int) - FOR).max(axis=-1) < 24).nonzero()
    assert found[0].size > 1000
    records["b"] = records["c"]  # now the median rises higher
    higher = (
        np.abs(pixels(draw_seeds(results, records)["emergence.png"]).astype(int) - FOR).max(axis=-1) < 24
    ).nonzero()
    left = [where[1] < 700 for where in (found, higher)]  # Sel@1, whose scale is fixed
    assert higher[0][left[1]].min() < found[0][left[0]].min() - 50


def test_where_training_did_not_watch_there_is_nothing_to_draw_over_seeds() -> None:
    results = {"runs": ["a"], "questions": [{"question": "gender", "heads": [{"layer": 0, "head": 0}]}]}
    assert draw_seeds(results, {"a": [record(0, 0.5)]}) == {}


def test_without_matplotlib_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    check_installed()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for draw in (check_installed, lambda: draw_run(run_content()), lambda: draw_seeds({}, {})):
        with pytest.raises(ValueError, match="pip install matplotlib"):
            draw()


def test_figures_are_named_in_the_page_that_explains_them() -> None:
    page = (Path(__file__).parents[3] / "docs" / "report.md").read_text()
    assert all(f"`{name}`" in page for name in [*draw_run(run_content()), "twins.png"])
