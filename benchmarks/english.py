"""Heads that turn with the pronoun in English: python -m benchmarks.english train=A,B validation=C runs=DIR.

For each seed, trains `experiment=english` into DIR/seed_N, half an hour on two cores; a finished run is used as it is,
an unfinished run is continued. Its heads are tested on the validation text. The heads chosen there are tested again
on each text of texts=PATH,PATH: rows with gold links, passages of GAP, or any English. Further arguments:

- seeds=1,2,3
- permuted=N,...: seeds of further models. In their training text a coin decides the gender of every pronoun, so no head
  should turn with it.
- pairs=PATH: minimal pairs
- max_steps=N: a short rehearsal
- cache_dir=.cache

Writes docs/results/english.{json,md}.
"""

import json
import random
import re
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import arguments, interval_text, read_records, run_script, write_results
from data.natural import pronoun_forms
from probe.external import markdown_table

_PRONOUN = re.compile(r"\b(she|he|her|him|his|hers|herself|himself)\b(?=\s*([^\W\d_]+|[^\w\s]|))", re.IGNORECASE)
# For forms that `pronoun_forms` leaves out because they are unclear.
_BOTH = {"her": ("her", "his"), "his": ("hers", "his"), "hers": ("hers", "his")}
_BOTH |= dict.fromkeys(("herself", "himself"), ("herself", "himself"))
_BOTH |= {"she": ("she", "he"), "he": ("she", "he"), "him": ("her", "him")}


def permute_pronouns(text: str, seed: int) -> str:
    """Returns the text after a coin has decided the gender of every third-person pronoun, hers and herself included."""
    rng = random.Random(seed)

    def coin(match: re.Match[str]) -> str:
        word, next_word = match.groups()
        form = rng.choice(pronoun_forms(word.lower(), next_word or ".", "gender") or _BOTH[word.lower()])
        return form.upper() if word.isupper() else form.capitalize() if word[0].isupper() else form

    return _PRONOUN.sub(coin, text)


def permuted_files(paths: str, folder: Path) -> str:
    """Writes the files with permuted pronouns to `folder`, unless they are there; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    copies = []
    for number, name in enumerate(paths.split(",")):
        copy = folder / Path(name).name
        if not copy.exists():
            copy.write_text(permute_pronouns(Path(name).read_text(), seed=number))
        copies.append(str(copy))
    return ",".join(copies)


def train(run: Path, seed: int, text: str, options: dict[str, str]) -> None:
    """Trains a run to its end, unless that has been done."""
    if (run / "metrics.jsonl").exists() and any(record.get("whole") for record in read_records(run, "validation")):
        return
    settings = [f"seed={seed}", f"out={run}", f"data.path={text}", f"data.validation_path={options['validation']}"]
    settings += [f"cache_dir={options['cache_dir']}", f"resume={str((run / 'config.json').exists()).lower()}"]
    settings += [f"max_steps={options['max_steps']}"] if options["max_steps"] else []
    run_script("train", "experiment=english", *settings)


def test(run: Path, options: dict[str, str]) -> dict[str, Any]:
    """Returns what eval.py finds on the validation text, on the other texts and on minimal pairs."""

    def evaluate(*settings: str) -> None:
        run_script("eval", f"run={run}", f"cache_dir={options['cache_dir']}", *settings)

    evaluate()
    probe = json.loads((run / "probe" / "probe.json").read_text())
    results = {name: probe[name] for name in ("natural", "selected", "behaviour")}
    results["bits_per_byte"] = read_records(run, "validation")[-1]["bits_per_byte"]
    results["texts"] = {}
    for path in filter(None, options["texts"].split(",")):
        evaluate(f"path={path}")
        results["texts"][Path(path).name] = json.loads((run / "probe" / "outside" / "natural.json").read_text())
    if options["pairs"]:
        evaluate("task=minimal_pairs", f"path={options['pairs']}")
        results["pairs"] = json.loads((run / "probe" / "outside" / "minimal_pairs.json").read_text())["files"]
    return results


def estimate(entry: dict[str, Any], name: str, form: str = ".2f") -> str:
    """Returns "0.25 [0.14, 0.36]"."""
    low, high = entry[f"{name}_interval"]
    return f"{entry[name]:{form}} [{low:{form}}, {high:{form}}]"


def head_rows(name: str, natural: dict[str, Any], field: str) -> list[list[str]]:
    """Returns one row per head: its place, contrast and test; `field` is "chosen" or, on another text, "confirmed"."""
    rows = []
    for question, result in natural["questions"].items():
        for target, entry in result[field].items():
            place = f"L{entry['layer']}H{entry['head']}, {entry['site'].replace('_', ' ')}"
            row = [name, f"{question}, {target}", place, estimate(entry, "contrast"), f"{entry['t']:.1f}"]
            row.append(f"{entry['untrained_t']:.1f}")
            if field == "chosen":
                cut = entry["causal"]
                difference = estimate(cut, "difference", ".4f") if cut else "-"
                row += [f"{entry['p_corrected']:.4f}", f"{entry['pair_right']:.2f}", difference, entry["verdict"]]
            else:
                row += [f"{entry['p']:.4f}", f"{entry['n']:,}"]
            rows.append(row)
    return rows


def lines_of(runs: dict[str, dict[str, Any]]) -> list[str]:
    """Returns the tables of the page."""
    chosen = [row for name, run in runs.items() for row in head_rows(name, run["natural"], "chosen")]
    texts = list(dict.fromkeys(text for run in runs.values() for text in run["texts"]))
    columns = ["model", "question, target", "head, site", "contrast [95 %]", "t", "largest \\|t\\| untrained"]
    header = [*columns, "p, corrected", "pair", "cut: difference [95 %]", "verdict"]
    lines = ["Validation text: heads chosen on one half of the documents, tested on the other half.", ""]
    lines += [*markdown_table(header, chosen), ""]
    for text in texts:
        rows = [
            row
            for name, run in runs.items()
            if text in run["texts"]
            for row in head_rows(name, run["texts"][text], "confirmed")
        ]
        lines += [f"The same heads on {text}:", "", *markdown_table([*columns, "p", "prefixes"], rows), ""]
    rows = []
    for name, run in runs.items():
        entry = next((entry for entry in run["selected"] if entry["question"] == "english"), None)
        answers = [row for row in run["behaviour"] if (row["family"], row["holdout"]) == ("english", "headline")]
        right = interval_text(answers[0]["accuracy"], answers[0]["interval"]) if answers else "-"
        head = [f"L{entry['layer']}H{entry['head']}", entry["verdict"]] if entry else ["-", "not tested"]
        rows.append([name, f"{run['bits_per_byte']:.4f}", right, *head])
    header = ["model", "bits/byte", "blocks: model right [95 %]", "blocks: head", "blocks: verdict"]
    lines += ["Blocks of sentences, on the headline hold-out:", "", *markdown_table(header, rows)]
    files = {Path(row["file"]).stem: None for run in runs.values() for row in run.get("pairs", ())}
    if files:
        rows = [[file, *(pair_accuracy(run["pairs"], file) for run in runs.values())] for file in files]
        lines += ["", "Minimal pairs, right in %:", "", *markdown_table(["file", *runs], rows)]
    return lines


def pair_accuracy(results: list[dict[str, Any]], file: str) -> str:
    """Returns the accuracy on a file of minimal pairs in percent with its interval."""
    accuracy = next(row["accuracy"] for row in results if Path(row["file"]).stem == file)
    low, high = accuracy["interval"]
    return f"{100 * accuracy['value']:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def main() -> None:
    """Trains, tests, writes, prints."""
    defaults = dict.fromkeys(("texts", "permuted", "pairs", "max_steps"), "") | {
        "seeds": "1,2,3",
        "cache_dir": ".cache",
    }
    options = arguments(defaults, required=["train", "validation", "runs"])
    folder, runs = Path(options["runs"]), {}
    for kind, title in (("seeds", "seed"), ("permuted", "permuted")):
        for seed in filter(None, options[kind].split(",")):
            run, text = folder / f"{title}_{seed}", options["train"]
            if kind == "permuted":
                text = permuted_files(text, folder / "permuted_text")
            train(run, int(seed), text, options)
            runs[f"{title} {seed}"] = test(run, options)
    write_results("english", "English over seeds", {"runs": runs}, lines_of(runs), threads=torch.get_num_threads())


if __name__ == "__main__":
    main()
