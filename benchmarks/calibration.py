"""How often is the probe wrong? python -m benchmarks.calibration [runs=DIR,DIR].

The probe is applied to models in which there is nothing to find, and to models in which we know the head:

- untrained: initial weights, and weights drawn at random as large as those of a trained model.
- permuted labels: trained models, but a coin for each word pair and sentence frame decides whether antecedent and
  distractor are exchanged in the items.
- planted link heads: weights built by hand so that one head links pronouns (benchmarks/planted.py).
- planted other habits: heads built to follow position, single words, number or nothing.

Each model is probed like any other: a head chosen on dev, tested once on the headline hold-out, all criteria, verdict.
Further arguments: n_untrained=200 n_permuted=200 n_planted=60 (a third as many other habits), n_pairs=3 word pairs per
frame, seed=0, max_steps=500 of the two models trained if runs= is not given. `seed` selects other random models.

Writes docs/results/calibration.{json,md}.
"""

import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from antecedent_lab.opened import load_data, open_run
from benchmarks.measure import arguments, fail, run_script, write_results
from benchmarks.planted import KINDS, plant
from data.corpus import Corpus, load_stories
from data.links import LinkItem, link_items
from data.text_tables import markdown_table
from data.tokenizer import end_id
from model.observe import TransformerView
from model.transformer import Transformer
from probe.config import Holdouts, ProbeConfig
from probe.items import EMPTY, QUESTIONS, Question, questions_with_items
from probe.statistics import share_interval
from probe.study import HEADLINE, make_context, study_question
from probe.verdict import SUPPORTED

STRENGTHS = (1.0, 2.0, 4.0)  # score scales: the antecedent's weight is e^2, e^4, e^8 times the distractor's
WATCHED = [question for question in QUESTIONS if question.watched]
CONFIG = ProbeConfig(
    seed=0, tokens_per_batch=4096, n_bootstrap=2000, n_untrained=2, n_controls=20, holdouts=Holdouts.verdict
)
Entries = dict[str, dict[str, Any]]  # question -> verdict, criteria and p


def permute_labels(items: Sequence[LinkItem], seed: int) -> list[LinkItem]:
    """Returns the items with antecedent and distractor exchanged in all four cells of the blocks that a coin chooses.

    One coin for each word pair and frame. Within a block each pronoun still means one word, so that partners exist
    and every criterion can be tested. Items without an antecedent stay as they are.
    """
    names = sorted({(item.pair, item.frame) for item in items})
    coins = dict(zip(names, np.random.default_rng(seed).integers(0, 2, len(names)), strict=True))

    def exchanged(item: LinkItem, other: LinkItem) -> LinkItem:
        other = replace(other, antecedents=other.distractors, distractors=other.antecedents, meant=item.meant)
        return replace(other, answers=other.foils, foils=other.answers, surprisal=())

    return [  # items[index ^ 1] is the cell of the same order with the other pronoun
        exchanged(item, items[index ^ 1]) if item.antecedents and coins[item.pair, item.frame] else item
        for index, item in enumerate(items)
    ]


def random_model(trained: Transformer, seed: int) -> Transformer:
    """Returns a model with normal random matrices of the same root mean square as the trained ones, and its gains."""
    model = Transformer(trained.config, trained.vocab_size, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter, reference in zip(model.parameters(), trained.parameters(), strict=True):
            if parameter.ndim == 2:
                parameter.normal_(0, reference.square().mean().sqrt().item(), generator=generator)
            else:
                parameter.copy_(reference)
    return model.eval()


def make_groups(
    trained: Sequence[Transformer],
    vocabulary: dict[str, int],
    dev: Sequence[LinkItem],
    test: Sequence[LinkItem],
    counts: dict[str, int],
) -> dict[str, tuple[Callable[[int], Entries], int]]:
    """Returns for each group a function that builds and probes the model of a seed, and the number of models."""
    config = trained[0].config

    def initial(seed: int) -> Entries:
        return probe(Transformer(config, trained[0].vocab_size, seed).eval(), dev, test)

    def drawn(seed: int) -> Entries:
        return probe(random_model(trained[0], seed), dev, test)

    def permuted(seed: int) -> Entries:
        # Dev and test have their own coins: blocks of both may have the same number.
        model = trained[seed % len(trained)]
        return probe(model, permute_labels(dev, 2 * seed), permute_labels(test, 2 * seed + 1))

    def planted(kinds: Sequence[str], seed: int) -> Entries:
        places = list(product(STRENGTHS, range(config.n_layer), range(config.n_head)))
        strength, layer, head = places[seed % len(places)]
        kind = kinds[seed % len(kinds)]
        model = plant(config, vocabulary, kind, layer=layer, head=head, strength=strength, seed=seed)
        return probe(model, dev, test, planted=(layer, head))

    n_initial, habits = counts["n_untrained"] // 2, [kind for kind in KINDS if kind != "coreference"]
    return {
        "untrained, initial weights": (initial, n_initial),
        "untrained, random weights": (drawn, counts["n_untrained"] - n_initial),
        "permuted labels": (permuted, counts["n_permuted"]),
        "planted link heads": (partial(planted, ["coreference"]), counts["n_planted"]),
        "planted other habits": (partial(planted, habits), counts["n_planted"] // 3),
    }


def probe(
    model: Transformer, dev: Sequence[LinkItem], test: Sequence[LinkItem], planted: tuple[int, int] | None = None
) -> Entries:
    """Returns for each question the verdict, the criteria passed and the corrected p; `planted` is (layer, head)."""
    questions = questions_with_items(WATCHED, test)
    context = make_context(TransformerView(model), [], questions, dev, test, CONFIG)
    entries = {}
    for question in questions:
        entry = study_question(question, context)
        entries[question.name] = {
            "verdict": entry["verdict"],
            "planted_head_chosen": planted in (None, (entry["layer"], entry["head"])),
            "passed": [criterion["name"] for criterion in entry["criteria"] if criterion["passed"]],
            "p_corrected": entry["test"][HEADLINE]["p_corrected"],
        }
    return entries


def summarise(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Counts the verdicts and criteria of one question over the models of one group."""
    supported = [entry for entry in entries if entry["verdict"] == SUPPORTED]
    return {
        "n": len(entries),
        "supported": len(supported),
        "supported_interval": share_interval(len(supported), len(entries)),
        "supported_planted_head": sum(entry["planted_head_chosen"] for entry in supported),
        "passed": Counter(name for entry in entries for name in entry["passed"]),
        "smallest_p_corrected": min(entry["p_corrected"] for entry in entries),
    }


def lines_of(groups: dict[str, dict[str, Any]], n_dev: int, n_test: int, seconds: float) -> list[str]:
    """Returns the page's table."""
    rows = []
    for group, questions in groups.items():
        for question, count in questions.items():
            low, high = count["supported_interval"]
            planted = str(count["supported_planted_head"]) if group == "planted link heads" else "-"
            passed = ", ".join(f"{name} {number}" for name, number in count["passed"].items()) or "none"
            supported = f"{count['supported']} of {count['n']} [{low:.1%}, {high:.1%}]"
            rows.append([group, question, supported, planted, passed, f"{count['smallest_p_corrected']:.4f}"])
    columns = ["supported [95 %]", "in the planted head", "criteria passed", "smallest corrected p"]
    return [
        *markdown_table(["models", "question", *columns], rows),
        "",
        f"{n_dev:,} dev items and {n_test:,} test items per model; {seconds / 60:.0f} minutes on one thread.",
    ]


def read_runs(runs: Sequence[Path], cache: Path) -> tuple[list[Transformer], Corpus]:
    """Returns the models of some runs, which must share settings and corpus, and the corpus."""
    opened = [open_run(run, torch.device("cpu")) for run in runs]
    first = opened[0].settings
    if any((run.settings.model, run.settings.data) != (first.model, first.data) for run in opened):
        fail("runs=: the runs differ in model or data settings")
    return [run.transformer for run in opened], load_data(opened[0], str(cache))


def select_items(
    corpus: Corpus, split: str, holdout: str, questions: Sequence[Question], n_pairs: int
) -> list[LinkItem]:
    """Returns the items of some questions with `n_pairs` blocks of each frame, different pairs from frame to frame."""
    rows = [row for row in load_stories(corpus, split) if row.holdout == holdout]
    items = link_items(rows, corpus.tokenizer, end_id(corpus.tokenizer))
    items = [item for item in items if any(question.matches(item) for question in questions)]
    blocks: dict[tuple[str, str, str], dict[int, None]] = defaultdict(dict)
    for item in items:
        blocks[item.family, item.level, item.frame][item.block] = None
    wanted: set[int] = set()
    for number, of_frame in enumerate(blocks.values()):
        wanted |= {*islice(cycle(of_frame), number * n_pairs, (number + 1) * n_pairs)}
    return [item for item in items if item.block in wanted]


def train(folder: Path, max_steps: str) -> list[Path]:
    """Trains the default run briefly for two seeds; returns the runs."""
    runs = [folder / f"seed_{seed}" for seed in (1, 2)]
    for seed, run in enumerate(runs, 1):
        settings = [f"seed={seed}", f"out={run}", f"max_steps={max_steps}", "probe_sequences=0"]
        run_script("train", *settings, f"cache_dir={folder / 'cache'}")
    return runs


def main() -> None:
    """Measures, writes, prints."""
    defaults = {"n_untrained": "200", "n_permuted": "200", "n_planted": "60", "n_pairs": "3", "seed": "0"}
    options = arguments(defaults | {"runs": "", "max_steps": "500", "cache_dir": ""})
    numbers = {name: int(options[name]) for name in defaults}
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs = [Path(run) for run in options["runs"].split(",") if run] or train(folder, options["max_steps"])
        trained, corpus = read_runs(runs, Path(options["cache_dir"] or folder / "cache"))
        dev = select_items(corpus, "dev", "iid", WATCHED, numbers["n_pairs"])
        test = select_items(corpus, "test", HEADLINE, [*WATCHED, EMPTY], numbers["n_pairs"])
        vocabulary = corpus.tokenizer.get_vocab()
    start, first_seed = time.monotonic(), numbers["seed"] * 10**6
    groups = {}
    for group, (probe_seed, n_models) in make_groups(trained, vocabulary, dev, test, numbers).items():
        results = [probe_seed(seed) for seed in range(first_seed, first_seed + n_models)]
        if results:
            groups[group] = {name: summarise([result[name] for result in results]) for name in results[0]}
        print(f"{group}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    lines = lines_of(groups, len(dev), len(test), time.monotonic() - start)
    write_results("calibration", "How often the probe is wrong", {"groups": groups}, lines, threads=1)


if __name__ == "__main__":
    main()
