"""Ask models that others trained for the head that decides the next pronoun, as a user asks.

Runs `python eval.py model=...` once for each, on the shipped validation text, alone on the machine. A model that cannot
be loaded, because it is neither in the folder local= nor can the hub be reached, is skipped with a line. Writes
docs/results/real_models.{json,md}.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download

from benchmarks.measure import (
    listed,
    read_probe,
    row_from,
    row_table,
    run_script,
    start_benchmark,
    value_cell,
    write_page,
)
from data.errors import UserError, one_line
from probe.results import Estimate, NextPronounResult
from report.tables import head_names

THREADS = 2
# With a tokenizer after the colon; a file is OWNER/NAME/FOLDER/FILE on the hub.
_STORIES = "karpathy/tinyllamas/stories260K"
MODELS = (
    f"{_STORIES}/stories260K.bin:{_STORIES}/tok512.bin",
    "HuggingFaceTB/SmolLM2-135M",
    "openai-community/gpt2",
    "EleutherAI/pythia-160m",
    "roneneldan/TinyStories-33M",
)


@dataclass
class _RealModelsOptions:
    """python -m benchmarks.real_models models=OWNER/NAME,DIR,FILE.bin:TOKENIZER.bin local=FOLDER."""

    models: str = ",".join(MODELS)
    local: str = ""  # folder with copies: its NAME stands for OWNER/NAME


@dataclass(frozen=True)
class _ModelAnswer:
    """The answer of one model to one question."""

    model: str
    n_heads: int
    question: str
    head: str
    share: Estimate
    flips: float
    verdict: str
    together: str  # heads of the set
    together_share: Estimate | None
    together_verdict: str
    follows_twin: float
    author_accuracy: float
    nearest_accuracy: float
    n: int
    p: float
    seconds: float
    cpu_seconds: float

    @property
    def head_set(self) -> str:
        return (
            f"{self.together}: {value_cell(self.together_share, '.2f')}, {self.together_verdict}"
            if self.together
            else "-"
        )


@dataclass(frozen=True)
class _ModelRemarks:
    """Criteria that the heads of a model do not meet, and why other questions could not be tested."""

    model: str
    unmet: list[str]
    missing: list[str]


@dataclass(frozen=True)
class RealModelsResults:
    """The table of the page."""

    answers: list[_ModelAnswer]
    remarks: list[_ModelRemarks]
    skipped: dict[str, str]  # why a model was not asked

    def lines(self) -> list[str]:
        lines = row_table(
            "model | heads | question | head | share [95 %] | flips | its verdict | heads together | follows twin"
            " | author's, nearest | n | p | seconds (CPU)",
            "{model} | {n_heads} | {question} | {head} | {share:.2f} | {flips:.2f} | {verdict} | {head_set}"
            " | {follows_twin:.2f} | {author_accuracy:.2f}, {nearest_accuracy:.2f} | {n} | {p:.4f}"
            " | {seconds:.0f} ({cpu_seconds:.0f})",
            self.answers,
        )
        for row in self.remarks:
            unmet = f"not met by the head: {'; '.join(row.unmet)}" if row.unmet else "the head meets all criteria"
            lines += ["", f"{row.model}: {unmet}."]
            lines += [f"{row.model}, not tested: {sentence}" for sentence in row.missing]
        for model, reason in self.skipped.items():
            lines += ["", f"{model}, skipped: {reason}"]
        return lines


def _answer(result: NextPronounResult, **values: Any) -> _ModelAnswer:
    # The head, and the set of heads if there is one
    chosen = result.chosen
    head_set = result.head_set
    return row_from(
        _ModelAnswer,
        result,
        question=result.name,
        head=str(result.place),
        share=chosen.share,
        flips=chosen.flips.value,
        verdict=f"{chosen.verdict} ({chosen.evidence_level})",
        together=head_names(head_set.heads) if head_set else "",
        together_share=head_set.share if head_set else None,
        together_verdict=f"{head_set.verdict} ({head_set.evidence_level})" if head_set else "",
        p=chosen.p,
        **values,
    )


def _place(name: str, local: str) -> str:
    """Return a model or a tokenizer as eval.py takes it: a copy in the folder `local`, else on the hub or this disk.

    Raises OSError if a file of the hub cannot be downloaded.
    """
    copy = Path(local, Path(name).name)
    if local and copy.exists():
        return str(copy)
    if name.endswith(".bin") and not Path(name).exists():
        owner, _, rest = name.partition("/")
        repository, _, file = rest.partition("/")
        if not (owner and file):
            raise FileNotFoundError(f"{name}: no such file")
        return str(Path(snapshot_download(f"{owner}/{repository}", allow_patterns=file), file))
    return name


def _ask(model: str, local: str, results: RealModelsResults) -> None:
    """Add what eval.py finds out about a model, and the seconds it takes; OSError or UserError if it cannot."""
    # The command of a user
    name, _, tokenizer = model.partition(":")
    path = _place(name, local)
    with tempfile.TemporaryDirectory() as folder:
        settings = [f"model={path}", f"out={folder}/out", "device=cpu", f"threads={THREADS}"]
        settings += [f"tokenizer={_place(tokenizer, local)}"] if tokenizer else []
        timing = run_script("eval", *settings)
        probe = read_probe(Path(folder, "out"))
    # Answers, and what is missing
    name = Path(name).stem
    n_heads = probe.model.fact("n_layer") * probe.model.fact("n_head")
    unmet: list[str] = []
    for result in probe.next_pronoun:
        times = {"seconds": timing.seconds, "cpu_seconds": timing.cpu_seconds}
        results.answers.append(_answer(result, model=name, n_heads=n_heads, **times))
        for criterion in result.chosen.criteria:
            if not criterion.is_met:
                unmet.append(f"{criterion.name} ({criterion.measured})")
    results.remarks.append(_ModelRemarks(name, unmet, probe.missing))


def main(options: _RealModelsOptions) -> None:
    """Ask every model and write the page; UserError if none can be loaded."""
    results = RealModelsResults([], [], {})
    for model in listed(options.models):
        name = Path(model.partition(":")[0]).stem
        try:
            _ask(model, options.local, results)
        except (OSError, UserError) as error:
            results.skipped[name] = one_line(error)
            print(f"{name}, skipped: {results.skipped[name]}")
    if not results.answers:
        raise UserError("no model could be loaded; give local=FOLDER with copies, or a network")
    write_page("real_models", "Models that others trained", results, THREADS)


if __name__ == "__main__":
    start_benchmark(main, _RealModelsOptions)
