"""Positive controls: models that others trained, whose head for the next pronoun is known.

Their weights are not part of the project. PUBLIC_MODELS names a folder with `stories260K/` (karpathy/llama2.c, as
research/convert.py writes it) and, optionally, `smollm2/` (SmolLM2-135M-Instruct as save_pretrained writes it).
"""

import os
from pathlib import Path

import pytest

from antecedent_lab import ProbeResult, open_model, probe_model
from probe.results import Head
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
    [found] = stories260k.results.findings
    assert (found.place, found.verdict) == (Head(4, 2), SUPPORTED)
    assert found.judged.value("swap") >= 0.5 and found.judged.value("p") < 0.01
    assert found.head.value("author") > found.rules["nearest"]


@needs("smollm2")
def test_a_large_model_follows_the_person() -> None:
    [found] = probe_model(open_model(FOLDER / "smollm2", device="cpu")).results.findings
    assert found.head.value("follows") > 0.9 and found.judged.value("swap") >= 0.2
    assert found.notes  # how the heads that were edited were found
