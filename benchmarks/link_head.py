"""Train and probe the default run for several seeds: python -m benchmarks.link_head [seeds=1,2,3,4,5].

Writes docs/link_head.json, from which the tables in README.md and docs/results.md are made, and prints them.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "link_head.json"
QUESTIONS = ("V at S1", "V at S1, it/they", "V at S1, he/she", "R at S2")


def measure(seed: int, folder: Path) -> dict[str, Any]:
    """Run train.py and eval.py as a user does and return what they found and how long they took."""
    run, cache = folder / f"seed_{seed}", f"cache_dir={folder / 'cache'}"
    seconds: dict[str, float] = {}
    printed: dict[str, str] = {}
    for door, arguments in (("train", [f"seed={seed}", f"out={run}"]), ("eval", [f"run={run}"])):
        began = time.monotonic()
        command = [sys.executable, f"{door}.py", *arguments, cache]
        printed[door] = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        seconds[door] = round(time.monotonic() - began, 1)
    found = json.loads((run / "probe" / "probe.json").read_text())
    environment = json.loads((run / "environment.json").read_text())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        "seed": seed,
        "seconds": seconds,
        "last_line": [line for line in printed["train"].splitlines() if line.startswith("step")][-1],
        "validation_loss": lines[-1]["loss"],
        "showcase": found["showcase"],
        "selected": {one["question"]: one for one in found["selected"]},
        "behaviour": found["behaviour"],
        "environment": {name: environment[name] for name in ("python", "packages", "processor", "cores", "threads")},
    }


def seed_table(results: list[dict[str, Any]], holdout: str = "headline") -> list[str]:
    """Return one Markdown row per seed: the dev-chosen head on `holdout`, the worst seed marked."""
    lines = [
        "| seed | V at S1: head | Sel@1 [95 %] | F4 [95 %] | it/they F4 | he/she F4 | R at S2: head | F4 "
        "| train s | eval s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    worst = min(results, key=lambda one: one["selected"]["V at S1"]["test"][holdout]["f4"])["seed"]
    for one in results:
        every = {name: one["selected"][name] for name in QUESTIONS}
        v, r = every["V at S1"], every["R at S2"]
        f4 = {name: every[name]["test"][holdout]["f4"] for name in QUESTIONS}
        found = v["test"][holdout]
        cells = [
            f"{one['seed']}{' (worst)' if one['seed'] == worst else ''}",
            f"L{v['layer']}H{v['head']}",
            f"{found['sel1']:.3f} {interval(found['sel1_interval'])}",
            f"{found['f4']:.3f} {interval(found['f4_interval'])}",
            f"{f4['V at S1, it/they']:.3f}",
            f"{f4['V at S1, he/she']:.3f}",
            f"L{r['layer']}H{r['head']}",
            f"{f4['R at S2']:.3f}",
            *(str(one["seconds"][door]) for door in ("train", "eval")),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def probe_table(result: dict[str, Any]) -> list[str]:
    """Return one Markdown row per hold-out of V at S1 for one seed, beside everything that knows nothing."""
    one = result["selected"]["V at S1"]
    lines = [
        f"| V at S1, head L{one['layer']}H{one['head']} | n | Sel@1 [95 %] | F4 [95 %] | nearest | first | uniform "
        "| untrained: mean Sel@1 of 10 [95 %], range | F4 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, found in one["test"].items():
        blank = found.get("untrained")
        rules = [f"{found['baselines'][rule]['sel1']:.3f}" for rule in ("nearest", "first", "uniform")]
        low_high = ""
        if blank:
            least, most = blank["sel1_range"]
            low_high = f"{blank['sel1']:.3f} {interval(blank['sel1_interval'])}, {least:.3f} to {most:.3f}"
        lines.append(
            f"| {name} | {found['n_items']} | {found['sel1']:.3f} {interval(found['sel1_interval'])} "
            f"| {found['f4']:.3f} {interval(found['f4_interval'])} | {' | '.join(rules)} | {low_high} "
            f"| {format(blank['f4'], '.3f') if blank else ''} |"
        )
    return lines


def tables(results: list[dict[str, Any]]) -> dict[tuple[str, str], list[str]]:
    """Return every table that is kept in a document, by (file, marker)."""
    return {
        ("README.md", "picture"): ["```", *picture(results[0]), "```"],
        ("README.md", "last line"): ["```", results[0]["last_line"], "```"],
        ("README.md", "probe table"): probe_table(results[0]),
        ("docs/results.md", "seed table"): seed_table(results),
        ("docs/results.md", "seed table iid"): seed_table(results, "iid"),
        ("docs/results.md", "behaviour table"): behaviour_table(results),
        ("docs/results.md", "environment"): [environment_line(results[0]["environment"])],
    }


def picture(result: dict[str, Any]) -> list[str]:
    """Return the it→cat sentence in four lines, one to a cell."""
    lines = []
    for cell in result["showcase"]["V at S1"]:
        weights = "  ".join(f"{word} {weight:.2f}" for word, weight in cell["weights"].items())
        lines.append(f"{cell['text']:<50} -> {weights}   next: {', '.join(word for word, _ in cell['next'])}")
    return lines


def behaviour_table(results: list[dict[str, Any]]) -> list[str]:
    """Return how often the model prefers the antecedent's words: mean and worst over seeds, by family and hold-out."""
    lines = ["| family | hold-out | n | mean over seeds | worst seed |", "|---|---|---|---|---|"]
    for rows in zip(*(one["behaviour"] for one in results), strict=True):
        name = rows[0]["family"] if rows[0]["family"] == rows[0]["level"] else f"{rows[0]['family']} {rows[0]['level']}"
        shares = [row["pair_accuracy"] for row in rows]
        mean = sum(shares) / len(shares)
        lines.append(f"| {name} | {rows[0]['holdout']} | {rows[0]['n']} | {mean:.3f} | {min(shares):.3f} |")
    return lines


def environment_line(found: dict[str, Any]) -> str:
    """Return what the figures were measured on."""
    packages = ", ".join(f"{name} {version}" for name, version in found["packages"].items())
    machine = f"{found['processor']}, {found['cores']} cores, {found['threads']} threads"
    return f"Python {found['python']}, {packages}; {machine}."


def paste(path: Path, marker: str, lines: list[str]) -> None:
    """Replace what stands between `<!-- marker -->` and `<!-- end -->`."""
    before, opening, rest = path.read_text().partition(f"<!-- {marker} -->\n")
    _, closing, after = rest.partition("<!-- end -->")
    path.write_text(before + opening + "\n".join(lines) + "\n" + closing + after)


def interval(low_high: list[float]) -> str:
    """Write an interval."""
    return f"[{low_high[0]:.3f}, {low_high[1]:.3f}]"


def main() -> None:
    """Measure, write, print."""
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    seeds = [int(seed) for seed in given.get("seeds", "1,2,3,4,5").split(",")]
    with tempfile.TemporaryDirectory() as folder:
        results = [measure(seed, Path(folder)) for seed in seeds]
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    for place, lines in tables(results).items():
        paste(ROOT / place[0], place[1], lines)
    print("\n".join(seed_table(results)))


if __name__ == "__main__":
    main()
