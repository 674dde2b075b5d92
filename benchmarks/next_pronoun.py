"""The head that decides the next pronoun, over seeds: python -m benchmarks.next_pronoun runs=DIR seeds=301,302.

Trains `experiment=english` for each seed into DIR/SEED (a finished run is used as it is), tests its heads on its
validation text, and its chosen head on each of texts=PATH,PATH. Further arguments:

- experiment=english: or english/long
- control=: coin (a coin decides the gender of every pronoun of the training text), or genders (in half of the training
  stories every name and noun has a counterpart of the other gender); both are tested on the unchanged text
- pairs=FILE,FILE: minimal pairs, with all heads and without each
- threads=1
- page=next_pronoun: results are written to docs/results/PAGE.{json,md}
"""

import gzip
import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
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
from data.next_pronoun import Passage, mixed_places
from data.tokenizer import END, encode_text
from model.observe import HeadEdit
from probe.after_pronoun import after_pronoun
from probe.config import ProbeConfig
from probe.external import markdown_table
from probe.minimal_pairs import log_probabilities, outcomes, read_pairs
from probe.natural import make_items
from probe.next_pronoun import NextPronounResult, confirm, study_question
from probe.open import OpenedRun, load_data, open_run
from report.api import SHIPPED_TEXT, EnglishText, english_text
from report.content import jsonable, yaml_values
from training.checkpoint import load_checkpoint
from training.files import write_atomically
from training.settings import to_settings

AFTER = """\
The same head at the pronoun; contrast below 0: it looks at the other person. Then what its output raises if it attends
to a person, in nats per unit of attention: that person's pronoun and name; below 0: it lowers them (copy suppression,
McDougall et al. 2023)."""
CHOICE = "Passages with two people, of both halves; without and with an earlier pronoun."
PAIRS = "Share of pairs whose good sentence is more probable; a removed head writes nothing at any position."
EMERGENCE = "First kept checkpoint at which the criteria hold; there the untrained models are not asked."
SHUFFLED = "The words before the pronoun in random order, the last one excepted. Not registered."
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


def pairs_without_heads(opened: OpenedRun, file: Path, config: ProbeConfig) -> dict[str, Any]:
    """Returns the share of right minimal pairs of a file with all heads, and without each head (its output is 0)."""
    sides: tuple[list[tuple[int, ...]], list[tuple[int, ...]]] = ([], [])
    for pair in read_pairs(file):
        for side, sentence in zip(sides, (pair.good, pair.bad), strict=True):
            side.append((opened.start, *encode_text(opened.tokenizer, sentence).ids))

    def accuracy(edits: Sequence[HeadEdit]) -> float:
        model, n_tokens = opened.model, config.tokens_per_batch
        good, bad = (log_probabilities(model, texts, n_tokens, edits) for texts in sides)
        return float(outcomes(good, bad).mean())

    heads = [(layer, head) for layer in range(opened.model.n_layer) for head in range(opened.model.n_head)]
    without = {f"L{layer}H{head}": accuracy([HeadEdit(layer, head, output=torch.zeros_like)]) for layer, head in heads}
    return {"n": len(sides[0]), "all": accuracy(()), "without": without}


def shuffle_words(passage: Passage, rng: random.Random) -> Passage:
    """Returns the passage with its words in random order, the last one excepted; marks are lost."""
    spans = [span for group in passage.mentions for span in group]
    inside = [range(*span) for span in spans]
    others = [match.span() for match in WORD.finditer(passage.text)]
    spans += [span for span in others if not any(span[0] in mention for mention in inside)]
    *movable, last = sorted(spans)
    rng.shuffle(movable)
    text, moved = "", dict[tuple[int, int], tuple[int, int]]()
    for span in (*movable, last):
        word = passage.text[slice(*span)]
        moved[span] = (len(text), len(text) + len(word))
        text += f"{word} "
    groups = [tuple(sorted(moved[span] for span in group)) for group in passage.mentions]
    order = sorted((span, side) for side in (0, 1) for span in groups[side])
    return replace(
        passage, text=text, mentions=(groups[0], groups[1]), pronouns=(), nearest=order[-1][1], first=order[0][1],
        subject=order[0][1],
    )  # fmt: skip


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
    names = ("author_where_nearest_is_wrong", "n_nearest_is_wrong", "rules", "untrained_t", "interchanged", "choices")
    return entry | {name: details[name] for name in names}


@cache
def text_of(path: str) -> EnglishText:
    """Returns the passages of a path, read once for all runs."""
    return english_text(path, None)


def evaluate(run: Path, options: dict[str, str], config: ProbeConfig) -> dict[str, Any]:
    """Returns everything that the page shows of one run."""
    opened = open_run(run, torch.device("cpu"))
    corpus = load_data(opened, ".cache")
    text = english_text(SHIPPED_TEXT if options["control"] else None, corpus)
    results: dict[str, Any] = {"seed": opened.seed, "step": opened.step}
    for question in ("gender", "number"):
        result = study(opened, text, question, config)
        results[question] = result if isinstance(result, str) else summary(result)
        if question == "gender" and isinstance(result, NextPronounResult):
            head = (result.layer, result.head)
            prefixes = make_items(
                text.prefixes["gender"], opened.tokenizer, opened.start, opened.model.context_length, config.seed
            )
            after = after_pronoun(opened.model, prefixes, head, config)
            results["after"] = asdict(after) if after else None
            heads = result.head_set.heads if result.unit == "set" and result.head_set else (head,)
            results["texts"] = {}
            for path in filter(None, options["texts"].split(",")):
                other = text_of(path)
                answer = confirm(
                    opened.model, opened.tokenizer, opened.start, "gender", other.passages["gender"], heads, config,
                    needs_twin=bool(other.documents),
                )  # fmt: skip
                results["texts"][Path(path).name] = answer if isinstance(answer, str) else asdict(answer)
    results["shuffled"] = of_shuffled(opened, text, config)
    assert opened.seed is not None
    untrained = replace(opened, model=opened.untrained(opened.seed))
    results["untrained"] = word_of(study(untrained, text, "gender", replace(config, n_untrained=2)))
    results["pairs"] = {}
    for file in map(Path, filter(None, options["pairs"].split(","))):
        results["pairs"][file.stem] = pairs_without_heads(opened, file, config)
    best = {name: weight.clone() for name, weight in opened.transformer.state_dict().items()}
    results["emergence"] = emergence(opened, text, config, best)
    return dict(jsonable(results))


def word_of(result: NextPronounResult | str) -> str:
    """Returns the verdict, or why there is none."""
    return result if isinstance(result, str) else f"{result.verdict} ({result.evidence_level})"


def of_shuffled(opened: OpenedRun, text: EnglishText, config: ProbeConfig) -> dict[str, Any]:
    """Returns the answer on passages whose words are in random order."""
    rng = random.Random(config.seed)
    passages = [shuffle_words(passage, rng) for passage in text.passages["gender"] if not passage.pronouns]
    shuffled = replace(text, passages={"gender": passages})
    result = study(opened, shuffled, "gender", replace(config, n_untrained=2))
    if isinstance(result, str):
        return {"verdict": result}
    estimates = {"follows_twin": result.follows_twin, "author_accuracy": result.author_accuracy}
    estimates["share"] = result.chosen.share
    return {
        "verdict": word_of(result),
        "n_two": result.n_two,
        "nearest_accuracy": result.nearest_accuracy,
        "head": (result.layer, result.head),
        **{name: asdict(value) for name, value in estimates.items()},
    }


Runs = Sequence[dict[str, Any]]


def lines_of(runs: Runs, n_places: int, n_tokens: int, tokens_per_step: int) -> list[str]:
    """Returns the tables of the page; the training text has `n_places` pronouns after both genders in `n_tokens`."""
    lines = decision_lines(runs)
    lines += ["## Whom the models pick", "", CHOICE, "", *choice_lines(runs), ""]
    for name in runs[0]["texts"]:
        rows = [_text_row(run["seed"], run["texts"][name]) for run in runs]
        names = ("seed", "passages", "edge effect, nats", "meant edge cut", "other edge cut", "p")
        lines += [f"## The same heads on {name}", "", *markdown_table(names, rows), ""]
    lines += ["## Right after the pronoun", "", AFTER, "", *after_lines(runs), ""]
    for name in runs[0]["pairs"]:
        lines += [f"## Minimal pairs without a head: {name}", "", PAIRS, "", *pair_lines(runs, name), ""]
    lines += ["## Words in random order", "", SHUFFLED, "", *shuffled_lines(runs), ""]
    untrained = Counter(run["untrained"] for run in runs)
    words = "; ".join(f"{count} {word}" for word, count in untrained.most_common())
    lines += ["## Untrained models of the same seeds", "", words, ""]
    places_per_step = n_places * tokens_per_step / n_tokens
    lines += ["## Emergence", "", EMERGENCE, "", *emergence_lines(runs, tokens_per_step, places_per_step), ""]
    numbers = {run["number"] if isinstance(run["number"], str) else run["number"]["verdict"] for run in runs}
    return [*lines, "## Number", "", *sorted(numbers)]


def decision_lines(runs: Runs) -> list[str]:
    """Returns the summary over seeds and the table of all seeds."""
    answers = [run["gender"] for run in runs]
    supported = sum(answer["verdict"] == "supported" for answer in answers)
    values = []
    for name in ("share", "flips", "follows_twin", "author_accuracy", "nearest_accuracy"):
        values.append((name, median_range([answer[name] for answer in answers], 2)))
    rows = []
    for run, answer in zip(runs, answers, strict=True):
        low, high = answer["share_interval"]
        rows.append([
            str(run["seed"]),
            " + ".join(f"L{layer}H{head}" for layer, head in answer["heads"]),
            f"{answer['verdict']} ({answer['evidence_level']})",
            f"{answer['share']:.2f} [{low:.2f}, {high:.2f}]",
            f"{answer['flips']:.2f}",
            f"{answer['follows_twin']:.2f}",
            f"{answer['author_accuracy']:.2f}, {answer['nearest_accuracy']:.2f}",
            f"{_estimate(answer['author_where_nearest_is_wrong'])} of {answer['n_nearest_is_wrong']}",
            f"{answer['p_corrected']:.4f}",
        ])  # fmt: skip
    header = ("seed", "heads", "verdict", "share [95 %]", "flips", "follows twin", "author's, nearest",
              "author's where nearest is wrong", "p")  # fmt: skip
    summary = f"Supported in {supported} of {len(runs)} seeds. Median and range over seeds:"
    return [summary, "", *markdown_table(("measure", "median (range)"), values), "", *markdown_table(header, rows), ""]


def choice_lines(runs: Runs) -> list[str]:
    """Returns the table of whom the models pick, on passages of both halves."""
    rows = []
    for run in runs:
        cells = [str(run["seed"])]
        for found in run["gender"]["choices"]:
            wrong = f"{_estimate(found['author_where_wrong'])} of {found['n_wrong']}"
            cells += [str(found["n"]), _estimate(found["author"]), f"{found['nearest']:.2f}", wrong]
        rows.append(cells)
    names = ("passages", "author's", "nearest", "author's where nearest is wrong")
    header = ("seed", *names, *(f"earlier pronoun: {name}" for name in names))
    return markdown_table(header, rows)


def after_lines(runs: Runs) -> list[str]:
    """Returns the table of what the heads do right after the pronoun."""
    rows = []
    for run in runs:
        after = run["after"]
        if after:
            names = ("contrast", "raises_pronoun", "raises_name")
            cells = [_estimate(after[name]) if after[name] else "-" for name in names]
            rows.append([str(run["seed"]), *cells, f"{after['p']:.4f}"])
    header = ("seed", "contrast at the pronoun", "its output raises the pronoun", "the name", "p")
    return markdown_table(header, rows)


def pair_lines(runs: Runs, name: str) -> list[str]:
    """Returns the table of right minimal pairs of one file."""
    rows = []
    for run in runs:
        found = run["pairs"][name]
        chosen = [f"L{layer}H{head}" for layer, head in run["gender"]["heads"]]
        others = [value for head, value in found["without"].items() if head not in chosen]
        without = ", ".join(f"{head} {found['without'][head]:.3f}" for head in chosen)
        spread = f"{min(others):.3f} to {max(others):.3f}"
        rows.append([str(run["seed"]), str(found["n"]), f"{found['all']:.3f}", without, spread])
    return markdown_table(("seed", "pairs", "all heads", "without the deciding head", "without another head"), rows)


def shuffled_lines(runs: Runs) -> list[str]:
    """Returns the table of the passages in random order."""
    rows = []
    for run in runs:
        found = run["shuffled"]
        if "share" in found:
            cells = [_estimate(found[name]) for name in ("share", "follows_twin", "author_accuracy")]
            of_run = [str(run["seed"]), str(found["n_two"]), found["verdict"]]
            rows.append([*of_run, *cells, f"{found['nearest_accuracy']:.2f}"])
    header = ("seed", "passages with two", "verdict", "share", "follows twin", "author's", "nearest")
    return markdown_table(header, rows)


def emergence_lines(runs: Runs, tokens_per_step: int, places_per_step: float) -> list[str]:
    """Returns the table of the first steps at which the criteria hold."""
    rows, firsts = [], []
    for run in runs:
        steps = [row["step"] for row in run["emergence"] if row["verdict"] == "supported"]
        if run["gender"]["verdict"] == "supported":
            steps.append(run["step"])
        if not steps:
            rows.append([str(run["seed"]), "-", "-", "-"])
            continue
        firsts.append(min(steps))
        counts = (firsts[-1], firsts[-1] * tokens_per_step, round(firsts[-1] * places_per_step))
        rows.append([str(run["seed"]), *(f"{count:,}" for count in counts)])
    lines = markdown_table(("seed", "step", "tokens", "pronouns after entities of both genders"), rows)
    return [*lines, "", f"Median step: {median(firsts):g}."] if firsts else lines


def _estimate(value: dict[str, Any]) -> str:
    return f"{value['value']:.2f} [{value['low']:.2f}, {value['high']:.2f}]"


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
        "pairs": "",
        "threads": "1",
        "page": "next_pronoun",
    }
    options = arguments(defaults, required=["runs"])
    torch.set_num_threads(int(options["threads"]))
    config = to_settings(ProbeConfig, yaml_values("eval/eval")["probe"], "probe.")
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
