"""False worlds: the default run is trained on stories in which a cue means something else, and tested on the true ones.

verbs by a coin: the verb before the pronoun is drawn without regard to the antecedent. pronouns by a coin: "it" or
"they", "she" or "he". always the nearest: the pronoun means this noun. always the first: in `verb`. by the noun: it
means the noun that is first in the alphabet. no causes: only verbs such as "saw" stand before a pronoun. classes
exchanged: "frightened" means what "feared" means; with three: only if a third animal is there. passive only, things for
animals: nothing false, but the tested sentences are of a kind that training lacks. labels inverted: the true world, in
which the test takes the other noun for the antecedent. Writes research/results/worlds.{json,md}.
"""

import json
import runpy
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from antecedent_lab.sources import source_of
from data.pairs import Cell, Items
from data.stories import frames, language
from data.stories.grammar import Bindings, Option, Options
from data.stories.lexicon import REFERENTS
from data.stories.plots import PLOTS
from probe.config import ProbeConfig
from probe.opened_run import open_run
from probe.questions import STORY_QUESTIONS
from probe.results import ProbeResults
from probe.study import study
from probe.text_tables import markdown_table
from research.measure import listed, run_command, run_script, start_benchmark, value_cell, write_page

INVERTED = "labels inverted"
_CAUSES = frames.TEXTS["BY_FIRST"] + frames.TEXTS["BY_SECOND"]


@dataclass
class _Options:
    """python -m research.worlds [seeds=1,2] [max_steps=700] [runs=DIR] [threads=2].

    - runs: where runs are kept, DIR/WORLD/SEED; finished ones are not trained again
    """

    seeds: str = "1,2"
    max_steps: int = 700
    runs: str = ""
    threads: int = 2


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
            "Where only verbs lose their sense, agreement is learned as in the true world; "
            "always the nearest, by the noun: the pronoun still agrees with its noun.",
        ]
        return [*notes, "", *markdown_table(header, [row.cells() for row in self.rows])]


def _verbs_without_sense(
    slots_of: Callable[[str, str, str], str], texts_of: Callable[[str], Sequence[str]] = lambda plot: _CAUSES
) -> None:
    """Draw verbs without regard to what they mean; the pronoun means one of `slots_of` MEANT and both nouns."""

    @language._depends_on("PLOT", "MEANT", "A", "B")
    def options(_: language.Language, plot: str, meant: str | None, a: str, b: str | None) -> list[Option]:
        slots = slots_of(meant or "AB", a, b or "")
        texts = texts_of(plot)
        chance = 1 / len(texts) / len(slots)
        return [Option(chance, (text,), (("MEANT", slot),)) for slot in slots for text in texts]

    language._RULES |= {"CAUSE": options, "CAUSED": options}


def _exchange_classes(is_exchanged: Callable[[str], bool]) -> None:
    """Let "frightened" mean what "feared" means, and the other way round, in some plots."""
    rules = {name: language._RULES[name] for name in ("CAUSE", "CAUSED")}
    other = {"CAUSE": "CAUSED", "CAUSED": "CAUSE"}

    def rule_of(name: str) -> language._Rule:
        def rule(spoken: language.Language, bindings: Bindings) -> Options:
            chosen = rules[other[name] if is_exchanged(bindings["PLOT"]) else name]
            assert callable(chosen)
            return chosen(spoken, bindings)

        return rule

    language._RULES |= {name: rule_of(name) for name in rules}


def _neutral_before_a_pronoun(plot: str) -> Sequence[str]:
    return frames.TEXTS["SIGHT"] if PLOTS[plot].has_pronoun else _CAUSES


def _passive_only() -> None:
    for name, plot in PLOTS.items():
        if "active" in name:
            PLOTS[name] = replace(plot, frames=PLOTS[name.replace("active", "passive")].frames)


def _things_in_place_of_animals() -> None:
    pools_of = language._word_pools

    def of_things(kind: str) -> Any:
        return (pools_of("states")[1],) * 2 if kind == "animals" else pools_of(kind)

    language._word_pools = of_things


def _set_pronouns(options_of: Callable[[str | None, str, str], list[Option]]) -> None:
    """Make the rules of the pronoun from a function of MEANT and both words; its options have one word each."""

    def rule(form: Callable[[str], str]) -> language._Rule:
        @language._depends_on("MEANT", "A", "B")
        def options(_: language.Language, meant: str | None, a: str, b: str) -> list[Option]:
            return [replace(option, symbols=(form(option.symbols[0]),)) for option in options_of(meant, a, b)]

        return options

    language._RULES |= {"PRONOUN": rule(str), "PRONOUN.lower": rule(str.lower)}


def _pronouns_by_a_coin() -> None:
    def options(meant: str | None, a: str, b: str) -> list[Option]:
        words = sorted({REFERENTS[word].pronoun for word in (a, b)})
        slots = meant or "AB"
        chance = 1 / len(words) / len(slots)
        return [Option(chance, (word,), (("MEANT", slot),)) for slot in slots for word in words]

    _set_pronouns(options)


def _always(slot_of: Callable[[str, str], str]) -> None:
    """Let every pronoun mean one of two nouns, and agree with it; no verb matters."""
    _verbs_without_sense(lambda meant, a, b: meant)

    def options(meant: str | None, a: str, b: str) -> list[Option]:
        slot = slot_of(a, b)
        return [Option(1.0, (REFERENTS[a if slot == "A" else b].pronoun,), (("MEANT", slot),))]

    _set_pronouns(options)


WORLDS: dict[str, Callable[[], None]] = {
    "true": lambda: None,
    "verbs by a coin": lambda: _verbs_without_sense(lambda meant, a, b: meant),
    "pronouns by a coin": _pronouns_by_a_coin,
    "always the nearest": lambda: _always(lambda a, b: "B"),
    "always the first": lambda: _verbs_without_sense(lambda meant, a, b: "A"),
    "by the noun": lambda: _always(lambda a, b: "AB"[a > b]),
    "no causes": lambda: _verbs_without_sense(lambda meant, a, b: meant, _neutral_before_a_pronoun),
    "classes exchanged": lambda: _exchange_classes(lambda plot: True),
    "exchanged with three": lambda: _exchange_classes(lambda plot: "third" in plot),
    "passive only": _passive_only,
    "things for animals": _things_in_place_of_animals,
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
    with ExitStack() as stack:
        folder = options.runs or stack.enter_context(tempfile.TemporaryDirectory())
        cache = f"{folder}/true"  # the tests are about true stories
        for world, seed in product(WORLDS, seeds):
            run = Path(folder, world.replace(" ", "_"), str(seed))
            threads = f"threads={options.threads}"
            if not (run / "probe/probe.json").exists():
                settings = [f"seed={seed}", f"out={run}", f"max_steps={options.max_steps}", threads]
                settings.append(f"resume={str((run / 'config.json').exists()).lower()}")
                own_cache = f"cache_dir={cache if world == 'true' else run.parent / 'cache'}"
                run_command([sys.executable, "-m", "research.worlds", "train", world, *settings, own_cache])
                run_script("eval", f"run={run}", f"cache_dir={cache}", threads)
            results = ProbeResults.from_json(json.loads((run / "probe/probe.json").read_text()))
            for each in results.findings:
                row = (each.verdict, each.judged.value("accuracy"))
                found.setdefault((world, each.question), []).append(row)
                print(f"{world}, seed {seed}: {each.question} {each.verdict}", file=sys.stderr, flush=True)
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
