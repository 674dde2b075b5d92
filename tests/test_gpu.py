"""The same promises on a CUDA device; skipped without one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from model.transformer import Transformer, attention_maps
from tests.model.test_attention import config

ROOT = Path(__file__).parent.parent
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def test_the_observed_path_agrees_with_the_fused_one_and_with_the_cpu() -> None:
    model = Transformer(config(), 29, seed=0).eval()
    tokens = torch.randint(29, (2, 11), generator=torch.Generator().manual_seed(1))
    on_cpu = attention_maps(model, tokens)
    logits = model(tokens)
    model.cuda()
    torch.testing.assert_close(attention_maps(model, tokens.cuda()).cpu(), on_cpu, atol=1e-5, rtol=0)
    torch.testing.assert_close(model(tokens.cuda()).cpu(), logits, atol=1e-4, rtol=0)


def test_a_run_trains_resumes_and_is_probed(tmp_path: Path) -> None:
    quick = ["model=nano", "max_steps=60", "eval_every_steps=30", "log_every_steps=1", "data.n_train_stories=6000"]
    quick += [
        "data.n_validation_stories=400",
        "data.n_test_templates=3",
        "data.n_test_pairs=2",
        f"cache_dir={tmp_path / 'cache'}",
    ]
    out = f"out={tmp_path / 'run'}"
    for arguments in (["train.py", out, "device=cuda", *quick], ["train.py", out, quick[-1], "resume=true"]):
        ran = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
    assert "cuda" in json.loads((tmp_path / "run" / "environment.json").read_text())["device"]
    ran = subprocess.run(
        [sys.executable, "eval.py", f"run={tmp_path / 'run'}", quick[-1], "probe.n_untrained=2"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
