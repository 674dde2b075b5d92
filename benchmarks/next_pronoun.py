"""Find the head that decides the next pronoun, for each seed.

Trains `experiment=english` (a finished run is used as it is), tests its heads on its validation text, and its chosen
head on other texts. Writes docs/results/next_pronoun.{json,md}.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median

import torch
from omegaconf import MISSING

from antecedent_lab.english_text import EnglishText, english_text
from antecedent_lab.opened import load_data, open_run
from benchmarks.control_texts import write_control
from benchmarks.measure import listed, median_range, row_from, row_table, run_script, start_benchmark, write_page
from data.corpus import load_corpus
from data.errors import UserError
from data.links import Span
from data.next_pronoun import Passage, mixed_places
from data.text import SHIPPED_TEXT
from data.text_tables import markdown_table
from data.typed_json import may_be_absent
from data.words import ENGLISH_WORD
from probe.config import ProbeConfig
from probe.next_pronoun import NextPronounResult, confirm_decision, study_next_pronoun
from probe.opened_model import OpenedRun
from probe.results import Choice, Estimate, Head
from probe.verdict import SUPPORTED
from report.tables import head_names
from training.metrics import load_metrics

AFTER = """\
The same head at the pronoun; contrast below 0: it looks at the other person. Then what its output raises if it attends
to a person, in nats per unit of attention: that person's pronoun and name; below 0: it lowers them (copy suppression,
McDougall et al. 2023)."""
CHOICE = "Passages with two people, of both halves; without and with an earlier pronoun."
PAIRS = "Share of pairs whose good sentence is more probable; a removed head writes nothing at any position."
EMERGENCE = "First kept checkpoint at which the criteria hold; there the untrained models are not asked."
SHUFFLED = "The words before the pronoun in random order, the last one excepted. Not registered."


@dataclass
class _NextPronounOptions:
    """python -m benchmarks.next_pronoun runs=DIR seeds=301,302 [texts=PATH,PATH] [pairs=FILE,FILE] [threads=1].

    - runs: training runs are DIR/SEED
    - experiment=english: or english/long
    - control=: coin (a coin decides the gender of every pronoun of the training text), or genders (in half of the
      training stories every name and noun has a counterpart of the other gender); both are tested on the unchanged text
    - pairs: minimal pairs, with all heads and without each
    - page=next_pronoun: results are written to docs/results/PAGE.{json,md}
    """

    runs: str = MISSING
    seeds: str = "301"
    texts: str = ""
    experiment: str = "english"
    control: str = ""
    pairs: str = ""
    threads: int = 1
    page: str = "next_pronoun"


@dataclass(frozen=True)
class _Decision:
    """The answer about gender of one seed."""

    seed: int
    heads: str  # "L1H1", joined by " + "
    verdict: str
    evidence_level: str
    share: Estimate
    flips: float
    follows_twin: float
    author_accuracy: float
    nearest_accuracy: float
    author_where_nearest_is_wrong: Estimate
    n_nearest_is_wrong: int
    p_corrected: float


@dataclass(frozen=True)
class _PickedEntity:
    """Whom the model picks in passages with two people: without an earlier pronoun, and with one."""

    seed: int
    choices: list[Choice]


@dataclass(frozen=True)
class _TextEffect:
    """The same heads on another text, in nats; `problem`: too few passages."""

    seed: int
    n: int = 0
    edge_effect: Estimate | None = may_be_absent()
    meant_cut: Estimate | None = may_be_absent()
    other_cut: Estimate | None = may_be_absent()
    p: float | None = may_be_absent()
    problem: str | None = may_be_absent()

    @property
    def passages(self) -> str:
        return self.problem or str(self.n)


@dataclass(frozen=True)
class _AfterEffect:
    """The same head at the pronoun."""

    seed: int
    contrast: Estimate
    raises_pronoun: Estimate | None
    raises_name: Estimate | None
    p: float


@dataclass(frozen=True)
class _PairsWithout:
    """Share of right minimal pairs with all heads, and without one or another."""

    seed: int
    n: int
    all_heads: float
    deciding: dict[str, float]  # without each head that decides
    least: float  # without another head
    most: float

    @property
    def without_deciding(self) -> str:
        return ", ".join(f"{head} {share:.3f}" for head, share in self.deciding.items())


@dataclass(frozen=True)
class _ShuffledWords:
    """The answer when the words before the pronoun are in random order."""

    seed: int
    n_two: int
    verdict: str
    share: Estimate
    follows_twin: Estimate
    author_accuracy: Estimate
    nearest_accuracy: float


@dataclass(frozen=True)
class _FirstSupported:
    """The first kept checkpoint at which the criteria hold; None: at none."""

    seed: int
    step: int | None = may_be_absent()
    tokens: int | None = may_be_absent()
    pronouns: int | None = may_be_absent()  # read so far, after entities of both genders


@dataclass(frozen=True)
class NextPronounPage:
    """The tables of the page."""

    decisions: list[_Decision]
    picked: list[_PickedEntity]
    texts: dict[str, list[_TextEffect]]  # by text
    after: list[_AfterEffect]
    pairs: dict[str, list[_PairsWithout]]  # by file
    shuffled: list[_ShuffledWords]
    untrained: dict[str, int]  # seeds by the verdict on an untrained model
    emergence: list[_FirstSupported]
    number: list[str]  # verdicts about number, of any seed

    def lines(self) -> list[str]:
        # Seeds by what the head decides and whom the model picks
        decision = row_table(
            "seed | heads | verdict | share [95 %] | flips | follows twin | author's, nearest"
            " | author's where nearest is wrong | p",
            "{seed} | {heads} | {verdict} ({evidence_level}) | {share:.2f} | {flips:.2f} | {follows_twin:.2f}"
            " | {author_accuracy:.2f}, {nearest_accuracy:.2f}"
            " | {author_where_nearest_is_wrong:.2f} of {n_nearest_is_wrong} | {p_corrected:.4f}",
            self.decisions,
        )
        names = "passages | author's | nearest | author's where nearest is wrong"
        picked = row_table(
            f"seed | {names} | earlier pronoun: {names.replace(' | ', ' | earlier pronoun: ')}",
            f"{{seed}} | {_choice_cells(0)} | {_choice_cells(1)}",
            self.picked,
        )
        # The same head after the pronoun, and on shuffled words
        after = row_table(
            "seed | contrast at the pronoun | its output raises the pronoun | the name | p",
            "{seed} | {contrast:.2f} | {raises_pronoun:.2f} | {raises_name:.2f} | {p:.4f}",
            self.after,
        )
        shuffled = row_table(
            "seed | passages with two | verdict | share | follows twin | author's | nearest",
            "{seed} | {n_two} | {verdict} | {share:.2f} | {follows_twin:.2f} | {author_accuracy:.2f}"
            " | {nearest_accuracy:.2f}",
            self.shuffled,
        )
        # Sections in the order of the page
        untrained = "; ".join(f"{n} {verdict}" for verdict, n in Counter(self.untrained).most_common())
        lines = [*self._summary(), "", *decision, ""]
        lines += ["## Whom the models pick", "", CHOICE, "", *picked, "", *self._text_lines()]
        lines += ["## Right after the pronoun", "", AFTER, "", *after, "", *self._pair_lines()]
        lines += ["## Words in random order", "", SHUFFLED, "", *shuffled, ""]
        lines += ["## Untrained models of the same seeds", "", untrained, ""]
        lines += ["## Emergence", "", EMERGENCE, "", *self._emergence_lines(), ""]
        return [*lines, "## Number", "", *self.number]

    def _summary(self) -> list[str]:
        supported = sum(row.verdict == SUPPORTED for row in self.decisions)
        values = {"share": [row.share.value for row in self.decisions]}
        for name in ("flips", "follows_twin", "author_accuracy", "nearest_accuracy"):
            values[name] = [getattr(row, name) for row in self.decisions]
        rows = [(name, median_range(of_seeds, 2)) for name, of_seeds in values.items()]
        sentence = f"Supported in {supported} of {len(self.decisions)} seeds. Median and range over seeds:"
        return [sentence, "", *markdown_table(("measure", "median (range)"), rows)]

    def _text_lines(self) -> list[str]:
        lines = []
        for text, rows in self.texts.items():
            effects = row_table(
                "seed | passages | edge effect, nats | meant edge cut | other edge cut | p",
                "{seed} | {passages} | {edge_effect:.3f} | {meant_cut:.3f} | {other_cut:.3f} | {p:.4f}",
                rows,
            )
            lines += [f"## The same heads on {text}", "", *effects, ""]
        return lines

    def _pair_lines(self) -> list[str]:
        lines = []
        for file, rows in self.pairs.items():
            shares = row_table(
                "seed | pairs | all heads | without the deciding head | without another head",
                "{seed} | {n} | {all_heads:.3f} | {without_deciding} | {least:.3f} to {most:.3f}",
                rows,
            )
            lines += [f"## Minimal pairs without a head: {file}", "", PAIRS, "", *shares, ""]
        return lines

    def _emergence_lines(self) -> list[str]:
        header = "seed | step | tokens | pronouns after entities of both genders"
        lines = row_table(header, "{seed} | {step:,} | {tokens:,} | {pronouns:,}", self.emergence)
        steps = [row.step for row in self.emergence if row.step is not None]
        return [*lines, "", f"Median step: {median(steps):g}."] if steps else lines


def _choice_cells(number: int) -> str:
    """Return the template of four columns of one stratum."""
    cells = "{C.n} | {C.author:.2f} | {C.nearest:.2f} | {C.author_where_wrong:.2f} of {C.n_wrong}"
    return cells.replace("C.", f"choices[{number}].")


# Training and tests


def _train(run: Path, seed: int, options: _NextPronounOptions) -> None:
    """Train a run unless it is finished."""
    if (run / "metrics.jsonl").exists() and load_metrics(run).has_ended:
        return
    settings = [f"seed={seed}", f"out={run}", f"threads={options.threads}", "keep_checkpoints=20", "device=cpu"]
    settings.append(f"resume={str((run / 'config.json').exists()).lower()}")
    # A control trains on a changed copy of the shipped text
    if options.control:
        settings.append(f"data.path={write_control(options.control, run.parent)}")
    run_script("train", f"experiment={options.experiment}", *settings)


def _study(
    opened: OpenedRun, text: EnglishText, question: str, config: ProbeConfig, *, has_untrained: bool = True
) -> NextPronounResult | str:
    """Return the answer to one question on a text; without untrained models their criterion is a t above 0."""
    untrained = (opened.untrained(config.seed + i) for i in range(config.n_untrained if has_untrained else 0))
    passages = text.passages[question]
    return study_next_pronoun(
        opened.model, untrained, opened.tokenizer, opened.bos_id, question, passages, text.documents, config
    )


def _verdict(result: NextPronounResult | str) -> str:
    """Return the verdict, or why there is none."""
    return result if isinstance(result, str) else f"{result.verdict} ({result.evidence_level})"


def _decision(seed: int, result: NextPronounResult) -> _Decision:
    judged = result.judged
    heads = head_names(judged.heads)
    return row_from(_Decision, result, seed=seed, heads=heads, share=judged.share, flips=judged.flips.value)


def _text_effect(opened: OpenedRun, seed: int, heads: Sequence[Head], path: str, config: ProbeConfig) -> _TextEffect:
    text = _load_text(path)
    passages = text.passages["gender"]
    found = confirm_decision(opened.model, opened.tokenizer, opened.bos_id, "gender", passages, heads, config)
    if isinstance(found, str):
        return _TextEffect(seed, problem=found)
    return row_from(_TextEffect, found, seed=seed, problem=None)


@cache
def _load_text(path: str) -> EnglishText:
    """Return the passages of a path, read once for all runs."""
    return english_text(path, None)


def _shuffle_words(passage: Passage, rng: random.Random) -> Passage:
    """Return the passage with its words in random order, the last one excepted; marks are lost."""
    spans = [span for group in passage.mentions for span in group]
    inside = {place for span in spans for place in range(*span)}
    spans += [match.span() for match in ENGLISH_WORD.finditer(passage.text) if match.start() not in inside]
    # Words and mentions as units
    *movable, last = sorted(spans)
    rng.shuffle(movable)
    text = ""
    moved: dict[Span, Span] = {}  # where each word goes
    for span in (*movable, last):
        word = passage.text[slice(*span)]
        moved[span] = (len(text), len(text) + len(word))
        text += f"{word} "
    # The same marks in the new text
    first_group, second_group = passage.mentions
    groups = (_places(first_group, moved), _places(second_group, moved))
    order = sorted((span, side) for side in (0, 1) for span in groups[side])
    first = order[0][1]
    nearest = order[-1][1]
    return replace(passage, text=text, mentions=groups, pronouns=(), nearest=nearest, first=first, subject=first)


def _places(group: Sequence[Span], moved: dict[Span, Span]) -> tuple[Span, ...]:
    return tuple(sorted(moved[span] for span in group))


def _shuffled(opened: OpenedRun, seed: int, text: EnglishText, config: ProbeConfig) -> list[_ShuffledWords]:
    """Return the answer on passages whose words are in random order; nothing with too few passages."""
    # Passages without an earlier pronoun, which would lose its antecedent
    rng = random.Random(config.seed)
    passages = [_shuffle_words(passage, rng) for passage in text.passages["gender"] if not passage.pronouns]
    result = _study(opened, replace(text, passages={"gender": passages}), "gender", replace(config, n_untrained=2))
    if isinstance(result, str):
        return []
    return [row_from(_ShuffledWords, result, seed=seed, verdict=_verdict(result), share=result.chosen.share)]


def _first_supported(opened: OpenedRun, text: EnglishText, config: ProbeConfig, row: _Decision) -> int | None:
    """Return the first kept step at which the criteria hold."""
    # The opened model is reused for every checkpoint; its own weights are put back at the end
    best = {name: weight.clone() for name, weight in opened.transformer.state_dict().items()}
    first = None
    for path in sorted((opened.folder / "checkpoints").glob("step_*.pt")):
        state = torch.load(path, map_location="cpu", weights_only=True)
        if state["step"] in (0, opened.step):
            continue
        # Untrained models have been asked at the last step
        opened.transformer.load_state_dict(state["model"])
        result = _study(opened, text, "gender", config, has_untrained=False)
        if isinstance(result, NextPronounResult) and result.verdict == SUPPORTED:
            first = state["step"]
            break
    opened.transformer.load_state_dict(best)
    return opened.step if first is None and row.verdict == SUPPORTED else first


def _evaluate(run: Path, options: _NextPronounOptions, config: ProbeConfig, page: NextPronounPage) -> int | None:
    """Add the rows of one run to the page; return the first step at which the criteria hold."""
    opened = open_run(run, torch.device("cpu"))
    seed = opened.seed
    assert seed is not None
    corpus = load_data(opened, ".cache")
    text = english_text(str(SHIPPED_TEXT) if options.control else None, corpus)

    # Both questions
    result = _study(opened, text, "gender", config)
    if isinstance(result, str):
        raise UserError(f"{run}: {result}")
    row = _decision(seed, result)
    page.decisions.append(row)
    page.picked.append(_PickedEntity(seed, result.choices))
    number = _study(opened, text, "number", config)
    page.number[:] = sorted({*page.number, number if isinstance(number, str) else number.verdict})

    # The same heads elsewhere
    heads = result.judged.heads
    for path in listed(options.texts):
        page.texts.setdefault(Path(path).name, []).append(_text_effect(opened, seed, heads, path, config))

    # Controls
    page.shuffled.extend(_shuffled(opened, seed, text, config))
    untrained = replace(opened, model=opened.untrained(seed))
    verdict = _verdict(_study(untrained, text, "gender", replace(config, n_untrained=2)))
    page.untrained[verdict] = page.untrained.get(verdict, 0) + 1

    return _first_supported(opened, text, config, row)


def _emergence(run: Path, steps: dict[int, int | None]) -> list[_FirstSupported]:
    """Return the rows of all seeds, which train on the text of `run`."""
    opened = open_run(run, torch.device("cpu"))
    corpus = load_corpus(opened.settings.data, Path(".cache"))
    # How often the training text has a pronoun after both genders
    tokens = corpus.train.tokens
    n_places = mixed_places([("train", corpus.tokenizer.decode(tokens.tolist()))])
    tokens_per_step = opened.settings.run.tokens_per_batch
    places_per_step = n_places * tokens_per_step / len(tokens)
    # Counts read up to each seed's step
    rows = []
    for seed, step in steps.items():
        counts = [] if step is None else [step, step * tokens_per_step, round(step * places_per_step)]
        rows.append(_FirstSupported(seed, *counts))
    return rows


def main(options: _NextPronounOptions) -> None:
    """Train and test every seed, write the page."""
    torch.set_num_threads(options.threads)
    config = ProbeConfig()
    page = NextPronounPage([], [], {}, [], {}, [], {}, [], [])
    # Rows of all seeds, in the order of the options
    steps = {}
    for seed in listed(options.seeds):
        run = Path(options.runs) / seed
        _train(run, int(seed), options)
        steps[int(seed)] = _evaluate(run, options, config, page)
        print(f"seed {seed}: {page.decisions[-1].verdict}", flush=True)
    page.emergence.extend(_emergence(run, steps))
    title = f"The head that decides the next pronoun: {options.experiment}"
    title += f", control {options.control}" if options.control else ""
    write_page("next_pronoun", title, page, options.threads, options.page)


if __name__ == "__main__":
    start_benchmark(main, _NextPronounOptions)
