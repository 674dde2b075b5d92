"""Edits of heads for the tests of observed models, and the check of a pass over the site alone."""

from typing import Any

import pytest
import torch
from torch import Tensor

from model.observe import HeadEdit, ObservableModel, SiteEdit, SitePass
from settings.errors import UserError
from tests.tiny_models import H, V

L = 3
LENGTHS = (9, 4, 7, 2)
SITE = torch.tensor(LENGTHS) - 1


def texts() -> Tensor:
    tokens = torch.randint(1, V, (len(LENGTHS), max(LENGTHS)), generator=torch.Generator().manual_seed(2))
    for row, length in enumerate(LENGTHS):
        tokens[row, length:] = 0
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


EVERY_HEAD = [SiteEdit(1, head, output=other_text) for head in range(H)]
EDITS: list[list[SiteEdit]] = [
    [SiteEdit(1, 2, weights=cut_first)],
    [SiteEdit(0, 1, output=other_text)],
    [SiteEdit(0, 0, weights=move_to_first, output=lambda rows: 2 * rows)],
    [SiteEdit(L - 1, 0, weights=move_to_first)],
    [SiteEdit(2, 1, output=torch.zeros_like), SiteEdit(0, 2, weights=cut_first)],
    [SiteEdit(0, 1, weights=move_to_first), SiteEdit(0, 1, weights=cut_first)],
    [*EVERY_HEAD, SiteEdit(2, 0, weights=cut_first, output=other_text)],
]


def check_against_whole_passes(view: ObservableModel, kind: type[SitePass]) -> None:
    """Check the logits of every list of edits, alone and all together, and the records, against whole passes."""
    fast, whole = view.site_pass(texts(), SITE), SitePass(view, texts(), SITE)
    assert isinstance(fast, kind)
    near = {"rtol": 1e-4, "atol": 1e-4}
    expected = torch.stack([whole.logits(edits) for edits in EDITS])
    torch.testing.assert_close(torch.stack([fast.logits(edits) for edits in EDITS]), expected, **near)
    torch.testing.assert_close(fast.edited_logits(EDITS), expected, **near)
    assert ((expected - whole.logits()).abs().amax((1, 2)) > 1e-3).all()
    torch.testing.assert_close(fast.logits(), whole.logits(), **near)
    torch.testing.assert_close(fast.final_stream(), whole.final_stream(), **near)
    records, of_whole = fast.records(), whole.records()
    assert records.keys() == of_whole.keys()
    for layer, record in records.items():
        torch.testing.assert_close(tuple(record), tuple(of_whole[layer]), **near)


def check_refusals(model: ObservableModel) -> None:
    """Edits that cannot act, and tokens that are none, are an error of one line, never the unedited logits."""
    tokens = torch.ones(2, 4, dtype=torch.long)

    def refused(problem: str, *arguments: Any, call: Any = model.logits, **named: Any) -> None:
        with pytest.raises(UserError, match=f"^{problem}.*$"):
            call(*arguments, **named)

    edit = HeadEdit(0, 0, output=torch.zeros_like)
    limits = f"layers 0 to {model.n_layer - 1} and heads 0 to {model.n_head - 1}"
    for layer, head in ((model.n_layer, 0), (-1, 0), (0, model.n_head), (0, -1)):
        refused(f"edits: no head L{layer}H{head}; the model has {limits}", tokens, edits=[HeadEdit(layer, head)])
    for edits in (edit, (each for each in [edit]), [(0, 0)]):
        refused("edits: must be a list of edits", tokens, edits=edits)
    too_long = torch.ones(1, model.context_length + 1, dtype=torch.long)
    for values in ("The cat", [1, 2], tokens.float(), tokens[0], too_long, tokens[:, :0]):
        for call in (model.logits, model.record, model.residual_stream):
            refused("tokens: ", values, call=call)
    for token in (-1, model.vocab_size):
        refused(f"tokens: the model has the tokens 0 to {model.vocab_size - 1}; found ", torch.full_like(tokens, token))
    for positions in (*map(torch.tensor, ([0, 4], [-1, 0], [0.0, 1.0], [1])), [0, 1]):
        refused("positions: must be ", tokens, positions)
