"""Habits on random tokens: each type's own head scores one, and no other does."""

import numpy as np
import pytest
import torch

from probe.head_types import TYPES, head_types, type_scores
from probe.verdict import MAX_OTHER_TYPE
from tests.probe.story_items import MODEL, first_token, planted, random_model

N = 7  # tokens before the text repeats itself
KEY = {"previous": -1, "duplicate": -N, "induction": 1 - N}


def maps_of(kind: str) -> torch.Tensor:
    """A head [L=1, B=2, H=1, T, T] that looks at its key alone, at the first token where there is none."""
    maps = torch.zeros(1, 2, 1, 1 + 2 * N, 1 + 2 * N)
    for query in range(1 + 2 * N):
        key = query + KEY.get(kind, -query)
        maps[..., query, key if key > 0 and (kind == "previous" or query > N) else 0] = 1
    return maps


@pytest.mark.parametrize("kind", TYPES)
def test_the_head_of_a_type_scores_one_in_it_and_none_in_another(kind: str) -> None:
    found = type_scores(maps_of(kind), N)
    assert found[kind].tolist() == [[1]]
    assert all(found[other] == 0 for other in TYPES if other not in (kind, "first"))


def test_a_planted_previous_token_head_is_found_among_random_ones() -> None:
    found = head_types(planted("previous", layer=1, head=2), first_token(), seed=0)
    assert found["previous"][1, 2] > 0.95
    for name in ("previous", "induction"):
        assert np.argwhere(found[name] > MAX_OTHER_TYPE).tolist() == ([[1, 2]] if name == "previous" else [])


def test_a_planted_link_head_is_not_barred() -> None:
    found = head_types(planted("coreference"), first_token(), seed=0)
    assert max(found["previous"].max(), found["induction"].max()) < MAX_OTHER_TYPE


def test_a_head_that_looks_everywhere_alike_scores_one_over_the_keys() -> None:
    found = head_types(planted("uniform", head=1), first_token(), seed=0, n_sequences=3, n_distinct=5)
    assert found["previous"][0, 1] == pytest.approx(np.mean([1 / n for n in range(3, 12)]))
    assert found["first"][0, 1] == pytest.approx(np.mean([1 / n for n in range(2, 12)]))
    for name in ("duplicate", "induction"):
        assert found[name][0, 1] == pytest.approx(np.mean([1 / n for n in range(7, 12)]))


def test_the_same_seed_gives_the_same_texts_and_they_fit_the_context() -> None:
    model = random_model()
    one, two, other = (head_types(model, first_token(), seed=seed, n_distinct=999) for seed in (1, 1, 2))
    assert all((one[name] == two[name]).all() for name in TYPES)
    assert (one["previous"] != other["previous"]).any()
    assert one["previous"].shape == (MODEL.n_layer, MODEL.n_head)
