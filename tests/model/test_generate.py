"""model/generate.py: sampling, and `python -m model.generate` on a run."""

from pathlib import Path

import pytest
import torch

from model.generate import GenerateSettings, generate
from tests.program import run_program
from tests.tiny_models import T, random_model


def test_generation_depends_on_its_seed_and_leaves_the_global_random_state() -> None:
    model, start, state = random_model(), torch.tensor([3, 1]), torch.get_rng_state()
    text = generate(model, start, 23, temperature=1.0, seed=5)
    assert len(text) == 25 > T
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(text, generate(model, start, 23, temperature=1.0, seed=5))
    assert not torch.equal(text, generate(model, start, 23, temperature=1.0, seed=6))


def test_temperature_zero_takes_the_most_probable_token_and_end_stops() -> None:
    model, start = random_model(), torch.tensor([3])
    likeliest = int(model(start[None])[0, -1].argmax())
    assert generate(model, start, 1, temperature=0, seed=0).tolist() == [3, likeliest]
    assert generate(model, start, 9, temperature=0, seed=0, end=likeliest).tolist() == [3]


def test_generation_stops_at_logits_that_are_not_finite() -> None:
    model = random_model()
    model.final_norm.gain.data.fill_(torch.nan)
    assert generate(model, torch.tensor([3]), 9, temperature=1.0, seed=0).tolist() == [3]


def test_the_program_continues_the_prompt_and_only_that_goes_to_stdout(trained_run: Path) -> None:
    result = run_program("model/generate.py", f"run={trained_run}", "prompt=The cat", "n_tokens=5", "seed=1")
    assert result.out.startswith("The cat") and result.out.count("\n") == 1 and result.err == ""


@pytest.mark.parametrize("setting", ["n_tokens=0", "seed=-1", "temperature=0.001", "tokens=3"])
def test_values_out_of_range_are_refused(trained_run: Path, setting: str) -> None:
    result = run_program("model/generate.py", f"run={trained_run}", setting)
    assert setting.partition("=")[0] in result.error


def test_help_lists_every_setting() -> None:
    result = run_program("model/generate.py", "--help")
    assert result.status == 0
    assert GenerateSettings.__dataclass_fields__.keys() <= set(result.out.split())
