"""The stories and settings with which a page trains a new model, and the sentences that show how well its heads do."""

import gzip
import json
from base64 import b64encode
from dataclasses import asdict
from typing import Any

import numpy as np

from data.loader import StorySplit
from data.pairs import Items
from extras.page.shown import LiveTraining
from probe.emergence import watched_stories
from probe.opened_model import OpenedModel
from probe.opened_run import load_data
from settings.errors import UserError
from settings.train import Optimizer
from training.optim import COEFFICIENTS, MARGIN
from training.run_dir import run_config
from training.weight_history import MAX_HISTORY_WEIGHTS

MAX_STORIES = 38_000  # about 660 kB of the page; a run of 700 steps reads each two or three times


def training_of(opened: OpenedModel, cache_dir: str) -> LiveTraining | None:
    """Return what a page needs to train the model of a run on its stories; None if the page cannot.

    It cannot if its scripts lack a switch of the model, or the stories of the run cannot be read or generated again.
    """
    settings = opened.settings
    if settings is None or not opened.has_stories or opened.n_parameters > MAX_HISTORY_WEIGHTS:
        return None
    model, run = settings.model, settings.run
    is_computed = model.weighting == "softmax" and model.position in ("rope", "none")
    is_plain = not (model.tie_query_key or model.tie_key_value or model.dropout)

    # The kernel multiplies sixteen columns at a time.
    fits = not any(width % 16 for width in (model.d_mlp, model.context_length, model.d_model // model.n_head))
    n_rows = run.tokens_per_batch // model.context_length
    if not (is_computed and is_plain and fits and n_rows) or settings.optim.name is not Optimizer.muon:
        return None
    try:
        corpus = load_data(opened, cache_dir)
    except (UserError, OSError):  # as of a run of another version of the stories; the rest of its page works
        return None
    split, validation = corpus.train, corpus.validation
    if not (isinstance(split, StorySplit) and isinstance(validation, StorySplit) and validation.floor is not None):
        return None
    n_stories = min(MAX_STORIES, len(split.starts) - 1)
    tokens = split.tokens[: split.starts[n_stories] + 1].astype("<u2")
    tokenizer = opened.tokenizer.to_str(pretty=True)
    file = {"config": run_config(settings, tokenizer.encode(), opened.data_fingerprint), "tokenizer": tokenizer}
    watched = watched_stories(corpus, run.probe_sequences)
    optim = {**asdict(settings.optim), "name": settings.optim.name.value}
    return LiveTraining(
        stories=_packed(tokens.tobytes()),
        n_stories=n_stories,
        tokens_per_batch=n_rows * model.context_length,
        max_steps=run.max_steps,
        seed=run.seed,
        optim={**optim, "coefficients": COEFFICIENTS, "margin": MARGIN},
        questions=[_watched_question(question.name, items) for question, items in watched.items()],
        floor=float(np.mean(validation.floor[1:])),
        file=_packed(json.dumps(file).encode()),
    )


def _packed(content: bytes) -> str:
    return b64encode(gzip.compress(content, compresslevel=6, mtime=0)).decode()


def _watched_question(name: str, items: Items) -> dict[str, Any]:
    """Return the texts of a question up to its query, and the clusters of each block."""
    texts = [
        {
            "tokens": cell.tokens,
            "meant": cell.meant,
            "other": cell.other + cell.bystanders,
            "answers": cell.answers,
            "foils": cell.foils + cell.more_foils,
        }
        for cell in items.cells
    ]
    clusterings = []
    for labels in items.clusterings(len(items) // 2):
        numbers = np.unique(labels, return_inverse=True)[1].reshape(len(labels), -1)
        clusterings.append(numbers.tolist())
    return {"name": name, "items": texts, "clusterings": clusterings}
