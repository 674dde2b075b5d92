"""The pass that computes the site alone against whole passes with the same edits."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from model.config import Position, Scale, Weighting
from model.observe import ObservableModel, SiteEdit, SitePass, TransformerSitePass, TransformerView
from tests.model.standard import VARIANTS, H, V, random_model

L = 3
LENGTHS = (9, 4, 7, 2)
SITE = torch.tensor(LENGTHS) - 1
SINGLE_SWITCHES: list[dict[str, Any]] = [
    *({"position": position} for position in Position),
    {"weighting": Weighting.sum},
    {"scale": Scale.none},
    {"tie_query_key": True},
    {"tie_key_value": True},
    {"token_shift": True},
]
each_attention = pytest.mark.parametrize("switches", [*SINGLE_SWITCHES, *VARIANTS.values()], ids=str)


def texts(padding: int = 0) -> Tensor:
    tokens = torch.randint(1, V, (len(LENGTHS), max(LENGTHS)), generator=torch.Generator().manual_seed(2))
    for row, length in enumerate(LENGTHS):
        tokens[row, length:] = padding
    return tokens


def cut_first(row: Tensor) -> Tensor:
    kept = row.clone()
    kept[:, 0] = 0
    return kept / kept.sum(-1, keepdim=True)


def move_to_first(row: Tensor) -> Tensor:
    moved = row / 2
    moved[:, 0] += 0.5
    return moved


def other_text(rows: Tensor) -> Tensor:
    return rows.flip(0)


EDITS: dict[str, list[SiteEdit]] = {
    "weights of one head": [SiteEdit(1, 2, weights=cut_first)],
    "output of one head": [SiteEdit(0, 1, output=other_text)],
    "weights and output of one head": [SiteEdit(0, 0, weights=move_to_first, output=lambda rows: 2 * rows)],
    "last layer": [SiteEdit(L - 1, 0, weights=cut_first)],
    "heads of two layers": [SiteEdit(2, 1, output=torch.zeros_like), SiteEdit(0, 2, weights=cut_first)],
    "a head twice, and all heads of a layer": [
        SiteEdit(0, 1, weights=move_to_first),
        SiteEdit(0, 1, weights=cut_first),
        *(SiteEdit(1, head, output=other_text) for head in range(H)),
        SiteEdit(2, 0, weights=cut_first, output=other_text),
    ],
}


def check_against_whole_passes(view: ObservableModel, kind: type[SitePass], tolerance: float) -> None:
    """Check the logits of every list of edits, alone and all together, and the records, against whole passes."""
    fast, whole = view.site_pass(texts(), SITE), SitePass(view, texts(), SITE)
    assert isinstance(fast, kind)
    near = {"rtol": tolerance, "atol": tolerance}
    clean = whole.logits()
    together = fast.edited_logits(list(EDITS.values()))
    for i, (name, edits) in enumerate(EDITS.items()):
        expected = whole.logits(edits)
        torch.testing.assert_close(fast.logits(edits), expected, **near, msg=lambda m, n=name: f"{n}: {m}")
        torch.testing.assert_close(together[i], expected, **near, msg=lambda m, n=name: f"{n}, in a list: {m}")
        assert (expected - clean).abs().amax() > 1e-3, name
    torch.testing.assert_close(fast.logits(), clean, **near)
    torch.testing.assert_close(fast.final_stream(), whole.final_stream(), **near)
    for record, expected_record in zip(fast.records(), whole.records(), strict=True):
        torch.testing.assert_close(record.weights, expected_record.weights, **near)
        torch.testing.assert_close(record.output, expected_record.output, **near)


@each_attention
def test_the_site_pass_equals_whole_passes_with_the_same_edits(switches: dict[str, Any]) -> None:
    check_against_whole_passes(TransformerView(random_model(n_layer=L, **switches)), TransformerSitePass, 1e-5)


@each_attention
def test_without_edits_the_site_pass_gives_the_logits_of_the_model(switches: dict[str, Any]) -> None:
    view = TransformerView(random_model(n_layer=L, **switches))
    site_pass = view.site_pass(texts(), SITE)
    torch.testing.assert_close(site_pass.logits(), view.logits(texts(), SITE), rtol=1e-5, atol=1e-5)
    rows = torch.arange(len(SITE))
    stream = view.residual_stream(texts())[-1][rows, SITE]
    torch.testing.assert_close(site_pass.final_stream(), stream, rtol=1e-5, atol=1e-5)
    alone = [view.logits(texts()[row : row + 1, :length])[0, -1] for row, length in enumerate(LENGTHS)]
    torch.testing.assert_close(site_pass.logits(), torch.stack(alone), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("change", [cut_first, move_to_first])
def test_edits_leave_the_pass_as_it_was(change: Callable[[Tensor], Tensor]) -> None:
    site_pass = TransformerView(random_model(n_layer=L)).site_pass(texts(), SITE)
    edits = [SiteEdit(0, 0, weights=change), SiteEdit(1, 1, output=other_text)]
    clean, edited = site_pass.logits(), site_pass.logits(edits)
    assert torch.equal(site_pass.logits(edits), edited) and torch.equal(site_pass.logits(), clean)


def test_the_padding_changes_no_edited_logits() -> None:
    view = TransformerView(random_model(n_layer=L))
    edits = EDITS["a head twice, and all heads of a layer"]
    first, second = (view.site_pass(texts(padding), SITE).logits(edits) for padding in (0, V - 1))
    torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-5)
