"""antecedent_lab/arrays.py: arrays of texts equal plain passes over one text and transformers' own, or are refused."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from antecedent_lab import HeadEdit, UserError, cut_link, open_model, remove_head
from antecedent_lab.arrays import LabModel
from data.text import SHIPPED_TEXT, read_documents
from data.tokenizer import END, bpe_tokenizer
from model.observe import SiteEdit
from tests.tiny_models import random_view

transformers = pytest.importorskip("transformers")
L, H = 3, 4
LLAMA = {"hidden_size": 32, "intermediate_size": 31, "num_hidden_layers": L, "num_attention_heads": H}
LLAMA |= {"num_key_value_heads": 2, "head_dim": 10, "max_position_embeddings": 64}
SHAPES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": L, "n_head": H, "n_positions": 64},
    "qwen3": LLAMA,
}
TEXTS = ["Lily met Tom in the park.", "The dog", "Once upon a time, the cat sat near the big red ball. It"]
ANSWERS = (" she", " unbelievable", [" he", " they", " was"])  # of one token and of several
each_model = pytest.mark.parametrize("name", ["run", *SHAPES])


@cache
def tokenizer() -> Any:
    return bpe_tokenizer(read_documents([SHIPPED_TEXT])[:200], 500)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A GPT-2 and a Qwen3 with random weights, as `save_pretrained` writes them."""
    paths = {}
    bos = tokenizer().token_to_id(END)
    for name, shape in SHAPES.items():
        settings = {**shape, "vocab_size": tokenizer().get_vocab_size(), "bos_token_id": bos, "eos_token_id": bos}
        config = transformers.AutoConfig.for_model(name, **settings)
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for weight in model.parameters():
            if weight.ndim == 2:
                torch.nn.init.normal_(weight, 0, 0.25)  # the usual initial attention is uniform
        paths[name] = tmp_path_factory.mktemp("models") / name
        model.save_pretrained(paths[name])
        fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer(), bos_token=END, eos_token=END)
        fast.save_pretrained(paths[name])
    return paths


@pytest.fixture
def opened(name: str, folders: dict[str, Path], trained_run: Path) -> Any:
    if name != "run":
        return open_model(folders[name], device="cpu")
    run = open_model(trained_run, device="cpu")
    # A run of four steps has layers that write almost nothing.
    model = random_view(tokenizer().get_vocab_size(), n_layer=L, context_length=64)
    return replace(run, model=model, tokenizer=tokenizer(), bos_id=tokenizer().token_to_id(END))


def plain_log_probs(opened: LabModel, text: str, answer: str, edits: list[HeadEdit]) -> float:
    """Return log p of an answer by a pass over one text without padding."""
    row = opened.encode(text)
    both = torch.tensor([opened.encode(text + answer)])
    after = opened.model.logits(both, edits=edits)[0].double().log_softmax(-1)
    return sum(float(after[i - 1, both[0, i]]) for i in range(len(row), both.shape[1]))


@each_model
def test_attention_is_that_of_each_text_alone(name: str, opened: LabModel) -> None:
    for text, weights in zip(TEXTS, opened.attention(TEXTS), strict=True):
        tokens = torch.tensor([opened.encode(text)])
        expected = opened.model.attention_scores(tokens).softmax(-1)[:, 0]
        np.testing.assert_allclose(weights, expected, atol=1e-5)
        assert weights.shape == expected.shape and expected.std() > 0.05


@each_model
def test_log_probabilities_are_those_of_plain_passes(name: str, opened: LabModel) -> None:
    for edits in ([], [remove_head(1, 2), cut_link(0, 1, 1, [0])]):
        values = opened.log_probs(TEXTS, *ANSWERS, edits=edits)
        expected = np.empty((3, 3))
        for i, text in enumerate(TEXTS):
            for j, answer in enumerate(ANSWERS):
                chosen = answer if isinstance(answer, str) else answer[i]
                expected[i, j] = plain_log_probs(opened, text, chosen, edits)
        np.testing.assert_allclose(values, expected, atol=1e-4)
    assert len(opened.encode("It unbelievable")) > len(opened.encode("It she")) and expected.std() > 0.5


@each_model
@pytest.mark.parametrize("at", ["everywhere", "last"])
@pytest.mark.parametrize("answer", [" she", " unbelievable"])
def test_effects_are_those_of_plain_passes(name: str, opened: LabModel, at: str, answer: str) -> None:
    foils = [" he", " they", " was"]
    effects = opened.effects(TEXTS, answer, foils, at=at)
    expected = np.empty_like(effects)
    for i, text in enumerate(TEXTS):
        last = torch.tensor([len(opened.encode(text)) - 1])

        def margin(edits: list[HeadEdit], i: int = i, text: str = text) -> float:
            return plain_log_probs(opened, text, answer, edits) - plain_log_probs(opened, text, foils[i], edits)

        for layer, head in np.ndindex(*effects.shape[1:]):
            edit = remove_head(layer, head)
            if at == "last":
                edit = SiteEdit(layer, head, output=torch.zeros_like).at(last)
            expected[i, layer, head] = margin([]) - margin([edit])
    np.testing.assert_allclose(effects, expected, atol=2e-4)
    assert (np.abs(expected).mean(axis=0) > 1e-3).all()


@each_model
@pytest.mark.parametrize("at", ["everywhere", "last"])
def test_without_heads_or_texts_there_is_no_effect(name: str, opened: LabModel, at: str) -> None:
    assert np.isnan(opened.effects(TEXTS, " she", " he", [], at)).all()
    assert opened.effects([], " she", " he", at=at).shape[0] == 0 and opened.attention([]) == []


@pytest.mark.parametrize("name", SHAPES)
def test_a_removed_head_has_no_columns_in_the_projection(name: str, opened: LabModel, folders: dict[str, Path]) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(folders[name]).eval()
    she, he = (opened.encode("It" + word)[-1] for word in (" she", " he"))

    @torch.no_grad()
    def margins() -> np.ndarray:
        logits = [model(torch.tensor([opened.encode(text)])).logits[0, -1] for text in TEXTS]
        return np.array([float(row[she] - row[he]) for row in logits])

    before = margins()
    is_gpt2 = name == "gpt2"
    output = model.transformer.h[1].attn.c_proj.weight if is_gpt2 else model.model.layers[1].self_attn.o_proj.weight.T
    output.data[-len(output) // H :] = 0  # the last head writes nothing
    effects = opened.effects(TEXTS, " she", " he", [(1, H - 1)])
    np.testing.assert_allclose(effects[:, 1, H - 1], before - margins(), atol=1e-4)
    assert np.isnan(effects).sum() == len(TEXTS) * (L * H - 1)


WRONG: dict[str, tuple[Any, str]] = {
    "head 9": (lambda m: m.effects(TEXTS, " she", " he", [(0, 9)], "last"), "edits: no head L0H9; the model has "),
    "layer -1": (lambda m: m.log_probs(TEXTS, " she", edits=[remove_head(-1, 0)]), "edits: no head L-1H0"),
    "one edit": (lambda m: m.log_probs(TEXTS, " she", edits=remove_head(0, 0)), "edits: must be a list"),
    "one head": (lambda m: m.effects(TEXTS, " she", " he", (0, 1)), 'heads: must be "all" or a list of'),
    "half a head": (lambda m: m.effects(TEXTS, " she", " he", [(0, 0.5)]), 'heads: must be "all" or a list of'),
    "a word for heads": (lambda m: m.effects(TEXTS, " she", " he", "last"), 'heads: must be "all" or a list of'),
    "at": (lambda m: m.effects(TEXTS, " she", " he", at="first"), "at='first': must be \"everywhere\" or \"last\""),
    "one text": (lambda m: m.attention("The cat"), "texts: must be a list of str"),
    "a tensor": (lambda m: m.attention(torch.ones(1, 3)), "texts: must be a list of str"),
    "500 tokens": (lambda m: m.attention(["It", "cat " * 500]), r"texts\[1\]: has [\d,]+ tokens; the model reads 64"),
    "long with its answer": (
        lambda m: m.log_probs([" ".join(["It"] * 62)], " unbelievable"), r"texts\[0\]: has \d+ tokens with its answer"),
    "float tokens": (lambda m: m.attention([[0, 1.0]]), r"texts\[0\]: must be a str, not list"),
    "a text of None": (lambda m: m.log_probs(["It", None], " she"), r"texts\[1\]: must be a str, not NoneType"),
    "answer in a word": (lambda m: m.log_probs(["The dog"], "she"), "answers: 'she' would continue the word 'dog'"),
    "space before": (lambda m: m.log_probs(["The dog "], "she"), "answers: 'she' changes the tokens of 'The dog '"),
    "no answer": (lambda m: m.log_probs(TEXTS), "answers: give at least one word"),
    "empty answer": (lambda m: m.log_probs(TEXTS, ""), "answers: '' is no text"),
    "two answers": (lambda m: m.effects(TEXTS, [" a", " b"], " he"), "answers: must be one text, or a list of 3"),
}  # fmt: skip


@each_model
@pytest.mark.parametrize(("call", "problem"), WRONG.values(), ids=WRONG)
def test_a_wrong_call_is_one_line(name: str, opened: LabModel, call: Any, problem: str) -> None:
    with pytest.raises(UserError, match=f"^{problem}") as error:
        call(opened)
    assert "\n" not in str(error.value)


def test_unknown_words_and_models_that_see_the_next_word_are_refused(trained_run: Path) -> None:
    run = open_model(trained_run, device="cpu")
    with pytest.raises(UserError, match="answers: ' xylophonist' has no tokens in this model's vocabulary"):
        run.log_probs(["The cat"], " xylophonist")
    with pytest.raises(UserError, match=r"texts\[1\]: 'xylophonist' is not in this model's vocabulary"):
        run.attention(["The cat", "The xylophonist sat."])
    assert run.log_probs(["The cat"], " sat").shape == (1, 1)
    with pytest.raises(UserError, match="with model.mask=none a word sees the next one"):
        replace(run, shape={"mask": "none"}).attention(["The cat"])


def test_a_model_is_shown_by_one_line(trained_run: Path, folders: dict[str, Path]) -> None:
    for model in (trained_run, *folders.values()):
        line = repr(open_model(model, device="cpu"))
        assert "\n" not in line and len(line) < 200 and "layer" in line and Path(model).name in line
