"""The live model of the report page: the weights and the tokenizer with which its script runs it."""

import json
from bisect import bisect_left
from dataclasses import asdict

import numpy as np
import torch
from tokenizers import Tokenizer, pre_tokenizers
from torch import Tensor

from data.stories.lexicon import REFERENTS
from data.tokenizer import tokenizer_kind
from extras.page.shown import Live, LiveModel, LiveTokenizer, LiveTraining
from probe.opened_model import OpenedModel
from probe.results import ProbeResults
from settings.errors import UserError
from settings.model import ModelConfig
from training.metrics import WeightHistory
from training.weight_history import HISTORY_FILE, MAX_HISTORY_WEIGHTS, load_weight_history, pack_parameters

MAX_LIVE_WEIGHTS = 3_000_000  # 8 MB as base64 of float16
MAX_WEIGHTS_BY_DEFAULT = 1_000_000  # a larger model is in the page only with live=true
MAX_HISTORY_CHARACTERS = 3_500_000  # base64 of the weights at earlier steps

# Sentences to begin with, short enough for one line of a phone
STORY_TEXT = "The cat frightened the dog because it"
ENGLISH_TEXT = "Anna was angry at Ben."  # the model of docs/report_english.html expects the first person's pronoun


def live_content(
    opened: OpenedModel,
    results: ProbeResults | None,
    history: WeightHistory | None,
    wanted: bool | None,
    omissions: list[str],
    training: LiveTraining | None = None,
) -> Live:
    """Return the live model of the page, if the page can run it and the user wants it.

    `wanted` None: if it is small. The page begins with an example of the first finding, and can train a
    new model if it has `training`.
    """
    if wanted is False:
        return Live(None, "")
    try:
        config, weights = _shape_and_weights(opened)
        tokenizer = live_tokenizer(opened.tokenizer, opened.bos_id, opened.model.vocab_size)
    except UserError as reason:
        return Live(None, f"No live model: {reason}.")
    sizes = [(name, weight.numel()) for name, weight in weights.items()]
    n_weights = sum(size for _, size in sizes)
    if wanted is None and n_weights > MAX_WEIGHTS_BY_DEFAULT:
        larger = f"about {n_weights * 8 / 3e6:.0f} MB larger"
        return Live(None, f"No live model in this file: eval.py ... live=true writes it, {larger}.")

    # A sentence to begin with: a tested one of an own question, else one of the stories or an English one
    finding = results.findings[0] if results and results.findings else None
    text = STORY_TEXT if opened.has_stories else ENGLISH_TEXT
    if finding and finding.examples and finding.file:
        shown = min(finding.examples, key=lambda example: len(example.text))
        text = shown.text.rstrip()
        if not shown.next:
            text = text[: opened.tokenize(shown.text).spans[shown.query - 1][1]]

    # Small models are exact; half the digits make larger ones half as long.
    is_small = n_weights <= MAX_HISTORY_WEIGHTS
    shown_model = LiveModel(
        source=opened.source,
        step=opened.step,
        shape=asdict(config),
        parameters=sizes,
        type="float32" if is_small else "float16",
        weights=pack_parameters(weights.values(), torch.float32 if is_small else torch.float16),
        earlier=_thinned(history, opened.step, omissions),
        tokenizer=tokenizer,
        text=text,
        verb_groups=_verb_groups() if opened.has_stories else [],
        chosen_tokenizer=opened.shape.get("tokenizer"),
        training=training,
    )
    return Live(shown_model, "")


def _verb_groups() -> list[dict[str, list[str]]]:
    by_verbs: dict[tuple[str, ...], list[str]] = {}
    for word, referent in REFERENTS.items():
        by_verbs.setdefault(referent.verbs, []).append(word)
    return [{"words": words, "verbs": list(verbs)} for verbs, words in by_verbs.items()]


def check_live(opened: OpenedModel, wanted: bool | None) -> None:
    """Raise UserError if the page must have a live model (`wanted`) but cannot."""
    if wanted and (reason := live_content(opened, None, None, True, []).reason):
        raise UserError(f"live=true: {reason}")


def _shape_and_weights(opened: OpenedModel) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Return shape and weights of the model in the page; UserError says why the page cannot run it."""
    if opened.n_parameters > MAX_LIVE_WEIGHTS:
        limit = f"up to {MAX_LIVE_WEIGHTS:,} weights"
        raise UserError(f"the page runs models of {limit}, and this one has {opened.n_parameters:,}")
    model = opened.transformer
    if model is not None:
        return model.config, dict(model.named_parameters())
    if opened.as_ours is None:
        raise UserError("only models of train.py and Llamas of transformers can be run")
    return opened.as_ours()


def live_tokenizer(tokenizer: Tokenizer, start: int, n_tokens: int) -> LiveTokenizer:
    """Return what the page needs to run the tokenizer of a model with `n_tokens`; UserError if it cannot."""
    model = json.loads(tokenizer.to_str())["model"]
    kind, space = tokenizer_kind(tokenizer)
    ids = tokenizer.get_vocab()

    # Every text must be tokens of the model.
    needed = [model["unk_token"]]
    if space:
        needed = [space, *(f"<0x{byte:02X}>" for byte in range(256))]
    elif kind == "bpe":
        needed = pre_tokenizers.ByteLevel.alphabet()
    if not ids.keys() >= set(needed) or max(ids.values()) >= n_tokens:
        raise UserError("its tokenizer cannot write every text in tokens of the model")

    vocabulary = [tokenizer.id_to_token(i) or "" for i in range(n_tokens)]
    merges = []
    for left, right in model.get("merges", ()):
        merges.append(f"{ids[left]} {ids[right]}" if space else f"{left} {right}")
    unknown = ids.get(model["unk_token"])
    return LiveTokenizer(kind, vocabulary, merges, start, unknown, space)


def read_history(opened: OpenedModel) -> WeightHistory | None:
    """Return the weights of a run during training; None if it has none."""
    return load_weight_history(opened.folder / HISTORY_FILE, opened.n_parameters)


def _thinned(history: WeightHistory | None, last: int, omissions: list[str]) -> WeightHistory:
    """Return the weights at steps before `last`; without room, those close to another go."""
    if history is None:
        return WeightHistory([], [])
    n_steps = bisect_left(history.steps, last)
    steps, data = history.steps[:n_steps], history.data[:n_steps]
    room = MAX_HISTORY_CHARACTERS // len(history.data[0])
    if n_steps > room:
        omissions.append(f"the weights at {n_steps - room} of {n_steps} steps of training, for their size")
    while len(steps) > room:  # the first steps are close together, and no link has appeared yet
        place = 1 + int(np.diff(steps[:-1]).argmin())
        del steps[place], data[place]
    return WeightHistory(steps, data)
