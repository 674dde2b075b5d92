"""Page contents without a run: the worked examples with random attention, in which example head learns to link."""

from base64 import b64decode
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from itertools import cycle
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import torch

from data.tokenizer import end_id, word_tokenizer
from data.words import word_spans
from probe.results import (
    CausalResult,
    ControlHeads,
    Criterion,
    HeadSet,
    HeadTable,
    HoldoutResult,
    QuestionResult,
    RuleScores,
    SetStep,
    SimilarHead,
    UntrainedScores,
)
from probe.sentences import SHOWCASE, START, Example, TokenizedText, pack_weights
from report.live import Live, LiveModel, live_tokenizer, plain_shape
from report.page import PageClaim, PageContent, PageModel, PageQuestion, PageSentence
from report.tables import Table
from tests.tiny_models import random_model
from training.weight_history import pack_parameters

N_LAYER, N_HEAD = 2, 4
LINK_HEAD = (0, 1)
STEPS = [0, 1, 2, 4, 8, 16, *range(100, 1201, 100)]
HOSTILE = (
    "</script><script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    "<!--<script>",
    "\"'><svg onload=window.hacked=1>",
    "{{script}}",
    "<style>@import 'https://example.invalid/y';*{display:none}</style>",
    "<base href=https://example.invalid/><meta http-equiv=refresh content=0;url=https://example.invalid>",
    "a\x00b\x1b[31m\ud800\u2028\u202eoff",
    "w" * 10_000,
)


def filled(kind: Any, **changes: Any) -> Any:
    """Return a value of a type; a dataclass has a value in every field, those of `changes` instead where given."""
    arguments = [argument for argument in get_args(kind) if argument is not NoneType]
    if get_origin(kind) in (list, tuple):
        return get_origin(kind)(map(filled, arguments))
    if get_origin(kind) is dict:
        return {"name": filled(arguments[1])}
    if arguments:  # X | None
        return filled(arguments[0])
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        missing = [part.name for part in fields(kind) if part.name not in changes]
        return kind(**{name: filled(hints[name]) for name in missing}, **changes)
    if hasattr(kind, "_fields"):  # a NamedTuple
        return kind(*map(filled, get_type_hints(kind).values()))
    if issubclass(kind, Enum):
        return next(iter(kind))
    return {int: 100, float: 0.5, str: "text", bool: True, Any: "value"}[kind]


def tokenized(text: str) -> TokenizedText:
    """Tokenize a text into its words."""
    spans = [span for _, span in word_spans(text)]
    return TokenizedText(text, list(range(len(spans) + 1)), spans, spans)


def attention(n_words: int, query: int | None = None, target: int = 0, strength: float = 1.0) -> np.ndarray:
    """Return causal weights [L, H, W, W]; from `query` the link head attends to `target` with growing `strength`."""
    scores = np.random.default_rng(n_words).normal(size=(N_LAYER, N_HEAD, n_words, n_words))
    if query is not None:
        scores[(*LINK_HEAD, query, target)] += 8 * strength
    scores[..., ~np.tri(n_words, dtype=bool)] = -np.inf
    weights = np.exp(scores)
    return weights / weights.sum(axis=-1, keepdims=True)


def unpacked(data: str, shape: tuple[int, int, int]) -> np.ndarray:
    """Return the weights [L, H, W, W] that `pack_weights` packed; shape: (L, H, W)."""
    n_layer, n_head, n_words = shape
    weights = np.zeros((n_layer, n_head, n_words, n_words))
    rows, columns = np.tril_indices(n_words)
    weights[..., rows, columns] = np.frombuffer(b64decode(data), "<u2").reshape(n_layer, n_head, -1) / 65535
    return weights


def positions(example: Example) -> list[int]:
    """Return the words of query, antecedent and distractor."""
    words = tokenized(example.text).words
    return [words.index(word) for word in (example.query, example.antecedent, example.distractor)]


def sentence(name: str, group: str, text: str, example: Example | None = None) -> PageSentence:
    """Return a sentence with random attention, in which the link head of an example has learned to link."""
    words = tokenized(text).words
    query = positions(example) if example else []
    return PageSentence(
        id=name,
        group=group,
        title=f"Sentence {name}.",
        text=text,
        words=words,
        query=query[:1],
        antecedents=query[1:2],
        distractors=query[2:],
        notes=[] if example else ["A note."],
        next=[("pounced", 0.31), ("purred", 0.22)],
        weights=pack_weights(attention(len(words), *query[:2])),
    )


def heads(seed: int, centre: float, link: float) -> list[list[float]]:
    """Return a score [L][H] near `centre`, and `link` for the link head."""
    values = centre + 0.04 * np.random.default_rng(seed).normal(size=(N_LAYER, N_HEAD))
    values[LINK_HEAD] = link
    return values.round(4).tolist()


def holdout(accuracy: float) -> HoldoutResult:
    """Return the scores of the link head on a hold-out."""
    return filled(
        HoldoutResult,
        n_items=920,
        accuracy=accuracy,
        accuracy_interval=(accuracy - 0.03, accuracy),
        p_corrected=0.0005,
        baselines={
            "nearest": filled(RuleScores, accuracy=0.5),
            "agreement sieve": filled(RuleScores, accuracy=1.0),
        },
        untrained=filled(UntrainedScores, n_models=2, accuracy=0.4766, accuracy_range=(0.4388, 0.519)),
    )


def question_result(name: str, verdict: str) -> QuestionResult:
    """Return the result of a question, with the link head."""
    accuracy = 0.9989 if verdict == "supported" else 0.62
    return filled(
        QuestionResult,
        question=name,
        family="agreement" if name == "number" else "later_cue",
        site="pronoun",
        layer=LINK_HEAD[0],
        head=LINK_HEAD[1],
        test={name: holdout(accuracy) for name in ("iid", "headline")},
        heads=filled(
            HeadTable,
            accuracy=heads(1, 0.5, accuracy),
            block_accuracy=heads(2, 0.18, accuracy),
            pronoun_contrast=heads(3, 0, 1.6715),
        ),
        similar=[SimilarHead(1, 2, 0.81)],
        causal=filled(
            CausalResult,
            attention_swap=0.9891,
            distractor_edge_ablation=-0.2,
            controls=ControlHeads([0, 2, 3], [0.01, -0.2, float("nan")]),
        ),
        head_set=filled(HeadSet, attention_swap=0.99, curve=[SetStep(0, 1, 0.98, 0.99)]),
        verdict=verdict,
        evidence_level="E3",
        reasons=["attention swap not measured; required: above 0.2"],
        criteria=[
            Criterion("beats_baselines", {"lead_low": 0.49}, {"lead_low": 0.0}, True, "met", ""),
            Criterion("causal_edge", {"attention_swap": None}, {"attention_swap": 0.2}, False, "not measured", "Why."),
        ],
    )


def question(name: str, verdict: str) -> PageQuestion:
    """Return what the page holds of a question."""
    result = question_result(name, verdict)
    return PageQuestion(
        result=result,
        description='"it" or "they", read at the pronoun',
        claim=f"Attention head {result.place} links a pronoun to its antecedent. It is right in 99.9 %.",
        does_not_show=["understanding"],
        holdout="headline",
        ablation="import torch\nedit = None",
        heads={
            "accuracy": result.heads.accuracy,
            "block_accuracy": result.heads.block_accuracy,
            "pronoun_contrast": result.heads.pronoun_contrast,
            "p": heads(4, 0.7, 0.0005),
        },
        sentences=[f"{name}-{i}" for i, _ in enumerate(SHOWCASE[name], 1)],
    )


def training() -> dict[str, Any]:
    """Return curves in which the link head appears around step 600."""
    rise = [float(1 / (1 + np.exp(-(step - 600) / 80))) for step in STEPS]
    curves = {
        "accuracy": [heads(i, 0.5, 0.5 + 0.49 * share) for i, share in enumerate(rise)],
        "pronoun_contrast": [heads(i, 0, 1.7 * share) for i, share in enumerate(rise)],
        "chance_level": [0.65] * len(STEPS),
        "resolved_share": [-6 * (1 - share) + share for share in rise],
    }
    return {
        "steps": STEPS,
        "curves": {
            "number": curves | {"answer_accuracy": rise},
            "later_cue": curves | {"resolved_share": None, "answer_accuracy": rise},
        },
        "natural": [
            {
                "question": "gender",
                "contrast": curves["pronoun_contrast"],
                "chosen": [
                    {"target": "matching entity", "layer": 0, "head": 1},
                    {"target": "other entity", "layer": 1, "head": 0},
                ],
            }
        ],
        "next_pronoun": [
            {
                "question": "gender",
                "layer": 1,
                "head": 0,
                "share": curves["accuracy"],
                "follows_twin": rise,
                "margin": rise,
            }
        ],
        "loss": {"steps": [0, 600, 1200], "validation": [6.5, 1.2, 1.09], "floor": [1.06] * 3},
    }


def live_model() -> LiveModel:
    """Return a model with random weights that knows the examples' words, and two others as its earlier steps."""
    texts = [example.text for examples in SHOWCASE.values() for example in examples]
    tokenizer = word_tokenizer([*texts, "The dog and the bus slept. She he them"])
    sizes = {"n_layer": N_LAYER, "n_head": N_HEAD, "d_model": 32, "d_mlp": 48, "context_length": 24}
    models = [random_model(tokenizer.get_vocab_size(), seed, **sizes) for seed in (1, 2, 3)]
    described = live_tokenizer(tokenizer, end_id(tokenizer))
    assert described is not None
    return LiveModel(
        source="runs/default",
        step=STEPS[-1],
        shape=plain_shape(models[0].config),
        parameters=[(name, parameter.numel()) for name, parameter in models[0].named_parameters()],
        type="float32",
        weights=pack_parameters(models[0], torch.float32),
        rounding="",
        earlier_steps=[STEPS[0], STEPS[6]],
        earlier=[pack_parameters(model, torch.float16) for model in models[1:]],
        tokenizer=described,
        start_name=START,
        text=texts[0],
        head=None,
        pair=[],
    )


def live_content() -> PageContent:
    """Return the content of a page with a live model."""
    return replace(content(), live=Live(live_model(), ""))


def content(texts: tuple[str, ...] = ("The fox thanked the hen because it was kind.",)) -> PageContent:
    """Return the content of a page with two questions, both worked examples and the user's sentences."""
    curves = training()
    sentences = []
    for group, examples in SHOWCASE.items():
        for i, example in enumerate(examples, 1):
            sentences.append(sentence(f"{group}-{i}", group, example.text, example))
    sentences += [sentence(f"yours-{i}", "yours", text) for i, text in enumerate(texts, 1)]
    return PageContent(
        run=PageModel(
            name="default",
            step="step 1,200",
            facts="2 layers",
            n_layer=N_LAYER,
            n_head=N_HEAD,
            environment={"python": "3.11"},
            commands=["python train.py", "python eval.py"],
        ),
        notes=["A note on top."],
        max_p=0.01,
        questions=[question("number", "supported"), question("later_cue", "suggestive")],
        sentences=sentences,
        training=curves,
        next_pronoun=[PageClaim("supported", "Attention head L1H0 decides. It is she or he.")],
        natural=[("suggestive", "Head L1H0 may turn to the antecedent. Contrast 0.4, corrected p 0.0010.")],
        tables=[Table("Answers", ["question", "items"], [["number", "560"]])],
        resumed=["Resumed at step 240 with optim.learning_rate 0.01 (before: 0.02)."],
        omissions=[],
    )


def without_probe() -> PageContent:
    """Return the content of a run whose heads were not tested."""
    page = content()
    yours = [shown for shown in page.sentences if shown.group == "yours"]
    return replace(page, questions=[], next_pronoun=[], natural=[], sentences=yours, training=None, tables=[])


def hostile() -> PageContent:
    """Return the content with every free text replaced by a string that tries to become markup or a script."""
    texts = cycle(HOSTILE)
    free = {"name", "title", "text", "words", "notes", "next", "description", "claim", "reasons", "reason",
            "does_not_show", "commands", "environment", "header", "rows", "note", "resumed", "omissions",
            "facts", "step", "natural"}  # fmt: skip

    def attack(value: Any, key: str) -> Any:
        if is_dataclass(value):
            return replace(value, **{part.name: attack(getattr(value, part.name), part.name) for part in fields(value)})
        if isinstance(value, dict):
            return {name: attack(inner, name if key != "environment" else key) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [attack(inner, key) for inner in value]
        return next(texts) if isinstance(value, str) and key in free else value

    page = content()
    questions = []
    for attacked in attack(page.questions, ""):
        result = replace(attacked.result, question=HOSTILE[0] + attacked.result.question)
        questions.append(replace(attacked, result=result))
    return replace(attack(page, ""), questions=questions, training=page.training)
