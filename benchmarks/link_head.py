"""Train and probe the default run for several seeds: python -m benchmarks.link_head [seeds=1,2,3,4,5].

Writes docs/results/link_head.{json,md} and the tables of README.md.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import arguments, interval_text, paste, read_records, run_script, write_results
from data.text_tables import markdown_table

QUESTIONS = ("number", "gender", "later_cue")
BASELINES = ("nearest", "first", "subject", "most frequent")
SCORES = ("accuracy", "block_accuracy")


def measure(seed: int, folder: Path) -> dict[str, Any]:
    """Runs train.py and eval.py as a user does; returns their results and durations."""
    run, cache = folder / f"seed_{seed}", f"cache_dir={folder / 'cache'}"
    training = run_script("train", f"seed={seed}", f"out={run}", cache)
    probing = run_script("eval", f"run={run}", cache)
    probe = json.loads((run / "probe" / "probe.json").read_text())
    validation = read_records(run, "validation")[-1]
    return {
        "seed": seed,
        "seconds": {"train": training.seconds, "eval": probing.seconds},
        "cpu_seconds": {"train": training.cpu_seconds, "eval": probing.cpu_seconds},
        "train_output": training.output.replace(str(folder), "runs"),
        "eval_output": probing.output.replace(str(folder), "runs"),
        "validation": {name: validation[name] for name in ("loss", "floor", "gap", "gap_error", "gap_by_class")},
        "selected": {entry["question"]: entry for entry in probe["selected"] if entry["question"] in QUESTIONS},
        "behaviour": probe["behaviour"],
    }


def seed_rows(results: list[dict[str, Any]]) -> list[list[str]]:
    """Returns one row per seed and question, on the headline hold-out."""
    rows = []
    for result in results:
        for question in QUESTIONS:
            entry = result["selected"][question]
            test, swap = entry["test"]["headline"], (entry["causal"] or {}).get("attention_swap")
            head = f"L{entry['layer']}H{entry['head']}"
            scores = [interval_text(test[score], test[f"{score}_interval"]) for score in SCORES]
            p = f"{test['p_corrected']:.4f}"
            swapped = "-" if swap is None else f"{swap:.2f}"
            verdict = f"{entry['verdict']}, {entry['evidence_level']}"
            rows.append([str(result["seed"]), question, head, *scores, p, swapped, verdict])
    return rows


def baseline_rows(results: list[dict[str, Any]]) -> list[list[str]]:
    """Returns one row per question: supported seeds, and mean accuracy of the head, the rules and untrained models."""
    rows = []
    for question in QUESTIONS:
        entries = [result["selected"][question] for result in results]
        supported = sum(entry["verdict"] == "supported" for entry in entries)
        tests = [entry["test"]["headline"] for entry in entries]
        columns = [[test[score] for test in tests] for score in SCORES]
        columns += [[test["baselines"][rule]["accuracy"] for test in tests] for rule in BASELINES]
        columns += [[test["untrained"][score] for test in tests] for score in SCORES]
        means = [f"{sum(values) / len(values):.3f}" for values in columns]
        rows.append([question, f"{supported} of {len(entries)}", *means])
    return rows


def gap_rows(results: list[dict[str, Any]]) -> list[list[str]]:
    """Returns one row per seed: validation loss, entropy lower bound and the gap by token class, nats per token."""
    rows = []
    for result in results:
        loss = result["validation"]
        gap = f"{loss['gap']:.4f} ({loss['gap_error']:.4f})"
        by_class = [f"{value:.3f}" for value in loss["gap_by_class"].values()]
        rows.append([str(result["seed"]), f"{loss['loss']:.4f}", f"{loss['floor']:.4f}", gap, *by_class])
    return rows


def time_rows(results: list[dict[str, Any]]) -> list[list[str]]:
    """Returns one row per seed: wall and CPU-seconds of both commands; the first seed also writes the corpus."""
    names = [(clock, script) for script in ("train", "eval") for clock in ("seconds", "cpu_seconds")]
    return [[str(result["seed"]), *(f"{result[clock][script]:.1f}" for clock, script in names)] for result in results]


def fenced(output: str, *starts: str) -> list[str]:
    """Returns the printed lines that begin with one of `starts` as a block of code."""
    return ["```", *(line for line in output.splitlines() if line.startswith(starts)), "```"]


def main() -> None:
    """Measures, writes, prints."""
    seeds = [int(seed) for seed in arguments({"seeds": "1,2,3,4,5"})["seeds"].split(",")]
    with tempfile.TemporaryDirectory() as folder:
        results = [measure(seed, Path(folder)) for seed in seeds]
        run_script("eval", f"runs={folder}", f"cache_dir={folder}/cache")
        over_seeds = json.loads((Path(folder) / "probe" / "seeds.json").read_text())
    summary = markdown_table(
        ["question", "supported", "accuracy", "block accuracy", *BASELINES, "untrained models", "their block accuracy"],
        baseline_rows(results),
    )
    scores = ["accuracy [95 %]", "block accuracy [95 %]", "corrected p", "attention swap", "verdict"]
    classes = list(results[0]["validation"]["gap_by_class"])
    lines = [
        f"Default run, seeds {', '.join(map(str, seeds))}. Heads are chosen on the dev split and tested once",
        "on the headline hold-out: nouns, names and frames that training never used with a pronoun. Means over seeds:",
        "",
        *summary,
        "",
        *markdown_table(["seed", "question", "head", *scores], seed_rows(results)),
        "",
        "Validation loss, entropy lower bound and their gap (standard error), by token class too, in nats per token:",
        "",
        *markdown_table(["seed", "loss", "lower bound", "gap", *classes], gap_rows(results)),
        "",
        "Seconds of the two commands (the first seed also generates the stories):",
        "",
        *markdown_table(["seed", "train.py", "train.py CPU", "eval.py", "eval.py CPU"], time_rows(results)),
    ]
    measured = {"results": results, "over_seeds": over_seeds}
    write_results("link_head", "The link head over seeds", measured, lines, threads=2)
    paste("results", summary)
    for result in results:
        if result["seed"] == 1:  # the seed of the default run
            paste("train output", fenced(result["train_output"], "step     0", "step  1200"))
            rows = ("question", *(f"{question}:" for question in QUESTIONS))
            examples = ("  One sunny day, the cat sat", "  One sunny day, the buses")
            paste("eval output", fenced(result["eval_output"], *rows, *examples))


if __name__ == "__main__":
    main()
