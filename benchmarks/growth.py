"""What a step costs as context, width, depth and the corpus grow: python -m benchmarks.growth [out=docs/growth.json].

[sizes=1_000_000,...] [quick=true]. With out=docs/growth.json also the tables in docs/benchmarks.md and docs/growth.png
(matplotlib). One thread, CPU-seconds. What is compared takes its steps in turns in one process, each round in another
order, so that a machine that is slower for a while is so for all; ratios are those of one round. The corpus is an array
of made-up ids, mapped from a file as the cache's are. Three minutes, and two bytes of disk a token.
"""

import json
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hydra import compose, initialize_config_dir
from torch.profiler import ProfilerActivity, profile

from benchmarks.files import paste
from benchmarks.rows import ROOT, Row, machine, machine_line, number, settings, timed, whole_numbers, write
from data.loader import Split
from model.transformer import Transformer, flops_per_token, n_parameters
from training.device import choose_place, keep_freed_memory
from training.optim import set_rates
from training.settings import Device, Precision, typed_train
from training.setup import make_training
from training.trainer import Training, train_step

KNOWN = ("sizes",)
PAGE, RESULTS, FIGURE = (ROOT / "docs" / name for name in ("benchmarks.md", "growth.json", "growth.png"))
SIZES = (10**6, 10**7, 10**8, 10**9)  # tokens of the corpus
FLAT = 0.01  # the goal: a token of no corpus costs more than this above, or below, one of the smallest
_VOCABULARY = 512
_TOKENS = 2048  # of each step: as many as the longest context has
_ROUNDS, _CORPUS_ROUNDS = 15, 100
_LEAST = 100_000  # tokens of a corpus


@dataclass(frozen=True)
class Size:
    """What a model is, one thing of which grows."""

    context: int = 128
    width: int = 128
    depth: int = 2

    def settings(self) -> list[str]:
        """Return it as train.py takes it: heads of width / 4, an MLP three times as wide."""
        return [
            f"model.context_length={self.context}", f"model.d_model={self.width}", f"model.d_mlp={3 * self.width}",
            f"model.n_layer={self.depth}", f"tokens_per_batch={_TOKENS}", "max_steps=1000000", "threads=1",
        ]  # fmt: skip


SWEEPS = {
    "context": [Size(context=context) for context in (64, 128, 256, 512, 1024, 2048)],
    "width": [Size(width=width) for width in (64, 128, 256, 512)],
    "depth": [Size(depth=depth) for depth in (1, 2, 4, 8)],
}


def made(size: Size, tokens: np.ndarray) -> Training:
    """Return a training on `tokens` as train.py would make it."""
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        found = typed_train(compose("train", size.settings()))
    model = Transformer(found.model, _VOCABULARY, seed=0)
    training = make_training(found, model, Split(tokens, len(tokens)), choose_place(Device.cpu, Precision.auto))
    set_rates(training.optimizers, 0.5)
    return training


def stepped(training: Training, n_steps: int) -> None:
    """Take steps."""
    for _ in range(n_steps):
        train_step(training)
        training.step += 1


def in_turns(works: Sequence[Callable[[], None]], n_rounds: int) -> np.ndarray:
    """Return the CPU-seconds of each work in each round: [rounds, works], after one of each that is not counted."""
    rng = np.random.default_rng(0)
    for work in works:
        work()
    taken = np.zeros((n_rounds, len(works)))
    for turn in range(n_rounds):
        for place in rng.permutation(len(works)).tolist():
            began = time.process_time()
            works[place]()
            taken[turn, place] = time.process_time() - began
    return taken


# What attention consists of where a block is computed by hand; nothing else there is called so.
_BY_HAND = {"aten::bmm", "aten::baddbmm", "aten::_softmax", "aten::_softmax_backward_data"}


def made_up(n_tokens: int) -> np.ndarray:
    """Return so many random ids."""
    return np.random.default_rng(n_tokens).integers(_VOCABULARY, size=n_tokens, dtype=np.uint16)


def sweep(sizes: Sequence[Size], n_rounds: int) -> list[dict[str, Any]]:
    """Measure one thing that grows: CPU-seconds of a step, what they go to, FLOPs, and the memory it takes at most."""
    tokens = made_up(2**20)
    trainings = [made(size, tokens) for size in sizes]
    taken = in_turns([partial(stepped, training, 2) for training in trainings], n_rounds)
    seconds = np.median(taken, axis=0) / 2
    return [
        asdict(size)
        | {
            "parameters": n_parameters(training.model),
            "seconds_per_step": float(taken),
            "flops_per_step": flops_per_token(training.model) * _TOKENS,  # type: ignore[arg-type]
            "attention_flops": 6.0 * size.depth * size.context * size.width * _TOKENS,
            "shares": shares(training),
            "peak_bytes": peak(size),
        }
        for size, training, taken in zip(sizes, trainings, seconds, strict=True)
    ]


def shares(training: Training) -> dict[str, float]:
    """Return what part of a step's time goes to its kinds of work, by torch's profiler.

    "projections" are the products with weights, forth and back; "attention" is all between query, key, value and what
    comes of them; "rest" is what is done number by number: norms, rotations, gates, the loss. The profiler slows small
    operations down most: what they take is rather less than it says.
    """
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as found:
        stepped(training, 4)
    taken: Counter[str] = Counter()
    for event in found.events():
        taken[_kind(event)] += event.self_cpu_time_total
    return {kind: taken[kind] / taken.total() for kind in ("projections", "attention", "optimizers", "rest")}


def _kind(event: Any) -> str:
    names, ancestor = [], event
    while ancestor is not None:
        names.append(ancestor.name.lower())
        ancestor = ancestor.cpu_parent
    if any(name.startswith("optimizer.step") for name in names):
        return "optimizers"
    if any("attention" in name for name in names) or names[0] in _BY_HAND:  # a kernel, PieceAttention, or FastBlock
        return "attention"
    return "projections" if names[0] in ("aten::mm", "aten::addmm") else "rest"


@cache
def peak(size: Size) -> int:
    """Return the bytes that a training takes at most, in a process of its own, above those before it was made."""
    code = f"import sys; from benchmarks.growth import Size, own_peak; print(own_peak(Size(**{asdict(size)})))"
    return int(timed([sys.executable, "-c", code]).said.splitlines()[-1])


def own_peak(size: Size) -> int:
    """Return the same of this process: Linux counts its greatest memory anew once 5 is written to clear_refs."""
    keep_freed_memory()
    torch.set_num_threads(1)
    tokens = made_up(2**20)
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    stepped(made(size, tokens), 3)
    return _memory("VmHWM") - before


def _memory(what: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(what)))


def corpus(sizes: Sequence[int], n_rounds: int) -> list[dict[str, Any]]:
    """Measure what a token costs one and the same training in corpora of several sizes, mapped from files."""
    with tempfile.TemporaryDirectory() as folder:
        supplies = [made(Size(), written(Path(folder) / f"{size}.npy", size)).batch_at for size in sizes]
        training = made(Size(), made_up(10**5))

        faults: list[list[tuple[int, int]]] = [[] for _ in sizes]

        def step(place: int) -> None:
            training.batch_at, before = supplies[place], resource.getrusage(resource.RUSAGE_SELF)
            stepped(training, 2)
            after = resource.getrusage(resource.RUSAGE_SELF)
            faults[place].append((after.ru_minflt - before.ru_minflt, after.ru_majflt - before.ru_majflt))

        def read(supply: Any) -> None:
            for number in range(10):
                supply(training.step + number)
            training.step += 10

        rounds = in_turns([partial(step, place) for place in range(len(sizes))], n_rounds) / 2
        reading = in_turns([partial(read, supply) for supply in supplies], n_rounds) / 10
    ratios = rounds / rounds[:, :1]
    per_step = [np.median(some[1:], axis=0).tolist() for some in (np.array(one) / 2 for one in faults)]
    return [
        {
            "tokens": size,
            "seconds_per_token": float(np.median(rounds[:, place])) / _TOKENS,
            "reading": float(np.median(reading[:, place])) / _TOKENS,
            "faults_per_step": dict(zip(("mapped", "read"), per_step[place], strict=True)),
            "ratio": float(np.median(ratios[:, place])),
            "ratio_range": _interval(ratios[:, place]),
        }
        for place, size in enumerate(sizes)
    ]


def written(path: Path, n_tokens: int) -> np.ndarray:
    """Write so many ids to a file; return them as the cache reads its own."""
    tokens = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint16, shape=(n_tokens,))
    for first in range(0, n_tokens, 2**24):
        tokens[first : first + 2**24] = made_up(min(2**24, n_tokens - first))
    return np.load(path, mmap_mode="r")


def _interval(values: np.ndarray) -> list[float]:
    """Return the 95 % interval of a median: the values of the ranks n/2 -+ 0.98 sqrt(n) (normal approximation)."""
    ordered, n = np.sort(values), len(values)
    reach = 0.98 * n**0.5
    low, high = int(max(0, np.floor(n / 2 - reach))), int(min(n - 1, np.ceil(n / 2 + reach)))
    return [float(ordered[low]), float(ordered[high])]


def measure(given: dict[str, str]) -> dict[str, Any]:
    """Measure everything."""
    quick = given.get("quick") == "true"
    keep_freed_memory()
    torch.set_num_threads(1)
    sizes = whole_numbers(given, "sizes", ",".join(map(str, SIZES[: 2 if quick else 4])))
    sweeps = {name: sweep(some[:2] if quick else some, 2 if quick else _ROUNDS) for name, some in SWEEPS.items()}
    return {"sweeps": sweeps, "corpus": corpus(sizes, 4 if quick else _CORPUS_ROUNDS)}


def row(found: dict[str, Any]) -> Row:
    """Return the row of the goal table."""
    sizes = found["corpus"]
    low, high = sizes[-1]["ratio_range"]
    return Row(
        work=f"time per token, {_short(sizes[0]['tokens'])} to {_short(sizes[-1]['tokens'])} tokens of corpus",
        goal="flat to 1 %",
        aim="",
        unit="CPU-us a token",
        ours=[1e6 * one["seconds_per_token"] for one in sizes],
        peer_name="",
        peer=[],
        met=all(abs(one["ratio"] - 1) <= FLAT for one in sizes),
        aim_met=None,
        note=f"Ours are {len(sizes)} sizes of corpus, not repeats. The largest over the smallest, within rounds: "
        f"{sizes[-1]['ratio']:.4f} [{low:.4f}, {high:.4f}].",
    )


def _short(count: int) -> str:
    return f"{count // 10**9} G" if count >= 10**9 else f"{count / 10**6:g} M"


def lines_of(found: dict[str, Any]) -> dict[str, list[float]]:
    """Return the seconds of each step if a FLOP cost everywhere what it costs in the model that is in all sweeps."""
    lines = {}
    for name, some in found["sweeps"].items():
        base = next(one for one in some if asdict(Size()).items() <= one.items())
        lines[name] = [base["seconds_per_step"] * one["flops_per_step"] / base["flops_per_step"] for one in some]
    return lines


def tables(found: dict[str, Any]) -> dict[str, list[str]]:
    """Return what stands in the page, by marker."""
    head = ["of the line", "projections", "attention", "optimizers", "rest"]
    head += ["GFLOP/s of projections", "of attention", "peak MB"]
    lines = [f"| grows | | parameters | GFLOP a step | CPU-ms a step | {' | '.join(head)} |", "|---" * 13 + "|"]
    for name, some in found["sweeps"].items():
        for one, line in zip(some, lines_of(found)[name], strict=True):
            cells = [name, f"{one[name]}", f"{one['parameters']:,}", number(one["flops_per_step"] / 1e9)]
            cells += [number(1e3 * one["seconds_per_step"]), f"{one['seconds_per_step'] / line:.2f}"]
            cells += [f"{share:.0%}".replace("%", " %") for share in one["shares"].values()]
            flops = {"attention": one["attention_flops"]}
            flops["projections"] = one["flops_per_step"] - one["attention_flops"]
            for kind in ("projections", "attention"):
                cells.append(number(flops[kind] / (one["seconds_per_step"] * one["shares"][kind]) / 1e9))
            lines.append("| " + " | ".join([*cells, number(one["peak_bytes"] / 1e6)]) + " |")
    sizes = [
        "| tokens of corpus | CPU-us a token | of these to read it | page faults a step | of these from the disk "
        "| over the smallest, within rounds [95 %] |",
        "|---|---|---|---|---|---|",
    ]
    for one in found["corpus"]:
        low, high = one["ratio_range"]
        cells = [
            _short(one["tokens"]),
            number(1e6 * one["seconds_per_token"]),
            number(1e6 * one["reading"]),
            f"{sum(one['faults_per_step'].values()):.1f}",
            f"{one['faults_per_step']['read']:.1f}",
            f"{one['ratio']:.4f} [{low:.4f}, {high:.4f}]",
        ]
        sizes.append("| " + " | ".join(cells) + " |")
    return {"growth": lines, "corpus": sizes}


def drawn(found: dict[str, Any]) -> str:
    """Return the numbers behind the figure as text, which the figure carries with it."""
    seconds = {name: [one["seconds_per_step"] for one in some] for name, some in found["sweeps"].items()}
    return json.dumps(seconds | {"corpus": [one["ratio"] for one in found["corpus"]]})


def draw(found: dict[str, Any], path: Path) -> None:
    """Draw each sweep beside the FLOP line, and the corpus."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.6), layout="constrained")
    axes = figure.subplots(1, 4)
    for place, (name, some) in zip(axes, found["sweeps"].items(), strict=False):
        sizes = [one[name] for one in some]
        place.plot(
            sizes, [1e3 * one for one in lines_of(found)[name]], color="#888888", linestyle=":", label="by FLOPs"
        )
        place.plot(
            sizes, [1e3 * one["seconds_per_step"] for one in some], color="#0072b2", marker="o", label="measured"
        )
        place.set_xscale("log", base=2)
        place.set_yscale("log")
        place.set_yticks((20, 50, 100, 200, 500), ["20", "50", "100", "200", "500"])
        place.set_xticks(sizes, [str(size) for size in sizes], rotation=45)
        place.set_xlabel(name)
    axes[0].set_ylabel("CPU-ms of a step")
    axes[0].legend(frameon=False)
    tokens = [one["tokens"] for one in found["corpus"]]
    axes[3].plot(tokens, [one["ratio"] for one in found["corpus"]], color="#0072b2", marker="o")
    axes[3].fill_between(tokens, 1 - FLAT, 1 + FLAT, color="#dddddd")
    axes[3].set_xscale("log")
    axes[3].set_ylim(1 - 4 * FLAT, 1 + 4 * FLAT)
    axes[3].set_xlabel("tokens of corpus")
    axes[3].set_ylabel("CPU-s a token, over 1 M's")
    for place in axes:
        place.minorticks_off()
        place.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110, facecolor="white", metadata={"Description": drawn(found)})


def main() -> None:
    """Measure, print, and write what is asked for."""
    given = settings(KNOWN)
    sizes = whole_numbers(given, "sizes", ",".join(map(str, SIZES)))
    if min(sizes) < _LEAST or len(set(sizes)) < 2:
        sys.exit(f"sizes={given['sizes']}: two sizes or more, each of {_LEAST:,} tokens or more")
    found, about = measure(given), machine()
    for lines in tables(found).values():
        print("\n".join([*lines, ""]))
    print(machine_line(about))
    if "out" in given:
        path = Path(given["out"]).resolve()
        write(path, [row(found)], about, **found)
        if path == RESULTS:
            for marker, lines in tables(found).items():
                paste(PAGE, marker, lines)
            draw(found, FIGURE)


if __name__ == "__main__":
    main()
