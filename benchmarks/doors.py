"""Runs, exported and opened by others: python -m benchmarks.doors runs=DIR[,DIR] blimp=FOLDER [out=FILE].

Exports each run by `python -m model.export`, as a user does, and measures how far what each of them computes lies from
ours: transformers' logits, weights of heads and tokens of 10,000 lines, what a GGUF reader reads back, TransformerLens'
patterns, BertViz' page, and lm-eval's log-probabilities of each sentence of the minimal pairs in blimp=, item by item
beside `task=minimal_pairs`. Whatever is not installed is left out, in words; exit status 1 where a limit is passed.
Takes requirements-dev.txt and the extra interop (docs/install.md).
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from benchmarks.attention_rows import own_text
from benchmarks.files import keep
from benchmarks.rows import machine, machine_line, number, settings, timed
from data.tokenizer import with_end
from model.export import gguf_weights
from model.observe import attention_maps
from probe.minimal_pairs import log_probabilities, outcomes, read_pairs
from probe.open import OpenedRun, read_run
from training.command_line import one_line_errors
from training.device import choose_place
from training.run_dir import find_run
from training.settings import Device, Precision

RESULTS = Path(__file__).parent.parent / "docs" / "doors.json"
_N_LINES, _N_ROWS, _N_AT_ONCE, _TOKENS_PER_BATCH = 10_000, 64, 8, 8192
# What ordinary text has too little of: other scripts, marks, spaces, what several code points write.
_ODD = (
    "né",
    "e\u0301",
    "",
    "\t",
    "\u00a0",
    "\u200b",
    "🐈",
    "👩\u200d🚀",
    "日本語",
    "Ⅷ",
    "ﬁ",
    "x9",
    "3.14",
    "'s",
    "don't",
    "--",
    "…",
    "[",
    "\\n",
)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of the table."""

    who: str  # package and version
    what: str
    of: str  # what was compared
    worst: float | None  # the largest difference, or how many differ; None: left out
    limit: float  # of it
    note: str = ""

    @property
    def is_met(self) -> bool | None:
        """Whether the limit is kept, which nan does not; None where nothing was measured."""
        return None if self.worst is None else self.worst <= self.limit


def lines(n: int) -> list[str]:
    """Return `n` generated stories with odd pieces among their words, the same at each call."""
    draw, stories = Random(0), own_text(2000).splitlines()
    found = []
    for _ in range(n):
        words = draw.choice(stories).split(" ")
        for _ in range(draw.randrange(4)):
            words.insert(draw.randrange(len(words) + 1), draw.choice(_ODD))
        found.append(" ".join(words))
    return found


def measured(opened: OpenedRun, hf: Path, gguf: Path, blimp: Path) -> Iterator[Check]:
    """Yield every check of a run that was exported to a folder `hf` and a file `gguf`."""
    checks: list[tuple[str, str, Callable[[str], Iterator[Check]]]] = [
        ("transformers", "logits, weights of heads, tokens", lambda who: _transformers(who, opened, hf)),
        ("gguf", "weights read back", lambda who: _gguf(who, opened, gguf)),
        ("accelerate", "a GGUF file opened by transformers", lambda who: _from_gguf(who, opened, gguf)),
        ("transformer-lens", "patterns", lambda who: _transformer_lens(who, opened, hf)),
        ("bertviz", "a page", lambda who: _bertviz(who, opened)),
        ("lm-eval", "minimal pairs", lambda who: _lm_eval(who, opened, hf, blimp)),
    ]
    for package, what, check in checks:
        try:
            who = f"{package} {version(package)}"
        except PackageNotFoundError:
            yield Check(who=package, what=what, of="", worst=None, limit=0.0, note=f"{package} is not installed")
            continue
        yield from check(who)


def _rows(opened: OpenedRun) -> Sequence[torch.Tensor]:
    """Return [64, T] tokens drawn by lot, in parts: every token of the vocabulary at any place."""
    generator, config = torch.Generator().manual_seed(0), opened.model.config
    rows = torch.randint(opened.model.vocab_size, (_N_ROWS, config.context_length), generator=generator)
    return rows.split(_N_AT_ONCE)


def _n_weights(opened: OpenedRun) -> int:
    config = opened.model.config
    return _N_ROWS * config.n_layer * config.n_head * config.context_length**2


def _apart(some: Iterable[torch.Tensor], others: Iterable[torch.Tensor]) -> float:
    """Return the largest difference; nan where a number is none."""
    return float(np.max([(one - other).abs().max().item() for one, other in zip(some, others, strict=True)]))


def _transformers(who: str, opened: OpenedRun, folder: Path) -> Iterator[Check]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, rows = opened.model, _rows(opened)
    fused = AutoModelForCausalLM.from_pretrained(folder)
    eager = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    # Ours with gradients: without, model/products.py adds in another order.
    worst = _apart((fused(some).logits for some in rows), map(model, rows))
    what = f"{sum(some.numel() for some in rows):,} tokens drawn by lot"
    yield Check(who=who, what="logits, float32", of=what, worst=worst, limit=0.0)
    with torch.no_grad():
        between = _apart((fused(some).logits for some in rows), (eager(some).logits for some in rows))
        apart = [
            _weights_apart(opened, eager(some, output_attentions=True, output_hidden_states=True), some)
            for some in rows
        ]
    worst, alone = np.max(apart, axis=0).tolist()
    note = (
        "Weights of heads: transformers shows them in its eager pass alone, which is not its fused one; the logits of "
        f"the two are {between:.1e} apart. Each layer asked of the very stream that it had there is the second row."
    )
    yield Check(
        who=who,
        what="weights of heads, eager",
        of=f"{_n_weights(opened):,} weights there",
        worst=worst,
        limit=1e-6,
        note=note,
    )
    what = "weights of heads, layer by layer"
    yield Check(who=who, what=what, of="the same, each layer from the eager pass's stream", worst=alone, limit=1e-6)
    lot, tokenizer = lines(_N_LINES), AutoTokenizer.from_pretrained(folder)
    found = tokenizer(lot)["input_ids"]
    wrong = sum(one.ids != other for one, other in zip(opened.tokenizer.encode_batch(lot), found, strict=True))
    what = f"{len(lot):,} lines, {sum(map(len, found)):,} tokens"
    yield Check(who=who, what="lines whose tokens differ", of=what, worst=float(wrong), limit=0.0)


def _weights_apart(opened: OpenedRun, eager: Any, tokens: torch.Tensor) -> tuple[float, float]:
    """Return how far transformers' weights are from those of our whole pass, and of our layers on its own stream."""
    layers = zip(opened.model.layers(), eager.hidden_states, strict=False)  # the last stream has left the last layer
    alone = [block.attention.scores(block.norm_1(stream)).softmax(-1) for block, stream in layers]
    return _apart(eager.attentions, attention_maps(opened.model, tokens)), _apart(eager.attentions, alone)


def _gguf(who: str, opened: OpenedRun, path: Path) -> Iterator[Check]:
    from gguf import GGUFReader

    found = {one.name: np.array(one.data) for one in GGUFReader(path).tensors}
    written = gguf_weights(opened.model)
    wrong = found.keys() ^ written.keys()
    wrong |= {name for name in found.keys() & written.keys() if not np.array_equal(found[name], written[name].numpy())}
    what = f"{len(written)} tensors, {sum(one.numel() for one in written.values()):,} numbers"
    yield Check(who=who, what="tensors that read back otherwise", of=what, worst=float(len(wrong)), limit=0.0)


def _from_gguf(who: str, opened: OpenedRun, path: Path) -> Iterator[Check]:
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name)
    worst = _apart((theirs(some).logits for some in _rows(opened)), map(opened.model, _rows(opened)))
    who = f"transformers {version('transformers')}, {who}"
    yield Check(who=who, what="logits, of the GGUF file", of="the same tokens", worst=worst, limit=0.0)


def _transformer_lens(who: str, opened: OpenedRun, folder: Path) -> Iterator[Check]:
    from transformer_lens.model_bridge import TransformerBridge

    bridge, rows = TransformerBridge.boot_transformers(str(folder)), _rows(opened)
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(opened.model.config.n_layer)]
    with torch.no_grad():
        caches = (bridge.run_with_cache(some)[1] for some in rows)
        theirs = (torch.stack([cache[name] for name in names]) for cache in caches)
        worst = _apart(theirs, (attention_maps(opened.model, some) for some in rows))
    yield Check(who=who, what="patterns", of=f"{_n_weights(opened):,} weights there", worst=worst, limit=1e-5)


def _bertviz(who: str, opened: OpenedRun) -> Iterator[Check]:
    from bertviz import head_view

    ids, _ = with_end(opened.tokenizer, "One sunny day, the cat sat near the buses. It")
    maps = attention_maps(opened.model, torch.tensor([ids])).detach()
    page = head_view(list(maps), [opened.tokenizer.id_to_token(one) for one in ids], html_action="return").data
    is_page = "<script" in page and all(head in page for head in ('"attn"', '"left_text"'))
    what = f"{len(page):,} characters"
    yield Check(who=who, what="no page in HTML", of=what, worst=float(not is_page), limit=0.0)


def _lm_eval(who: str, opened: OpenedRun, folder: Path, blimp: Path) -> Iterator[Check]:
    files = sorted(blimp.glob("anaphor_*.jsonl"))
    theirs = lm_eval_scores(folder, files)
    for file, their in zip(files, theirs, strict=True):
        pairs = [(pair.good, pair.bad) for pair in read_pairs(file)]
        ids = [tuple(tuple(with_end(opened.tokenizer, text)[0]) for text in both) for both in pairs]
        our = log_probabilities(opened.model, [(one[0], one[1]) for one in ids], _TOKENS_PER_BATCH)
        wrong = int((outcomes(our) != outcomes(their)).sum())
        shares = f"ours {100 * outcomes(our).mean():.1f} %, theirs {100 * outcomes(their).mean():.1f} % right"
        ties, apart = (outcomes(our) == 0.5).sum(), np.abs(our - their).max()
        note = f"{file.stem}: {shares}, {ties} ties; the logs of a sentence at most {apart:.1e} nats apart."
        what = f"{len(pairs):,} pairs of {file.stem}"
        yield Check(who=who, what="pairs judged otherwise", of=what, worst=float(wrong), limit=0.0, note=note)


def lm_eval_scores(folder: Path, files: Sequence[Path]) -> list[np.ndarray]:
    """Return log p of the good and the bad sentence of each pair of each file, [N, 2] in nats, by lm-eval.

    The tasks are BLiMP's as lm-eval has them (lm_eval/tasks/blimp), of files that lie here; a sentence begins without
    the space that lm-eval puts between a question and its answer. It puts `bos_token` in front by itself where there is
    no question.
    """
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    with tempfile.TemporaryDirectory() as name:
        for file in files:
            about = {
                "task": f"here_{file.stem}",
                "dataset_path": "json",
                "dataset_kwargs": {"data_files": {"validation": str(file.resolve())}, "cache_dir": f"{name}/cache"},
                "output_type": "multiple_choice",
                "validation_split": "validation",
                "num_fewshot": 0,
                "doc_to_text": "",
                "doc_to_target": 0,
                "doc_to_choice": "{{[sentence_good, sentence_bad]}}",
                "target_delimiter": "",
                "metric_list": [{"metric": "acc"}],
            }
            Path(name, f"{file.stem}.yaml").write_text(json.dumps(about))
        found = simple_evaluate(
            model=HFLM(pretrained=str(folder), device="cpu", dtype="float32", batch_size=32),
            tasks=[f"here_{file.stem}" for file in files],
            task_manager=TaskManager(include_path=name, include_defaults=False),
            bootstrap_iters=0,
        )
    samples = [sorted(found["samples"][f"here_{file.stem}"], key=lambda one: one["doc_id"]) for file in files]
    return [np.array([[float(score) for score, _ in one["filtered_resps"]] for one in some]) for some in samples]


def table(checks: Sequence[Check]) -> list[str]:
    """Return the lines of the table in Markdown, and under it the notes."""
    rows = ["| opened by | what | of | worst | limit | met |", "|---|---|---|---|---|---|"]
    for one in checks:
        worst = "not measured" if one.worst is None else _written(one.worst)
        met = {True: "yes", False: "NO", None: "-"}[one.is_met]
        rows.append(f"| {one.who} | {one.what} | {one.of} | {worst} | {_written(one.limit)} | {met} |")
    return [*rows, "", *(f"- {one.note}" for one in checks if one.note)]


def _written(value: float) -> str:
    return f"{value:.1e}" if 0 < value < 0.1 else number(value)


def noted(found: Mapping[str, Any]) -> list[str]:
    """Return what docs/export.md has of docs/doors.json: of each run a line and its table, then the machine."""
    said = []
    for one in found["runs"]:
        said += [one["run"], "", *table([Check(**check) for check in one["checks"]]), ""]
    return [*said, machine_line(found["environment"])]


def about(opened: OpenedRun) -> str:
    """Return one line on a run."""
    config = opened.model.config
    return (
        f"**data={opened.settings.data.source}**, {config.n_layer} layers of {config.n_head} heads, width "
        f"{config.d_model}, context {config.context_length}, vocabulary {opened.model.vocab_size:,}; "
        f"step {opened.step}:"
    )


def exported(opened: OpenedRun, blimp: Path) -> list[Check]:
    """Export a run by the command that users type, and measure it."""
    with tempfile.TemporaryDirectory() as name:
        hf, gguf = Path(name, "hf"), Path(name, "model.gguf")
        for to, place in (("hf", hf), ("gguf", gguf)):
            timed([sys.executable, "-m", "model.export", f"run={opened.run}", f"to={to}", f"out={place}"])
        return list(measured(opened, hf, gguf, blimp))


def main() -> int:
    """Measure, print and write; return the exit status."""
    given = settings(("runs", "blimp"))
    if "runs" not in given or not Path(given.get("blimp", "no folder")).is_dir():
        sys.exit("runs=DIR[,DIR] and blimp=FOLDER, that of BLiMP's .jsonl files, must be given")
    with one_line_errors():
        place = choose_place(Device.cpu, Precision.float32)
        runs = [read_run(find_run(run).resolve(), place) for run in given["runs"].split(",")]
    every = [(about(one), exported(one, Path(given["blimp"]))) for one in runs]
    found = {
        "environment": machine(),
        "runs": [{"run": line, "checks": [asdict(one) for one in checks]} for line, checks in every],
    }
    print("\n".join(noted(found)))
    if path := given.get("out"):
        keep(Path(path), found)
    return int(any(one.is_met is False for _, checks in every for one in checks))


if __name__ == "__main__":
    sys.exit(main())
