"""The stories and settings with which a page trains a new model."""

import gzip
from base64 import b64encode
from dataclasses import asdict

from data.loader import StorySplit
from extras.page.shown import LiveTraining
from probe.opened_model import OpenedModel
from probe.opened_run import load_data
from settings.errors import UserError
from settings.train import Optimizer
from training.weight_history import MAX_HISTORY_WEIGHTS

MAX_STORIES = 40_000  # about 690 kB of the page; a run of 700 steps reads each two or three times
_ROWS_SPLIT = 12  # the rows of a batch are shared by one to four workers


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

    # What the kernel multiplies has rows and columns in fours and eights; normal numbers are drawn by sixteen.
    n_rows = run.tokens_per_batch // model.context_length
    fits = model.d_model % 16 == model.d_mlp % 8 == model.context_length % 4 == n_rows % _ROWS_SPLIT == 0 < n_rows
    if not (is_computed and is_plain and fits) or settings.optim.name is not Optimizer.muon:
        return None
    try:
        split = load_data(opened, cache_dir).train
    except (UserError, OSError):  # as of a run of another version of the stories; the rest of its page works
        return None
    if not isinstance(split, StorySplit):
        return None
    n_stories = min(MAX_STORIES, len(split.starts) - 1)
    tokens = split.tokens[: split.starts[n_stories] + 1].astype("<u2")
    return LiveTraining(
        stories=b64encode(gzip.compress(tokens.tobytes(), compresslevel=6, mtime=0)).decode(),
        n_stories=n_stories,
        tokens_per_batch=n_rows * model.context_length,
        max_steps=run.max_steps,
        seed=run.seed,
        optim={**asdict(settings.optim), "name": settings.optim.name.value},
    )
