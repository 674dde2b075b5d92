"""python eval.py model=: a model from elsewhere, opened so that it is asked all that a run is asked."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.open import Opened, Origin, place_of

if TYPE_CHECKING:
    from data.config import DataConfig
    from data.links import LinkItem
    from model.imported import Imported
    from training.settings import EvalConfig

PROBES = Path("probes")  # beside runs/: nothing is written where a model comes from


_SHAPE = "model_type n_layer n_head n_key_value_head d_model d_head context_length".split()


def open_model(settings: EvalConfig, asked: str, data: DataConfig) -> Opened:
    """Load a model of transformers with its tokenizer, to be asked about the stories of `data`.

    Args:
        settings: of eval.py.
        asked: a folder, or a model's name on the hub.
        data: the stories' settings.

    Raises:
        ValueError: in one line, why it cannot be opened.
        OSError: it cannot be had.

    """
    from data.config import StoriesConfig
    from data.corpus import corpus_fingerprint
    from data.tokenizer import imported_tokenizer
    from model.imported import check_installed, load, sha256_of, weights_of

    assert isinstance(data, StoriesConfig)  # what train.py does without being told anything
    check_installed()
    folder, commit = find_model(asked)
    name = asked if commit else name_of(folder)
    out = Path(settings.out) if settings.out is not None else PROBES / name.replace("/", "--")
    owner = asked if commit else str(folder.resolve())
    check_out(out, owner)
    place = place_of(settings)
    model = load(folder, asked, place.device)
    tokenizer, first = imported_tokenizer(folder, asked)
    if first >= model.vocab_size:
        raise ValueError(f"{asked}: its tokenizer begins a text with token {first}, and the model knows none of it")
    others = sorted(one for one in folder.iterdir() if one.suffix in (".json", ".txt", ".model"))
    known = {"sha256": sha256_of([*weights_of(folder), *others]), "commit": commit}  # settings and tokenizer too
    opened = Opened(
        run=out,
        owner=owner,
        origin=_origin(model, asked, name, settings.out, known),
        data=data,
        data_fingerprint=corpus_fingerprint(data),
        tokenizer=tokenizer,
        end=first,
        model=model,
        untrained=lambda seed: model.untrained(10_000 + seed),
        place=place.description,
    )
    check_readable(opened)
    return opened


def check_readable(opened: Opened) -> None:
    """Raise ValueError, in one line, where the attention that is observed of a model is not what it uses.

    Asked of a row of its tokens, before anything is made or said; of the stories' items the probe asks it once more.
    """
    import torch

    from model.observe import TransformerView
    from probe.contract import check_observed

    length = min(opened.model.config.context_length, 32)
    tokens = torch.linspace(0, opened.model.vocab_size - 1, length).long()
    try:
        check_observed(TransformerView(opened.model), tokens[None], torch.tensor([[length // 2]]))
    except ValueError as error:
        raise ValueError(f"{opened.origin.source}: {error}") from None


def _origin(model: Imported, asked: str, name: str, out: str | None, known: dict[str, Any]) -> Origin:
    """Return what is said of where a model comes from, and nothing of what only its maker knows."""
    from importlib.metadata import version

    kept = [f"out={out}"] if out is not None else []
    with_version = known | {"transformers": version("transformers")}
    shape = {"source": "transformers", "name": name} | {one: getattr(model.config, one) for one in _SHAPE}
    return Origin(
        name=name,
        source=asked,
        command=shlex.join(["python", "eval.py", f"model={asked}", *kept]),
        shape=shape | {"vocab_size": model.vocab_size} | with_version,
        step=0,
        max_steps=None,
        seed=None,
        departures=model.departures,
        made_with={"model": asked, "type": model.config.model_type, **with_version},
    )


def find_model(asked: str) -> tuple[Path, str | None]:
    """Return a model's folder and, of one of the hub, its commit; ValueError or OSError where there is none."""
    from huggingface_hub import HfApi, snapshot_download

    path = Path(asked)
    if path.is_dir():
        return path, None
    if path.exists():
        raise ValueError(f"model={asked} is a file: a folder is meant, as transformers writes it, or a name on the hub")
    if asked.startswith((".", "/", "~")):
        raise ValueError(f"model={asked}: there is no such folder")
    try:
        info = HfApi().model_info(asked, timeout=3)
        names = [file.rfilename for file in info.siblings or []]
        weights = "*.safetensors" if any(name.endswith(".safetensors") for name in names) else "pytorch_model*.bin"
        files = ["*.json", "*.txt", "*.model", weights]
        return Path(snapshot_download(asked, revision=info.sha, allow_patterns=files)), info.sha
    except Exception as error:  # no network, no such model, no access
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"model={asked}: neither a folder nor a model that the hub gives us: {reason}") from None


def name_of(folder: Path) -> str:
    """Return what to call a model: its folder's name, and of a run's export the run's."""
    whole = folder.resolve()
    return whole.parent.parent.name if (whole.parent.name, whole.name) == ("export", "hf") else whole.name


def check_out(out: Path, owner: str) -> None:
    """Raise ValueError where `out` is no folder, a run's or that of runs, or holds what was found of another model."""
    from report.reporting import OWNER
    from training.run_dir import RUNS, read_json

    if (out / "config.json").exists() or out.resolve() == RUNS.resolve():
        raise ValueError(f"out={out} holds a run, runs or a model: choose a folder of its own")
    if not (there := next(one for one in (out, *out.absolute().parents) if one.exists())).is_dir():
        raise ValueError(f"out={out}: {there} is a file and no folder")
    path = out / OWNER
    try:
        other = read_json(path)["model"] if path.exists() else owner
    except (ValueError, TypeError, KeyError):
        return  # damaged: it is written anew
    if other != owner:
        raise ValueError(f"{out} holds what was found of {other}: give another out=DIR")


def check_items(opened: Opened, items: Sequence[LinkItem], n_payoffs: int) -> list[str]:
    """Return what is to be known of the stories in the tokens of a model from elsewhere.

    Args:
        opened: the model.
        items: all that it is asked.
        n_payoffs: how many of them have a payoff in words.

    Raises:
        ValueError: in one line, that it cannot read them.

    """
    from data.tokenizer import unknown_id

    longest, limit = 1 + max(len(item.tokens) for item in items), opened.model.config.context_length
    if longest > limit:
        raise ValueError(f"{opened.origin.source} reads {limit} tokens; the stories take up to {longest} of its own")
    every = {token for item in items for token in (*item.tokens, *item.answers, *item.foils)}
    if max(every) >= opened.model.vocab_size:
        raise ValueError(f"{opened.origin.source}: its tokenizer writes token {max(every)}, which the model lacks")
    notes = [
        "What it was trained on is not known here: a hold-out has nouns or frames other than its head was chosen on, "
        "and says nothing of its training."
    ]
    unknown = unknown_id(opened.tokenizer)
    tokens = [token for item in items for token in item.tokens]
    if n_unknown := sum(token == unknown for token in tokens):
        share = 100 * n_unknown / len(tokens)
        notes.append(f"Its tokenizer has no token for {share:.1f} % of what the stories' words are made of.")
    if n_lost := n_payoffs - sum(item.payoff is not None for item in items):
        notes.append(
            f"In {n_lost:,} of {n_payoffs:,} items what could come next begins alike in its tokens, so that the "
            "model's answer is not asked there."
        )
    return notes
