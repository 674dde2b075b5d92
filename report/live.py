"""The live model of the report page: the weights and the tokenizer with which its script runs it."""

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from tokenizers import Tokenizer

from data.stories.lexicon import REFERENTS
from probe.opened_model import OpenedModel
from probe.questions import QUESTIONS, STORY_QUESTIONS
from probe.results import ProbeResults
from settings.errors import UserError
from training.weight_history import MAX_HISTORY_WEIGHTS, WeightHistory, pack_parameters

MAX_LIVE_WEIGHTS = 3_000_000  # 8 MB as base64 of float16
MAX_WEIGHTS_BY_DEFAULT = 1_000_000  # a larger model is in the page only with live=true
MAX_HISTORY_CHARACTERS = 3_500_000  # base64 of the weights at earlier steps

# The frame in which models of the long recipe lead to the first person most often: tests/report/test_example_reports.py
ENGLISH_TEXT = "Anna was angry at Ben."


@dataclass(frozen=True, slots=True)
class LiveTokenizer:
    """A tokenizer that the page's script can run."""

    kind: str  # "words", "characters" or "bpe"
    vocabulary: list[str]  # by id
    merges: list[str]  # of "bpe": "left right", in the order in which they were learned
    start: int  # the token before every text
    unknown: int | None


@dataclass(frozen=True, slots=True)
class VerbGroup:
    """Words of the stories, and the verbs that only they have."""

    words: list[str]
    verbs: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveModel:
    """A model that the page's script runs."""

    source: str  # the run's directory, for the Python that the page shows
    step: int
    shape: dict[str, Any]  # the settings of the model
    parameters: list[tuple[str, int]]  # name and size, in the order of the weights
    type: str  # number format of the weights: "float32" or "float16"
    weights: str  # base64
    earlier: WeightHistory  # float16
    tokenizer: LiveTokenizer
    text: str  # the sentence that the page begins with
    verb_groups: list[VerbGroup]  # empty: not of stories
    before: str = ""  # the run whose weights are `earlier`, in the page of a comparison


@dataclass(frozen=True, slots=True)
class Live:
    """The live model, or the reason why the page has none."""

    model: LiveModel | None
    reason: str


def live_content(
    opened: OpenedModel,
    results: ProbeResults | None,
    history: WeightHistory | None,
    wanted: bool | None,
    omissions: list[str],
) -> Live:
    """Return the live model of the page, if the page can run it and the user wants it.

    `wanted` None: if it is small. The page begins with an example of the first finding.
    """
    if wanted is False:
        return Live(None, "")
    reason = _obstacle(opened)
    model = opened.transformer
    if reason or model is None:
        return Live(None, f"No live model: {reason}.")
    if wanted is None and opened.n_parameters > MAX_WEIGHTS_BY_DEFAULT:
        megabytes = opened.n_parameters * 8 / 3 / 1e6
        remedy = f"eval.py run={opened.source} live=true writes it, about {megabytes:.0f} MB larger"
        return Live(None, f"No live model in this file: {remedy}.")

    # A sentence to begin with: a tested one of an own question, else one of the stories or an English one
    finding = results.findings[0] if results and results.findings else None
    text = STORY_QUESTIONS[0].examples[0].text if opened.has_stories else ENGLISH_TEXT
    if finding and finding.examples and finding.question not in QUESTIONS:
        shown = min(finding.examples, key=lambda example: len(example.text))
        text = shown.text.rstrip()
        if not shown.next:
            text = text[: opened.tokenize(shown.text).spans[shown.query - 1][1]]

    # Small models are exact; half the digits make larger ones half as long.
    is_small = opened.n_parameters <= MAX_HISTORY_WEIGHTS
    shown_model = LiveModel(
        source=opened.source,
        step=opened.step,
        shape=dict(opened.shape),
        parameters=[(name, parameter.numel()) for name, parameter in model.named_parameters()],
        type="float32" if is_small else "float16",
        weights=pack_parameters(model, torch.float32 if is_small else torch.float16),
        earlier=_thinned(history, opened.step, omissions),
        tokenizer=live_tokenizer(opened.tokenizer, opened.bos_id),
        text=text,
        verb_groups=_verb_groups() if opened.has_stories else [],
    )
    return Live(shown_model, "")


def _verb_groups() -> list[VerbGroup]:
    by_verbs: dict[tuple[str, ...], list[str]] = {}
    for word, referent in REFERENTS.items():
        by_verbs.setdefault(referent.verbs, []).append(word)
    return [VerbGroup(words, list(verbs)) for verbs, words in by_verbs.items()]


def check_live(opened: OpenedModel, wanted: bool | None) -> None:
    """Raise UserError if the page must have a live model (`wanted`) but cannot."""
    reason = _obstacle(opened) if wanted else ""
    if reason:
        raise UserError(f"live=true: {reason}")


def _obstacle(opened: OpenedModel) -> str:
    """Return why the page cannot run a model, "" if it can."""
    if opened.transformer is None:
        return "the page runs models of train.py only, and this one was trained elsewhere"
    if opened.n_parameters > MAX_LIVE_WEIGHTS:
        limit = f"up to {MAX_LIVE_WEIGHTS:,} weights"
        return f"the page runs models of {limit}, and this one has {opened.n_parameters:,}"
    return ""


def live_tokenizer(tokenizer: Tokenizer, start: int) -> LiveTokenizer:
    """Return what the page needs to run a tokenizer of data/tokenizer.py."""
    content = json.loads(tokenizer.to_str())
    model = content["model"]
    kinds = {"Whitespace": "words", "Split": "characters", "ByteLevel": "bpe"}
    kind = kinds[content["pre_tokenizer"]["type"]]
    ids = tokenizer.get_vocab()
    vocabulary = sorted(ids, key=lambda token: ids[token])
    merges = list(map(" ".join, model.get("merges", ())))
    return LiveTokenizer(kind, vocabulary, merges, start, ids.get(model.get("unk_token")))


def _thinned(history: WeightHistory | None, last: int, omissions: list[str]) -> WeightHistory:
    """Return the weights at steps other than `last`; without room, those close to another go."""
    if history is None:
        return WeightHistory([], [])
    chosen = [i for i, step in enumerate(history.steps) if step != last]
    room = MAX_HISTORY_CHARACTERS // len(history.data[0])
    if len(chosen) > room:
        left_out = f"{len(chosen) - room} of {len(chosen)} steps"
        omissions.append(f"the weights at {left_out} of training, for their size")
    while len(chosen) > room:  # the first steps are close together, and no link has appeared yet
        gaps = [history.steps[after] - history.steps[before] for before, after in pairwise(chosen[:-1])]
        del chosen[1 + gaps.index(min(gaps))]
    return WeightHistory([history.steps[i] for i in chosen], [history.data[i] for i in chosen])
