"""Models that others trained, asked for the head that decides the next pronoun, as a user asks.

    python -m benchmarks.real_models models=DIR,stories260K.bin:tok512.bin

Runs `python eval.py model=...` once for each of models=MODEL or MODEL:TOKENIZER, on the shipped validation text, alone
on the machine. Further arguments: threads=2. Writes docs/results/real_models.{json,md}.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import arguments, run_script, write_results
from data.text_tables import markdown_table


def evaluate(model: str, threads: str) -> dict[str, Any]:
    """Returns what eval.py finds out about a model, and the seconds it takes."""
    path, _, tokenizer = model.partition(":")
    with tempfile.TemporaryDirectory() as folder:
        settings = [f"model={path}", f"out={folder}/out", "device=cpu", f"threads={threads}"]
        settings += [f"tokenizer={tokenizer}"] if tokenizer else []
        timing = run_script("eval", *settings)
        probe = json.loads((Path(folder) / "out" / "probe" / "probe.json").read_text())
    answers = [entry for entry in probe["selected"] if entry["question"].startswith("next_pronoun")]
    return {
        "model": Path(path).stem,
        "seconds": timing.seconds,
        "cpu_seconds": timing.cpu_seconds,
        "n_heads": probe["model"]["n_layer"] * probe["model"]["n_head"],
        "answers": answers,
        "missing": probe["natural"]["missing"],
    }


def row(model: dict[str, Any], answer: dict[str, Any]) -> list[str]:
    """Returns the row of one answer."""
    details = answer["details"]
    chosen, head_set = details["chosen"], answer["head_set"]
    together = "-"
    if head_set is not None:
        heads = " + ".join(f"L{layer}H{head}" for layer, head in head_set["heads"])
        together = f"{heads}: {_estimate(head_set['share'])}, {head_set['verdict']} ({head_set['evidence_level']})"
    return [
        model["model"], str(model["n_heads"]), answer["question"].removeprefix("next_pronoun_"),
        f"L{answer['layer']}H{answer['head']}", _estimate(chosen["share"]), f"{chosen['flips']['value']:.2f}",
        f"{chosen['verdict']} ({chosen['evidence_level']})", together, f"{details['follows_twin']['value']:.2f}",
        f"{answer['author_accuracy']:.2f}, {answer['nearest_accuracy']:.2f}", str(answer["n"]),
        f"{chosen['p']:.4f}", f"{model['seconds']:.0f} ({model['cpu_seconds']:.0f})",
    ]  # fmt: skip


def _estimate(value: dict[str, Any]) -> str:
    return f"{value['value']:.2f} [{value['low']:.2f}, {value['high']:.2f}]"


def main() -> None:
    """Evaluates every model, writes, prints."""
    options = arguments({"threads": "2"}, required=["models"])
    models = [evaluate(model, options["threads"]) for model in options["models"].split(",")]
    rows = [row(model, answer) for model in models for answer in model["answers"]]
    header = ("model", "heads", "question", "head", "share [95 %]", "flips", "its verdict", "heads together",
              "follows twin", "author's, nearest", "n", "p", "seconds (CPU)")  # fmt: skip
    lines = markdown_table(header, rows)
    for model in models:
        unmet = [criterion for answer in model["answers"] for criterion in answer["details"]["chosen"]["criteria"]]
        reasons = [f"{criterion['name']} ({criterion['measured']})" for criterion in unmet if not criterion["is_met"]]
        lines += ["", f"{model['model']}, not met by the head: {'; '.join(reasons) or 'nothing'}."]
        lines += [f"{model['model']}, not tested: {sentence}" for sentence in model["missing"]]
    for model in models:
        for answer in model["answers"]:
            for name in ("candidates", "examples", "left_out"):
                del answer["details"][name]
    write_results("real_models", "Models that others trained", {"models": models}, lines, int(options["threads"]))


if __name__ == "__main__":
    main()
