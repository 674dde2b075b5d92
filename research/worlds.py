"""False worlds: the default run is trained on stories in which a cue means nothing, and tested on the true ones.

verbs by a coin: the verb before the pronoun is drawn without regard to the antecedent. pronouns by a coin: "it" or
"they", "she" or "he" too. always the nearest: the pronoun means the noun before it. labels inverted: the true world,
in which the test takes the other noun for the antecedent. Writes research/results/worlds.{json,md}.
"""

import json
import runpy
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from antecedent_lab.sources import source_of
from data.pairs import Cell, Items
from data.stories import frames, language
from data.stories.grammar import Option, Options
from data.stories.lexicon import REFERENTS
from probe.config import ProbeConfig
from probe.opened_run import open_run
from probe.questions import STORY_QUESTIONS
from probe.results import ProbeResults
from probe.study import study
from probe.text_tables import markdown_table
from research.measure import listed, run_command, run_script, start_benchmark, value_cell, write_page

INVERTED = "labels inverted"


@dataclass
class _Options:
    """python -m research.worlds [seeds=1,2] [max_steps=700]."""

    seeds: str = "1,2"
    max_steps: int = 700


@dataclass(frozen=True)
class _Row:
    """One question in one world, over seeds."""

    world: str
    question: str
    verdicts: list[str]
    accuracies: list[float]

    def cells(self) -> list[str]:
        shares = ", ".join(value_cell(share, ".3f") for share in self.accuracies)
        return [self.world, self.question, ", ".join(self.verdicts), shares]


@dataclass(frozen=True)
class WorldsResults:
    """The table of the page."""

    seeds: list[int]
    rows: list[_Row]

    def lines(self) -> list[str]:
        header = ["world", "question", "verdicts", "accuracy"]
        seeds = ", ".join(map(str, self.seeds))
        notes = [
            f"Seeds {seeds}, in this order. "
            "Labels inverted is 1 minus the accuracy of the true world, if the same heads are judged.",
            "Always the nearest: the pronoun still agrees with the noun before it, "
            "so agreement is learned; only `verb` has no cue.",
        ]
        return [*notes, "", *markdown_table(header, [row.cells() for row in self.rows])]


def _verbs_by_a_coin() -> None:
    texts = frames.TEXTS["BY_FIRST"] + frames.TEXTS["BY_SECOND"]

    @language._depends_on("MEANT")
    def options(_: language.Language, meant: str | None) -> Options:
        slots = meant or "AB"
        chance = 1 / len(texts) / len(slots)
        return [Option(chance, (text,), (("MEANT", slot),)) for slot in slots for text in texts]

    language._RULES |= {"CAUSE": options, "CAUSED": options}


def _set_pronouns(options_of: Callable[[str | None, str, str], Options]) -> None:
    """Make the rules of the pronoun from a function of MEANT and both words; its options have one word each."""

    def rule(form: Callable[[str], str]) -> language._Rule:
        @language._depends_on("MEANT", "A", "B")
        def options(_: language.Language, meant: str | None, a: str, b: str) -> Options:
            return [replace(option, symbols=(form(option.symbols[0]),)) for option in options_of(meant, a, b)]

        return options

    language._RULES |= {"PRONOUN": rule(str), "PRONOUN.lower": rule(str.lower)}


def _pronouns_by_a_coin() -> None:
    def options(meant: str | None, a: str, b: str) -> Options:
        words = sorted({REFERENTS[word].pronoun for word in (a, b)})
        slots = meant or "AB"
        chance = 1 / len(words) / len(slots)
        return [Option(chance, (word,), (("MEANT", slot),)) for slot in slots for word in words]

    _set_pronouns(options)


def _always_the_nearest() -> None:
    _verbs_by_a_coin()
    _set_pronouns(lambda meant, a, b: [Option(1.0, (REFERENTS[b].pronoun,), (("MEANT", "B"),))])


WORLDS = {
    "true": lambda: None,
    "verbs by a coin": _verbs_by_a_coin,
    "pronouns by a coin": _pronouns_by_a_coin,
    "always the nearest": _always_the_nearest,
}


def _inverted(cell: Cell) -> Cell:
    return replace(cell, meant=cell.other, other=cell.meant, answers=cell.foils, foils=cell.answers)


def _inverted_results(run: Path, cache: str) -> Iterator[tuple[str, str, float]]:
    """Yield question, verdict and accuracy of a run whose tested antecedents are exchanged."""
    opened = open_run(run, torch.device("cpu"))
    config = ProbeConfig()
    items = source_of(opened, config, cache).items
    exchanged = []
    for pair in items.pairs:
        first, second = map(_inverted, pair.cells)
        exchanged.append(pair if pair.part == "dev" else replace(pair, cells=(first, second)))
    found = study(opened.model, opened.untrained, Items(exchanged), STORY_QUESTIONS, config)
    for finding in found.findings:
        yield finding.question, finding.verdict, finding.judged.value("accuracy")


def main(options: _Options) -> None:
    """Train and test every world with every seed, and write the page."""
    seeds = list(map(int, listed(options.seeds)))
    found: dict[tuple[str, str], list[tuple[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        cache = f"{folder}/true"  # the tests are about true stories
        for world in WORLDS:
            for seed in seeds:
                run = Path(folder, world.replace(" ", "_"), str(seed))
                settings = [f"seed={seed}", f"out={run}", f"max_steps={options.max_steps}"]
                own_cache = f"cache_dir={cache if world == 'true' else run.parent / 'cache'}"
                run_command([sys.executable, "-m", "research.worlds", "train", world, *settings, own_cache])
                run_script("eval", f"run={run}", f"cache_dir={cache}")
                results = ProbeResults.from_json(json.loads((run / "probe/probe.json").read_text()))
                for each in results.findings:
                    row = (each.verdict, each.judged.value("accuracy"))
                    found.setdefault((world, each.question), []).append(row)
                for question, verdict, accuracy in _inverted_results(run, cache) if world == "true" else ():
                    found.setdefault((INVERTED, question), []).append((verdict, accuracy))
    rows = []
    for (world, question), values in found.items():
        verdicts, accuracies = zip(*values, strict=True)
        rows.append(_Row(world, question, list(verdicts), list(accuracies)))
    write_page("worlds", "False worlds", WorldsResults(seeds, rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        WORLDS[sys.argv[2]]()
        sys.argv = ["train.py", *sys.argv[3:]]
        runpy.run_path("train.py", run_name="__main__")
    else:
        start_benchmark(main, _Options)
