"""A model, opened for reading: a run's best checkpoint with its settings, or one from elsewhere (importing.py)."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.settings import TrainSettings, flat, saved_settings

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor

    from data.config import DataConfig
    from data.corpus import Corpus
    from model.transformer import Transformer
    from probe.sentences import Sentence
    from training.device import ComputeDevice
    from training.settings import EvalConfig

SCHEMA_VERSION = 6  # of probe.json


# What config.json and a checkpoint must agree in; a text may stand elsewhere now, and dropout is for training alone.
_KNOWN = ("vocab_size", "data_fingerprint", "tokenizer_sha256")


_MAY_DIFFER = {"model.dropout", "data.path", "data.validation_path", "data.tokenizer_path"}


# Of a decoder as Touvron et al. 2023 have it; whatever is otherwise is said on top of the page.
_PLAIN = {
    "scale": "inverse_sqrt", "weighting": "softmax", "position": "rope", "mask": "causal",
    "tie_query_key": False, "tie_key_value": False, "token_shift": False,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a model comes from, as a page, probe.json and the claims say it."""

    name: str  # for people
    source: str  # the run's directory, or what was asked for: a folder or a name on the hub
    command: str  # that probes it
    shape: Mapping[str, Any]  # of the model, and what else is known of it; no path
    step: int  # 0 where that is not known
    max_steps: int | None  # None: trained elsewhere, so that neither steps nor seed nor text are known
    seed: int | None  # of its training
    departures: tuple[str, ...]  # in what it is no plain Llama
    made_with: Mapping[str, Any] | None  # None: what the run's environment.json says


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A model, ready to be read, and where what is found of it is kept."""

    run: Path  # its directory; of a model from elsewhere one that is kept for it. What is found stands in probe/ of it
    origin: Origin
    data: DataConfig  # the text that it was trained on; of a model from elsewhere that of the items it is asked
    data_fingerprint: str  # of that text
    tokenizer: Tokenizer
    end: int  # the token that stands before every text
    model: Transformer  # in eval mode and float32
    untrained: Callable[[int], Transformer]  # by a seed, a model of the same shape that was never trained
    place: str  # device and why
    owner: str | None = None  # of a model from elsewhere, its folder or its name on the hub: whose `run` is
    resumed: tuple[str, ...] = ()  # a sentence for each time that training went on with something changed

    @property
    def step(self) -> int:
        """The step of its checkpoint, 0 where that is not known."""
        return self.origin.step

    @property
    def is_from_elsewhere(self) -> bool:
        """Whether it was not trained here."""
        return self.origin.max_steps is None

    @property
    def is_testable(self) -> bool:
        """Whether its heads can be probed: its text has gold links, and it does not see what it must predict."""
        return self.data.source == "stories" and self.model.config.is_causal

    def cut(self, text: str) -> Sentence:
        """Return the tokens and words of `text`, the END in front."""
        from data.stories.lint import word_spans
        from data.tokenizer import with_end
        from probe.sentences import Sentence

        return Sentence(*with_end(self.tokenizer, text, self.end), word_spans(text))

    def word_of(self, token: int) -> str | None:
        """Return what to call a token: its name where tokens are words of ours, else what it writes."""
        if not self.is_from_elsewhere:
            return self.tokenizer.id_to_token(token)
        return self.tokenizer.decode([token], skip_special_tokens=False).strip()


@dataclass(frozen=True, kw_only=True)
class OpenedRun(Opened):
    """A run of train.py."""

    settings: TrainSettings  # it was trained with


def open_run(settings: EvalConfig) -> OpenedRun:
    """Load the best checkpoint of the run that is asked for; ValueError or OSError where it cannot be."""
    from training.run_dir import find_run

    return read_run(find_run(settings.run), place_of(settings))


def place_of(settings: EvalConfig) -> ComputeDevice:
    """Return where to compute, and let torch take as many threads as are asked for."""
    import torch

    from training.device import choose_device
    from training.settings import Precision

    if settings.threads:
        torch.set_num_threads(settings.threads)
    return choose_device(settings.device, Precision.float32)


def read_run(run: Path, place: ComputeDevice) -> OpenedRun:
    """Load a run's best checkpoint onto a device; ValueError or OSError where it cannot be."""
    import sys

    from data.tokenizer import end_id
    from model.transformer import Transformer, load_weights
    from training.checkpoint import load_checkpoint

    trained, config = read_settings(run)
    tokenizer = read_tokenizer(run, config)
    state, damaged = load_checkpoint(run / "checkpoints", best=True)
    for line in damaged:
        print(f"warning: {line}", file=sys.stderr)
    weights, step = learned(run, state)
    check_config(run, config, state)
    model = Transformer(trained.model, tokenizer.get_vocab_size(), seed=0)
    load_weights(model, weights)
    if not all(one.isfinite().all() for one in model.parameters()):
        raise ValueError(f"{run} has weights that are not finite: its training failed, and there is nothing to read")

    def untrained(seed: int) -> Transformer:
        return Transformer(model.config, model.vocab_size, seed=10_000 + seed).to(place.device).eval()

    return OpenedRun(
        run=run,
        origin=origin_of(run, trained, step),
        data=trained.data,
        data_fingerprint=str(config.get("data_fingerprint")),
        tokenizer=tokenizer,
        end=end_id(tokenizer),
        model=model.to(place.device).eval(),
        untrained=untrained,
        place=place.description,
        resumed=tuple(resumed_with(run)),
        settings=trained,
    )


def origin_of(run: Path, trained: TrainSettings, step: int) -> Origin:
    """Return what is said of where a run's model comes from."""
    return Origin(
        name=title(run),
        source=str(run),
        command=again(run),
        shape=asdict(trained.model),
        step=step,
        max_steps=trained.run.max_steps,
        seed=trained.run.seed,
        departures=tuple(
            f"{name}={str(getattr(trained.model, name)).lower()}"
            for name, value in _PLAIN.items()
            if getattr(trained.model, name) != value
        ),
        made_with=None,
    )


def again(run: Path) -> str:
    """Return the command that probes a run."""
    return f"python eval.py {shlex.quote(f'run={run}')}"


def title(run: Path) -> str:
    """Return the name of a run's directory; of one that a sweep has numbered, the sweep's before it."""
    from training.run_dir import RUNS

    folder = run.resolve()
    is_numbered = folder.name.isdecimal() and folder.parent.name not in ("", RUNS.name)
    return f"{folder.parent.name}/{folder.name}" if is_numbered else folder.name


def learned(run: Path, state: Mapping[str, Any]) -> tuple[dict[str, Tensor], int]:
    """Return the weights of a checkpoint and their step; ValueError where it is none of a model."""
    import torch

    weights, step = state.get("model"), state.get("step")
    is_tensors = isinstance(weights, dict) and all(isinstance(one, torch.Tensor) for one in weights.values())
    if not isinstance(weights, dict) or not is_tensors or not isinstance(step, int):
        raise ValueError(f"{run / 'checkpoints'} holds no checkpoint of a model: another version or program wrote it")
    return weights, step


def read_settings(run: Path) -> tuple[TrainSettings, dict[str, Any]]:
    """Return what a run was trained with, typed and as its config.json has it; ValueError names a damaged file."""
    from training.run_dir import read_json

    config = read_json(run / "config.json")
    try:
        return saved_settings(config), config
    except ValueError as error:
        raise ValueError(f"{run / 'config.json'}: {str(error).removeprefix('config.json ')}") from None


def read_tokenizer(run: Path, config: Mapping[str, Any]) -> Tokenizer:
    """Return a run's tokenizer; ValueError where it is not the one that the run was trained with."""
    from hashlib import sha256

    from data.tokenizer import load_tokenizer

    path, known = run / "tokenizer.json", config.get("tokenizer_sha256")
    if not path.is_file():
        raise ValueError(f"{path} is missing: copy it from where the run was made")
    if known is not None and sha256(path.read_bytes()).hexdigest() != known:
        raise ValueError(f"{path} is damaged (its sha256 is not the one recorded): copy it from where the run was made")
    return load_tokenizer(path)


def check_config(run: Path, config: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Raise ValueError where a run's config.json no longer says what its checkpoint was made with."""
    saved = state.get("config", config)  # earlier checkpoints hold none
    with sound(run / "checkpoints", "its checkpoint holds no settings"):
        then, now = ({**flat(saved_settings(one)), **{name: one.get(name) for name in _KNOWN}} for one in (saved, config))
    for name, value in now.items():
        fixed = name in _KNOWN or name.startswith(("model.", "data."))
        if fixed and name not in _MAY_DIFFER and value != then.get(name):
            raise ValueError(
                f"{run / 'config.json'} has been changed: {name} is {value}, but the checkpoint was made with "
                f"{then.get(name)}: put that back"
            )


def resumed_with(run: Path) -> list[str]:
    """Return a sentence for each time that a run went on with other settings or in another environment."""
    from training.run_dir import RESUMES

    path = run / RESUMES
    if not path.exists():
        return []
    with sound(path, "delete it to go without what it says"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        every = [(line["step"], {**line["settings"], **line["environment"]}) for line in lines]
        said = [
            f"At step {step} training went on with "
            + ", ".join(f"{name} {now} instead of {before}" for name, (before, now) in changed.items())
            + "."
            for step, changed in every
            if changed
        ]
    return list(dict.fromkeys(said))


@contextmanager
def sound(path: Path, remedy: str) -> Iterator[None]:
    """Turn what reading a damaged or missing file raises into one line that names it and what helps."""
    try:
        yield
    except FileNotFoundError:
        raise ValueError(f"{path} is missing: {remedy}") from None
    except (ValueError, ArithmeticError, LookupError, TypeError, AttributeError, RecursionError, StopIteration):
        raise ValueError(f"{path} is damaged: {remedy}") from None


def load_data(opened: Opened, settings: EvalConfig) -> Corpus:
    """Return the corpus the run was trained on, or is asked about; ValueError if it is not the same any more."""
    from data.corpus import load_corpus

    corpus = load_corpus(opened.data, Path(settings.cache_dir))
    if corpus.fingerprint != opened.data_fingerprint:
        raise ValueError("the data is no longer what this run was trained on: its text or the generator has changed")
    return corpus
