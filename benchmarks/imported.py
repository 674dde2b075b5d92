"""Does the probe find a head in models that transformers made and trained? python -m benchmarks.imported [out=FILE].

Three small decoders are trained on the default stories by transformers' own classes and AdamW, saved as
`save_pretrained` does, and probed by `python eval.py model=FOLDER`, like anybody's: a GPT-2 that reads whole words, a
GPT-2 that reads byte-level BPE of 512 pieces, so that most words are several, and a Llama with grouped heads on the
same pieces. Rows begin where a story does, so that places are those of a text that stands alone.

Settings: out=FILE.json, where the figures go too; cache_dir=.cache; steps=N of each training; folder=DIR, where the
models and what is found of them stay (else they are thrown away).
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

from benchmarks.files import keep
from data.corpus import Corpus, load_corpus, load_rows
from data.tokenizer import END, bpe_tokenizer, end_id

ROOT = Path(__file__).parent.parent
STEPS = 1500
PEAK = 3e-3  # of AdamW's rate: linear up over 100 steps, then by a cosine to 0
TOKENS_PER_BATCH = 4096
PIECES = 512
_SHAPE: dict[str, Any] = {"vocab_size": 0, "bos_token_id": 0, "eos_token_id": 0}


def gpt2(vocab_size: int, context: int) -> Any:
    """Return a GPT-2 of the size of a default run: 2 layers x 4 heads, width 64."""
    shape = _SHAPE | {"vocab_size": vocab_size}
    rest: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(n_embd=64, n_layer=2, n_head=4, n_positions=context, **shape, **rest))


def llama(vocab_size: int, context: int) -> Any:
    """Return a Llama of that size, two of whose heads share keys and values with the two others."""
    shape = _SHAPE | {"vocab_size": vocab_size}
    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 172,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    return LlamaForCausalLM(
        LlamaConfig(
            **shape, **sizes, num_key_value_heads=2, max_position_embeddings=context, tie_word_embeddings=True,
            pad_token_id=None,
        )
    )  # fmt: skip


MODELS = {
    "GPT-2, whole words": (gpt2, "words", 64),
    f"GPT-2, {PIECES} pieces": (gpt2, "pieces", 160),
    f"Llama, 2 of 4 key heads, {PIECES} pieces": (llama, "pieces", 160),
}


def stories(corpus: Corpus, tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Return the training stories' tokens [N], END before each, and where each begins [n]."""
    texts = [row["text"] for row in load_rows(corpus, "train", ["text"])]
    ids = [[end_id(tokenizer), *one.ids] for one in tokenizer.encode_batch_fast(texts)]
    starts = np.cumsum([0, *map(len, ids)])[:-1]
    return np.concatenate([np.array(one) for one in ids]), starts


def train(model: Any, tokens: np.ndarray, starts: np.ndarray, context: int, n_steps: int, seed: int = 1) -> float:
    """Train with AdamW on rows that begin where a story does; return the mean loss of the last 50 steps, in nats."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK, betas=(0.9, 0.98), weight_decay=0.1)
    rng, losses = np.random.default_rng(seed), []
    starts = starts[starts + context < len(tokens)]
    model.train()
    for step in range(n_steps):
        rate = PEAK * min((step + 1) / 100, 0.5 * (1 + np.cos(np.pi * step / n_steps)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        rows = rng.choice(starts, max(1, TOKENS_PER_BATCH // context))[:, None] + np.arange(context)
        batch = torch.from_numpy(tokens[rows].astype(np.int64))
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
    return float(np.mean(losses[-50:]))


def save(model: Any, tokenizer: Tokenizer, folder: Path) -> None:
    """Write a folder as transformers does, with the tokenizer beside the model."""
    logging.disable_progress_bar()
    model.eval().save_pretrained(folder)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=END, eos_token=END)
    wrapped.save_pretrained(folder)


def probed(folder: Path, cache_dir: str) -> dict[str, Any]:
    """Probe a folder by the door, and return its probe.json."""
    out = folder.with_name(f"{folder.name}-found")
    command = [sys.executable, "eval.py", f"model={folder}", f"out={out}", f"cache_dir={cache_dir}", "threads=1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    found: dict[str, Any] = json.loads((out / "probe" / "probe.json").read_text())
    return found


def row(name: str, found: dict[str, Any], loss: float, seconds: dict[str, float]) -> dict[str, Any]:
    """Return what is kept of one model."""
    questions = {
        one["question"]: {
            "head": f"L{one['layer']}H{one['head']}",
            "verdict": f"{one['verdict']} {one['evidence_level']}",
            "accuracy": one["test"]["headline"]["accuracy"],
            "accuracy_interval": one["test"]["headline"]["accuracy_interval"],
            "attention_swap": (one["causal"] or {}).get("attention_swap"),
        }
        for one in found["selected"]
    }
    contract = {name: value for name, value in found["contract"].items() if name != "undecided"}
    return {
        "model": name, "training_loss": loss, **seconds, "questions": questions, "contract": contract,
        "warnings": found["warnings"],
    }  # fmt: skip


def markdown(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Return the table of docs/imported.md."""
    lines = ["| model | question | head | Sel@1 [95 %] | T | verdict |", "|---|---|---|---|---|---|"]
    for one in rows:
        for question, found in one["questions"].items():
            if question not in ("number", "number", "later_cue"):
                continue
            low, high = found["accuracy_interval"]
            turned = "-" if found["attention_swap"] is None else f"{found['attention_swap']:.2f}"
            lines.append(
                f"| {one['model']} | {question} | {found['head']} | {found['accuracy']:.3f} [{low:.3f}, {high:.3f}] | "
                f"{turned} | {found['verdict']} |"
            )
    return lines


def main(given: dict[str, str]) -> None:
    """Train, save and probe each model, and print the table."""
    from hydra import compose, initialize_config_dir

    from training.settings import typed_train

    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        config = typed_train(compose("train")).data
    cache_dir, n_steps = given.get("cache_dir", ".cache"), int(given.get("steps", STEPS))
    corpus = load_corpus(config, Path(cache_dir))
    rows = []
    with tempfile.TemporaryDirectory() as beside:
        for place, (name, (make, kind, context)) in enumerate(MODELS.items()):
            texts = (one["text"] for one in load_rows(corpus, "train", ["text"])[:20_000])
            tokenizer = corpus.tokenizer if kind == "words" else bpe_tokenizer(texts, PIECES)
            tokens, starts = stories(corpus, tokenizer)
            torch.manual_seed(1)
            model = make(tokenizer.get_vocab_size(), context)
            began = time.monotonic()
            loss = train(model, tokens, starts, context, n_steps)
            trained = time.monotonic()
            folder = Path(given.get("folder", beside)) / f"{place}-{make.__name__}-{kind}"
            save(model, tokenizer, folder)
            found = probed(folder, cache_dir)
            seconds = {"train_seconds": trained - began, "probe_seconds": time.monotonic() - trained}
            rows.append(row(name, found, loss, seconds))
            print("\n".join(markdown(rows[-1:])[2:]), f"(loss {loss:.3f}, {seconds})", flush=True)
    print("\n".join(["", *markdown(rows)]))
    if "out" in given:
        keep(Path(given["out"]), rows)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(dict(argument.split("=", 1) for argument in sys.argv[1:]))
