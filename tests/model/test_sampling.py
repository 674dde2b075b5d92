"""model/sampling.py: samples depend on their seed only and stop at logits that are not finite."""

import torch

from model.sampling import sample
from tests.tiny_models import T, random_model


def test_samples_depend_on_their_seed_and_leave_the_global_random_state() -> None:
    model, start, state = random_model(), torch.tensor([3, 1]), torch.get_rng_state()
    text = sample(model, start, 23, seed=5)
    assert len(text) == 25 > T
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(text, sample(model, start, 23, seed=5))
    assert not torch.equal(text, sample(model, start, 23, seed=6))


def test_sampling_stops_at_logits_that_are_not_finite() -> None:
    model = random_model()
    model.final_norm.gain.data.fill_(torch.nan)
    assert sample(model, torch.tensor([3]), 9, seed=0).tolist() == [3]
