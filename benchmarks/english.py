"""Fifteen minutes of English compared with GPT-2: python -m benchmarks.english train=A,B validation=C,D.

Trains `experiment=english`, then transformers' GPT-2 of the same depth, heads and width by AdamW on the same tokens, in
the same order of crops, for the same seconds of training. Both are measured on each validation file, in windows that do
not overlap, float32. Further arguments: pairs=PATH (minimal pairs), links=PATH (gold links), seed=1,
rate=0.004 (the peer's peak learning rate), max_steps=N (a short rehearsal).

Writes docs/results/english.{json,md}. Needs requirements-dev.txt.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.measure import arguments, read_records, run_command, run_script, write_results
from data.corpus import load_corpus
from data.loader import Split, StreamBatches, validation_batches
from data.tokenizer import end_id
from model.transformer import Transformer, load_weights, n_parameters
from probe.external import markdown_table
from training.checkpoint import load_checkpoint
from training.device import ComputeDevice, choose_device
from training.evaluate import row_losses
from training.settings import TrainSettings, saved_settings

WARMUP_STEPS = 50
TASKS = {"pairs": "minimal_pairs", "links": "links"}


class GPT2(GPT2LMHeadModel):
    """transformers' GPT-2 (Radford et al. 2019) as a function from tokens [B, T] to logits [B, T, V]."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns the logits."""
        return super().forward(tokens).logits


def make_gpt2(settings: TrainSettings, vocab_size: int) -> GPT2:
    """Returns a GPT-2 of the same layers, heads, width and context, without dropout."""
    shape = settings.model
    config = GPT2Config(
        vocab_size=vocab_size, n_positions=shape.context_length, n_embd=shape.d_model, n_layer=shape.n_layer,
        n_head=shape.n_head, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    torch.manual_seed(settings.run.seed)
    model = GPT2(config)
    model.set_attn_implementation("eager")  # on a CPU in bfloat16 faster than the fused kernel
    return model


def train_peer(
    model: nn.Module, batches: StreamBatches, seconds: float, rate: float, device: ComputeDevice
) -> dict[str, float]:
    """Trains by AdamW for `seconds` of steps with nanoGPT's weight decay, betas and clipping; ends in eval mode.

    The learning rate warms up and then falls linearly to 0 as the time runs out.
    """
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=True)
    model.train()
    used, step, n_tokens = 0.0, 0, 0
    while used < seconds:
        start = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / WARMUP_STEPS) * (1 - used / seconds)
        batch = batches.at(step)
        with device.autocast():
            logits = model(batch.tokens)
        F.cross_entropy(logits.float().flatten(0, 1), batch.targets.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        used += time.perf_counter() - start
        step, n_tokens = step + 1, n_tokens + batch.tokens.numel()
    model.eval()
    return {"seconds": used, "steps": step, "tokens": n_tokens}


def bits_per_byte(model: nn.Module, tokenizer: Tokenizer, path: Path, context: int) -> float:
    """Returns the loss on a text file in windows that do not overlap, as bits per byte of the text."""
    tokens = np.array([end_id(tokenizer), *tokenizer.encode(path.read_text()).ids])
    split = Split(tokens, n_bytes=path.stat().st_size)
    batches = validation_batches(split, tokens_per_batch=32 * context, context_length=context, n_tokens=None)
    rows = row_losses(model, batches, n_classes=1)
    return split.bits_per_byte(float(rows.losses.sum() / rows.counts.sum()))


def compare(run: Path, cache: Path, rate: float, validation: list[Path]) -> dict[str, Any]:
    """Trains the peer of a finished run and measures both models on each file."""
    settings = saved_settings(json.loads((run / "config.json").read_text()))
    corpus = load_corpus(settings.data, cache)
    vocab_size, context = corpus.tokenizer.get_vocab_size(), settings.model.context_length
    ours = Transformer(settings.model, vocab_size, seed=0)
    load_weights(ours, load_checkpoint(run / "checkpoints")["model"])
    last, n_tokens = read_records(run, "validation")[-1], settings.run.tokens_per_batch
    batches = StreamBatches(corpus.train, tokens_per_batch=n_tokens, context_length=context, seed=settings.run.seed)
    peer = make_gpt2(settings, vocab_size)
    device = choose_device(settings.run.device, settings.run.precision, settings.run.threads)
    trained = train_peer(peer, batches, last["seconds"], rate, device)
    models = {"ours": ours.eval(), "gpt2": peer}
    training = {"seconds": last["seconds"], "steps": last["step"], "tokens": last["step"] * n_tokens}
    return {
        "ours": {"parameters": n_parameters(ours), **training},
        "gpt2": {"parameters": n_parameters(peer), "rate": rate, **trained},
        "files": {
            "/".join(path.parts[-2:]): {
                name: bits_per_byte(model, corpus.tokenizer, path, context) for name, model in models.items()
            }
            for path in validation
        },
    }


def page(results: dict[str, Any]) -> list[str]:
    """Returns the page's table and what the outside tests printed."""
    rows = []
    for name, title in (("ours", "experiment=english"), ("gpt2", "transformers' GPT-2, AdamW")):
        model = results[name]
        scores = [f"{file[name]:.4f}" for file in results["files"].values()]
        rows.append([title, f"{model['parameters']:,}", f"{model['seconds']:.0f}", f"{model['tokens']:,}", *scores])
    header = ["model", "parameters", "seconds of training", "tokens read", *results["files"]]
    lines = ["Bits per byte of each validation file, one seed:", "", *markdown_table(header, rows)]
    for task, output in results["tasks"].items():
        lines += ["", f"`eval.py task={task}`:", "", "```", *output.strip().splitlines(), "```"]
    return [*lines, "", "One sample:", "", *(f"> {line}".rstrip() for line in results["sample"].splitlines())]


def main() -> None:
    """Trains both, measures, writes, prints."""
    defaults = {"pairs": "", "links": "", "seed": "1", "rate": "0.004", "max_steps": ""}
    options = arguments(defaults, required=["train", "validation"])
    with tempfile.TemporaryDirectory() as folder:
        run, cache = Path(folder) / "run", Path(folder) / "cache"
        settings = [f"data.path={options['train']}", f"data.validation_path={options['validation']}", "device=cpu"]
        settings += [f"seed={options['seed']}", f"out={run}", f"cache_dir={cache}"]
        settings += [f"max_steps={options['max_steps']}"] if options["max_steps"] else []
        run_script("train", "experiment=english", *settings)
        results = compare(run, cache, float(options["rate"]), [Path(path) for path in options["validation"].split(",")])
        results["tasks"] = {
            task: run_script("eval", f"run={run}", f"task={task}", f"path={options[name]}", f"cache_dir={cache}").output
            for name, task in TASKS.items()
            if options[name]
        }
        sample = ["prompt=Once upon a time", "n_tokens=120", "temperature=0.8", "seed=0"]
        results["sample"] = run_command([sys.executable, "-m", "model.generate", f"run={run}", *sample]).output.strip()
    write_results("english", "Fifteen minutes of English", results, page(results), threads=torch.get_num_threads())


if __name__ == "__main__":
    main()
