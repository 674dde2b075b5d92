"""Probe a trained run: python eval.py [run=DIR] [text="..."] or [runs=DIR], --help for what there is."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig

from configs import TrainSettings, check_seeds, door, one_line_errors, typed_eval, typed_saved

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from data.corpus import Corpus
    from model.transformer import Transformer
    from probe.config import ProbeConfig
    from probe.study import Reading
    from run.config import EvalConfig


@hydra.main(version_base="1.3", config_path="configs", config_name="eval")
def main(config: DictConfig) -> None:
    """Check the settings, open the run, then look or probe."""
    with one_line_errors():
        settings, probe = typed_eval(config)
    if settings.runs is not None:
        compare_seeds(settings.runs, settings, probe)
        return
    with one_line_errors():
        opened = open_run(settings)
    max_steps = opened.settings.run.max_steps
    print(
        f"run      {opened.run}, best checkpoint: step {opened.step} of {max_steps}; {opened.place}, float32",
        flush=True,
    )
    if settings.text is not None:
        with one_line_errors():
            look(opened, settings.text)
    elif opened.settings.data.source == "stories":
        probe_stories(opened, settings, probe)
    else:
        measure_text(opened, settings, probe)


SCHEMA_VERSION = 3  # of probe.json


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

    def ids(self, text: str) -> list[int]:
        """Return the tokens of `text` with the END in front."""
        from data.tokenizer import end_id

        return [end_id(self.tokenizer), *self.tokenizer.encode(text).ids]


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


def probe_stories(opened: Opened, settings: EvalConfig, config: ProbeConfig) -> None:
    """Choose heads on dev, test them on test, print the tables and write probe/."""
    from data.corpus import load_split
    from data.links import link_items
    from data.stories import GENERATOR_VERSION
    from data.stories.leakage import leakage
    from data.tokenizer import end_id
    from model.transformer import Transformer
    from probe.study import study

    with one_line_errors():
        corpus = load_data(opened, settings)
        end = end_id(opened.tokenizer)
        dev, test = (link_items(load_split(corpus, name), opened.tokenizer, end) for name in ("dev", "test"))
    model = opened.model
    device = model.token_embedding.weight.device
    untrained = [
        Transformer(model.config, model.vocab_size, seed=10_000 + config.seed + i).to(device).eval()
        for i in range(config.n_untrained)
    ]
    with one_line_errors():
        results, readings = study(model, untrained, dev, test, config, under_way)
    under_way("")
    heads = {one["question"]: (one["layer"], one["head"]) for one in results["selected"]}
    results["showcase"] = {name: show(opened, heads[name]) for name, (_, show) in SHOWCASE.items() if name in heads}
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
    print("\n".join(printed(results)))
    with one_line_errors():
        written = write_probe(opened, about | results, readings)
    print(f"\nwrote    {', '.join(written)} to {opened.run / 'probe'}")


def under_way(what: str) -> None:
    """Show on a terminal, and there alone, what is being asked; "" takes it away."""
    import sys

    if sys.stderr.isatty():
        sys.stderr.write(f"\r{f'probing {what} ...' if what else ''}\033[K")
        sys.stderr.flush()


def printed(results: dict[str, Any]) -> list[str]:
    """Return the lines that a person reads of a probe."""
    from probe.report import cell_lines, table

    lines = table(results)
    for question, cells in results["showcase"].items():
        title, _ = SHOWCASE[question]
        lines += ["", title, *cell_lines(cells)]
    return lines


def write_probe(opened: Opened, results: dict[str, Any], readings: dict[str, Reading]) -> list[str]:
    """Write probe.json, the tables and a claim card for each question into the run; return the files' names."""
    from probe.claim import claim_card, claim_markdown
    from probe.report import heads_csv, items_jsonl
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
    from run.directory import find_runs, read_json, write_files
    from run.logging import read_records

    with one_line_errors():
        paths = find_runs(runs)
        seeds = check_seeds({path.name: read_json(path / "config.json") for path in paths})
        found = {path.name: read_records(path) for path in paths}
        for path in paths:
            if not any(one.get("whole") for one in found[path.name]):
                raise ValueError(f"{path} has not ended; go on with: python train.py resume=true out={path}")
    for path in paths:
        with one_line_errors():
            fresh = is_probed(path, config)
            opened = None if fresh else open_run(replace(settings, runs=None, run=str(path)))
        if opened:
            print(f"probing  {path}", flush=True)
            probe_stories(opened, settings, config)
    with one_line_errors():
        probes = {path.name: read_json(path / "probe" / "probe.json") for path in paths}
    results = over_seeds([SeedRun(name, seeds[name], probes[name], found[name]) for name in probes])
    files = {"seeds.json": json.dumps(results, indent=2) + "\n", "seeds.md": markdown(results)}
    print(f"\n{files['seeds.md']}")
    with one_line_errors():
        write_files(Path(runs) / "probe", files)
    print(f"wrote    {', '.join(files)} to {Path(runs) / 'probe'}")


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


def four_cells(opened: Opened, head: tuple[int, int]) -> list[dict[str, Any]]:
    """Return the it→cat sentence in its four cells, order x pronoun, as `head` sees it."""
    return [
        cell(opened, f"One sunny day, the {first} sat near the {second}. {pronoun}", pronoun, ("cat", "buses"), head)
        for first, second in (("cat", "buses"), ("buses", "cat"))
        for pronoun in ("It", "They")
    ]


def twins(opened: Opened, head: tuple[int, int]) -> list[dict[str, Any]]:
    """Return the tired and the soft sentence, each at "it" and at the word that decides."""
    return [
        cell(opened, f"One sunny day, the cat lay on the mat because it was {adjective}", word, ("cat", "mat"), head)
        for adjective in ("tired", "soft")
        for word in ("it", adjective)
    ]


def cell(opened: Opened, text: str, word: str, candidates: tuple[str, str], head: tuple[int, int]) -> dict[str, Any]:
    """Return what `head` at `word` gives each candidate and, where `word` ends the text, what the model expects."""
    from data.stories.lint import words
    from probe.sentence import next_words, word_rows

    every = words(text)
    names = [name for name, _ in every]
    encoding = opened.tokenizer.encode(text)
    span = every[names.index(word)][1]
    row = word_rows(opened.model, opened.ids(text), encoding.offsets, every, [span])[0].weights[head]
    likely = next_words(opened.model, opened.ids(text), 3) if text.endswith(word) else []
    return {
        "text": text,
        "word": word,
        "weights": {name: round(float(row[1 + names.index(name)]), 4) for name in candidates},
        "next": [(opened.tokenizer.id_to_token(token), round(chance, 4)) for token, chance in likely],
    }


SHOWCASE = {
    "V at S1": (
        "it→cat in all four cells (a head that follows position or a taste for one noun is right in two)",
        four_cells,
    ),
    "R at S2": (
        'decided later: at "it" both rows are the same to the last bit; only the adjective tells them apart',
        twins,
    ),
}


def look(opened: Opened, text: str) -> None:
    """Print what every head does at the pronouns of the user's sentence, and what cannot be seen there."""
    from data.stories.lint import lint, words
    from data.tokenizer import UNKNOWN
    from probe.report import sentence_lines
    from probe.sentence import word_rows

    every = words(text)
    notes = lint(text)
    encoding = opened.tokenizer.encode(text)
    if not text.strip():
        raise ValueError("text is empty")
    if not notes:
        raise ValueError("no pronoun in text: looked for it, its, they, them, their, she, her, he, him and his")
    limit = opened.model.config.context_length
    if len(encoding.ids) + 1 > limit:
        raise ValueError(f"text is {len(encoding.ids)} tokens long; this model reads {limit - 1}")
    unknown = [
        text[slice(*span)] for name, span in zip(encoding.tokens, encoding.offsets, strict=True) if name == UNKNOWN
    ]
    if unknown:
        print(f"note     the model does not know {', '.join(dict.fromkeys(unknown))}: each reads as {UNKNOWN}")
    for note in notes:
        print(f"note     {note.note}")
    asked = [span for note in notes for span in (note.span, note.clue) if span]
    rows = word_rows(opened.model, opened.ids(text), encoding.offsets, every, asked)
    print("\n".join(sentence_lines([word for word, _ in every], rows, chosen_heads(opened.run))))


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


def measure_text(opened: Opened, settings: EvalConfig, config: ProbeConfig) -> None:
    """Print the loss over the whole validation text; its pronouns carry no gold links, so no head is named."""
    import math

    from data.batches import validation_batches
    from model.loss import class_losses

    with one_line_errors():
        corpus = load_data(opened, settings)
    batches = validation_batches(
        corpus.validation,
        tokens_per_batch=config.tokens_per_batch,
        context_length=opened.model.config.context_length,
        n_tokens=None,
    )
    sums, counts = class_losses(opened.model, ((one.tokens, one.targets, None) for one in batches), 1)
    n_tokens, total = int(counts.sum()), sums.sum().item()
    bits = total / math.log(2) / corpus.validation.n_bytes
    print(f"loss     {total / n_tokens:.4f} nats/token, {bits:.4f} bits/byte over all {n_tokens:,} validation tokens")
    print('next     this text has no gold links; look at a sentence with: python eval.py text="..."')


if __name__ == "__main__":
    with door("eval", HydraException):
        main()
