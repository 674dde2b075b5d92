"""Heads that turn with the pronoun in English text: python -m benchmarks.english train=A,B validation=C runs=DIR.

For each seed, trains `experiment=english/half_hour` into DIR/seed_N, half an hour on two cores; an unfinished run is
continued, a finished run is used as it is. Its heads are tested on the validation text. The heads chosen there are
tested again on each text of texts=PATH,PATH: rows with gold links, passages of GAP, or any English. Further arguments:

- seeds=2,3,4
- permuted=N,...: seeds of control models, trained on a copy of the text in which the gender of every pronoun is random.
  No head should turn with it. The copy is the same for all seeds.
- pairs=PATH: minimal pairs
- max_steps=N: a longer training, or a short rehearsal
- cache_dir=.cache
- page=english: the results are written to docs/results/english.{json,md}
"""

import json
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import arguments, interval_text, read_records, run_script, short_paths, write_results
from data.natural import pronoun_forms
from data.text import text_files
from probe.external import markdown_table, percent, percent_interval
from report.commands import test_set_name
from report.natural import natural_tables
from training.files import write_atomically

_LETTER = r"[^\W\d_]"
_PRONOUN = re.compile(
    rf"(?<!{_LETTER})(she|he|her|him|his|hers|herself|himself)(?!{_LETTER})(?=\s*({_LETTER}+|[^\w\s]|))", re.IGNORECASE
)
# For forms that `pronoun_forms` leaves out because they are unclear.
_BOTH = {"her": ("her", "his"), "his": ("hers", "his"), "hers": ("hers", "his")}
_BOTH |= dict.fromkeys(("herself", "himself"), ("herself", "himself"))


CURVE_CAPTION = """\
At each validation loss: the head with the largest |t| on 120 prefixes of the validation text, read at the pronoun (not
corrected for the choice of the head, so without p); in 240 sentences of the dev blocks, the block accuracy of the best
head and the share of right answers (-: not recorded by that version); the largest induction score of a head. Bits per
byte are of the first 65,536 tokens of the validation text, in the last row of the whole text."""


def permute_pronouns(text: str, seed: int) -> str:
    """Returns the text after a coin has decided the gender of every third-person pronoun, hers and herself included."""
    rng = random.Random(seed)

    def coin(match: re.Match[str]) -> str:
        word, next_word = match.groups()
        form = rng.choice(pronoun_forms(word.lower(), next_word or ".", "gender") or _BOTH[word.lower()])
        return form.upper() if word.isupper() else form.capitalize() if word[0].isupper() else form

    return _PRONOUN.sub(coin, text)


def permuted_files(paths: str, folder: Path) -> str:
    """Writes the plain text files with permuted pronouns to `folder`, unless they are there; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    copies = []
    for number, file in enumerate(text_files(paths, "train")):
        copy = folder / f"{number}_{file.name}"
        if not copy.exists():
            write_atomically(copy, permute_pronouns(file.read_text(encoding="utf-8"), seed=number).encode())
        copies.append(str(copy))
    return ",".join(copies)


def train(run: Path, seed: int, text: str, options: Mapping[str, str]) -> None:
    """Trains a run to its end; train.py refuses a run with other settings."""
    settings = [f"seed={seed}", f"out={run}", f"data.path={text}", f"data.validation_path={options['validation']}"]
    settings += [f"cache_dir={options['cache_dir']}", f"resume={str((run / 'config.json').exists()).lower()}"]
    settings += [f"max_steps={options['max_steps']}"] if options["max_steps"] else []
    run_script("train", "experiment=english/half_hour", "device=cpu", *settings)


def evaluate_run(run: Path, options: Mapping[str, str]) -> dict[str, Any]:
    """Returns what eval.py finds on the validation text, on the other texts and on minimal pairs."""

    def evaluate(*settings: str) -> None:
        run_script("eval", f"run={run}", f"cache_dir={options['cache_dir']}", "device=cpu", *settings)

    evaluate()
    probe = json.loads((run / "probe" / "probe.json").read_text())
    results = {name: probe[name] for name in ("natural", "selected", "behaviour")}
    losses = {record["step"]: record["bits_per_byte"] for record in read_records(run, "validation")}
    results["bits_per_byte"] = losses[probe["model"]["step"]]
    results["data_fingerprint"] = json.loads((run / "config.json").read_text())["data_fingerprint"]
    results["training"] = training_curve(run)
    results["texts"] = {}
    for path in filter(None, options["texts"].split(",")):
        evaluate(f"path={path}")
        found = json.loads((run / "probe" / "outside" / f"{test_set_name('natural', path)}.json").read_text())
        results["texts"][short_paths(path)] = found | {"path": short_paths(path)}
    if options["pairs"]:
        evaluate("task=minimal_pairs", f"path={options['pairs']}")
        name = test_set_name("minimal_pairs", options["pairs"])
        results["pairs"] = json.loads((run / "probe" / "outside" / f"{name}.json").read_text())["files"]
    return results


def training_curve(run: Path) -> list[dict[str, Any]]:
    """Returns the probe's records of training at the steps with a validation loss."""
    readings = {record["step"]: record for record in read_records(run, "probe")}
    rows = []
    for loss in read_records(run, "validation"):
        reading = readings[loss["step"]]
        row = {"step": loss["step"], "bits_per_byte": loss["bits_per_byte"]}
        for question in ("gender", "number"):
            best = reading.get(f"natural_{question}", {})
            row[question] = {name: best.get(name) for name in ("layer", "head", "pronoun_contrast", "t")}
        blocks = reading.get("english", {})
        row["block_accuracy"], row["right_answers"] = blocks.get("block_accuracy"), blocks.get("answer_accuracy")
        rows.append(row | {"induction": reading["head_types"]["induction"]})
    return rows


def curve_table(rows: list[dict[str, Any]]) -> list[str]:
    """Returns the table of a training curve."""
    header = ["step", "bits/byte", "gender: head", "contrast", "t", "number: head", "contrast", "t"]
    header += ["blocks: best head", "model right", "induction"]
    cells = []
    for row in rows:
        line = [str(row["step"]), f"{row['bits_per_byte']:.3f}"]
        for best in (row["gender"], row["number"]):
            known = best["t"] is not None
            line += [f"L{best['layer']}H{best['head']}" if known else "-"]
            line += [
                f"{best[name]:.{digits}f}" if known else "-" for name, digits in (("pronoun_contrast", 2), ("t", 1))
            ]
        values = (row["block_accuracy"], row["right_answers"], row["induction"])
        cells.append([*line, *("-" if value is None else f"{value:.2f}" for value in values)])
    return markdown_table(header, cells)


def rows_of_models(results: Mapping[str, Mapping[str, Any]], title: str) -> list[str]:
    """Returns the table `title` of `natural_tables` with the rows of all models; `results` are by model."""
    tables = {
        name: table for name, natural in results.items() for table in natural_tables(natural) if table.title == title
    }
    rows = [[name, *map(str, row)] for name, table in tables.items() for row in table.rows]
    header = next(iter(tables.values())).header if tables else ()
    return markdown_table([name.replace("|", "\\|") for name in ("model", *header)], rows) if rows else ["Not tested."]


def lines_of(runs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns the tables of the page."""
    natural = {name: run["natural"] for name, run in runs.items()}
    lines = ["## Validation text", "", "Heads chosen on one half of the documents, tested on the other half.", ""]
    lines += [*rows_of_models(natural, "Natural text"), "", "The loss of the next tokens after the edge is cut:", ""]
    lines += [*rows_of_models(natural, "Natural text: what the edge does"), ""]
    for path in dict.fromkeys(path for run in runs.values() for path in run["texts"]):
        results = {name: run["texts"][path] for name, run in runs.items() if path in run["texts"]}
        title = "Heads chosen on the run's own validation text, tested here"
        lines += [f"## The same heads on {Path(path).name}", "", *rows_of_models(results, title), ""]
    rows = []
    for name, run in runs.items():
        answers = [row for row in run["behaviour"] if (row["family"], row["holdout"]) == ("english", "headline")]
        right = interval_text(answers[0]["accuracy"], answers[0]["interval"]) if answers else "-"
        heads = [entry for entry in run["selected"] if entry["question"] == "english"]
        head = [f"L{heads[0]['layer']}H{heads[0]['head']}", heads[0]["verdict"]] if heads else ["-", "not tested"]
        rows.append([name, f"{run['bits_per_byte']:.4f}", right, *head])
    header = ["model", "bits/byte", "model right [95 %]", "head", "verdict"]
    lines += ["## Blocks of sentences, on the headline hold-out", "", *markdown_table(header, rows)]
    files = {row["file"] for run in runs.values() for row in run.get("pairs", ())}
    if files:
        rows = [
            [Path(file).stem, *(pair_accuracy(run["pairs"], file) for run in runs.values())] for file in sorted(files)
        ]
        lines += ["", "## Minimal pairs, right in %", "", *markdown_table(["file", *runs], rows)]
    lines += ["", "## During training", "", CURVE_CAPTION]
    for name, run in runs.items():
        lines += ["", f"{name}:", "", *curve_table(run["training"])]
    return lines


def pair_accuracy(results: list[dict[str, Any]], file: str) -> str:
    """Returns the accuracy on a file of minimal pairs in percent with its interval."""
    accuracy = next(row["accuracy"] for row in results if row["file"] == file) or {}
    return f"{percent(accuracy.get('value'))} {percent_interval(accuracy.get('interval'))}"


def main() -> None:
    """Trains, tests, writes, prints."""
    defaults = {"texts": "", "permuted": "", "pairs": "", "max_steps": "", "seeds": "2,3,4"}
    defaults |= {"cache_dir": ".cache", "page": "english"}
    options = arguments(defaults, required=["train", "validation", "runs"])
    folder, runs = Path(options["runs"]), {}
    for kind, title in (("seeds", "seed"), ("permuted", "permuted")):
        for seed in filter(None, options[kind].split(",")):
            run, text = folder / f"{title}_{seed}", options["train"]
            if kind == "permuted":
                text = permuted_files(text, folder / "permuted_text")
            train(run, int(seed), text, options)
            runs[f"{title} {seed}"] = evaluate_run(run, options)
    write_results(
        "english",
        "Heads that turn with the pronoun in English",
        {"runs": runs},
        lines_of(runs),
        torch.get_num_threads(),
        page=options["page"],
    )


if __name__ == "__main__":
    main()
