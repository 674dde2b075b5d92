"""Does the probe find what is there and nothing else? python -m benchmarks.calibration [runs=DIR,DIR] [seed=0].

It is put to models in which there is nothing to find, and to models in which we know what there is to find:

- untrained: as the trainer starts them, where every output matrix is zero, and with every matrix drawn at random, as
  large as a trained model's.
- label-shuffled: trained models, but a coin for each pair of words x frame decides which word is called the antecedent.
  Training on stories with shuffled pronouns as well would be too dear at this number: a model for each draw.
- planted: heads built to link, and heads built to do something else (benchmarks/planted.py).

Each goes the way of any probed model: head chosen on dev, tested once on the headline, every criterion, verdict.
Writes docs/calibration.json and pastes its tables into docs/probe.md.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.files import keep, paste
from benchmarks.planted import KINDS, plant
from data.links import LinkItem
from model.transformer import Transformer
from probe.baselines import fit_rules, selectivity
from probe.config import ProbeConfig
from probe.items import EMPTY, QUESTIONS, Question, asked
from probe.scores import best_head
from probe.statistics import share_interval
from probe.study import HEADLINE, Bench, ask, held_out, make_bench
from probe.verdict import SUGGESTIVE, SUPPORTED, evidence_of, judge

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "docs" / "calibration.json", ROOT / "docs" / "probe.md"
OPTIONS = {
    "n_untrained": "200",  # half as the trainer starts them, half drawn at random
    "n_shuffled": "200",  # sets of labels turned round; half as many more with one member gold
    "n_planted": "72",  # link heads; a third as many more of other habits
    "n_pairs": "3",  # of words, of those of each frame. 2 would lose R a word, and words are what limits its p
    "seed": "0",
    "runs": "",  # trained models whose labels are shuffled, separated by commas; none: two are trained
    "max_steps": "500",  # of their training: about where the link is there
    "cache_dir": str(ROOT / ".cache"),
    "out": str(RESULTS),
}
STRENGTHS = (1.0, 2.0, 4.0)  # of planted heads: the antecedent's weight is e^2, e^4, e^8 times the distractor's
TURNED, MEMBER = "turned", "member"
TOKENS_PER_BATCH = 4096  # a sixth faster than 16,384 on one thread, whose cache it fits
Entry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One model and the items it is put to."""

    model: Transformer
    dev: Sequence[LinkItem]
    test: Sequence[LinkItem]
    place: tuple[int, int] | None = None  # of the planted head
    causes: bool = True  # whether the items have swap partners


def shuffled(items: Sequence[LinkItem], seed: int, labels: str = TURNED) -> list[LinkItem]:
    """Return the items with gold labels drawn by lot: antecedents against distractors, answers against foils.

    A coin for each pair of words x template holds for all its blocks.

    - turned: heads, and what each pronoun means is turned round in all four cells; a cell that meant the first member
      now means the second and stands in its place. So one pronoun of a pair still means one word and the other the
      other: swap partners exist and every criterion can be asked.
    - member: the coin says which member is gold in all four cells, whatever the pronoun, as in `selectivity`. Partners
      then mean the same word, so causes cannot be asked for.

    Items that mean nothing stay as they are.
    """
    names = sorted({(item.pair, item.template) for item in items})
    coins = dict(zip(names, np.random.default_rng(seed).integers(0, 2, len(names)).tolist(), strict=True))
    found = []
    for i, item in enumerate(items):
        coin = coins[item.pair, item.template]
        if not item.antecedents or not (coin if labels == TURNED else coin != item.meant):
            found.append(item)
        elif labels == TURNED:  # cells of one order stand side by side
            found.append(replace(_exchanged(items[i ^ 1]), meant=item.meant))
        else:
            found.append(_exchanged(item))
    return found


def _exchanged(item: LinkItem) -> LinkItem:
    return replace(
        item,
        antecedents=item.distractors,
        distractors=item.antecedents,
        answers=item.foils,
        foils=item.answers,
        surprisal=(),  # known of the real answer only
    )


def untrained(trained: Transformer, seed: int, drawn: bool) -> Transformer:
    """Return a model of the same shape that never saw a text: as the trainer starts it, or drawn at random.

    Drawn numbers are normal, a matrix's as large (root mean square) as the trained model's; the gains are its own.
    """
    model = Transformer(trained.config, trained.vocab_size, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for mine, its in zip(model.parameters(), trained.parameters(), strict=True):
            if drawn and mine.ndim == 2:
                mine.normal_(0, its.square().mean().sqrt().item(), generator=generator)
            elif drawn:
                mine.copy_(its)
    return model.eval()


def cases(
    trained: Sequence[Transformer],
    vocabulary: dict[str, int],
    dev: Sequence[LinkItem],
    test: Sequence[LinkItem],
    counts: dict[str, int],
    seed: int,
) -> dict[str, Iterator[Case]]:
    """Return what is probed, by group; each model is made when its turn comes."""
    config = trained[0].config
    seeds = range(seed * 10**6, (seed + 1) * 10**6)  # no two calls with different seeds share one

    def relabelled(labels: str, one: int) -> Case:
        # Dev and test share no pair x template but may share numbers of blocks, so they are shuffled apart.
        model = trained[one % len(trained)]
        return Case(model, shuffled(dev, 2 * one, labels), shuffled(test, 2 * one + 1, labels), causes=labels == TURNED)

    def planted(kind: str, where: tuple[float, int, int], one: int) -> Case:
        strength, layer, head = where
        model = plant(config, vocabulary, kind, layer=layer, head=head, strength=strength, seed=one)
        return Case(model, dev, test, place=(layer, head))

    places = list(product(STRENGTHS, range(config.n_layer), range(config.n_head)))
    habits = [kind for kind in KINDS if kind != "coreference"]
    half = counts["n_untrained"] // 2
    made: dict[str, Iterator[Case]] = {
        "untrained, as the trainer starts": (Case(untrained(trained[0], one, False), dev, test) for one in seeds),
        "untrained, matrices drawn": (Case(untrained(trained[0], one, True), dev, test) for one in seeds),
        "labels turned round": (relabelled(TURNED, one) for one in seeds),
        "labels: one member gold": (relabelled(MEMBER, one) for one in seeds),
        "planted link heads": (planted("coreference", *one) for one in zip(cycle(places), seeds, strict=False)),
        "planted other habits": (
            planted(kind, where, one) for kind, where, one in zip(cycle(habits), cycle(places), seeds, strict=False)
        ),
    }
    n_shuffled, n_planted = counts["n_shuffled"], counts["n_planted"]
    sizes = (half, counts["n_untrained"] - half, n_shuffled, n_shuffled // 2, n_planted, n_planted // 3)
    return {name: islice(some, size) for (name, some), size in zip(made.items(), sizes, strict=True)}


def probe(case: Case, config: ProbeConfig) -> dict[str, Entry]:
    """Probe one model as any other and return, by question, what calibration keeps of it."""
    questions = [question for question in asked(QUESTIONS, case.test) if question.watched]
    bench = make_bench(case.model, [], questions, case.dev, case.test, config)
    put = ask if case.causes else ask_without_causes
    return {question.name: kept(put(question, bench), case.place) for question in questions}


def ask_without_causes(question: Question, bench: Bench) -> Entry:
    """Do as `probe.study.ask` for items without swap partners: all criteria but the causal edge."""
    head = best_head(bench.dev.scores(question, "iid"))
    (dev, dev_rows), (test, rows) = (
        (one.picked(question, holdout), one.rows.take(one.index(question, holdout)))
        for one, holdout in ((bench.dev, "iid"), (bench.test, HEADLINE))
    )
    control = selectivity(dev, dev_rows.selects, test, rows.selects, bench.config.n_controls, bench.config.seed)
    unlinked = bench.test.rows.take(bench.test.index(EMPTY, HEADLINE))
    one: Entry = {
        "layer": head[0],
        "head": head[1],
        "test": {HEADLINE: held_out(question, HEADLINE, bench, head, fit_rules(dev))},
        "selectivity": control["selectivity"],
        "head_type": {name: float(values[head]) for name, values in bench.types.items()},
        "mass": {"linked": float(rows.mass[:, *head].mean()), "unlinked": float(unlinked.mass[:, *head].mean())},
    }
    return one | judge(evidence_of(one, HEADLINE)).entry()


def kept(one: Entry, place: tuple[int, int] | None) -> Entry:
    """Return what calibration keeps of an entry of probe.json's `selected`."""
    found = one["test"][HEADLINE]
    return {
        "verdict": one["verdict"],
        "head": [one["layer"], one["head"]],
        "at_place": place is None or place == (one["layer"], one["head"]),
        "passed": [criterion["name"] for criterion in one["criteria"] if criterion["passed"]],
        "measured": {name: value for criterion in one["criteria"] for name, value in criterion["measured"].items()},
        "accuracy": found["accuracy"],
        "pronoun_contrast": found["pronoun_contrast"],
        "p_pair_accuracy": found["p_pair_accuracy"],
        "p_pronoun_contrast": found["p_pronoun_contrast"],
    }


def summary(entries: Sequence[Entry]) -> Entry:
    """Count what one question said of the models of one group."""
    n = len(entries)
    supported = sum(one["verdict"] == SUPPORTED for one in entries)
    found = sum(one["verdict"] == SUPPORTED and one["at_place"] for one in entries)
    names = criterion_names()
    return {
        "n": n,
        "supported": supported,
        "supported_interval": share_interval(supported, n),
        "supported_at_place": found,
        "at_place_interval": share_interval(found, n),
        "suggestive": sum(one["verdict"] == SUGGESTIVE for one in entries),
        "passed": {name: sum(name in one["passed"] for one in entries) for name in names},
        # What the verdict would say were this criterion not asked: which one does the work.
        "all_but": {name: sum({*names} - {name} <= {*one["passed"]} for one in entries) for name in names},
        "smallest_p": {
            name: min(one[f"p_{name}"] for one in entries) for name in ("pair_accuracy", "pronoun_contrast")
        },
        "p_below_5_percent": {
            name: sum(one[f"p_{name}"] < 0.05 for one in entries) for name in ("pair_accuracy", "pronoun_contrast")
        },
        "accuracy_range": (min(one["accuracy"] for one in entries), max(one["accuracy"] for one in entries)),
    }


def criterion_names() -> list[str]:
    """Return the names of the verdict's criteria."""
    return [one["name"] for one in judge(evidence_of({"test": {}}, HEADLINE)).entry()["criteria"]]


def lines_of(results: Entry) -> list[str]:
    """Return the table that is kept in the document."""
    names = criterion_names()
    lines = [
        f"| models | question | n | supported [95 %] | suggestive | {' | '.join(f'passed: {name}' for name in names)} "
        "| all but the causal edge | smallest p: F2 | DD |",
        f"|{'---|' * (8 + len(names))}",
    ]
    for group, questions in results["groups"].items():
        for question, one in questions.items():
            low, high = one["supported_interval"]
            cells = [
                group,
                question,
                str(one["n"]),
                f"{one['supported']} [{low:.1%}, {high:.1%}]",
                str(one["suggestive"]),
                *(str(one["passed"][name]) for name in names),
                str(one["all_but"]["causal edge"]),
                f"{one['smallest_p']['pair_accuracy']:.4f}",
                f"{one['smallest_p']['pronoun_contrast']:.4f}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    for question, one in results["groups"].get("planted link heads", {}).items():
        low, high = one["at_place_interval"]
        share = f"{one['supported_at_place']} of {one['n']} [{low:.1%}, {high:.1%}]"
        lines += ["", f"Planted link heads found, {question}, supported in the very head that was planted: {share}."]
    used = f"{results['n_items']['dev']} dev and {results['n_items']['test']} test items"
    lines += [
        "",
        f"{used}; {results['seconds']['wall']:.0f} s, {results['seconds']['processor']:.0f} s of one processor.",
    ]
    return lines


def read_corpus(
    runs: Sequence[str], cache_dir: str, n_pairs: int
) -> tuple[list[Transformer], dict[str, int], Any, Any]:
    """Open runs of one corpus and return (their models, vocabulary, dev items, headline items)."""
    from data.corpus import load_rows
    from data.links import link_items
    from data.tokenizer import end_id
    from probe.open import load_data, open_run

    opened = [open_run(Path(run), torch.device("cpu")) for run in runs]
    if len({(one.data_fingerprint, one.settings.model) for one in opened}) > 1:
        raise ValueError("runs= are not of one corpus and one shape")
    corpus, tokenizer = load_data(opened[0], cache_dir), opened[0].tokenizer

    def items(split: str, holdout: str, questions: Sequence[Question]) -> list[LinkItem]:
        rows = (row for row in load_rows(corpus, split) if row["holdout"] == holdout)
        every = link_items(rows, tokenizer, end_id(tokenizer))
        some = [item for item in every if any(one.picks(item) for one in questions)]
        return fewer_pairs(some, n_pairs)

    watched = [question for question in QUESTIONS if question.watched]
    dev, test = items("dev", "iid", watched), items("test", HEADLINE, [*watched, EMPTY])
    return [one.transformer for one in opened], tokenizer.get_vocab(), dev, test


def fewer_pairs(items: Sequence[LinkItem], n_pairs: int) -> list[LinkItem]:
    """Return the items of `n_pairs` blocks of each frame, other ones from frame to frame so that no word is lost."""
    frames: dict[tuple[str, str], dict[str, dict[int, None]]] = {}
    for item in items:
        frames.setdefault((item.family, item.level), {}).setdefault(item.template, {})[item.block] = None
    wanted: set[int] = set()
    for some in frames.values():
        for i, blocks in enumerate(map(list, some.values())):
            wanted |= {blocks[(i * n_pairs + j) % len(blocks)] for j in range(min(n_pairs, len(blocks)))}
    return [item for item in items if item.block in wanted]


def train(folder: Path, seeds: Sequence[int], max_steps: int, cache_dir: str) -> list[str]:
    """Train the default run for each seed, shortly, and return the runs' directories."""
    runs = [str(folder / f"seed_{seed}") for seed in seeds]
    for seed, run in zip(seeds, runs, strict=True):
        settings = {"seed": seed, "out": run, "cache_dir": cache_dir, "max_steps": max_steps, "probe_sequences": 0}
        command = [sys.executable, "train.py", *(f"{name}={value}" for name, value in settings.items()), "threads=1"]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return runs


def standard_config() -> ProbeConfig:
    """Return the probe's own settings."""
    from omegaconf import OmegaConf

    values = OmegaConf.load(ROOT / "configs" / "probe" / "standard.yaml")
    config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(ProbeConfig), values))
    assert isinstance(config, ProbeConfig)  # what `structured` was given
    return replace(config, tokens_per_batch=TOKENS_PER_BATCH)


def calibrate(groups: dict[str, Iterator[Case]], config: ProbeConfig, say: Callable[[str], None]) -> dict[str, Any]:
    """Probe every model of every group and return the entries [{question: entry}] by group."""
    every: dict[str, list[dict[str, Entry]]] = {}
    for group, some in groups.items():
        every[group] = []
        for case in some:
            every[group].append(probe(case, config))
            say(f"{group}: {len(every[group])}")
    return every


def summarise(every: dict[str, list[dict[str, Entry]]]) -> dict[str, dict[str, Entry]]:
    """Return the counts by group and question."""
    return {
        group: {question: summary([one[question] for one in some]) for question in some[0]}
        for group, some in every.items()
        if some
    }


def main() -> None:
    """Measure, write, print."""
    given = OPTIONS | dict(argument.split("=", 1) for argument in sys.argv[1:])
    if unknown := given.keys() - OPTIONS.keys():
        sys.exit(f"{', '.join(unknown)}: there are {', '.join(OPTIONS)}")
    counts = {name: int(given[name]) for name in OPTIONS if name.startswith("n_")}
    seed, cache_dir, out = int(given["seed"]), given["cache_dir"], Path(given["out"])
    torch.set_num_threads(1)
    began, processor = time.monotonic(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        max_steps = int(given["max_steps"])
        runs = given["runs"].split(",") if given["runs"] else train(Path(folder), (1, 2), max_steps, cache_dir)
        trained, vocabulary, dev, test = read_corpus(runs, cache_dir, counts["n_pairs"])
    terminal = sys.stdout.isatty()
    every = calibrate(
        cases(trained, vocabulary, dev, test, counts, seed),
        standard_config(),
        lambda line: print(f"\r{line:<60}", end="", flush=True) if terminal else None,
    )
    results: Entry = {
        "settings": {name: given[name] for name in ("n_pairs", "seed", "max_steps")},
        "n_items": {"dev": len(dev), "test": len(test)},
        "groups": summarise(every),
        "supported_though_nothing_is_there": [
            {"group": group, "model": i, "question": question} | entry
            for group, some in every.items()
            if group != "planted link heads"
            for i, one in enumerate(some)
            for question, entry in one.items()
            if entry["verdict"] == SUPPORTED
        ],
        "seconds": {"wall": time.monotonic() - began, "processor": time.process_time() - processor},
    }
    keep(out, results)
    write_table(out, lines_of(results))
    print("\n".join(lines_of(results)))


def write_table(out: Path, lines: list[str]) -> None:
    """Paste the table into the document on the probe, or beside `out` where that has no place for it."""
    page = PAGE
    if out != RESULTS or not PAGE.exists() or "<!-- calibration -->\n" not in PAGE.read_text():
        page = out.with_suffix(".md")
        if not page.exists():
            page.write_text("# How often the probe is wrong\n\n<!-- calibration -->\n<!-- end -->\n")
    paste(page, "calibration", lines)


if __name__ == "__main__":
    main()
