"""Train and probe the default run for several seeds: python -m benchmarks.link_head [seeds=1,2,3,4,5].

Writes docs/link_head.json and docs/claim_card.json, from which the tables in README.md and docs/results.md are made.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.files import keep, paste
from probe.claim import claim_card, readme_example
from probe.seeds import markdown
from probe.study import HEADLINE
from probe.verdict import evidence_of, judge

ROOT = Path(__file__).parent.parent
RESULTS, CARD = ROOT / "docs" / "link_head.json", ROOT / "docs" / "claim_card.json"
QUESTIONS = ("number", "number", "gender", "later_cue")


def measure(seed: int, folder: Path) -> dict[str, Any]:
    """Run train.py and eval.py as a user does and return what they found and how long they took."""
    run, cache = folder / f"seed_{seed}", f"cache_dir={folder / 'cache'}"
    seconds: dict[str, float] = {}
    printed: dict[str, str] = {}
    for door, arguments in (("train", [f"seed={seed}", f"out={run}"]), ("eval", [f"run={run}"])):
        began = time.monotonic()
        printed[door] = call(door, *arguments, cache)
        seconds[door] = round(time.monotonic() - began, 1)
    found = json.loads((run / "probe" / "probe.json").read_text())
    environment = json.loads((run / "environment.json").read_text())
    validation = [
        line
        for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        if line["split"] == "validation"
    ][-1]
    said = printed["train"].splitlines()
    return {
        "seed": seed,
        "seconds": seconds,
        "last_line": [line for line in said if line.startswith("step")][-1],
        "gap_line": next(line for line in said if line.startswith("gap")),
        "validation": {name: validation[name] for name in ("loss", "floor", "gap", "gap_error", "gap_by_class")},
        "model": {name: value for name, value in found["model"].items() if name != "run"},
        "contract": found["contract"],
        "showcase": found["showcase"],
        "selected": {one["question"]: without_maps(one) for one in found["selected"]},
        "behaviour": found["behaviour"],
        "importance": found["importance"],
        "environment": {name: environment[name] for name in ("python", "packages", "processor", "cores", "threads")},
    }


def without_maps(one: dict[str, Any]) -> dict[str, Any]:
    """Leave out what no table shows: the effects of every other head, and the map of exchanged streams."""
    causal = {name: value for name, value in one["causal"].items() if name not in ("heads", "controls", "interchange")}
    return one | {"causal": causal}


def call(door: str, *arguments: str) -> str:
    """Run one of the two doors and return what it printed."""
    command = [sys.executable, f"{door}.py", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def over_seeds(folder: Path, cache: Path) -> dict[str, Any]:
    """Gather the probed runs of a folder as `python eval.py runs=` does."""
    call("eval", f"runs={folder}", f"cache_dir={cache}")
    found: dict[str, Any] = json.loads((folder / "probe" / "seeds.json").read_text())
    return found


def claim(result: dict[str, Any], seeds: dict[str, Any]) -> dict[str, Any]:
    """Return the claim card of number for one seed, judged with what the other seeds say."""
    one = result["selected"]["number"]
    over = next(found for found in seeds["questions"] if found["question"] == "number")
    known = {name: over[name] for name in ("n", "n_supported")} | {
        "accuracy_interval": over["scores"]["accuracy"]["interval"]
    }
    return claim_card(one | judge(evidence_of(one, HEADLINE, known)).entry(), result["model"], HEADLINE, known)


def seed_table(results: list[dict[str, Any]], holdout: str = HEADLINE) -> list[str]:
    """Return one Markdown row per seed and question: the dev-chosen head on `holdout` and what may be said of it."""
    lines = [
        "| seed | question | head | Sel@1 [95 %] | F4 [95 %] | corrected p | T | verdict | train s | eval s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in results:
        for name in QUESTIONS:
            asked = one["selected"][name]
            found = asked["test"][holdout]
            cells = [
                str(one["seed"]),
                name,
                f"L{asked['layer']}H{asked['head']}",
                f"{found['accuracy']:.3f} {interval(found['accuracy_interval'])}",
                f"{found['block_accuracy']:.3f} {interval(found['block_accuracy_interval'])}",
                f"{max(found['p_pair_accuracy'], found['p_pronoun_contrast']):.4f}",
                "-" if asked["causal"]["attention_swap"] is None else f"{asked['causal']['attention_swap']:.2f}",
                f"{asked['verdict']}, {asked['evidence_level']}",
                *(str(one["seconds"][door]) for door in ("train", "eval")),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def probe_table(result: dict[str, Any]) -> list[str]:
    """Return one Markdown row per hold-out of number for one seed, beside everything that knows nothing."""
    one = result["selected"]["number"]
    lines = [
        f"| number, head L{one['layer']}H{one['head']} | n | Sel@1 [95 %] | F4 [95 %] | nearest | first | uniform "
        "| untrained: mean Sel@1 of 10 [95 %], range | F4 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, found in one["test"].items():
        blank = found.get("untrained")
        rules = [f"{found['baselines'][rule]['accuracy']:.3f}" for rule in ("nearest", "first", "uniform")]
        low_high = ""
        if blank:
            least, most = blank["accuracy_range"]
            low_high = f"{blank['accuracy']:.3f} {interval(blank['accuracy_interval'])}, {least:.3f} to {most:.3f}"
        lines.append(
            f"| {name} | {found['n_items']} | {found['accuracy']:.3f} {interval(found['accuracy_interval'])} "
            f"| {found['block_accuracy']:.3f} {interval(found['block_accuracy_interval'])} | {' | '.join(rules)} | {low_high} "
            f"| {format(blank['block_accuracy'], '.3f') if blank else ''} |"
        )
    return lines


def tables(kept: dict[str, Any]) -> dict[tuple[str, str], list[str]]:
    """Return every table that is kept in a document, by (file, marker)."""
    results = kept["results"]
    return {
        ("README.md", "picture"): ["```", *picture(results[0]), "```"],
        ("README.md", "last line"): ["```", results[0]["last_line"], results[0]["gap_line"], "```"],
        ("README.md", "probe table"): probe_table(results[0]),
        ("README.md", "claim"): readme_example(claim(results[0], kept["seeds"])).split("\n"),
        ("docs/results.md", "seed table"): seed_table(results),
        ("docs/results.md", "gap table"): gap_table(results),
        ("docs/results.md", "over seeds"): markdown(kept["seeds"]).strip().split("\n")[2:],
        ("docs/results.md", "environment"): [environment_line(results[0]["environment"])],
    }


def gap_table(results: list[dict[str, Any]]) -> list[str]:
    """Return one Markdown row per seed: the whole validation loss, its floor and the gap by class."""
    names = list(results[0]["validation"]["gap_by_class"])
    lines = [f"| seed | loss | floor | gap (standard error) | {' | '.join(names)} |", "|---" * (4 + len(names)) + "|"]
    for one in results:
        found = one["validation"]
        gaps = " | ".join(f"{found['gap_by_class'][name]:.3f}" for name in names)
        whole = f"{found['loss']:.4f} | {found['floor']:.4f} | {found['gap']:.4f} ({found['gap_error']:.4f})"
        lines.append(f"| {one['seed']} | {whole} | {gaps} |")
    return lines


def picture(result: dict[str, Any]) -> list[str]:
    """Return the it→cat sentence in four lines, one to a cell."""
    lines = []
    for cell in result["showcase"]["number"]:
        weights = "  ".join(f"{word} {weight:.2f}" for word, weight in cell["weights"].items())
        lines.append(f"{cell['text']:<50} -> {weights}   next: {', '.join(word for word, _ in cell['next'])}")
    return lines


def environment_line(found: dict[str, Any]) -> str:
    """Return what the figures were measured on."""
    packages = ", ".join(f"{name} {version}" for name, version in found["packages"].items())
    machine = f"{found['processor']}, {found['cores']} cores, {found['threads']} threads"
    return f"Python {found['python']}, {packages}; {machine}."


def interval(low_high: list[float]) -> str:
    """Write an interval."""
    return f"[{low_high[0]:.3f}, {low_high[1]:.3f}]"


def main() -> None:
    """Measure, write, print."""
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    numbers = [int(seed) for seed in given.get("seeds", "1,2,3,4,5").split(",")]
    with tempfile.TemporaryDirectory() as folder:
        results = [measure(seed, Path(folder)) for seed in numbers]
        kept: dict[str, Any] = {"results": results, "seeds": over_seeds(Path(folder), Path(folder) / "cache")}
    keep(RESULTS, kept, indent=None)
    keep(CARD, claim(results[0], kept["seeds"]))
    for place, lines in tables(kept).items():
        paste(ROOT / place[0], place[1], lines)
    print("\n".join([*seed_table(results), *gap_table(results), markdown(kept["seeds"])]))


if __name__ == "__main__":
    main()
