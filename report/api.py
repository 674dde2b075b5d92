"""The probe from Python: `probe_model` returns what eval.py prints and writes, for any model (docs/usage.md)."""

import glob
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from data.corpus import Corpus, load_rows, training_counts, validation_documents
from data.english_blocks import english_items
from data.links import LinkItem, link_items
from data.natural import Prefix
from data.next_pronoun import Passage, find_all, passage_of_gold
from data.stories import GENERATOR_VERSION
from data.stories.leakage import leakage
from data.text import read_documents, text_files
from probe.after_pronoun import after_pronoun
from probe.claim import claim_card
from probe.config import Holdouts, Items, ProbeConfig
from probe.gold import gold_prefixes, read_passages, read_rows
from probe.natural import MAX_PREFIXES, describe, make_items, natural_study, prefixes_in, sections
from probe.next_pronoun import study_question
from probe.open import LARGE_MODEL, OpenedModel, check_items, load_data, open_external, open_run
from probe.sentences import SHOWCASE
from probe.study import HEADLINE, Reading, study
from report.content import jsonable, page_content, yaml_values
from report.figures import draw_run
from report.natural import natural_claims, natural_lines
from report.next_pronoun import next_pronoun_card, next_pronoun_lines
from report.page import page
from report.results import PAGE, SCHEMA_VERSION, file_results, training_records, write_with_figures
from report.tables import claim_markdown, heads_csv, items_jsonl, summary_lines
from training.device import choose_device
from training.settings import Device, Precision, compose_settings, to_settings

SHIPPED_TEXT = str(Path(__file__).resolve().parent.parent / "data" / "tinystories" / "validation.txt.gz")
N_FRAMES, N_PAIRS = 20, 5  # blocks in English: test frames, pairs of names per frame
# Larger activations are allocated anew in each layer.
# GPT-2 took 164 s of system time with 16,384 tokens, 15 s with 2,048.
LARGE_MODEL_TOKENS = 2048  # per batch
MAX_PREFIXES_LARGE, MAX_UNTRAINED_LARGE = 60, 2  # prefixes per question, untrained models
MIN_SHARE = 0.03  # finished fraction of a study from which on the remaining time is estimated
Results = tuple[dict[str, Any], dict[str, Reading]]  # for probe.json, and the readings by split


@dataclass(frozen=True)
class HeadResult:
    """The head that was chosen for a question, and its scores on the headline hold-out."""

    question: str
    layer: int
    head: int
    verdict: str  # supported, suggestive or not established
    evidence_level: str  # E0 to E4
    accuracy: float  # share of sentences in which the antecedent gets more attention than the distractor
    accuracy_low: float  # 95 % interval
    accuracy_high: float
    block_accuracy: float  # share of blocks that are right in all four sentences
    p: float  # corrected for the search over all heads
    attention_swap: float | None  # share of the answer that changes sides with the head's weights; None: not measured
    claim: str


@dataclass(frozen=True, repr=False)
class ProbeResult:
    """What the probe found out about a model."""

    opened: OpenedModel
    results: dict[str, Any]  # the content of probe.json (docs/probe.md)
    readings: dict[str, Reading]  # what every head does at every item, by split

    @cached_property
    def heads(self) -> dict[str, HeadResult]:
        """The chosen head of each question."""
        return {entry["question"]: head_result(entry, self.results["model"]) for entry in self.results["selected"]}

    def table(self) -> list[dict[str, Any]]:
        """Returns one row per question, for `pandas.DataFrame`."""
        return [asdict(head) for head in self.heads.values()]

    def lines(self) -> list[str]:
        """Returns the lines that eval.py prints."""
        lines = summary_lines(self.results)
        if "natural" not in self.results:
            return lines
        first = next_pronoun_lines(self.results["next_pronoun"])
        return [*first, "", *natural_lines(self.results["natural"]), *(["", *lines] if lines else [])]

    def __str__(self) -> str:
        """Returns the lines that eval.py prints as one text."""
        return "\n".join([*self.lines(), *(f"note: {warning}" for warning in self.results["warnings"])])

    __repr__ = __str__  # what a notebook shows

    def save(self, folder: str | Path, texts: Sequence[str] = (), *, figures: bool = False) -> Path:
        """Writes probe.json, the report and the other files of eval.py to `folder`, all or none; returns the report.

        `texts` are sentences that the report also shows; `figures` adds PNG files and needs matplotlib.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        content = page_content(self.opened, self.results, texts, **training_records(self.opened))
        cards = [claim_card(entry, self.results["model"]) for entry in self.results["selected"]]
        natural = natural_claims(self.results["natural"]) if "natural" in self.results else []
        first = [next_pronoun_card(entry) for entry in self.results.get("next_pronoun", ())]
        files: dict[str, str | bytes] = {
            "probe.json": json.dumps(file_results(self.results), indent=2) + "\n",
            "claims.json": json.dumps(jsonable([*first, *map(natural_card, natural), *cards]), indent=2) + "\n",
            "claims.md": "\n".join(
                [
                    *(f"- Next pronoun, **{card['verdict']}**: {card['claim']}" for card in first),
                    *(f"- Natural text, **{verdict}**: {claim}" for verdict, claim in natural),
                    *([""] if natural or first else []),
                    *map(claim_markdown, self.results["selected"], cards),
                ]
            ),
            "heads.csv": heads_csv(self.readings),
            "items.jsonl": items_jsonl(self.results, self.readings["test"]) if self.readings else "",
            PAGE: page(content),
        }
        write_with_figures(folder, files, "probe.json", draw_run(content) if figures else {})
        return folder / PAGE


def natural_card(claim: tuple[str, str]) -> dict[str, str]:
    """Returns a verdict and a claim of `natural_claims` for claims.json."""
    return {"question": "natural text", "verdict": claim[0], "claim": claim[1]}


def head_result(entry: Mapping[str, Any], model: Mapping[str, Any]) -> HeadResult:
    """Returns an entry of probe.json's `selected` as a `HeadResult`."""
    tested = entry["test"][HEADLINE]
    low, high = tested["accuracy_interval"]
    return HeadResult(
        question=entry["question"],
        layer=entry["layer"],
        head=entry["head"],
        verdict=entry["verdict"],
        evidence_level=entry["evidence_level"],
        accuracy=tested["accuracy"],
        accuracy_low=low,
        accuracy_high=high,
        block_accuracy=tested["block_accuracy"],
        p=tested["p_corrected"],
        attention_swap=(entry["causal"] or {}).get("attention_swap"),
        claim=claim_card(entry, model)["claim"],
    )


def open_model(
    model: str | Path,
    *,
    items: str | Items | None = None,
    tokenizer: str | None = None,
    out: str | None = None,
    device: str | Device = Device.auto,
    threads: int | None = None,
) -> OpenedModel:
    """Opens a run of train.py, a model of transformers or a checkpoint of nanoGPT or llama2.c.

    `model` is the directory of a run, a folder written by save_pretrained, a name on the hub, `ckpt.pt` or `model.bin`.
    `tokenizer`: see docs/usage.md; if None, that of the model. `items`: for a model that is no run, the sentences that
    it is tested on: "english" (the default) or "stories". `out`: the folder of eval.py's results.
    Raises ValueError or OSError with one line.
    """
    if not str(model):
        raise ValueError("model=: the name is empty")
    if device not in [*Device, *(kind.value for kind in Device)]:
        raise ValueError(f"device={device}: must be one of {', '.join(kind.value for kind in Device)}")
    used = choose_device(Device(device), Precision.float32, threads).device
    if (Path(model) / "checkpoints").is_dir():
        if items is not None or tokenizer is not None or out is not None:
            raise ValueError(f"model={model}: is a run of train.py, which has its own sentences, tokenizer and folder")
        return open_run(Path(model), used)
    if items not in (None, *Items):
        raise ValueError(f"items={items}: must be one of {', '.join(Items)}")
    stories = compose_settings().data if items == Items.stories else None
    return open_external(str(model), out, stories, used, tokenizer, has_items=items is not None)


def probe_model(
    model: str | Path | OpenedModel, *, path: str | None = None, cache_dir: str = ".cache", **settings: Any
) -> ProbeResult:
    """Tests every head of a model, with baselines, corrected statistics and causal tests; writes nothing.

    `model` is what `open_model` returns or takes. `path` names English text for the questions about natural text
    (docs/english.md); a run on text uses its validation text. `settings` are those of `open_model` and of the group
    probe in configs/eval/eval.yaml, for example `n_untrained=10`. Raises ValueError or OSError with one line.
    """
    defaults = yaml_values("eval/eval")["probe"]
    probe = {name: settings.pop(name) for name in defaults if name in settings}
    allowed = () if isinstance(model, OpenedModel) else ("items", "tokenizer", "out", "device", "threads")
    if unknown := [name for name in settings if name not in allowed]:
        raise ValueError(f"{unknown[0]}={settings[unknown[0]]}: no such setting, or the model is open already")
    opened = model if isinstance(model, OpenedModel) else open_model(model, **settings)
    return probe_opened(opened, to_settings(ProbeConfig, {**defaults, **probe}, "probe."), cache_dir, path)


def probe_opened(opened: OpenedModel, config: ProbeConfig, cache_dir: str, path: str | None = None) -> ProbeResult:
    """Tests the heads of an opened model on the stories or on English; arguments as `probe_model`."""
    if is_large(opened) and opened.model.device.type == "cpu":
        config = replace(
            config,
            tokens_per_batch=min(config.tokens_per_batch, LARGE_MODEL_TOKENS),
            n_untrained=min(config.n_untrained, MAX_UNTRAINED_LARGE),
        )
    corpus = None if opened.data is None else load_data(opened, cache_dir)
    warnings = list(opened.resumed)
    if path is not None and opened.has_stories:
        raise ValueError(f"path={path}: the model is tested on the stories; give items='english', or leave path out")
    if opened.has_stories:
        assert corpus is not None
        stories = story_items(opened, corpus, config)
        content, readings = study_model(opened, stories.dev, stories.test, config)
        content["data"] = stories.data
        warnings += stories.warnings
    else:
        content, readings = english_results(opened, corpus, config, path)
        warnings += content.pop("warnings")
    results = jsonable({
        "schema_version": SCHEMA_VERSION,
        "model": {
            "run": opened.source,
            "step": opened.step,
            "trained_on": None if opened.is_external or opened.data is None else opened.data.source,
            **opened.shape,
        },
        "settings": asdict(config),
        "warnings": warnings,
        **content,
    })  # fmt: skip
    return ProbeResult(opened, results, readings)


class StoryItems(NamedTuple):
    """The stories in the tokens of a model."""

    dev: list[LinkItem]  # heads are chosen on these
    test: list[LinkItem]
    data: dict[str, Any]  # for probe.json
    warnings: list[str]


def story_items(opened: OpenedModel, corpus: Corpus, config: ProbeConfig) -> StoryItems:
    """Returns the stories that a model is tested on; ValueError if an external model cannot read them."""
    dev_rows, test_rows = load_rows(corpus, "dev"), load_rows(corpus, "test")
    if config.holdouts is Holdouts.all:
        test_rows += load_rows(corpus, "test_others")
    dev, test = (link_items(rows, opened.tokenizer, opened.start) for rows in (dev_rows, test_rows))
    warnings, leaked = list[str](), None
    if opened.is_external:
        n_answers = sum(link["payoff"] is not None for row in [*dev_rows, *test_rows] for link in row["links"])
        warnings = check_items(opened, [*dev, *test], n_answers)
    else:
        leaked = leakage(load_rows(corpus, "train", ["text"]), test_rows)
    data = {"generator_version": GENERATOR_VERSION, "fingerprint": corpus.fingerprint, "leakage": leaked}
    return StoryItems(dev, test, data, warnings)


def english_results(opened: OpenedModel, corpus: Corpus | None, config: ProbeConfig, path: str | None) -> Results:
    """Returns the results on natural text and, if the model knows enough words, on blocks in English.

    The text is that of `path`, otherwise the validation text of `corpus`, otherwise the one that comes with the
    project. Without a corpus the model's training text is unknown: then all words are used in the blocks.
    """
    results: dict[str, Any] = {"selected": [], "importance": [], "behaviour": [], "showcase": {}}
    readings, warnings = dict[str, Reading](), list[str]()
    text = english_text(path or (SHIPPED_TEXT if corpus is None else None), corpus)
    next_pronoun, missing = probe_next_pronoun(opened, text, config)
    fingerprint = opened.data_fingerprint if corpus is None else corpus.fingerprint
    if opened.only_next_pronoun:
        natural: dict[str, Any] = {"questions": {}, "missing": missing}
        warnings.append(
            f"{opened.n_parameters:,} weights: only the next pronoun was tested; items=english tests the rest"
        )
        content = {"data": {"fingerprint": fingerprint}, "next_pronoun": next_pronoun, "natural": natural}
        return {**content, "warnings": warnings, **results}, readings
    natural = probe_prefixes(opened, text.prefixes, config)
    natural["missing"] = [*missing, *natural["missing"]]
    if not next_pronoun:
        natural["missing"].append(f"the text has {text.contents}")
    counts = None if corpus is None else training_counts(corpus)
    sizes: dict[str, Any] = {"n_frames": N_FRAMES, "n_pairs": N_PAIRS, "seed": config.seed}
    try:
        items = english_items(counts, opened.tokenizer, opened.start, opened.model.context_length, **sizes)
    except ValueError as error:
        if opened.is_external:
            raise ValueError(f"model={opened.source}: {error}") from None
        natural["missing"].append(str(error))
    else:
        if opened.is_external:
            all_items = [*items["dev"], *items["test"]]
            warnings = check_items(opened, all_items, sum(item.family == "english" for item in all_items))
        results, readings = study_model(opened, items["dev"], items["test"], config)
    content = {"data": {"fingerprint": fingerprint}, "next_pronoun": next_pronoun, "natural": natural}
    return {**content, "warnings": warnings, **results}, readings


def study_model(opened: OpenedModel, dev: Sequence[LinkItem], test: Sequence[LinkItem], config: ProbeConfig) -> Results:
    """Returns the results of the study with the worked examples of the chosen heads, and the readings by split."""
    untrained = (opened.untrained(config.seed + i) for i in range(config.n_untrained))
    try:
        results, readings = study(opened.model, untrained, dev, test, config, show_progress)
    finally:
        show_progress("")
    heads = {entry["question"]: (entry["layer"], entry["head"]) for entry in results["selected"]}
    results["showcase"] = {
        question: [opened.read_example(example, heads[question]) for example in examples]
        for question, examples in SHOWCASE.items()
        if question in heads
    }
    return results, readings


def show_progress(question: str) -> None:
    """Shows on a terminal which question is being tested; "" clears the line."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{f'testing {question} ...' if question else ''}\033[K")
        sys.stderr.flush()


class TimeLeft:
    """Shows on a terminal what a study is doing, and about how long it will still take."""

    def __init__(self, name: str) -> None:
        """Starts the clock; `name` is that of the study."""
        self._name, self._start = name, time.monotonic()

    def __call__(self, stage: str, share: float) -> None:
        """Shows a stage; `share` of the whole is done."""
        seconds = time.monotonic() - self._start
        left = "" if share < MIN_SHARE else f", about {seconds * (1 - share) / share:.0f} s left"
        show_progress(f"{self._name}: {stage}{left}")


def probe_prefixes(
    opened: OpenedModel,
    prefixes: Mapping[str, Sequence[Prefix]],
    config: ProbeConfig,
    places: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns the results of `natural_study` on prefixes, with progress on a terminal."""
    model, tokenizer, start = opened.model, opened.tokenizer, opened.start
    try:
        return natural_study(
            model,
            opened.untrained,
            tokenizer,
            start,
            prefixes,
            config,
            chosen_elsewhere=places or {},
            limit=max_prefixes(opened),
            progress=show_progress,
        )
    finally:
        show_progress("")


def is_large(opened: OpenedModel) -> bool:
    """Returns whether every pass of a model is slow on a CPU."""
    return opened.n_parameters > LARGE_MODEL


def max_prefixes(opened: OpenedModel) -> int:
    """Returns how many prefixes of each question are used."""
    return MAX_PREFIXES_LARGE if is_large(opened) else MAX_PREFIXES


@dataclass(frozen=True)
class EnglishText:
    """What the questions about English need of a text."""

    documents: list[tuple[str, str]]  # name and text; long documents are cut into sections
    passages: dict[str, list[Passage]]  # by question
    prefixes: dict[str, list[Prefix]]
    contents: str  # a description for messages


def english_text(path: str | None, corpus: Corpus | None) -> EnglishText:
    """Returns the passages and prefixes of a path (`files_of_path`), otherwise of the validation text of `corpus`."""
    if path is None:
        assert corpus is not None
        texts = validation_documents(corpus)
        prefixes, contents = prefixes_in(texts), describe(texts)
        documents = sections(texts, only_long=True)
    else:
        kind, files = files_of_path(path)
        if kind is TextKind.gold:
            rows = [row for file in files for row in read_rows(file)]
            gold = gold_prefixes(rows)
            passages = {"gender": [passage_of_gold(prefix) for prefix in gold]}
            return EnglishText([], passages, {"gender": gold}, f"{len(rows):,} rows")
        texts = texts_of(kind, files)
        prefixes, contents = prefixes_in(texts), describe(texts)
        documents = sections(texts, only_long=True)
    return EnglishText(documents, find_all(documents), prefixes, contents)


def probe_next_pronoun(
    opened: OpenedModel, text: EnglishText, config: ProbeConfig
) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns the entries of the questions about the next pronoun, and a sentence for each that cannot be tested."""
    entries, missing = list[dict[str, Any]](), list[str]()
    try:
        for question, passages in text.passages.items():
            name = f"the next pronoun ({question})"
            result = study_question(
                opened.model,
                (opened.untrained(config.seed + i) for i in range(config.n_untrained)),
                opened.tokenizer,
                opened.start,
                question,
                passages,
                text.documents,
                config,
                TimeLeft(name),
            )
            if isinstance(result, str):
                missing.append(result)
                continue
            prefixes = make_items(
                text.prefixes[question],
                opened.tokenizer,
                opened.start,
                opened.model.context_length,
                config.seed,
                max_prefixes(opened),
            )
            after = after_pronoun(opened.model, prefixes, (result.layer, result.head), config)
            entries.append(jsonable(replace(result, after=after).entry()))
    finally:
        show_progress("")
    return entries, missing


class TextKind(Enum):
    """What the files of path= hold."""

    english = "english"
    passages = "passages"  # a .tsv file as GAP has them
    gold = "gold"  # rows with annotated antecedents


def files_of_path(path: str) -> tuple[TextKind, list[Path]]:
    """Returns what the files of a path hold, and the files.

    A path names text files (data/text.py), a .tsv file of passages as GAP has them, or .jsonl files with gold links.
    """
    is_table = {part.strip().endswith(".tsv") for part in path.split(",")}
    if len(is_table) > 1:
        raise ValueError(f"path={path}: a .tsv file of passages is tested by itself; leave the others out")
    if True in is_table:
        tables = [Path(name) for pattern in path.split(",") for name in sorted(glob.glob(pattern.strip()))]
        if not tables:
            raise FileNotFoundError(f"path={path}: no such file")
        return TextKind.passages, tables
    files = text_files(path, "path")
    with files[0].open(encoding="utf-8", errors="replace") as lines:
        has_links = files[0].suffix == ".jsonl" and '"pron_pos"' in lines.readline()
    return (TextKind.gold if has_links else TextKind.english), files


def texts_of(kind: TextKind, files: Sequence[Path]) -> list[str]:
    """Returns the documents of text files, or the passages of tables."""
    if kind is TextKind.passages:
        return [text for file in files for text in read_passages(file)]
    return read_documents(files)
