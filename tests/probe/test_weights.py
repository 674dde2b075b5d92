"""Habits on random tokens: each type's own head scores one, and no other does."""

import numpy as np
import pytest
import torch

from model.config import Position
from model.observe import attention_maps
from probe.verdict import MAX_OTHER_TYPE
from probe.weights import TYPES, entropies, head_types, score_asymmetry, type_scores
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


def test_a_head_that_looks_everywhere_alike_has_entropy_one_and_one_that_looks_at_one_word_none() -> None:
    """Queries of zero score every key alike; the planted head looks at the token before and at nothing else."""
    model = planted("previous", layer=1, head=2)
    with torch.no_grad():
        model.blocks[0].attention.query.weight.zero_()
    texts = torch.randint(1, model.vocab_size, (5, 11), generator=torch.Generator().manual_seed(0))
    found = entropies(model, texts)
    np.testing.assert_allclose(found[0], 1, atol=1e-6)
    assert found[1, 2] < 0.05 and found.shape == (2, 3)


def test_entropy_against_a_loop() -> None:
    model = random_model()
    texts = torch.randint(1, model.vocab_size, (3, 5), generator=torch.Generator().manual_seed(1))
    maps = attention_maps(model, texts).detach().double().numpy()
    rows = [
        [-sum(w * np.log(w) for w in maps[1, b, 2, t] if w > 0) / np.log(t + 1) for t in range(1, 5)] for b in range(3)
    ]
    assert entropies(model, texts)[1, 2] == pytest.approx(np.mean(rows), abs=1e-5)


def test_scores_of_queries_that_are_keys_are_alike_both_ways_and_random_ones_are_not() -> None:
    assert (score_asymmetry(random_model(tie_query_key=True, position=Position.none)) < 1e-6).all()
    assert (abs(score_asymmetry(random_model()) - 0.5**0.5) < 0.1).all()
    turned = random_model()  # A' = -A: each query is a quarter turn from its key, in pairs
    with torch.no_grad():
        weight = turned.blocks[0].attention.key.weight.view(3, 8, 2, -1)
        query = torch.stack((weight[:, :, 1], -weight[:, :, 0]), dim=2)
        turned.blocks[0].attention.query.weight.copy_(query.reshape(48, -1))
    np.testing.assert_allclose(score_asymmetry(turned)[0], 1, atol=1e-5)
