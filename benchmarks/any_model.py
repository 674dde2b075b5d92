"""Models that others trained, through the same probe: python -m benchmarks.any_model [nanogpt=DIR] [llama2c=DIR].

- For ten architectures of transformers, with random weights: attention maps and logits compared with the "eager"
  attention of transformers, the effect of one exchanged edge, and the verdict of the whole probe.
- With nanogpt=DIR and llama2c=DIR, checkouts of these programs: the logits of their code compared with ours.
- Seconds and memory of `eval.py model=` for a GPT-2 of 124 million random weights.

Writes docs/results/any_model.{json,md}.
"""

import importlib.util
import resource
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from benchmarks.measure import arguments, run_script, write_results
from data.english_blocks import english_texts
from data.text_tables import markdown_table
from data.tokenizer import END, bpe_tokenizer
from model.checkpoints import read_checkpoint
from model.observe import HeadEdit
from report.api import open_model, probe_model

L, H, G, D = 3, 4, 2, 64  # layers, heads, heads of keys and values, width
PLAIN = {"hidden_size": D, "intermediate_size": 96, "num_hidden_layers": L, "num_attention_heads": H}
GROUPED = {**PLAIN, "num_key_value_heads": G}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": D, "n_layer": L, "n_head": H},
    "gpt_neox": PLAIN,
    "llama": GROUPED,
    "mistral": {**GROUPED, "sliding_window": 32},
    "qwen2": GROUPED,
    "qwen3": GROUPED,
    "opt": {**PLAIN, "ffn_dim": 96, "word_embed_proj_dim": D},
    "phi": PLAIN,
    "gemma2": {**GROUPED, "sliding_window": 32},
    "olmo2": GROUPED,
}
QUERY, FIRST, SECOND = 20, 12, 13  # an edge is exchanged: the weights of one token on two others


def make_tokenizer() -> Tokenizer:
    """Returns a byte-level tokenizer of the sentences that models are tested on."""
    rows = english_texts(None, n_frames=40, n_pairs=20, seed=1)
    return bpe_tokenizer((row["text"] for split in rows.values() for row in split), 1500)


def save_random(folder: Path, model_type: str, shape: dict[str, Any], tokenizer: Tokenizer) -> None:
    """Writes a model with random weights and the tokenizer as `save_pretrained` does."""
    import transformers

    end = tokenizer.token_to_id(END)
    sizes = {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": 64, **shape}
    special = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end}
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(model_type, **sizes, **special)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():  # initial weights are so small that attention is nearly uniform
            weight.add_(torch.randn_like(weight) * (0.25 if weight.ndim == 1 else 0.15))
    model.save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=END, eos_token=END).save_pretrained(
        folder
    )


@torch.no_grad()
def compare(folder: Path) -> dict[str, Any]:
    """Returns the largest differences from eager attention, the effect of an exchanged edge, and the verdict."""
    import transformers

    opened = open_model(folder)
    eager = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    tokens = torch.randint(opened.model.vocab_size, (4, 48), generator=torch.Generator().manual_seed(1))
    expected = eager.eval()(tokens, output_attentions=True, use_cache=False)
    maps = opened.model.attention_scores(tokens).softmax(-1)

    def exchange(weights: Tensor) -> Tensor:
        changed = weights.clone()
        changed[:, QUERY, [FIRST, SECOND]] = weights[:, QUERY, [SECOND, FIRST]]
        return changed

    logits = opened.model.logits(tokens)
    change = (opened.model.logits(tokens, edits=[HeadEdit(1, 2, weights=exchange)]) - logits).abs().amax((0, 2))
    start = time.monotonic()
    head = probe_model(opened).heads["english"]
    return {
        "maps": float((maps - torch.stack(expected.attentions)).abs().max()),
        "logits": float((logits - expected.logits).abs().max()),
        "before_edge": float(change[:QUERY].max()),
        "at_edge": float(change[QUERY]),
        "head": f"L{head.layer}H{head.head}",
        "verdict": head.verdict,
        "seconds": time.monotonic() - start,
    }


def module_of(path: Path) -> ModuleType:
    """Returns a Python file of another program as a module."""
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@torch.no_grad()
def logit_difference(model: Any, sizes: dict[str, Any], folder: Path) -> float:
    """Saves a random `model` of nanoGPT or llama2.c, and returns the largest difference of its logits from ours."""
    torch.manual_seed(0)
    for weight in model.eval().parameters():
        weight.add_(0.2 * torch.randn_like(weight))
    path = folder / "ckpt.pt"
    torch.save({"model": model.state_dict(), "model_args": sizes, "optimizer": {}, "config": {}}, path)
    tokens = torch.randint(sizes["vocab_size"], (4, 32))
    logits = model(tokens, tokens)
    theirs = logits[0] if isinstance(logits, tuple) else logits
    return float((theirs - read_checkpoint(path)(input_ids=tokens).logits).abs().max())


def checkpoint_rows(options: dict[str, str], folder: Path) -> list[list[str]]:
    """Returns a row for each kind of checkpoint whose program is given."""
    rows = []
    if options["nanogpt"]:
        nanogpt = module_of(Path(options["nanogpt"]) / "model.py")
        for bias in (True, False):
            sizes = {"n_layer": L, "n_head": H, "n_embd": D, "block_size": 64, "vocab_size": 99, "bias": bias}
            model = nanogpt.GPT(nanogpt.GPTConfig(**sizes, dropout=0.0))
            rows.append([f"nanoGPT ckpt.pt, bias={bias}", f"{logit_difference(model, sizes, folder):.1e}"])
    if options["llama2c"]:
        llama2c = module_of(Path(options["llama2c"]) / "model.py")
        for n_kv_heads in (H, G):
            sizes = {"dim": D, "n_layers": L, "n_heads": H, "n_kv_heads": n_kv_heads, "vocab_size": 99}
            sizes |= {"multiple_of": 32, "max_seq_len": 64}
            model = llama2c.Transformer(llama2c.ModelArgs(**sizes, dropout=0.0))
            rows.append([f"llama2.c ckpt.pt, n_kv_heads={n_kv_heads}", f"{logit_difference(model, sizes, folder):.1e}"])
    return rows


def main() -> None:
    """Measures, writes, prints."""
    options = arguments({"nanogpt": "", "llama2c": ""})
    tokenizer, results, lines = make_tokenizer(), dict[str, Any](), list[str]()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for model_type, shape in ARCHITECTURES.items():
            save_random(folder / model_type, model_type, shape, tokenizer)
            results[model_type] = compare(folder / model_type)
        header = ["architecture", "maps", "logits", "before the edge", "at the edge", "head", "verdict", "probe, s"]
        rows = [
            [name, *(f"{row[key]:.1e}" for key in ("maps", "logits", "before_edge", "at_edge")), row["head"],
             row["verdict"], f"{row['seconds']:.1f}"]
            for name, row in results.items()
        ]  # fmt: skip
        lines += ["Random weights. Largest difference of maps and logits from eager attention; largest change of the"]
        lines += ["logits before and at the token whose edge was exchanged in one head:", ""]
        lines += [*markdown_table(header, rows), ""]
        if rows := checkpoint_rows(options, folder):
            lines += ["Largest difference of the logits from those of the original program:", ""]
            lines += [*markdown_table(["checkpoint", "difference"], rows), ""]
            results["checkpoints"] = rows
        save_random(folder / "gpt2-124m", "gpt2", {"vocab_size": 50257, "max_position_embeddings": 1024}, tokenizer)
        seconds = run_script("eval", f"model={folder}/gpt2-124m", f"out={folder}/out", "device=cpu").seconds
        gigabytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
        results["gpt2-124m"] = {"seconds": seconds, "gigabytes": gigabytes}
        lines.append(
            f"`eval.py model=` for a GPT-2 of 124 million random weights: {seconds:.0f} s, {gigabytes:.1f} GiB."
        )
    write_results("any_model", "Models that others trained", results, lines, torch.get_num_threads())


if __name__ == "__main__":
    main()
