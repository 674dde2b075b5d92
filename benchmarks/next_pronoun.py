"""The head that decides the next pronoun, over seeds: python -m benchmarks.next_pronoun runs=DIR seeds=301,302.

Trains `experiment=english` for each seed into DIR/SEED (a finished run is used as it is), tests its heads on its
validation text, and its chosen head on each of texts=PATH,PATH. Further arguments:

- experiment=english: or english/long
- control=: coin (a coin decides the gender of every pronoun of the training text), or genders (in half of the training
  stories every name and noun has a counterpart of the other gender); both are tested on the unchanged text
- threads=1
- page=next_pronoun: results are written to docs/results/PAGE.{json,md}
"""

import gzip
import json
import random
import re
from collections import Counter
from dataclasses import asdict
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.english import permute_pronouns
from benchmarks.measure import ROOT, arguments, median_range, run_script, write_results
from data.corpus import load_corpus
from data.english import COUNTERPARTS, FEMININE_NAMES, MASCULINE_NAMES
from data.natural import WORD
from data.next_pronoun import mixed_places
from data.tokenizer import END
from probe.config import ProbeConfig
from probe.external import markdown_table
from probe.natural import DECIDED_SITES, make_items, read
from probe.next_pronoun import NextPronounResult, confirm, study_question
from probe.open import OpenedRun, load_data, open_run
from probe.statistics import mean_interval
from report.api import EnglishText, english_text
from report.content import jsonable, yaml_values
from training.checkpoint import load_checkpoint, write_atomically
from training.settings import typed

MIN_COUNT = 10  # mentions of a name in the training text before it may stand for another


def swap_genders(text: str, seed: int) -> str:
    """Returns the text after a coin per story has decided whether its people change gender, but not their pronouns.

    In a changed story mother becomes father everywhere, and a name becomes a name of the other gender that the story
    does not have. So within a story all mentions and pronouns agree as before, but no word has a gender of its own.
    """
    rng = random.Random(seed)
    counts = Counter(WORD.findall(text))
    feminine, masculine = (
        [name for name in sorted(names) if counts[name] >= MIN_COUNT] for names in (FEMININE_NAMES, MASCULINE_NAMES)
    )
    pools = (feminine, masculine)
    return END.join(_swapped(story, pools, rng) if rng.random() < 0.5 else story for story in text.split(END))


def _swapped(story: str, pools: tuple[list[str], list[str]], rng: random.Random) -> str:
    present, names = set(WORD.findall(story)), dict[str, str]()

    def counterpart(match: re.Match[str]) -> str:
        word = match.group()
        for pool, others in (pools, pools[::-1]):
            if word in pool and word not in names:
                names[word] = rng.choice([name for name in others if name not in present])
                present.add(names[word])
        if word in names:
            return names[word]
        noun = COUNTERPARTS.get(word.lower(), word.lower())
        return noun.capitalize() if word.istitle() else noun if word.islower() else word

    return WORD.sub(counterpart, story)


def control_text(control: str, folder: Path) -> str:
    """Writes the training text of a control to `folder`; returns its path."""
    text = gzip.decompress((ROOT / "data" / "tinystories" / "train.txt.gz").read_bytes()).decode()
    change = {"coin": permute_pronouns, "genders": swap_genders}[control]
    path = folder / f"{control}.txt"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, change(text, seed=0).encode())
    return str(path)


def train(run: Path, seed: int, options: dict[str, str]) -> None:
    """Trains a run unless it is finished."""
    if (run / "metrics.jsonl").exists() and '"whole": true' in (run / "metrics.jsonl").read_text():
        return
    settings = [f"seed={seed}", f"out={run}", f"threads={options['threads']}", "keep_checkpoints=20", "device=cpu"]
    settings.append(f"resume={str((run / 'config.json').exists()).lower()}")
    if options["control"]:
        settings.append(f"data.path={control_text(options['control'], run.parent)}")
    run_script("train", f"experiment={options['experiment']}", *settings)


def after_the_pronoun(
    opened: OpenedRun, text: EnglishText, head: tuple[int, int], config: ProbeConfig
) -> dict[str, Any]:
    """Returns the contrast of a head at the pronoun and at the word after it, on all prefixes, with intervals."""
    items = make_items(
        text.prefixes["gender"], opened.tokenizer, opened.start, opened.model.context_length, config.seed
    )
    contrast = read(opened.model, items, config.tokens_per_batch).contrast[:, :, head[0], head[1]]
    everything = torch.arange(len(contrast)).numpy()
    found = {}
    for i, site in enumerate(DECIDED_SITES):
        interval = mean_interval(contrast[:, i], items.designs(everything), config.n_bootstrap, config.seed)
        found[site] = {"n": len(contrast), "contrast": float(contrast[:, i].mean()), "interval": interval.tolist()}
    return found


def emergence(opened: OpenedRun, text: EnglishText, config: ProbeConfig, best: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the verdict at each kept checkpoint before the last one."""
    rows = []
    folder = opened.folder / "checkpoints"
    for path in sorted(folder.glob("step_*"), key=lambda path: int(path.stem.split("_")[-1])):
        state = torch.load(path, map_location="cpu", weights_only=True) if path.is_file() else load_checkpoint(path)
        if state["step"] in (0, opened.step):
            continue
        opened.transformer.load_state_dict(state["model"])
        result = study(opened, text, "gender", config, has_untrained=False)
        if isinstance(result, NextPronounResult):
            rows.append({"step": state["step"], "verdict": result.verdict, "share": result.chosen.share.value})
    opened.transformer.load_state_dict(best)
    return rows


def study(
    opened: OpenedRun, text: EnglishText, question: str, config: ProbeConfig, *, has_untrained: bool = True
) -> NextPronounResult | str:
    """Returns the answer to one question on a text; without untrained models their criterion is a t above 0."""
    untrained = (opened.untrained(config.seed + i) for i in range(config.n_untrained if has_untrained else 0))
    return study_question(
        opened.model,
        untrained,
        opened.tokenizer,
        opened.start,
        question,
        text.passages[question],
        text.documents,
        config,
    )


def summary(result: NextPronounResult) -> dict[str, Any]:
    """Returns the values of an answer that the page shows."""
    entry = result.entry()
    details = entry.pop("details")
    head_set = entry.pop("head_set")
    entry["heads"] = head_set["heads"] if entry["unit"] == "set" else [(result.layer, result.head)]
    names = ("author_where_nearest_is_wrong", "n_nearest_is_wrong", "rules", "untrained_t", "interchanged")
    return entry | {name: details[name] for name in names}


@cache
def text_of(path: str) -> EnglishText:
    """Returns the passages of a path, read once for all runs."""
    return english_text(path, None)


def evaluate(run: Path, options: dict[str, str], config: ProbeConfig) -> dict[str, Any]:
    """Returns everything that the page shows of one run."""
    opened = open_run(run, torch.device("cpu"))
    corpus = load_data(opened, ".cache")
    text = english_text(None, corpus)
    results: dict[str, Any] = {"seed": opened.seed, "step": opened.step}
    for question in ("gender", "number"):
        result = study(opened, text, question, config)
        results[question] = result if isinstance(result, str) else summary(result)
        if question == "gender" and isinstance(result, NextPronounResult):
            head = (result.layer, result.head)
            results["after"] = after_the_pronoun(opened, text, head, config)
            heads = result.head_set.heads if result.unit == "set" and result.head_set else (head,)
            results["texts"] = {}
            for path in filter(None, options["texts"].split(",")):
                other = text_of(path)
                answer = confirm(
                    opened.model, opened.tokenizer, opened.start, "gender", other.passages["gender"], heads, config,
                    needs_twin=bool(other.documents),
                )  # fmt: skip
                results["texts"][Path(path).name] = answer if isinstance(answer, str) else asdict(answer)
    best = {name: weight.clone() for name, weight in opened.transformer.state_dict().items()}
    results["emergence"] = emergence(opened, text, config, best)
    return dict(jsonable(results))


def lines_of(runs: list[dict[str, Any]], n_places: int, n_tokens: int, tokens_per_step: int) -> list[str]:
    """Returns the tables of the page."""
    answers = [run["gender"] for run in runs]
    supported = sum(answer["verdict"] == "supported" for answer in answers)
    values = [
        (name, median_range([answer[name] for answer in answers], 2))
        for name in ("share", "flips", "follows_twin", "author_accuracy", "nearest_accuracy")
    ]
    lines = [f"Supported in {supported} of {len(runs)} seeds. Median and range over seeds:", ""]
    lines += [*markdown_table(("measure", "median (range)"), values), ""]
    rows = []
    for run, answer in zip(runs, answers, strict=True):
        wrong = answer["author_where_nearest_is_wrong"]
        low, high = answer["share_interval"]
        rows.append([
            str(run["seed"]),
            " + ".join(f"L{layer}H{head}" for layer, head in answer["heads"]),
            f"{answer['verdict']} ({answer['evidence_level']})",
            f"{answer['share']:.2f} [{low:.2f}, {high:.2f}]",
            f"{answer['flips']:.2f}",
            f"{answer['follows_twin']:.2f}",
            f"{answer['author_accuracy']:.2f}, {answer['nearest_accuracy']:.2f}",
            f"{wrong['value']:.2f} of {answer['n_nearest_is_wrong']}",
            f"{answer['p_corrected']:.4f}",
        ])  # fmt: skip
    header = ("seed", "heads", "verdict", "share [95 %]", "flips", "follows twin", "author's, nearest",
              "author's where nearest is wrong", "p")  # fmt: skip
    lines += [*markdown_table(header, rows), ""]
    for name in runs[0]["texts"]:
        lines += [f"## The same heads on {name}", ""]
        rows = [_text_row(run["seed"], run["texts"][name]) for run in runs]
        names = ("seed", "passages", "edge effect, nats", "meant edge cut", "other edge cut", "p")
        lines += [*markdown_table(names, rows), ""]
    lines += [
        "## Right after the pronoun",
        "",
        "Contrast of the same head; negative: it looks at the other person.",
        "",
    ]
    rows = [
        [str(run["seed"]), *(_contrast(run["after"][site]) for site in DECIDED_SITES)] for run in runs if "after" in run
    ]
    lines += [*markdown_table(("seed", "at the pronoun", "at the word after"), rows), ""]
    lines += ["## Emergence", "", "First kept checkpoint at which the criteria hold, untrained models not asked.", ""]
    rows = []
    for run in runs:
        steps = [row["step"] for row in run["emergence"] if row["verdict"] == "supported"]
        first = min([*steps, run["step"]])
        tokens = first * tokens_per_step
        rows.append([str(run["seed"]), f"{first:,}", f"{tokens:,}", f"{round(n_places * tokens / n_tokens):,}"])
    columns = ("seed", "step", "tokens", "places after entities of both genders")
    middle = median(int(row[1].replace(",", "")) for row in rows)
    lines += [*markdown_table(columns, rows), "", f"Median step: {middle:g}."]
    numbers = {run["number"] if isinstance(run["number"], str) else run["number"]["verdict"] for run in runs}
    return [*lines, "", "## Number", "", *sorted(numbers)]


def _contrast(value: dict[str, Any]) -> str:
    low, high = value["interval"]
    return f"{value['contrast']:.2f} [{low:.2f}, {high:.2f}]"


def _text_row(seed: int, result: Any) -> list[str]:
    if isinstance(result, str):
        return [str(seed), result, "", "", "", ""]
    cells = [
        f"{result[name]['value']:.3f} [{result[name]['low']:.3f}, {result[name]['high']:.3f}]"
        for name in ("edge_effect", "meant_cut", "other_cut")
    ]
    return [str(seed), str(result["n"]), *cells, f"{result['p']:.4f}"]


def main() -> None:
    """Trains, tests, writes, prints."""
    defaults = {
        "seeds": "301",
        "texts": "",
        "experiment": "english",
        "control": "",
        "threads": "1",
        "page": "next_pronoun",
    }
    options = arguments(defaults, required=["runs"])
    torch.set_num_threads(int(options["threads"]))
    config = typed(ProbeConfig, yaml_values("eval/eval")["probe"], "probe.")
    runs = []
    for seed in options["seeds"].split(","):
        run = Path(options["runs"]) / seed
        train(run, int(seed), options)
        runs.append(evaluate(run, options, config))
        print(json.dumps({"seed": seed, "verdict": runs[-1]["gender"]["verdict"]}), flush=True)
    opened = open_run(run, torch.device("cpu"))
    corpus = load_corpus(opened.settings.data, Path(".cache"))
    tokens = corpus.train.tokens
    text = corpus.tokenizer.decode(tokens.tolist())
    places = mixed_places([("train", text)])
    lines = lines_of(runs, places, len(tokens), opened.settings.run.tokens_per_batch)
    title = f"The head that decides the next pronoun: {options['experiment']}"
    write_results("next_pronoun", title, {"runs": runs}, lines, int(options["threads"]), page=options["page"])


if __name__ == "__main__":
    main()
