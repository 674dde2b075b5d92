"""docs/imported.md says what was measured of models that transformers made and trained."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")
from benchmarks.imported import MODELS, gpt2, markdown, train

DOCS = Path(__file__).parents[2] / "docs"


def test_the_table_of_the_page_is_that_of_the_figures() -> None:
    rows = json.loads((DOCS / "imported.json").read_text())
    found = re.findall(r"<!-- trained elsewhere -->\n(.*?)<!-- end -->", (DOCS / "imported.md").read_text(), re.DOTALL)
    assert [one.strip().split("\n") for one in found] == [markdown(rows)]
    assert {one["model"] for one in rows} <= set(MODELS)
    assert all(value < 1e-5 for one in rows for value in one["contract"].values())


def test_training_reads_rows_that_begin_where_a_story_does_and_learns() -> None:
    """Stories of the end token and one other, said over and over: after the end anything may come, then it is known."""
    torch.manual_seed(0)
    tokens = np.concatenate([[0, *[1 + i % 5] * 7] for i in range(400)])
    starts = np.arange(0, len(tokens), 8)
    model = gpt2(6, 8)
    assert train(model, tokens, starts, 8, 60) < 0.6 < np.log(5)  # 1/7 log 5 at the least
