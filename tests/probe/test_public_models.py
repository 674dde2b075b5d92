"""Positive controls: models that others trained, whose head for the next pronoun is known.

Their weights are not part of the project. PUBLIC_MODELS names a folder with `stories260K/` (karpathy/llama2.c, as
research/convert.py writes it) and, optionally, `smollm2/` (SmolLM2-135M-Instruct as save_pretrained writes it).
"""

import os
from pathlib import Path

import pytest

from antecedent_lab import ProbeResult, open_model, probe_model
from probe.verdict import SUPPORTED

FOLDER = Path(os.environ.get("PUBLIC_MODELS", "no such folder"))

pytest.importorskip("transformers")
pytestmark = pytest.mark.slow


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not (FOLDER / name).exists(), reason=f"PUBLIC_MODELS has no {name}")


@pytest.fixture(scope="module")
def stories260k() -> ProbeResult:
    opened = open_model(FOLDER / "stories260K", device="cpu")
    return probe_model(opened, n_untrained=2)


@needs("stories260K")
def test_one_head_of_stories260k_decides_the_next_pronoun(stories260k: ProbeResult) -> None:
    [found] = stories260k.results.next_pronoun
    assert (found.layer, found.head, found.verdict) == (4, 2, SUPPORTED)
    assert found.judged.share.value >= 0.5 and found.p_corrected < 0.01
    assert found.author_accuracy.value > found.nearest_accuracy


@needs("smollm2")
def test_a_large_model_is_asked_for_the_next_pronoun_only_and_follows_the_person() -> None:
    result = probe_model(open_model(FOLDER / "smollm2", device="cpu"))
    [found] = result.results.next_pronoun
    assert result.results.natural.questions == {} and result.results.selected == []
    assert found.follows_twin.value > 0.9 and found.judged.share.value >= 0.2
    assert "only the next pronoun was tested" in result.results.warnings[0]
