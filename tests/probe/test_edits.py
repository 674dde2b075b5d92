"""Edits of heads give the margins that the texts alone give with the edit by hand, and shares by their definitions."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from data.errors import UserError
from data.pairs import Cell, Items
from model.edits import cut_link, exchange_links
from model.observe import HeadEdit, TransformerView
from probe import edits
from probe.edits import Margins, Sites, grown, measure_margins
from probe.results import Head
from tests.probe.factories import GAIN, copying_model, noun_pairs, pair_view, passage_items, random_pairs, three_heads
from tests.tiny_models import K, each_variant, random_view

PLACE = Head(0, 1)
WHOLE = ("swap", "cut_meant", "cut_other", "zero", "restored")


def margin_alone(view: TransformerView, cell: Cell, edit: HeadEdit | None, tokens: tuple[int, ...]) -> float:
    """Return the margin of the text's answers after `tokens`, read as a batch of one text."""
    logits = view.logits(torch.tensor([tokens]), None, (edit,) if edit else ())[0, cell.payoff]
    probabilities = logits.double().softmax(-1)
    return float((probabilities[list(cell.answers)].sum() / probabilities[list(cell.foils)].sum()).log())


def edit_by_hand(view: TransformerView, cell: Cell, twin: Cell, name: str) -> HeadEdit:
    """Return the edit of one text, from the scores and outputs of unedited passes."""
    if name in ("zero", "restored"):
        output = torch.zeros(1, len(cell.tokens), K)
        if name != "zero":
            output = view.record(torch.tensor([twin.tokens]))[PLACE.layer].head_output[:, PLACE.head]
        return HeadEdit(*PLACE, output=lambda _: output)
    scores = view.attention_scores(torch.tensor([cell.tokens]))[PLACE.layer, 0, PLACE.head, cell.query].clone()
    weights = scores.softmax(-1)
    right, wrong = list(cell.meant[0]), list(cell.other[0])
    if name == "swap":
        row = weights.clone()
        row[right] = weights[right] / weights[right].sum() * weights[wrong].sum()
        row[wrong] = weights[wrong] / weights[wrong].sum() * weights[right].sum()
    else:
        scores[right if name == "cut_meant" else wrong] = -torch.inf
        row = scores.softmax(-1)
    return HeadEdit(
        *PLACE, weights=lambda attention: attention.index_copy(1, torch.tensor([cell.query]), row[None, None])
    )


@each_variant
def test_each_margin_is_that_of_the_text_edited_by_hand(switches: dict[str, object]) -> None:
    view, items = pair_view(**switches), random_pairs()
    margins = measure_margins(view, items, [[PLACE], [Head(1, 0)]], WHOLE, tokens_per_batch=60)
    for i, pair in enumerate(items.pairs):
        for text in (0, 1):
            own, twin = pair.cells[text], pair.cells[1 - text]
            expected = {}
            for name in WHOLE:
                # restored: the counterpart's text, in which this head has the text's own output
                read, other = (twin, own) if name == "restored" else (own, twin)
                expected[name] = margin_alone(view, own, edit_by_hand(view, read, other, name), read.tokens)
            found = {name: values[i, text, 0] for name, values in margins.edited.items()}
            assert found == pytest.approx(expected, rel=1e-4, abs=3e-5)
            assert margins.clean[i, text] == pytest.approx(margin_alone(view, own, None, own.tokens), abs=3e-5)
            assert margins.counter[i, text] == pytest.approx(margin_alone(view, own, None, twin.tokens), abs=3e-5)


@pytest.mark.parametrize("edit", ["swap", "cut_meant", "cut_other", "cut_control"])
def test_a_pass_at_the_site_equals_whole_passes(edit: str) -> None:
    """Texts whose answers come right after the query, with one token for each side."""
    pairs = []
    for pair in random_pairs().pairs:
        cells = []
        for meant, own in enumerate(pair.cells):
            tokens = own.tokens[: own.query + 1]
            sides = {"answers": (41 + meant,), "foils": (42 - meant,)}
            cells.append(replace(own, tokens=tokens, payoff=own.query, control=(0,), **sides))
        pairs.append(replace(pair, cells=(cells[0], cells[1])))
    view, items = random_view(53, context_length=64), Items(pairs)
    sets = [[Head(0, 1)], [Head(1, 2), Head(0, 0)]]
    at_site = Sites(view, items, 60).margins(sets, [edit])
    whole = measure_margins(view, items, sets, [edit], 60)
    assert at_site.edited[edit] == pytest.approx(whole.edited[edit], rel=1e-4, abs=3e-5)
    for name in ("clean", "counter"):
        assert getattr(at_site, name) == pytest.approx(getattr(whole, name), abs=3e-5)


def test_weights_and_probabilities_at_the_site_are_those_of_the_texts() -> None:
    items = passage_items().of("next_pronoun_gender", "dev")
    model, pair = copying_model([0.5, 2.0]), items.pairs[1]
    weights, probabilities = Sites(model, items, 100).shown(Head(0, 1), [Head(0, 1)])
    cell = pair.cells[0]
    row = model.record(torch.tensor([cell.tokens]))[0].scores[0, 1, -1].softmax(-1)
    expected = [float(row[[*sum(words, ())]].sum()) for words in (cell.meant, cell.other)]
    assert weights[1] == pytest.approx(expected, abs=1e-5)
    of_words = model.logits(torch.tensor([cell.tokens]))[0, -1].softmax(-1)[[cell.answers[0], cell.foils[0]]]
    assert probabilities[1, 0] == pytest.approx(of_words.tolist(), abs=1e-5)


def test_the_direct_effects_of_heads_add_up_to_the_decision() -> None:
    items = passage_items().of("next_pronoun_gender", "dev")
    sites = Sites(copying_model((1.0, 0.5)), items, 4096)
    effects = sites.direct_effects()
    assert effects[:, 0, 0] == pytest.approx(2 * effects[:, 0, 1], rel=1e-4)
    assert effects.sum((1, 2)) == pytest.approx(np.abs(sites.clean.mean(axis=1)), abs=1e-5)


def test_the_effects_of_a_head_that_alone_decides_are_those_by_hand() -> None:
    """Head 0 writes GAIN x (weight on the antecedent - weight on the other one) into the difference of the verbs."""
    items = noun_pairs()
    n_others = np.array([len(pair.cells[0].tokens) - 2 for pair in items.pairs])
    scores = np.exp([2.0, -2.0])
    right, wrong = (scores / (scores.sum() + n_others)[:, None]).T
    margins = measure_margins(three_heads(2.0), items, [[Head(0, head)] for head in range(3)], WHOLE, 4096)
    assert margins.total.mean() / 2 == pytest.approx(GAIN * (right - wrong).mean(), rel=1e-4)
    expected = {
        "swap": 1, "restored": 1, "zero": 0.5,
        "cut_meant": (right - wrong + wrong / (1 - right)).mean() / (2 * (right - wrong).mean()),
        "cut_other": (right - wrong - right / (1 - wrong)).mean() / (2 * (right - wrong).mean()),
    }  # fmt: skip
    expected["specificity"] = expected["cut_meant"] - expected["cut_other"]
    for name, share in expected.items():
        of_heads = margins.lost(name).mean(axis=0) / margins.total.mean()
        assert of_heads == pytest.approx([share, 0, 0], rel=1e-3, abs=1e-6), name


def test_the_share_exchanged_is_signed_by_the_models_own_preference() -> None:
    clean = np.array([[2.0, 1.0], [-1.0, -2.0], [2.0, 1.0]])
    exchanged = np.array([[-1.0, -2.0], [0.5, -1.5], [3.0, 1.5]])[..., None]
    margins = Margins(clean, -clean[:, ::-1], {"swap": exchanged})
    moved, total = margins.swaps(signed_by_model=True)
    assert total == pytest.approx([3.0, 3.0, 3.0])
    # Complete; half of the preference for the other side; and in the wrong direction
    assert moved == pytest.approx(np.array([[3.0], [1.0], [-0.75]]))
    assert margins.flips() == pytest.approx(np.array([[1.0], [0.5], [0.0]]))
    assert margins.swaps(signed_by_model=False)[1] == pytest.approx([3.0, -3.0, 3.0])


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": (1,) * 40}, {"query": 2}, {"meant": ((2,),)}, {"payoff": None}, {"meant": ()}, {"answers": ()},
        {"other": ()}, {"payoff": 2},
    ],
    ids=str,
)  # fmt: skip
def test_pairs_whose_answers_cannot_be_compared_are_left_out(changes: dict[str, object]) -> None:
    items = random_pairs()
    assert len(items.comparable()) == len(items)
    first, second = items.pairs[0].cells
    for cells in ((first, replace(second, **changes)), (replace(first, **changes), second)):  # type: ignore[arg-type]
        assert not replace(items.pairs[0], cells=cells).is_comparable


def grown_of(view: TransformerView, items: Items) -> list[tuple[Head, float]]:
    def swapped(sets: object) -> tuple[np.ndarray, np.ndarray]:
        return measure_margins(view, items, sets, ["swap"], 4096).swaps(signed_by_model=False)  # type: ignore[arg-type]

    return grown(swapped, edits.all_heads(view), least_gain=0.02)


def test_one_head_that_decides_is_a_set_and_heads_that_share_the_work_are_added() -> None:
    [(head, share)] = grown_of(three_heads(3.0), noun_pairs())
    assert (head, share) == (Head(0, 0), pytest.approx(1.0, abs=1e-4))
    steps = grown_of(three_heads(3.0, writing=(0, 1)), noun_pairs())
    assert {head for head, _ in steps} == {Head(0, 0), Head(0, 1)}
    assert [share for _, share in steps] == pytest.approx([0.5, 1.0], abs=0.02)


def test_a_set_ends_where_no_head_adds_and_a_constant_answer_has_none() -> None:
    shares = [share for _, share in grown_of(pair_view(), random_pairs())]
    assert shares == sorted(shares) and 0 < len(shares) < edits.MAX_HEADS
    same = [replace(pair, cells=(first, replace(second, tokens=first.tokens)))
            for pair in random_pairs().pairs for first, second in [pair.cells]]  # fmt: skip
    assert grown_of(pair_view(), Items(same)) == []


@pytest.mark.parametrize(("token", "targets"), [(3, [4]), (3, [-1]), (3, []), (-1, [0])])
def test_a_link_that_no_text_has_is_refused(token: int, targets: list[int]) -> None:
    with pytest.raises(UserError, match=f"^no link from token {token} to "):
        cut_link(0, 0, token, targets)
    with pytest.raises(UserError, match=f"^no link from token {token} to "):
        exchange_links(0, 0, token, [0], targets)
    with pytest.raises(UserError, match="must not share a token$"):
        exchange_links(0, 0, 4, [1, 2], [2])
    for edit in (cut_link(0, 0, 5, [1]), exchange_links(0, 0, 5, [1], [2])):
        with pytest.raises(UserError, match="^no link from token 5: the text has tokens 0 to 4$"):
            pair_view().logits(torch.ones(1, 5, dtype=torch.long), edits=[edit])
