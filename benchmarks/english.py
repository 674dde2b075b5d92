"""Fifteen minutes of English beside a GPT-2 of the same size: python -m benchmarks.english train=A,B validation=C,D.

Trains `experiment=english` by train.py, then a transformers GPT-2 of as many layers, heads and units by AdamW: on the
same tokens, in the same order of crops, for the same seconds of steps, on as many threads, one after the other. Both
are then measured on each validation file alone, with their last weights. Further arguments: pairs=PATH links=PATH
winobias=PATH (the tests of docs/outside.md, of our model), seed=1, threads=2, rate=0.004 (the peer's peak rate),
out=FOLDER (to keep the run in; a run that is there and has ended is not trained again), and any setting of train.py.
Writes docs/english.json and the tables of docs/english.md; needs requirements-dev.txt.
"""

import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from benchmarks.files import keep, paste
from benchmarks.link_head import ROOT, call, environment_line
from data.corpus import load_corpus
from data.documents import local_sources, read_pieces
from data.loader import Split, StreamBatches, validation_batches
from data.tokenizer import end_id
from model.transformer import Transformer, load_weights, n_parameters
from training.checkpoint import load_checkpoint
from training.device import choose_place, keep_freed_memory
from training.evaluate import RowLosses, mean_and_error, mean_loss, row_losses
from training.run_dir import read_json
from training.settings import Device, typed_saved

PAGE, RESULTS = ROOT / "docs" / "english.md", ROOT / "docs" / "english.json"
TASKS = {"pairs": "minimal_pairs", "links": "links", "winobias": "winobias"}
_OWN = {"train", "validation", "seed", "threads", "rate", "out", *TASKS}
_RATE = 0.004
_WARMUP_STEPS = 50  # of the peer, as many as configs/optim/adamw.yaml has
_N_GRAM = 8  # words


class Logits(nn.Module):
    """A transformers model seen as ours: tokens [B, T] to logits [B, T, V]."""

    def __init__(self, model: nn.Module) -> None:
        """Keep `model`."""
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits alone."""
        logits: Tensor = self.model(tokens).logits
        return logits


def gpt2(shape: dict[str, Any], vocab_size: int, seed: int) -> Logits:
    """Return a GPT-2 (Radford et al. 2019) with `shape`'s layers, heads, width and context, as transformers begins it.

    Without dropout, and with the attention that is fastest here in bfloat16: transformers' own, not torch's fused one.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=vocab_size, n_positions=shape["context_length"], n_embd=shape["d_model"], n_layer=shape["n_layer"],
        n_head=shape["n_head"], resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    model.set_attn_implementation("eager")
    return Logits(model)


def train_peer(
    model: nn.Module, batches: StreamBatches, seconds: float, rate: float, *, bfloat16: bool
) -> dict[str, float]:
    """Train `model` by AdamW for `seconds` of steps: warm-up, then linearly to 0 as the time runs out.

    Weight decay 0.1 on matrices, betas .9 and .95, gradients clipped at 1, as nanoGPT has them.

    Args:
        model: any that turns tokens into logits; it is left in eval mode.
        batches: what it reads.
        seconds: spent in steps, the making of batches included.
        rate: at its peak.
        bfloat16: whether matrices are multiplied in it.

    """
    matrices = [one for one in model.parameters() if one.ndim > 1]
    others = [one for one in model.parameters() if one.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=True)
    model.train()
    used, step, n_tokens = 0.0, 0, 0
    while used < seconds:
        began = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / _WARMUP_STEPS) * (1 - used / seconds)
        batch = batches.at(step)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
            logits = model(batch.tokens)
        mean_loss(logits, batch.targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        used += time.perf_counter() - began
        step, n_tokens = step + 1, n_tokens + batch.tokens.numel()
    model.eval()
    return {"seconds": used, "steps": step, "tokens": n_tokens}


def compare(ours: RowLosses, theirs: RowLosses, n_bytes: int, n_together: int = 16) -> dict[str, float]:
    """Return both models' bits per byte of one file, and the difference with its standard error over parts of it.

    Args:
        ours: [R, 1] nats of each window, in order.
        theirs: of the same windows.
        n_bytes: of the file's text.
        n_together: windows to a part; those of one tale are not independent, and 16 of 256 tokens hold a tale or more.

    """
    scale = float(ours.counts.sum()) / math.log(2) / n_bytes  # from nats per token
    own, peer = (float(mean_and_error(one.losses, one.counts)[0]) * scale for one in (ours, theirs))
    parts = ((theirs.losses - ours.losses).split(n_together), ours.counts.split(n_together))
    _, error = mean_and_error(*(torch.stack([part.sum(0) for part in some]) for some in parts))
    return {"ours": own, "peer": peer, "difference": peer - own, "error": float(error) * scale}


def overlap(training: Iterable[str], text: str) -> float:
    """Return the share of the 8-grams of `text`'s words that stand in a training text too: what could be recited."""

    def grams(some: str) -> Iterator[int]:
        words = some.split()
        return (hash(tuple(words[i : i + _N_GRAM])) for i in range(len(words) - _N_GRAM + 1))

    seen = {gram for one in training for gram in grams(one)}
    asked = list(grams(text))
    return sum(gram in seen for gram in asked) / max(1, len(asked))


def file_split(tokenizer: Tokenizer, path: str) -> Split:
    """Return the tokens of one file, cut as those of training are."""
    ids: list[int] = []
    n_bytes = 0
    for text, begins in read_pieces(local_sources(path), "text"):
        ids += [end_id(tokenizer)] if begins else []
        ids += tokenizer.encode(text).ids
        n_bytes += len(text.encode())
    return Split(np.array(ids, dtype=np.uint32), n_bytes)


def window_losses(model: nn.Module, split: Split, context_length: int) -> RowLosses:
    """Return the losses of every window of a split, in float32."""
    batches = validation_batches(split, tokens_per_batch=1 << 14, context_length=context_length, n_tokens=None)
    return row_losses(model, ((one.model_inputs(), one.targets, None, None) for one in batches), 1)


def short(path: str) -> str:
    """Return the last two parts of a path."""
    return "/".join(Path(path).parts[-2:])


def both(run: Path, cache: Path, rate: float, validation: list[str]) -> dict[str, Any]:
    """Train the peer of a run that has ended and measure both on each file."""
    saved = read_json(run / "config.json")
    settings = typed_saved(saved)
    corpus = load_corpus(settings.data, cache)
    vocab_size = corpus.tokenizer.get_vocab_size()
    ours = Transformer(settings.model, vocab_size, seed=0)
    load_weights(ours, load_checkpoint(run / "checkpoints")[0]["model"])
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = [one for one in records if one["split"] == "validation"][-1]
    if not last["whole"]:
        sys.exit(f"{run} has not ended: python train.py resume=true out={run}")
    peer = gpt2(saved["model"], vocab_size, settings.run.seed)
    batches = StreamBatches(
        corpus.train, tokens_per_batch=settings.run.tokens_per_batch, context_length=settings.model.context_length,
        seed=settings.run.seed,
    )  # fmt: skip
    bfloat16 = choose_place(Device.cpu, settings.run.precision).bfloat16
    trained = train_peer(peer, batches, last["seconds"], rate, bfloat16=bfloat16)
    files = {}
    for path in validation:
        split = file_split(corpus.tokenizer, path)
        own, theirs = (window_losses(model.eval(), split, settings.model.context_length) for model in (ours, peer))
        files[short(path)] = compare(own, theirs, split.n_bytes) | {"bytes": split.n_bytes}
    n_steps = last["step"]
    return {
        "model": saved["model"],
        "vocab_size": vocab_size,
        "training": {"tokens": len(corpus.train.tokens), "bytes": corpus.train.n_bytes},
        "ours": {
            "parameters": n_parameters(ours),
            "seconds": last["seconds"],
            "steps": n_steps,
            "tokens": n_steps * batches.n_rows * batches.context_length,
        },
        "peer": {"parameters": n_parameters(peer), "rate": rate, **trained},
        "files": files,
        "seed": settings.run.seed,
    }


def sample(run: Path) -> str:
    """Return what the model writes, one try."""
    asked = [f"run={run}", "prompt=Once upon a time", "n_tokens=120", "temperature=0.8", "seed=0"]
    command = [sys.executable, "-m", "model.generate", *asked]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def tables(kept: dict[str, Any]) -> dict[str, list[str]]:
    """Return every block of docs/english.md that this makes, by marker."""
    ours, peer = kept["ours"], kept["peer"]
    names = list(kept["files"])
    lines = [
        f"| model | parameters | optimizer | s of steps | tokens read | {' | '.join(names)} |",
        f"|---|---|---|---|---|{'---|' * len(names)}",
    ]
    for who, one, optimizer in (
        ("this one", ours, "Muon and AdamW"),
        ("transformers' GPT-2", peer, f"AdamW, {peer['rate']:g}"),
    ):
        key = "ours" if one is ours else "peer"
        cells = [f"{kept['files'][name][key]:.4f}" for name in names]
        lines.append(
            f"| {who} | {one['parameters']:,} | {optimizer} | {one['seconds']:.0f} | {one['tokens']:,} "
            f"| {' | '.join(cells)} |"
        )
    cells = [f"{kept['files'][name]['difference']:.4f} ({kept['files'][name]['error']:.4f})" for name in names]
    lines.append(f"| lower by (standard error over parts of the file) | | | | | {' | '.join(cells)} |")
    shares = [f"{100 * share:.1f} % of {name}'s" for name, share in kept["overlap"].items()]
    blocks = {
        "english peer": lines,
        "english overlap": [
            f"Of the validation text's runs of {_N_GRAM} words, {' and '.join(shares)} stand in training."
        ],
        "english sample": [f"> {line}".rstrip() for line in kept["sample"].split("\n")],
        "english environment": [environment_line(kept["environment"])],
    }
    printed = {task: ["```", *found.strip().split("\n"), "```"] for task, found in kept["tests"].items()}
    return blocks | {f"english {task}": lines for task, lines in printed.items()}


def readme_lines(kept: dict[str, Any]) -> list[str]:
    """Return what README.md says of it."""
    own, peer = (" and ".join(f"{one[who]:.3f}" for one in kept["files"].values()) for who in ("ours", "peer"))
    return [
        f"Fifteen minutes on two CPU cores: {own} bits per byte of {' and '.join(kept['files'])};",
        f"a GPT-2 of the same size, by AdamW, as long on the same tokens: {peer} ([docs/english.md](docs/english.md)).",
    ]


def main() -> None:
    """Train both, measure, write, print."""
    given = dict(argument.partition("=")[::2] for argument in sys.argv[1:])
    if {"train", "validation"} - given.keys():
        sys.exit("usage: python -m benchmarks.english train=FILE,FILE validation=FILE,FILE [pairs=PATH links=PATH ...]")
    threads, seed, rate = given.get("threads", "2"), given.get("seed", "1"), float(given.get("rate", _RATE))
    torch.set_num_threads(int(threads))
    training, validation = given["train"].split(","), given["validation"].split(",")
    settings = [f"{name}={value}" for name, value in given.items() if name not in _OWN]
    with tempfile.TemporaryDirectory() as folder:
        run, cache = Path(given.get("out", f"{folder}/run")), Path(folder) / "cache"
        if not run.exists():
            call(
                "train", "experiment=english", f"data.path={given['train']}", f"seed={seed}", f"threads={threads}",
                f"data.validation_path={given['validation']}", "device=cpu", f"out={run}", f"cache_dir={cache}",
                *settings,
            )  # fmt: skip
        keep_freed_memory()  # as train.py does for itself
        kept = both(run, cache, rate, validation)
        texts = [Path(path).read_text() for path in training]
        kept["overlap"] = {short(path): overlap(texts, Path(path).read_text()) for path in validation}
        kept["tests"] = {}
        for argument, task in TASKS.items():
            if argument in given:
                call("eval", f"run={run}", f"task={task}", f"path={given[argument]}", f"cache_dir={cache}")
                kept["tests"][task] = (run / "probe" / "outside" / f"{task}.md").read_text()
        kept["sample"] = sample(run)
        environment = read_json(run / "environment.json")
    names = ("python", "packages", "processor", "cores", "threads")
    kept["environment"] = {name: environment[name] for name in names}
    keep(RESULTS, kept)
    for marker, lines in tables(kept).items():
        paste(PAGE, marker, lines)
        print("\n".join(lines), flush=True)
    paste(ROOT / "README.md", "english", readme_lines(kept))


if __name__ == "__main__":
    main()
