"""Open a trained model for the probe: the best checkpoint of a run, or an external model of transformers."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from data.config import DataConfig
from data.corpus import Corpus, corpus_fingerprint, load_corpus
from data.links import LinkItem
from data.stories.lint import word_spans
from data.tokenizer import end_id, load_tokenizer, unknown_id, with_end
from model.hf import departures, open_transformers
from model.observe import ObservableModel, TransformerView
from model.transformer import Transformer, draw_outputs, load_weights, n_parameters
from probe.contract import check_observed
from probe.sentences import Example, TokenizedText, next_tokens, word_attention
from training.checkpoint import load_checkpoint
from training.files import read_json
from training.run_dir import RESUMES, RUNS
from training.settings import TrainSettings, flatten, saved_settings

EXTERNAL_RESULTS = Path("probes")  # results about external models, next to runs/
LARGE_MODEL = 50_000_000  # parameters; every pass of such a model is slow on a CPU
ENGLISH = "english"  # in place of a corpus's fingerprint: blocks of sentences that every model is tested on
OWNER = "model.json"  # in such a folder: which model the results are about
UNTRAINED_SEED = 10_000  # added to the seed of an untrained model, so that none equals a trained model's start

CHECKPOINT_FIELDS = ("vocab_size", "data_fingerprint", "tokenizer_sha256")  # in config.json, besides model and data
MOVABLE = {"model.dropout", "data.path", "data.validation_path", "data.tokenizer_path"}


@dataclass(frozen=True, kw_only=True)
class OpenedModel:
    """A model ready for the probe, and what its results say about it."""

    folder: Path  # the run, or where results about an external model go; results are written to its probe/
    name: str
    source: str  # the run's directory; the folder or hub name of an external model
    model: ObservableModel
    untrained: Callable[[int], ObservableModel]  # seed -> an untrained model of the same shape
    tokenizer: Tokenizer
    start: int  # the token before every text
    data: DataConfig | None  # of a run; for an external model the stories, or None: blocks in English
    data_fingerprint: str
    shape: Mapping[str, Any]  # model settings, for probe.json
    n_parameters: int
    departures: tuple[str, ...]  # from a Llama-style decoder
    environment: Mapping[str, Any]  # versions, for the page
    step: int = 0
    max_steps: int | None = None  # None: an external model, so training steps, seed and data are unknown
    seed: int | None = None
    resumed: tuple[str, ...] = ()  # a sentence for each resume with other settings
    owner: str | None = None  # external model: its folder or hub name, recorded in the results folder
    only_next_pronoun: bool = False  # a large external model: the other questions are skipped

    @property
    def is_external(self) -> bool:
        """Whether the model was trained by another program."""
        return self.max_steps is None

    @property
    def is_causal(self) -> bool:
        """Whether the model reads from left to right, so that its attention can be interpreted."""
        return bool(self.shape.get("mask", "causal") == "causal")

    @property
    def has_stories(self) -> bool:
        """Whether the heads are tested on the built-in stories, not on natural text."""
        return self.data is not None and self.data.source == "stories"

    @cached_property
    def unknown(self) -> int | None:
        """The token that replaces what the tokenizer cannot write, if it has one."""
        return unknown_id(self.tokenizer)

    def tokenize(self, text: str) -> TokenizedText:
        """Return the tokens and words of `text`, the start token first."""
        tokens, spans = with_end(self.tokenizer, text, self.start)
        return TokenizedText(text, tokens, spans, [span for _, span in word_spans(text)])

    def fits(self, text: TokenizedText) -> bool:
        """Return whether the model's context is long enough for `text`."""
        return len(text.tokens) <= self.model.context_length

    def read_example(self, example: Example, head: tuple[int, int]) -> dict[str, Any]:
        """Return a head's weights on both nouns at the query, and the most probable next words after a last query."""
        text = self.tokenize(example.text)
        row = word_attention(self.model, [text])[0][*head, text.words.index(example.query)]
        is_last = example.text.endswith(example.query)
        following = next_tokens(self.model, text.tokens, 3) if is_last else []
        nouns = sorted((example.antecedent, example.distractor))
        return {
            **asdict(example),
            "weights": {noun: float(row[text.words.index(noun)]) for noun in nouns},
            "next": [[self.decode(token), probability] for token, probability in following],
        }

    def decode(self, token: int) -> str:
        """Return the text of a token, special tokens by their name."""
        text = self.tokenizer.decode([token], skip_special_tokens=False).strip()
        return text or repr(self.tokenizer.id_to_token(token))


@dataclass(frozen=True, kw_only=True)
class OpenedRun(OpenedModel):
    """The best checkpoint of a run of train.py."""

    settings: TrainSettings
    transformer: Transformer


# Runs


def open_run(run: Path, device: torch.device) -> OpenedRun:
    """Load the best checkpoint of a run in float32; ValueError or OSError with one line if that is not possible."""
    settings, config = read_settings(run)
    tokenizer = read_tokenizer(run, config)
    state = load_checkpoint(run / "checkpoints", best=True)
    weights, step = checkpoint_weights(run, state)
    check_config(run, config, state)
    transformer = Transformer(settings.model, tokenizer.get_vocab_size(), seed=0)
    load_weights(transformer, weights)
    if not all(weight.isfinite().all() for weight in transformer.parameters()):
        raise ValueError(f"{run}: the weights are not finite because training diverged; train again")

    def untrained(seed: int) -> TransformerView:
        fresh = Transformer(settings.model, transformer.vocab_size, seed=UNTRAINED_SEED + seed)
        if settings.data.source != "stories":
            draw_outputs(fresh, UNTRAINED_SEED + seed)
        return TransformerView(fresh.to(device).eval())

    return OpenedRun(
        folder=run,
        name=run_name(run),
        source=str(run),
        model=TransformerView(transformer.to(device).eval()),
        untrained=untrained,
        tokenizer=tokenizer,
        start=end_id(tokenizer),
        data=settings.data,
        data_fingerprint=str(config.get("data_fingerprint")),
        shape=asdict(settings.model),
        n_parameters=n_parameters(transformer),
        departures=tuple(departures(settings.model)),
        environment=read_environment(run),
        step=step,
        max_steps=settings.run.max_steps,
        seed=settings.run.seed,
        resumed=tuple(read_resumes(run)),
        settings=settings,
        transformer=transformer,
    )


def run_name(run: Path) -> str:
    """Return the name of a run's directory; for a numbered run of a sweep, with the sweep's name."""
    folder = run.resolve()
    is_numbered = folder.name.isdecimal() and folder.parent.name not in ("", RUNS.name)
    return f"{folder.parent.name}/{folder.name}" if is_numbered else folder.name


def read_settings(run: Path) -> tuple[TrainSettings, dict[str, Any]]:
    """Return the settings of a run and its config.json; ValueError names a damaged file."""
    config = read_json(run / "config.json")
    try:
        return saved_settings(config), config
    except ValueError as error:
        raise ValueError(f"{run}/{error}") from None


def read_tokenizer(run: Path, config: Mapping[str, Any]) -> Tokenizer:
    """Return the tokenizer of a run; ValueError if it is missing or not the one the run was trained with."""
    path, expected = run / "tokenizer.json", config.get("tokenizer_sha256")
    if not path.is_file():
        raise ValueError(f"{path}: missing; copy it from where the run was made")
    if expected is not None and sha256(path.read_bytes()).hexdigest() != expected:
        raise ValueError(f"{path}: damaged, another sha256 than recorded; copy it from where the run was made")
    return load_tokenizer(path)


def checkpoint_weights(run: Path, state: Mapping[str, Any]) -> tuple[dict[str, Tensor], int]:
    """Return the weights and the step of a checkpoint; ValueError if it is not the checkpoint of a model."""
    weights, step = state.get("model"), state.get("step")
    if not isinstance(weights, dict) or not isinstance(step, int) or not all(map(torch.is_tensor, weights.values())):
        raise ValueError(f"{run / 'checkpoints'}: not checkpoints of a model; another program or version wrote them")
    return weights, step


def check_config(run: Path, config: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Raise ValueError if config.json has other model or data settings than the checkpoint was trained with."""
    with readable(run / "checkpoints", "train again"):
        saved, present = (
            flatten(saved_settings(values)) | {name: values.get(name) for name in CHECKPOINT_FIELDS}
            for values in (state["config"], config)
        )
    for name, value in present.items():
        is_fixed = name in CHECKPOINT_FIELDS or name.startswith(("model.", "data."))
        if is_fixed and name not in MOVABLE and value != saved.get(name):
            raise ValueError(
                f"{run / 'config.json'}: {name}={value}, but the checkpoint was trained with {saved.get(name)}; "
                "restore the file"
            )


def read_environment(run: Path) -> dict[str, Any]:
    """Return the versions of environment.json that the page shows."""
    path = run / "environment.json"
    with readable(path, "delete it"):
        environment = json.loads(path.read_text()) if path.exists() else {}
        versions = {"python": environment.get("python"), "torch": environment.get("packages", {}).get("torch")}
        return versions | {"commit": environment.get("commit")}


def read_resumes(run: Path) -> list[str]:
    """Return a sentence for each time that training was resumed with other settings or in another environment."""
    path = run / RESUMES
    sentences = []
    with readable(path, "delete it"):
        for line in path.read_text().splitlines() if path.exists() else ():
            record = json.loads(line)
            changes = {**record["settings"], **record["environment"]}
            changed = ", ".join(f"{name} {value} (before: {earlier})" for name, (earlier, value) in changes.items())
            if changed:
                sentences.append(f"Resumed at step {record['step']} with {changed}.")
    return list(dict.fromkeys(sentences))


@contextmanager
def readable(path: Path, remedy: str) -> Iterator[None]:
    """Turn errors of parsing a damaged or missing file into one line that names the file and a remedy."""
    try:
        yield
    except FileNotFoundError:
        raise ValueError(f"{path}: missing; {remedy}") from None
    except (ValueError, ArithmeticError, LookupError, TypeError, AttributeError, RecursionError, StopIteration):
        raise ValueError(f"{path}: damaged; {remedy}") from None


def load_data(opened: OpenedModel, cache_dir: str) -> Corpus:
    """Return the corpus of a model; ValueError or OSError if it is not the one that the run was trained on."""
    assert opened.data is not None
    try:
        corpus = load_corpus(opened.data, Path(cache_dir))
    except FileNotFoundError as error:
        problem = "the run names its text as in the folder where it was trained; start eval.py there"
        raise FileNotFoundError(f"{error} ({problem})") from None
    if corpus.fingerprint != opened.data_fingerprint:
        raise ValueError(f"{opened.source}: the training data has changed (text or generator); train again")
    return corpus


# External models


def open_external(
    name: str,
    out: str | None,
    stories: DataConfig | None,
    device: torch.device,
    tokenizer: str | None = None,
    *,
    has_items: bool = False,
) -> OpenedModel:
    """Load a causal language model of another program and its tokenizer, to be tested on `stories` or in English.

    In English a large model is only asked about the next pronoun, unless `has_items`: the user has given items=.

    `name` is a folder written by save_pretrained, a name on the hub, or a checkpoint of nanoGPT or llama2.c; results go
    to `out` (default: probes/NAME). ValueError or OSError with one line if the model cannot be loaded or observed.
    """
    view, loaded_tokenizer, facts = open_transformers(name, device, tokenizer)
    path, start = facts.pop("path"), facts.pop("start")
    short = folder_name(path) if facts["commit"] is None else name
    kind = "" if stories is None else "-stories"
    results = Path(out) if out is not None else EXTERNAL_RESULTS / (short.replace("/", "--") + kind)
    owner = str(path.resolve()) if facts["commit"] is None else name
    check_results_folder(results, owner)
    check_attention(view, name)
    return OpenedModel(
        folder=results,
        name=short,
        source=name,
        model=view,
        untrained=lambda seed: view.untrained(UNTRAINED_SEED + seed),
        tokenizer=loaded_tokenizer,
        start=start,
        data=stories,
        data_fingerprint=ENGLISH if stories is None else corpus_fingerprint(stories),
        shape={"name": short, "items": "english" if stories is None else "stories", **facts},
        n_parameters=n_parameters(view.model),
        departures=() if facts["model_type"] == "llama" else (f"model_type={facts['model_type']}",),
        environment={"model": name, **{key: facts[key] for key in ("model_type", "sha256", "commit", "transformers")}},
        owner=owner,
        only_next_pronoun=n_parameters(view.model) > LARGE_MODEL and not has_items,
    )


def folder_name(folder: Path) -> str:
    """Return the name of a model's folder; for the export of a run, the run's name; for a file, with its folder."""
    path = folder.resolve()
    if path.is_file():  # a checkpoint: out-shakespeare/ckpt.pt
        return f"{path.parent.name}-{path.stem}"
    return path.parent.parent.name if (path.parent.name, path.name) == ("export", "hf") else path.name


def check_results_folder(folder: Path, owner: str) -> None:
    """Raise ValueError if `folder` cannot take results: it is a run, a file, or has results of another model."""
    if (folder / "config.json").exists() or folder.resolve() == RUNS.resolve():
        raise ValueError(f"out={folder}: holds a run or a model; choose another folder")
    parent = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not parent.is_dir():
        raise ValueError(f"out={folder}: {parent} is a file; choose another folder")
    path = folder / OWNER
    if path.exists():
        with readable(path, "delete it"):
            owner_there = json.loads(path.read_text())["model"]
        if owner_there != owner:
            raise ValueError(f"out={folder}: holds results of {owner_there}; choose another folder")


def check_attention(model: ObservableModel, name: str) -> None:
    """Raise ValueError if the observed attention is not what the model computes, tested on a row of its tokens."""
    length = min(model.context_length, 32)
    tokens = torch.linspace(0, model.vocab_size - 1, length).long()
    try:
        check_observed(model, tokens[None], torch.tensor([[length // 2]]))
    except ValueError as error:
        raise ValueError(f"model={name}: {error}") from None


def check_items(opened: OpenedModel, items: Sequence[LinkItem], n_answers: int) -> list[str]:
    """Return warnings about the sentences in the tokens of an external model; ValueError if it cannot read them.

    `n_answers` items have an answer as text; some may have none in these tokens.
    """
    longest, limit = 1 + max(len(item.tokens) for item in items), opened.model.context_length
    if longest > limit:
        raise ValueError(f"model={opened.source}: reads {limit} tokens, but the sentences need {longest}")
    tokens = [token for item in items for token in item.tokens]
    largest = max([*tokens, *(token for item in items for token in (*item.answers, *item.foils))])
    if largest >= opened.model.vocab_size:
        raise ValueError(f"model={opened.source}: its tokenizer writes token {largest}, which the model lacks")
    warnings = ["The training data of this model is unknown, so it may have seen these sentences."]
    if n_unknown := sum(token == opened.unknown for token in tokens):
        warnings.append(f"Its tokenizer replaces {n_unknown / len(tokens):.1%} of the tokens by unknown.")
    if n_lost := n_answers - sum(item.payoff is not None for item in items):
        warnings.append(
            f"In {n_lost:,} of {n_answers:,} items the tokens do not tell both answers apart, so the model's answer is "
            "not tested there."
        )
    return warnings
