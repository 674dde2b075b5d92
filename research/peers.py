"""Two jobs with this project, TransformerLens, nnsight and transformers: are the numbers equal, and what do they cost?

    maps     the attention weights of all heads in every text
    effects  log p(answer) - log p(foil) after every prompt, without and with each of 20 heads removed, everywhere
    last     the same with the heads removed at the last token of the prompt only

The prompts are the shipped English up to a place where one woman and one man were named and "she" or "he" follows.
Every program gets the same tokens and runs in processes of its own, one after the other, in float32; its lines are
counted. Writes research/results/peers.{json,md}. `python` is that of an environment with transformer-lens and nnsight.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import MISSING

import antecedent_lab
from data.text import SHIPPED_TEXT, read_documents
from extras.english.passages import passages_in, sections, with_two
from probe.text_tables import markdown_table
from research.measure import ROOT, listed, median_range, start_benchmark, write_page
from settings.errors import UserError

N_HEADS = 20
ANSWER, FOIL = " she", " he"
# Texts of similar length share a batch, padded on the right: in a causal model the padding changes nothing before it.
BATCH = """
import json, os, resource, sys, time
import numpy as np, torch
task = json.load(open(sys.argv[1]))
torch.set_num_threads(task["threads"])
torch.set_grad_enabled(False)
heads, answer, foil, rows = task["heads"], task["answer"], task["foil"], task["rows"]
batches = []
order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
for chosen in [order[i : i + 16] for i in range(0, len(order), 16)]:
    longest = max(len(rows[i]) for i in chosen)
    tokens = torch.tensor([rows[i] + [0] * (longest - len(rows[i])) for i in chosen])
    batches.append((chosen, tokens, torch.arange(len(chosen)), torch.tensor([len(rows[i]) - 1 for i in chosen])))
"""
LOAD = {
    "ours": "import antecedent_lab\nopened = antecedent_lab.open_model(task['model'], threads=task['threads'])",
    "transformers": """
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(task["model"], dtype=torch.float32, attn_implementation="eager")
""",
    "TransformerLens": """
from transformer_lens.model_bridge import TransformerBridge
model = TransformerBridge.boot_transformers(task["model"], device="cpu", dtype=torch.float32)
""",
    "nnsight": """
from nnsight import LanguageModel
model = LanguageModel(task["model"], device_map="cpu", dtype=torch.float32, attn_implementation="eager", dispatch=True)
""",
}
# Each ends with `result`: arrays [L, H, T, T] for maps, else margins [1 + heads, N], the unedited model first.
PROGRAMS = {
    "maps": {
        "ours": "result = opened.attention(task['texts'])",
        "transformers": """
result = [None] * len(rows)
for chosen, tokens, row, last in batches:
    maps = torch.stack(model(tokens, output_attentions=True, logits_to_keep=1).attentions)
    for i, n in zip(chosen, (last + 1).tolist()):
        result[i] = maps[:, chosen.index(i), :, :n, :n].numpy()
""",
        "TransformerLens": """
result = [None] * len(rows)
for chosen, tokens, row, last in batches:
    _, cache = model.run_with_cache(tokens, names_filter=lambda name: name.endswith("hook_pattern"))
    maps = torch.stack([cache["pattern", layer] for layer in range(model.cfg.n_layers)])
    for i, n in zip(chosen, (last + 1).tolist()):
        result[i] = maps[:, chosen.index(i), :, :n, :n].numpy()
""",
        "nnsight": """
result = [None] * len(rows)
for chosen, tokens, row, last in batches:
    with model.trace(tokens, output_attentions=True):
        saved = model.output.attentions.save()
    maps = torch.stack(saved)
    for i, n in zip(chosen, (last + 1).tolist()):
        result[i] = maps[:, chosen.index(i), :, :n, :n].numpy()
""",
    },
    "effects": {
        "ours": "result = opened.effects(task['texts'], answer_text, foil_text, heads)",
        "transformers": """
width = model.config.hidden_size // model.config.num_attention_heads
result = np.empty((1 + len(heads), len(rows)))
for number, head in enumerate([None, *heads]):
    if head:
        def remove(module, inputs, h=head[1]):
            inputs[0][..., h * width : (h + 1) * width] = 0
        handle = model.model.layers[head[0]].self_attn.o_proj.register_forward_pre_hook(remove)
    for chosen, tokens, row, last in batches:
        logits = model(tokens, logits_to_keep=last.unique()).logits
        logits = logits[row, torch.searchsorted(last.unique(), last)]
        result[number, chosen] = logits[:, answer] - logits[:, foil]
    if head:
        handle.remove()
""",
        "TransformerLens": """
def remove(z, hook, h):
    z[:, :, h] = 0
    return z
result = np.empty((1 + len(heads), len(rows)))
for number, head in enumerate([None, *heads]):
    hooks = [] if head is None else [(f"blocks.{head[0]}.attn.hook_z", lambda z, hook: remove(z, hook, head[1]))]
    for chosen, tokens, row, last in batches:
        logits = model.run_with_hooks(tokens, fwd_hooks=hooks)[row, last]
        result[number, chosen] = logits[:, answer] - logits[:, foil]
""",
        "TransformerLens, start_at_layer": """
def remove(z, hook, h):
    z[:, :, h] = 0
    return z
result = np.empty((1 + len(heads), len(rows)))
for chosen, tokens, row, last in batches:
    read = ("unembed.hook_in", lambda x, hook: x[row, last][:, None])
    streams = [f"blocks.{layer}.hook_in" for layer, _ in heads]
    logits, cache = model.run_with_cache(tokens, names_filter=lambda name: name in streams)
    result[0, chosen] = (logits[row, last, answer] - logits[row, last, foil])
    for number, (layer, h) in enumerate(heads, 1):
        hooks = [(f"blocks.{layer}.attn.hook_z", lambda z, hook: remove(z, hook, h)), read]
        stream = cache[f"blocks.{layer}.hook_in"]
        logits = model.run_with_hooks(stream, start_at_layer=layer, fwd_hooks=hooks)[:, 0]
        result[number, chosen] = logits[:, answer] - logits[:, foil]
""",
        "nnsight": """
width = model.config.hidden_size // model.config.num_attention_heads
result = np.empty((1 + len(heads), len(rows)))
for number, head in enumerate([None, *heads]):
    for chosen, tokens, row, last in batches:
        with model.trace(tokens):
            if head:
                model.model.layers[head[0]].self_attn.o_proj.input[..., head[1] * width : (head[1] + 1) * width] = 0
            logits = model.lm_head.output[row, last].save()
        result[number, chosen] = logits[:, answer] - logits[:, foil]
""",
    },
    "last": {
        "ours": "result = opened.effects(task['texts'], answer_text, foil_text, heads, at='last')",
    },
}
PROGRAMS["last"]["TransformerLens"] = PROGRAMS["effects"]["TransformerLens"].replace("z[:, :, h]", "z[row, last, h]")
# Ours returns effects; the others the margins that they are differences of. Logits differ from log p by a constant.
FINISH = """
ended = time.perf_counter() - started, time.process_time() - started_cpu
if task["job"] != "maps" and not isinstance(result, list) and result.ndim == 2:
    result = result[0] - result[1:]
elif task["job"] != "maps":
    layers, in_layer = np.array(heads).T
    result = result[:, layers, in_layer].T
flat = np.concatenate([each.ravel() for each in result]) if task["job"] == "maps" else result
np.save(task["out"], flat)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print(json.dumps([*ended, peak]), file=sys.__stdout__)
"""
START = "answer_text, foil_text = task['words']\nstarted, started_cpu = time.perf_counter(), time.process_time()\n"
LARGEST_DIFFERENCE = 1e-4  # between two programs, in a weight or an effect in nats


@dataclass
class _PeerOptions:
    """python -m research.peers model=FOLDER python=PATH [texts=64] [threads=1,2] [repetitions=3]."""

    model: str = MISSING
    python: str = MISSING
    texts: int = 64
    threads: str = "1,2"
    repetitions: int = 3


@dataclass(frozen=True)
class Cost:
    """The cost of a job in each repetition, without imports and the loading of the model."""

    job: str
    program: str
    threads: int
    n_lines: int
    seconds: list[float]
    cpu_seconds: list[float]
    peak_gib: list[float]
    largest_difference: float  # between a weight, or an effect in nats, and ours


@dataclass(frozen=True)
class PeerResults:
    """The table of the page."""

    model: str
    n_texts: int
    n_tokens: int
    costs: list[Cost]

    def lines(self) -> list[str]:
        """Return the page's lines."""
        header = ["job", "threads", "program", "lines", "CPU-s", "seconds", "peak, GiB", "CPU-s / ours", "difference"]
        ours = {(cost.job, cost.threads): cost for cost in self.costs if cost.program == "ours"}
        rows = []
        for cost in self.costs:
            pairs = zip(cost.cpu_seconds, ours[cost.job, cost.threads].cpu_seconds, strict=True)
            row = [cost.job, str(cost.threads), cost.program, str(cost.n_lines)]
            row += [median_range(cost.cpu_seconds), median_range(cost.seconds), median_range(cost.peak_gib)]
            rows.append(
                [*row, median_range([theirs / own for theirs, own in pairs], 2), f"{cost.largest_difference:.1e}"]
            )
        said = (
            f"{self.model}: {self.n_texts} texts of {self.n_tokens:,} tokens, {N_HEADS} heads, float32; median (range)."
        )
        note = "Without imports and loading. Lines: those of the job, without loading, batches and output."
        return [said, note, "", *markdown_table(header, rows)]


def prompts(n_texts: int) -> list[str]:
    """Return texts that end before "she" or "he", evenly spaced over the shipped English."""
    passages = with_two(passages_in(sections(read_documents([SHIPPED_TEXT]))))
    return [passage.text.rstrip() for passage in passages[:: max(1, len(passages) // n_texts)]][:n_texts]


def run_program(job: str, program: str, task: dict[str, Any], python: str) -> tuple[list[float], np.ndarray]:
    """Run one program in a process of its own; return seconds, CPU-seconds and peak memory in GiB, and its numbers."""
    name = program.split(",")[0]
    code = "\n".join([BATCH, LOAD[name], START, PROGRAMS[job][program], FINISH])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "task.json")
        path.write_text(json.dumps({**task, "job": job, "out": str(Path(folder, "result.npy"))}))
        command = [sys.executable if name == "ours" else python, "-c", code, str(path)]
        process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if process.returncode:
            raise UserError(f"{program}: {(process.stderr or 'no output').splitlines()[-1]}")
        return json.loads(process.stdout.splitlines()[-1]), np.load(Path(folder, "result.npy"))


def costs_of(job: str, task: dict[str, Any], options: _PeerOptions) -> list[Cost]:
    """Run the programs of a job in turn, so that the machine is the same for each; UserError if numbers differ."""
    measured: dict[str, list[list[float]]] = {program: [] for program in PROGRAMS[job]}
    differences = dict.fromkeys(PROGRAMS[job], 0.0)
    ours = np.empty(0)
    for _ in range(options.repetitions):
        for program in PROGRAMS[job]:
            figures, values = run_program(job, program, task, options.python)
            measured[program].append(figures)
            ours = values if program == "ours" else ours
            differences[program] = max(differences[program], float(np.abs(values - ours).max()))
            print(task["threads"], job, program, figures, file=sys.stderr, flush=True)
            if differences[program] > LARGEST_DIFFERENCE:
                raise UserError(f"{job}: {program} differs from ours by {differences[program]}")

    # One row for each program
    costs = []
    for program, code in PROGRAMS[job].items():
        seconds, cpu_seconds, peaks = map(list, zip(*measured[program], strict=True))
        n_lines = len(code.strip().splitlines())
        costs.append(Cost(job, program, task["threads"], n_lines, seconds, cpu_seconds, peaks, differences[program]))
    return costs


def main(options: _PeerOptions) -> None:
    """Run every program in turn, check that the numbers are equal, and write the page."""
    opened = antecedent_lab.open_model(options.model)
    texts = prompts(options.texts)
    rows = [list(opened.encode(text)) for text in texts]
    heads = [(layer, head) for layer in range(opened.model.n_layer) for head in range(opened.model.n_head)]
    answer, foil = (list(opened.encode(texts[0] + word))[-1] for word in (ANSWER, FOIL))
    task = {
        "model": str(Path(options.model).resolve()),
        "texts": texts,
        "rows": rows,
        "heads": heads[:: len(heads) // N_HEADS][:N_HEADS],
        "answer": answer,
        "foil": foil,
        "words": (ANSWER, FOIL),
    }
    costs = []
    for threads in map(int, listed(options.threads)):
        for job in PROGRAMS:
            costs += costs_of(job, task | {"threads": threads}, options)
    n_tokens = sum(map(len, rows))
    results = PeerResults(Path(options.model).name, len(texts), n_tokens, costs)
    write_page("peers", "Two jobs with other programs", results, max(map(int, listed(options.threads))))


if __name__ == "__main__":
    start_benchmark(main, _PeerOptions)
