"""Probe a trained run: python eval.py [run=DIR] [text="..."], [runs=DIR] or [compare=DIR]; --help for what there is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig

from configs import (
    TrainSettings,
    check_seeds,
    check_variants,
    door,
    flat,
    one_line_errors,
    typed_eval,
    typed_saved,
    typed_train,
)

if TYPE_CHECKING:
    import numpy as np
    from tokenizers import Tokenizer
    from torch import Tensor

    from data.corpus import Corpus
    from data.links import Span
    from model.transformer import Transformer
    from probe.config import ProbeConfig
    from probe.outside.subject import Report, Subject
    from probe.sentence import Sentence
    from probe.study import Reading
    from run.config import EvalConfig, Task


@hydra.main(version_base="1.3", config_path="configs", config_name="eval")
def main(config: DictConfig) -> None:
    """Check the settings, open the run, then look or probe."""
    with one_line_errors():
        settings, probe = typed_eval(config)
    if settings.runs is not None:
        compare_seeds(settings.runs, settings, probe)
        return
    if settings.compare is not None:
        compare_variants(settings.compare, settings, probe)
        return
    with one_line_errors():
        opened = open_run(settings)
    max_steps = opened.settings.run.max_steps
    print(
        f"run      {opened.run}, best checkpoint: step {opened.step} of {max_steps}; {opened.place}, float32",
        flush=True,
    )
    if settings.task is not None and settings.path is not None:
        take(opened, settings, probe, settings.task, settings.path)
    elif settings.text is not None:
        with one_line_errors():
            look(opened, settings.text)
    elif opened.settings.data.source == "stories" and opened.settings.model.is_causal:
        probe_stories(opened, settings, probe)
    else:
        measure(opened, settings, probe)


SCHEMA_VERSION = 4  # of probe.json


@dataclass(frozen=True)
class Opened:
    """A run, ready to be read."""

    run: Path
    settings: TrainSettings  # it was trained with
    data_fingerprint: str  # of the text it was trained on
    tokenizer: Tokenizer
    model: Transformer  # the best checkpoint's, in eval mode and float32
    step: int
    place: str  # device and why

    def cut(self, text: str) -> Sentence:
        """Return the tokens and words of `text`, the END in front."""
        from data.stories.lint import words
        from data.tokenizer import end_id
        from probe.sentence import Sentence

        encoding = self.tokenizer.encode(text)
        return Sentence([end_id(self.tokenizer), *encoding.ids], encoding.offsets, words(text))

    def untrained(self, seed: int) -> Transformer:
        """Return a model of the same shape that was never trained."""
        from model.transformer import Transformer

        device = self.model.token_embedding.weight.device
        return Transformer(self.model.config, self.model.vocab_size, seed=10_000 + seed).to(device).eval()


def open_run(settings: EvalConfig) -> Opened:
    """Load a run's best checkpoint; ValueError or OSError where it cannot be."""
    import sys

    import torch

    from data.tokenizer import load_tokenizer
    from model.transformer import Transformer, load_weights
    from run.checkpoint import load_checkpoint
    from run.config import Precision
    from run.device import choose_place
    from run.directory import find_run, read_json

    if settings.threads:
        torch.set_num_threads(settings.threads)
    place = choose_place(settings.device, Precision.float32)
    run = find_run(settings.run)
    config = read_json(run / "config.json")
    trained = typed_saved(config)
    tokenizer = load_tokenizer(run / "tokenizer.json")
    state, damaged = load_checkpoint(run / "checkpoints", best=True)
    for line in damaged:
        print(f"warning: {line}", file=sys.stderr)
    model = Transformer(trained.model, tokenizer.get_vocab_size(), seed=0)
    load_weights(model, state["model"])
    return Opened(
        run,
        trained,
        str(config.get("data_fingerprint")),
        tokenizer,
        model.to(place.device).eval(),
        state["step"],
        place.where,
    )


def load_data(opened: Opened, settings: EvalConfig) -> Corpus:
    """Return the corpus the run was trained on; ValueError if it is not the same any more."""
    from data.corpus import load_corpus

    corpus = load_corpus(opened.settings.data, Path(settings.cache_dir))
    if corpus.fingerprint != opened.data_fingerprint:
        raise ValueError("the data is no longer what this run was trained on: its text or the generator has changed")
    return corpus


def probe_stories(
    opened: Opened, settings: EvalConfig, config: ProbeConfig, say: Callable[[str], None] = print
) -> None:
    """Choose heads on dev, test them on test, say the tables and write probe/."""
    from data.corpus import load_split
    from data.links import link_items
    from data.stories import GENERATOR_VERSION
    from data.stories.leakage import leakage
    from data.tokenizer import end_id
    from probe.showcase import SHOWCASE, Reader, cells
    from probe.study import study

    with one_line_errors():
        corpus = load_data(opened, settings)
        end = end_id(opened.tokenizer)
        dev, test = (link_items(load_split(corpus, name), opened.tokenizer, end) for name in ("dev", "test"))
    model = opened.model
    untrained = [opened.untrained(config.seed + i) for i in range(config.n_untrained)]
    with one_line_errors():
        results, readings = study(model, untrained, dev, test, config, under_way)
    under_way("")
    heads = {one["question"]: (one["layer"], one["head"]) for one in results["selected"]}
    reader = Reader(model, opened.cut, opened.tokenizer.id_to_token)
    results["showcase"] = {
        name: cells(reader, asked, heads[name]) for name, (_, asked) in SHOWCASE.items() if name in heads
    }
    about = {
        "schema_version": SCHEMA_VERSION,
        "model": {"run": str(opened.run), "step": opened.step, **asdict(opened.settings.model)},
        "data": {
            "generator_version": GENERATOR_VERSION,
            "fingerprint": corpus.fingerprint,
            "leakage": leakage(load_split(corpus, "train"), load_split(corpus, "test")),
        },
        "settings": asdict(config),
        "warnings": [],
    }
    say("\n".join(printed(results)))
    with one_line_errors():
        written = write_probe(opened, about | results, readings)
    say(f"\nwrote    {', '.join(written)} to {opened.run / 'probe'}")


def under_way(what: str) -> None:
    """Show on a terminal, and there alone, what is being asked; "" takes it away."""
    import sys

    if sys.stderr.isatty():
        sys.stderr.write(f"\r{f'probing {what} ...' if what else ''}\033[K")
        sys.stderr.flush()


def printed(results: dict[str, Any]) -> list[str]:
    """Return the lines that a person reads of a probe."""
    from probe.report.tables import cell_lines, table
    from probe.showcase import SHOWCASE

    lines = table(results)
    for question, shown in results["showcase"].items():
        title, _ = SHOWCASE[question]
        lines += ["", title, *cell_lines(shown)]
    return lines


def write_probe(opened: Opened, results: dict[str, Any], readings: dict[str, Reading]) -> list[str]:
    """Write probe.json, the tables and a claim card for each question into the run; return the files' names."""
    from probe.claim import claim_card, claim_markdown
    from probe.report.tables import heads_csv, items_jsonl
    from probe.study import HEADLINE
    from probe.verdict import finite
    from run.directory import write_files

    model = {"step": opened.step, **asdict(opened.settings.model)}
    cards = [claim_card(one, model, HEADLINE) for one in results["selected"] if HEADLINE in one["test"]]
    files = {
        "probe.json": json.dumps(finite(results), indent=2, allow_nan=False) + "\n",
        "claims.json": json.dumps(finite(cards), indent=2, allow_nan=False) + "\n",
        "claims.md": "\n\n".join(f"## {one['question']}\n\n{claim_markdown(one)}" for one in cards),
        "heads.csv": heads_csv(readings),
        "items.jsonl": items_jsonl(results, readings["test"]),
    }
    write_files(opened.run / "probe", files)
    return list(files)


def compare_seeds(runs: str, settings: EvalConfig, config: ProbeConfig) -> None:
    """Probe each run of a sweep that has not been probed yet, print what holds over the seeds and write probe/."""
    from probe.seeds import SeedRun, markdown, over_seeds
    from run.directory import read_json, write_files

    with one_line_errors():
        found = ended(runs)
        seeds = check_seeds({path.name: read_json(path / "config.json") for path in found})
    probes = {path.name: probed(path, settings, config) for path in found}
    results = over_seeds(
        [SeedRun(path.name, seeds[path.name], probes[path.name], records) for path, records in found.items()]
    )
    files = {"seeds.json": json.dumps(results, indent=2) + "\n", "seeds.md": markdown(results)}
    print(f"\n{files['seeds.md']}")
    with one_line_errors():
        write_files(Path(runs) / "probe", files)
    print(f"wrote    {', '.join(files)} to {Path(runs) / 'probe'}")


def compare_variants(runs: str, settings: EvalConfig, config: ProbeConfig) -> None:
    """Probe each run of a sweep that has not been probed yet, print what each variant changes and write probe/."""
    from hydra import compose

    from probe.lab.compare import LEGEND, LabRun, by_variant, compare, draw, markdown, measured, table_csv
    from run.directory import read_json, write_files
    from run.logging import write_hparams

    with one_line_errors():
        found = ended(runs)
        configs = {path.name: read_json(path / "config.json") for path in found}
        variants, standard = check_variants(configs, typed_train(compose("train")))
        by_variant(variants)  # before minutes of probing
    every = []
    for path, records in found.items():
        causal = typed_saved(configs[path.name]).model.is_causal
        probe = probed(path, settings, config) if causal else None
        every.append(LabRun(path.name, *variants[path.name], records, probe))
    results = compare(every, standard)
    files: dict[str, str | bytes] = {
        "compare.json": json.dumps(results, indent=2) + "\n",
        "compare.md": markdown(results),
        "compare.csv": table_csv(results),
    }
    print("", markdown(results), *LEGEND, sep="\n")
    folder = Path(runs) / "probe"
    try:
        files["compare.png"] = draw(results)
    except ImportError:
        print("note     no figure: it needs matplotlib (pip install matplotlib)")
    with one_line_errors():
        (folder / "compare.png").unlink(missing_ok=True)  # one of other runs is worse than none
        write_files(folder, files)
        values = {
            run.name: {name: value for name, value in measured(run).items() if value is not None} for run in every
        }
        write_hparams(
            folder / "tb", {run.name: (flat(typed_saved(configs[run.name])), values[run.name]) for run in every}
        )
    print(f"\nwrote    {', '.join(files)} to {folder}; tensorboard --logdir {runs} has them as HParams")


def ended(runs: str) -> dict[Path, list[dict[str, Any]]]:
    """Return the records of each run of a sweep; ValueError or OSError where one cannot be read or has not ended."""
    from run.directory import find_runs
    from run.logging import read_records

    found = {path: read_records(path) for path in find_runs(runs)}
    for path, records in found.items():
        if not any(one.get("whole") for one in records):
            raise ValueError(f"{path} has not ended; go on with: python train.py resume=true out={path}")
    return found


def probed(run: Path, settings: EvalConfig, config: ProbeConfig) -> dict[str, Any]:
    """Return the probe.json of a run of a sweep; it is probed now where that has not been done with these settings."""
    from run.directory import read_json

    with one_line_errors():
        opened = None if is_probed(run, config) else open_run(replace(settings, runs=None, compare=None, run=str(run)))
    if opened:
        print(f"probing  {run}", flush=True)
        probe_stories(opened, settings, config, say=lambda lines: None)  # of each run, its files alone
    with one_line_errors():
        found: dict[str, Any] = read_json(run / "probe" / "probe.json")
    return found


def is_probed(run: Path, config: ProbeConfig) -> bool:
    """Whether a run's probe.json is what probing its best checkpoint with these settings would write again."""
    from run.checkpoint import read_manifest
    from run.directory import read_json

    path = run / "probe" / "probe.json"
    found = read_json(path) if path.exists() else {}
    try:
        step, data = found["model"]["step"], found["data"]["fingerprint"]
        known = found["schema_version"], found["settings"], data
    except (KeyError, TypeError):
        return False  # none, or none that can be read: it is written anew
    best = [one["step"] for one in read_manifest(run / "checkpoints") if one["best"]]
    wanted = SCHEMA_VERSION, asdict(config), read_json(run / "config.json").get("data_fingerprint")
    return step in best and known == wanted


def look(opened: Opened, text: str) -> None:
    """Print what every head does at the pronouns of the user's sentence, and what cannot be seen there."""
    from data.stories.lint import lint
    from data.tokenizer import unknown_id
    from probe.report.tables import sentence_lines
    from probe.sentence import word_rows

    notes = lint(text)
    if not text.strip():
        raise ValueError("text is empty")
    if not notes:
        raise ValueError("no pronoun in text: looked for it, its, they, them, their, she, her, he, him and his")
    sentence, limit = opened.cut(text), opened.model.config.context_length
    if len(sentence.ids) > limit:
        raise ValueError(f"text is {len(sentence.ids) - 1} tokens long; this model reads {limit - 1}")
    asked = [span for note in notes for span in (note.span, note.clue) if span]
    rows = word_rows(opened.model, sentence, asked)  # before a word is said: a model that cheats is refused here
    unread = unknown_id(opened.tokenizer)
    spans = zip(sentence.ids[1:], sentence.offsets, strict=True)
    unknown = [text[slice(*span)] for token, span in spans if token == unread]
    if unknown:
        print(f"note     the model does not know {', '.join(dict.fromkeys(unknown))}: each reads as unknown")
    for note in notes:
        print(f"note     {note.note}")
    print("\n".join(sentence_lines([word for word, _ in sentence.words], rows, chosen_heads(opened.run))))


def chosen_heads(run: Path) -> dict[tuple[int, int], list[str]]:
    """Return which heads the run's last probe chose, and for which questions; none before the first probe."""
    from run.directory import read_json

    path = run / "probe" / "probe.json"
    chosen: dict[tuple[int, int], list[str]] = {}
    try:
        for one in read_json(path)["selected"] if path.exists() else []:
            chosen.setdefault((one["layer"], one["head"]), []).append(one["question"])
    except (KeyError, TypeError):
        raise ValueError(f"{path} is damaged: python eval.py run={run} writes it anew") from None
    return chosen


def take(opened: Opened, settings: EvalConfig, config: ProbeConfig, task: Task, path: str) -> None:
    """Take a test that nobody here wrote, print its table and write the run's probe/outside/."""
    from probe.outside.subject import heads_csv
    from run.directory import write_files

    with one_line_errors():
        if not opened.settings.model.is_causal:
            raise ValueError("a model trained with model.mask=none reads what it must predict: no test of it is one")
        report = tasks()[task](tested(opened, settings, config), path)
        about = {"task": task.value, "path": path, "run": str(opened.run), "step": opened.step}
        found = about | {"settings": asdict(config)} | report.results
        files = {
            f"{task.value}.json": json.dumps(found, indent=2, allow_nan=False) + "\n",
            f"{task.value}.md": "\n".join(report.markdown) + "\n",
        }
        if report.heads:
            files[f"{task.value}_heads.csv"] = heads_csv(report.heads)
        (opened.run / "probe").mkdir(exist_ok=True)
        write_files(opened.run / "probe" / "outside", files)
    print("\n".join(report.markdown))
    print(f"\nwrote    {', '.join(files)} to {opened.run / 'probe' / 'outside'}")


def tested(opened: Opened, settings: EvalConfig, config: ProbeConfig) -> Subject:
    """Return the run as the tests of others see it; nothing is tokenized anew for it."""
    from data.batches import Split, validation_batches
    from data.config import StoriesConfig
    from data.corpus import corpus_folder
    from data.documents import local_sources, read_pieces
    from data.tokenizer import end_id, unknown_id
    from data.words import training_words
    from probe.outside.subject import Subject

    def encode(text: str) -> tuple[list[int], list[Span]]:
        encoding = opened.tokenizer.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def windows(tokens: np.ndarray, n_bytes: int) -> Iterator[tuple[tuple[Tensor, ...], Tensor]]:
        length = opened.model.config.context_length
        split = Split(tokens, n_bytes)
        for batch in validation_batches(
            split, tokens_per_batch=config.tokens_per_batch, context_length=length, n_tokens=None
        ):
            yield batch.read(), batch.targets

    data = opened.settings.data
    column = "text" if isinstance(data, StoriesConfig) else data.column

    def texts(path: str) -> Iterator[tuple[str, Iterator[tuple[str, bool]]]]:
        for source in local_sources(path, "path"):
            yield source.place, read_pieces([source], column)

    folder = corpus_folder(opened.settings.data.source, opened.data_fingerprint, Path(settings.cache_dir))
    known, known_from = training_words(opened.tokenizer, folder) or (None, "")
    return Subject(
        model=opened.model,
        encode=encode,
        decode=lambda ids: opened.tokenizer.decode(ids, skip_special_tokens=False),
        end=end_id(opened.tokenizer),
        unknown=unknown_id(opened.tokenizer),
        known=known,
        known_from=known_from,
        windows=windows,
        texts=texts,
        untrained=lambda i: opened.untrained(config.seed + i),
        config=config,
    )


def tasks() -> dict[Task, Callable[[Subject, str], Report]]:
    """Return what each task calls."""
    from probe.outside.links import links
    from probe.outside.minimal_pairs import minimal_pairs
    from probe.outside.text import measure_text
    from probe.outside.winobias import winobias
    from run.config import Task

    return {
        Task.minimal_pairs: minimal_pairs,
        Task.links: links,
        Task.winobias: winobias,
        Task.text: measure_text,
    }


def measure(opened: Opened, settings: EvalConfig, config: ProbeConfig) -> None:
    """Print the loss over the whole validation split, of a model whose heads cannot be tested, and why they cannot."""
    from data.batches import StorySplit, validation_batches
    from data.corpus import CLASSES
    from model.loss import row_losses, summarise
    from run.logging import gap_lines

    with one_line_errors():
        corpus = load_data(opened, settings)
    split, causal = corpus.validation, opened.settings.model.is_causal
    batches = validation_batches(
        split,
        tokens_per_batch=config.tokens_per_batch,
        context_length=opened.model.config.context_length,
        n_tokens=None,
    )
    parts = ((one.read(alone=causal), one.targets, one.classes, one.floor) for one in batches)
    rows = row_losses(opened.model, parts, len(CLASSES))
    found = summarise(rows, CLASSES if isinstance(split, StorySplit) else ())
    n_tokens, bits = int(rows.counts.sum()), split.bits_per_byte(found["loss"])
    print(f"loss     {found['loss']:.4f} nats/token, {bits:.4f} bits/byte over all {n_tokens:,} validation tokens")
    for note in corpus.notes:
        print(f"note     {note}")
    for line in gap_lines(found, cheats=not causal):
        print(line)
    if causal:
        print('next     this text has no gold links; look at a sentence: python eval.py text="...", or take tests of')
        print("         others: python eval.py task=minimal_pairs path=FOLDER (docs/outside.md)")


if __name__ == "__main__":
    with door("eval", HydraException):
        main()
