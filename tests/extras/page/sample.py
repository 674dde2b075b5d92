"""Page contents without a run: the worked examples in a random model, and the findings of an example head."""

from base64 import b64decode
from dataclasses import asdict, replace
from functools import cache
from itertools import cycle
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from data.tokenizer import end_id, word_tokenizer
from extras.page.content import page_content
from extras.page.shown import Live, PageContent
from model.observe import TransformerView
from model.transformer import Transformer, n_parameters
from probe.config import ProbeConfig
from probe.opened_model import OpenedModel
from probe.questions import HEADLINE, QUESTIONS
from probe.results import Criterion, Estimate, Finding, Head, Part, ProbeResults, Shown, Tested, TestedModel
from probe.sentences import TokenizedText, tokenize_text
from settings.model import ModelConfig
from settings.train import compose_settings, to_settings
from settings.typed_json import from_json, to_json
from tests.probe.factories import blank
from tests.tiny_models import random_model
from training.metrics import WeightHistory
from training.weight_history import pack_parameters

N_LAYER, N_HEAD = 2, 4
LINK_HEAD = Head(0, 1)
LAST_STEP = 1200
EXAMPLES = {name: question.examples for name, question in QUESTIONS.items() if question.examples}
MODEL = TestedModel("runs/default", LAST_STEP, "stories")
HOSTILE = (
    "</script><script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    "<!--<script>",
    "\"'><svg onload=window.hacked=1>",
    "{{ script }}{% include 'page.css' %}",
    "<style>@import 'https://example.invalid/y';*{display:none}</style>",
    "<base href=https://example.invalid/><meta http-equiv=refresh content=0;url=https://example.invalid>",
    "a\x00b\x1b[31m\ud800\u2028\u202eoff",
    "w" * 10_000,
)


def unpacked(stored: list[list[list[int]]], n_words: int) -> np.ndarray:
    """Return the weights [L, H, W, W] that a page stores of a sentence."""
    weights = np.zeros((*np.shape(stored)[:2], n_words, n_words))
    weights[..., *np.tril_indices(n_words)] = np.array(stored) / 10_000
    return weights


def finding(name: str, **changes: Any) -> Finding:
    """Return a supported finding of a question, with the link head."""
    question = QUESTIONS[name]
    values = {name: Estimate(0.5, 0.4, 0.6) for name in ("follows", "flips", "author", "edge_effect", "swap")}
    values |= {"accuracy": Estimate(0.9989, 0.969, 0.999), "block_accuracy": Estimate(0.99), "p": Estimate(0.0005)}
    criterion = Criterion("beats_baselines", "E1", {"lead_low": 0.49}, {"lead_low": "above 0"}, "met", "")
    unmet = Criterion("causal_edge", "E3", {"swap": None}, {"swap": "above 0.2"}, "not measured", "Why.")
    tested = Tested([LINK_HEAD], values, [criterion, unmet], "supported", "E3", ["swap not measured"])
    names = ("accuracy", "block_accuracy", "contrast", "p") if question.outcome == "attention" else ("edge_effect", "p")
    grid = np.random.default_rng(1).random((N_LAYER, N_HEAD)).round(4) / 2
    grid[LINK_HEAD] = 0.9989
    passage = Shown(
        kind="typical", text="Anna does not listen to Ben.", query=6, word="", meant=[[1]], other=[[6]],
        weights={"ben": 0.16, "anna": 0.79}, next=[("She", 0.91), ("He", 0.02)],
        exchanged=[("She", 0.23), ("He", 0.55)],
    )  # fmt: skip
    facts: dict[str, Any] = {
        "question": question.name, "description": question.description, "link": question.link,
        "outcome": question.outcome, "unit": "head", "head": tested, "n": 920, "smallest_p": 0.0005,
        "curve": [(LINK_HEAD, 0.98, Estimate(0.99, 0.9, 1.0))], "clusters": {"frames": 28, "one": 60, "two": 80},
        "rules": {"nearest": 0.5}, "untrained": {"accuracy": Estimate(0.4766, 0.4388, 0.519)},
        "grids": dict.fromkeys(names, grid.tolist()), "examples": [passage] if question.outcome == "edge" else [],
        "parts": {part: Part(n=920, values=values, rules={"nearest": 0.5}) for part in ("iid", HEADLINE)},
    }  # fmt: skip
    return Finding(**facts | changes)


def results(*findings: Finding, **changes: Any) -> ProbeResults:
    facts = {"model": MODEL, "settings": ProbeConfig(), "findings": list(findings)}
    return blank(ProbeResults, **facts | changes)


def opened_run() -> tuple[OpenedModel, WeightHistory]:
    """Return a model with random weights that knows the examples' words, and two others as its earlier steps."""
    texts = [example.text for examples in EXAMPLES.values() for example in examples]
    tokenizer = word_tokenizer([*texts, "The dog and the bus slept. She he them"])
    sizes = {"n_layer": N_LAYER, "n_head": N_HEAD, "d_model": 64, "d_mlp": 48, "context_length": 32}
    model, *earlier = [random_model(tokenizer.get_vocab_size(), seed, **sizes) for seed in (1, 2, 3)]
    settings = replace(compose_settings([f"max_steps={LAST_STEP}"]), model=model.config)
    run = blank(
        OpenedModel, name="default", source="runs/default", model=TransformerView(model), untrained=None,
        tokenizer=tokenizer, bos_id=end_id(tokenizer), data=settings.data, shape=asdict(model.config),
        n_parameters=n_parameters(model), environment={"python": "3.11"}, step=LAST_STEP,
        view=None, began=("Its training began with the weights of runs/other.",), settings=settings, transformer=model,
    )  # fmt: skip
    packed = [pack_parameters(each.parameters(), torch.float16) for each in earlier]
    return run, WeightHistory([0, 100], packed)


def model_of(live: dict[str, Any], earlier: str = "") -> TransformerView:
    """Return the model in a page's JSON, with its own weights or those of an earlier step."""
    model = Transformer(to_settings(ModelConfig, live["shape"], "model."), len(live["tokenizer"]["vocabulary"]), 0)
    numbers = np.frombuffer(b64decode(earlier or live["weights"]), "float16" if earlier else live["type"])
    parts = torch.from_numpy(numbers.astype(np.float32)).split([size for _, size in live["parameters"]])
    with torch.no_grad():
        for parameter, part in zip(model.parameters(), parts, strict=True):
            parameter.copy_(part.view_as(parameter))
    return TransformerView(model.eval())


def tokenizer_of(live: dict[str, Any]) -> Tokenizer:
    """Return the tokenizer that a page's JSON holds."""
    described = live["tokenizer"]
    vocabulary = described["vocabulary"]
    ids = {token: i for i, token in enumerate(vocabulary)}
    if described["kind"] == "words":
        tokenizer = Tokenizer(models.WordLevel(ids, unk_token=vocabulary[described["unknown"]]))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    else:
        tokenizer = Tokenizer(models.BPE(ids, [tuple(pair.split(" ")) for pair in described["merges"]]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def read(live: dict[str, Any], text: str) -> TokenizedText:
    """Return the tokens of a text, by the tokenizer that a page's JSON holds."""
    return tokenize_text(tokenizer_of(live), text, live["tokenizer"]["start"])


@cache
def content(live: bool | None = None) -> PageContent:
    """Return the content of a page with findings of both outcomes, both worked examples and a user's sentence.

    `live` False: it has no model, but the weights of its sentences.
    """
    run, history = opened_run()
    number, cue = (
        finding(name, examples=[run.measure_example(example, LINK_HEAD) for example in examples])
        for name, examples in EXAMPLES.items()
    )
    suggestive = replace(cue, head=replace(cue.head, verdict="suggestive", level="E1"))
    found = results(number, suggestive, finding("next_pronoun_gender"))
    texts = ["The fox thanked the hen because it was kind."]
    return replace(page_content(run, found, history, texts, ["A note on top."], live), omissions=["much"])


def hostile() -> PageContent:
    """Return the content whose free texts and last tokens are strings that try to become markup or a script."""
    texts = cycle(HOSTILE)
    names = {"id", "place", "weights", "live", "kind"}  # what the script reads as names and numbers

    def attack(value: Any, key: str = "") -> Any:
        if key in names:
            return value
        if isinstance(value, dict):
            return {name: attack(inner, name) for name, inner in value.items()}
        if isinstance(value, list):
            return [attack(inner, key) for inner in value]
        return next(texts) if isinstance(value, str) else value

    shown = from_json(PageContent, attack(to_json(content())), "hostile")
    vocabulary = [*shown.live.model.tokenizer.vocabulary[:-4], *HOSTILE[:4]]
    tokenizer = replace(shown.live.model.tokenizer, vocabulary=vocabulary)
    return replace(shown, live=Live(replace(shown.live.model, tokenizer=tokenizer, source=HOSTILE[0]), ""))
