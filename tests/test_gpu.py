"""The same promises on a CUDA device, and what is promised of the device alone; skipped without one."""

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from training.ceiling import matmul_ceiling

from data.loader import BatchLoader
from model.observe import attention_maps
from model.transformer import Transformer, attend, document_mask
from tests.model.standard import config
from tests.training.test_training import OWN_WARNING, losses, make_training, settings
from training.device import resident_room
from training.logging import Recorder
from training.optim import StackedMuon, set_rates
from training.trainer import advance, enough_memory, train_step

ROOT = Path(__file__).parent.parent
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it once, when it is first used
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    OWN_WARNING,
    pytest.mark.filterwarnings("ignore:.*TensorFloat32 tensor cores:UserWarning"),  # float32 is meant here
]


@pytest.fixture
def same_every_time() -> Iterator[None]:
    """Ask torch for kernels that add up in one order."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def test_the_observed_path_agrees_with_the_fused_one_and_with_the_cpu() -> None:
    model = Transformer(config(), 29, seed=0).eval()
    tokens = torch.randint(29, (2, 11), generator=torch.Generator().manual_seed(1))
    on_cpu = attention_maps(model, tokens)
    logits = model(tokens)
    model.cuda()
    torch.testing.assert_close(attention_maps(model, tokens.cuda()).cpu(), on_cpu, atol=1e-5, rtol=0)
    torch.testing.assert_close(model(tokens.cuda()).cpu(), logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize("numbers", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("packed", [False, True])
def test_what_observed_weights_mix_is_what_the_fused_kernel_gives(numbers: torch.dtype, packed: bool) -> None:
    generator = torch.Generator("cuda").manual_seed(1)
    query, key, value = torch.randn(3, 4, 6, 67, 64, generator=generator, device="cuda").to(numbers)
    texts = torch.arange(67, device="cuda")[None].expand(4, -1) // 23
    allowed = document_mask(texts) if packed else torch.ones(67, 67, dtype=torch.bool, device="cuda").tril()
    scores = query.double() @ key.double().mT / 8
    weights = scores.masked_fill(~allowed, float("-inf")).softmax(-1)
    fused = attend(query, key, value, document_mask(texts) if packed else None)
    error = 1e-5 if numbers is torch.float32 else 2e-2  # bfloat16 keeps eight bits
    torch.testing.assert_close(fused.double(), weights @ value.double(), atol=error, rtol=0)


@pytest.mark.parametrize("stories", [False, True])
def test_losses_of_a_training_are_those_of_the_cpu(stories: bool) -> None:
    asked = settings("optim=adamw", "optim.learning_rate=0.001", "optim.embedding_learning_rate=0.001")
    on_cpu = losses(make_training(asked, stories=stories), 20)
    on_gpu = losses(make_training(asked, stories=stories, device="cuda"), 20)
    assert on_gpu == pytest.approx(on_cpu, abs=1e-3)
    with_muon = settings()  # whose products are in bfloat16 on both
    on_cpu = losses(make_training(with_muon, stories=stories), 20)
    assert losses(make_training(with_muon, stories=stories, device="cuda"), 20) == pytest.approx(on_cpu, abs=0.05)


def test_bfloat16_trains_as_float32_does() -> None:
    full, half = (
        losses(make_training(settings(f"precision={name}"), stories=False, device="cuda"), 40)
        for name in ("float32", "bfloat16")
    )
    assert half == pytest.approx(full, abs=0.1) and half[-1] < half[0] - 0.3


@pytest.mark.slow
@pytest.mark.parametrize("how", ["default", "graphs"])
@pytest.mark.parametrize("stories", [False, True])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_compiled_step_is_the_plain_one_to_rounding(how: str, stories: bool, precision: str) -> None:
    common = (f"precision={precision}", "gradient_accumulation_steps=2")
    plain = losses(make_training(settings(*common), stories=stories, device="cuda"), 25)
    training = make_training(settings(*common, f"compile={how}"), stories=stories, device="cuda")
    assert losses(training, 25) == pytest.approx(plain, abs=0.02 if precision == "float32" else 0.1)


def test_a_resident_text_changes_no_loss(same_every_time: None) -> None:
    asked = settings("precision=bfloat16")
    host, resident = (make_training(asked, stories=False, device="cuda", room=room) for room in (0, 2**20))
    assert isinstance(resident.batch_at, BatchLoader) and resident.batch_at.is_resident
    assert losses(host, 20) == losses(resident, 20)
    assert resident_room(torch.device("cuda")) > 2**20


@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")  # torch says once that it is a prototype
@pytest.mark.parametrize("how", ["none", "graphs"])
@pytest.mark.parametrize("stories", [False, True])
def test_a_step_does_not_wait_for_the_device(how: str, stories: bool) -> None:
    asked = settings("precision=bfloat16", "gradient_accumulation_steps=2", f"compile={how}", "model.dropout=0.1")
    training = make_training(asked, stories=stories, device="cuda", room=2**20)
    losses(training, 5)  # what is compiled, captured and allocated once may wait
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            set_rates(training.optimizers, 0.5)
            total, norm, _ = train_step(training)
            training.step += 1
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.isfinite(total) and torch.isfinite(norm)


def test_a_training_gone_on_with_is_the_unbroken_one_to_the_bit(same_every_time: None) -> None:
    asked = settings("precision=bfloat16", "model.dropout=0.1")
    unbroken = make_training(asked, stories=True, device="cuda")
    assert isinstance(unbroken.optimizers[0], StackedMuon)
    losses(unbroken, 8)
    torch.save(unbroken.state(), saved := io.BytesIO())
    expected = losses(unbroken, 8)
    again = make_training(replace(asked, run=replace(asked.run, seed=7)), stories=True, device="cuda")
    again.batch_at = unbroken.batch_at
    again.load(torch.load(io.BytesIO(saved.getvalue()), map_location="cpu", weights_only=True))
    assert losses(again, 8) == expected


def test_a_training_of_the_cpu_goes_on_here() -> None:
    asked = settings()
    on_cpu, on_gpu = (make_training(asked, stories=False, device=device) for device in ("cpu", "cuda"))
    losses(on_cpu, 8)
    torch.save(on_cpu.state(), saved := io.BytesIO())
    on_gpu.load(torch.load(io.BytesIO(saved.getvalue()), map_location="cpu", weights_only=True))
    assert losses(on_gpu, 8) == pytest.approx(losses(on_cpu, 8), abs=0.05)


def test_too_little_memory_is_told_with_what_to_set(tmp_path: Path) -> None:
    training = make_training(settings("tokens_per_batch=9500000"), stories=False, device="cuda")
    recorder = Recorder(tmp_path, None)
    torch.cuda.set_per_process_memory_fraction(0.01)  # the logits alone are 38 GB
    try:
        with pytest.raises(MemoryError, match="gradient_accumulation_steps=2"), enough_memory(training):
            advance(training, recorder)
    finally:
        recorder.close()
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()


def test_the_ceiling_is_one_of_this_device() -> None:
    began = time.perf_counter()
    full, half = (matmul_ceiling(torch.device("cuda"), bfloat16=bfloat16) for bfloat16 in (False, True))
    assert time.perf_counter() - began < 4
    assert 1e12 < full < half < 5e15


def test_a_run_trains_resumes_and_is_probed_as_on_the_cpu(tmp_path: Path) -> None:
    quick = ["model=nano", "max_steps=60", "eval_every_steps=30", "log_every_steps=1", "data.n_train_stories=6000"]
    quick += [
        "data.n_validation_stories=400",
        "data.n_test_templates=3",
        "data.n_test_pairs=2",
        f"cache_dir={tmp_path / 'cache'}",
    ]
    out = f"out={tmp_path / 'run'}"
    manifest = tmp_path / "run" / "checkpoints" / "manifest.json"
    for arguments in (["train.py", out, "device=cuda", *quick], ["train.py", out, quick[-1], "resume=true"]):
        ran = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        assert json.loads(manifest.read_text())[-1]["step"] == 60
        if "resume=true" not in arguments:  # as if it had been stopped halfway
            manifest.write_text(json.dumps([one for one in json.loads(manifest.read_text()) if one["step"] < 60]))
    assert "cuda" in json.loads((tmp_path / "run" / "environment.json").read_text())["device"]
    heads = {}
    for device in ("cpu", "cuda"):
        asked = [f"run={tmp_path / 'run'}", quick[-1], "probe.n_untrained=2", f"device={device}"]
        ran = subprocess.run([sys.executable, "eval.py", *asked], cwd=ROOT, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        found = json.loads((tmp_path / "run" / "probe" / "probe.json").read_text())["selected"]
        heads[device] = [(one["question"], one["layer"], one["head"], one["dev"]["accuracy"]) for one in found]
    for on_cpu, on_gpu in zip(heads["cpu"], heads["cuda"], strict=True):
        assert on_cpu[:3] == on_gpu[:3] and on_gpu[3] == pytest.approx(on_cpu[3], abs=0.01)
