"""The model and the tokenizers of the report page, run in a real browser, against torch and tokenizers."""

import json
import random
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch import Tensor

from antecedent_lab import open_model
from data.tokenizer import END, bpe_tokenizer, character_tokenizer, end_id, word_tokenizer
from extras.others.llama import from_llama
from extras.others.pretrained_view import PretrainedView
from extras.page.content import page_content
from extras.page.live import live_tokenizer
from extras.page.page import FOLDER
from model.edits import cut_link, exchange_links, remove_head
from model.observe import TransformerView, apply_edits
from model.transformer import Transformer
from probe.sentences import tokenize_text
from settings.errors import UserError
from settings.model import Weighting
from settings.typed_json import to_json
from tests.extras.others.pretrained import pretrained
from tests.tiny_models import VARIANTS, random_model
from training.weight_history import pack_parameters

DEFAULT = {"n_head": 2, "d_model": 64, "d_mlp": 192, "context_length": 64}
ENGLISH = {"vocab_size": 2048, "n_head": 4, "d_model": 128, "d_mlp": 344, "context_length": 128}
Edit = dict[str, Any]
Script = Callable[[str, Any], Any]

# Run every case of `task` and return, as base64 of float32, the logits at every token and the weights of every head.
RUN = """(task) => {
  const model = modelOf(task.shape, task.parameters, floatsOf(task.data, task.type));
  return task.cases.map(({ tokens, edits }) => {
    const run = runModel(model, tokens, edits);
    const parts = [...tokens.map((_, i) => logitsOf(run, i)), ...run.weights.flat()];
    const bytes = parts.map((part) => new Uint8Array(part.buffer, part.byteOffset, part.byteLength));
    let text = "";
    for (const part of bytes) for (const byte of part) text += String.fromCharCode(byte);
    return btoa(text);
  });
}"""
EXPLAIN = """(task) => {
  const model = modelOf(task.shape, task.parameters, floatsOf(task.data, task.type));
  return task.cases.map(({ tokens, edits, layer, head, row, id }) => {
    const run = runModel(model, tokens, edits);
    const { query, rows } = explained(run, layer, head, row);
    const direction = pulledBack(run, layer, head, row, id);
    const listed = (each) => ({ ...each, key: [...each.key], products: [...each.products], moved: [...each.moved] });
    const adds = rows.map(({ moved }) => moved.reduce((sum, x, i) => sum + x * direction[i], 0));
    return { query: [...query], rows: rows.map(listed), adds };
  });
}"""
# The largest difference of logits between a whole pass with edits and the unedited pass continued at the edited token
GO_ON = """(task) => {
  const model = modelOf(task.shape, task.parameters, floatsOf(task.data, task.type));
  return task.cases.map(({ tokens, edits }) => {
    const base = runModel(model, tokens);
    const layer = Math.min(...edits.map((edit) => edit.layer));
    const [whole, part] = [runModel(model, tokens, edits), runModel(model, tokens, edits, base, layer, edits[0].row)];
    const before = logitsOf(base);
    const [logits, again] = [logitsOf(whole), logitsOf(part)];
    const most = (others) => Math.max(...logits.map((logit, i) => Math.abs(logit - others[i])));
    return [most(again), most(before)];
  });
}"""
READ = """({ tokenizer, texts }) => {
  const opened = openTokenizer(tokenizer);
  return texts.map((text) => {
    const { tokens, words, members } = readText(opened, text);
    return { tokens, spans: tokensOf(opened, text).map(({ start, end }) => [start, end]), words, members };
  });
}"""


@pytest.fixture(scope="module")
def script(browser):
    """Run JavaScript with the functions of the page's model and tokenizers."""
    page = browser.new_page()
    for name in ("page_model", "page_tokens"):
        page.add_script_tag(content=(FOLDER / f"{name}.js").read_text())
    yield page.evaluate
    page.close()


MAKERS = {"remove": (remove_head, 2), "cut": (cut_link, 4), "exchange": (exchange_links, 5)}


def edits_of(layer, head, row, left, right):
    """Return each kind of edit of a head, as the page has it."""
    place = {"layer": layer, "head": head, "row": row, "left": [left], "right": [right]}
    return [{"kind": kind} | place for kind in MAKERS]


def head_edit(kind, *place):
    make, n = MAKERS[kind]
    return make(*place[:n])


def parts_of(model):
    """Return a model's view, and its shape and weights as the page has them."""
    if isinstance(model, Transformer):
        return TransformerView(model), model.config, dict(model.named_parameters())
    return PretrainedView(model), *from_llama(model)


def computed(script, code, model, cases):
    """Yield the tokens and the edits of each case, as torch has them, the case, and what the page computes of it."""
    _, config, weights = parts_of(model)
    parameters = [(name, weight.numel()) for name, weight in weights.items()]
    data = pack_parameters(weights.values(), torch.float32)
    task = {"shape": to_json(config), "parameters": parameters, "data": data, "type": "float32", "cases": cases}
    for case, found in zip(cases, script(code, task), strict=True):
        yield torch.tensor([case["tokens"]]), [head_edit(*edit.values()) for edit in case["edits"]], case, found


def damped(vocab_size=29, **switches):
    """Return random weights as large as those of a trained model, so that scores are not all at one token."""
    model = random_model(vocab_size, **switches)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.data *= parameter.shape[1] ** -0.5 / 0.3
    return model


# Two heads share keys and values.
llama = partial(
    pretrained, "llama", max_position_embeddings=48, rms_norm_eps=1e-4, tie_word_embeddings=True,
    rope_parameters={"rope_type": "default", "rope_theta": 500.0},
)  # fmt: skip
SHAPES = [*(DEFAULT | switches for switches in VARIANTS.values()), {}, {"n_head": 8, "d_model": 64, "n_layer": 4}]
LLAMAS = {"llama": llama, "llama, one key, untied": partial(llama, num_key_value_heads=1, tie_word_embeddings=False)}
MODELS = LLAMAS | {str(shape): partial(damped, **shape) for shape in [*SHAPES, ENGLISH]}
EXPLAINED = LLAMAS | {name: partial(damped, **DEFAULT | switches) for name, switches in VARIANTS.items()}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_the_page_computes_what_torch_computes(script, make):
    """On 12 random texts; every edit of every head is tried on the first two.

    Kernels round differently on other processors, so three times what rounding the weights once more changes is not
    counted.
    """
    rng = random.Random(0)
    model = make()
    view, *_ = parts_of(model)
    rounded = deepcopy(model)
    torch.manual_seed(0)
    for parameter in rounded.parameters():  # each weight by about the last place of a float32
        parameter.data *= 1 + 1.2e-7 * torch.randn_like(parameter).sign()
    tolerance = 1e-5 if view.vocab_size > 2000 else 1e-6
    cases = []
    for number in range(12):
        tokens = [rng.randrange(view.vocab_size) for _ in range(rng.randrange(2, min(64, view.context_length) + 1))]
        row = rng.randrange(1, len(tokens))
        edits: list[Edit] = []
        for place in np.ndindex(view.n_layer, view.n_head) if number < 2 else ():
            edits += edits_of(*place, row, *rng.sample(range(row + 1), 2))
        for together in ([], edits[1:2] + edits[-1:], *([each] for each in edits)):
            cases.append({"tokens": tokens, "edits": together})

    views = view, parts_of(rounded)[0]

    def check(found, tolerance, results):
        expected, again = results
        rounding = 3 * float((again - expected).abs().max())
        np.testing.assert_allclose(found, expected.flatten(), rtol=0, atol=tolerance + rounding)

    for tokens, edits, _, packed in computed(script, RUN, model, cases):
        numbers, n_logits = np.frombuffer(b64decode(packed), "<f4"), tokens.numel() * view.vocab_size
        check(numbers[:n_logits], 1e-4, [each.logits(tokens, edits=edits) for each in views])
        if not edits:
            check(numbers[n_logits:], tolerance, [each.attention_weights(tokens) for each in views])


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_pass_that_goes_on_at_a_token_is_the_whole_pass(script, make):
    rng = random.Random(0)
    model = make()
    view, *_ = parts_of(model)
    cases = []
    for layer in range(view.n_layer):
        tokens = [rng.randrange(view.vocab_size) for _ in range(14)]
        for row in (9, 13):  # in the middle, and the last
            _, cut, exchange = edits_of(layer, 0, row, 3, 4)
            _, later, _ = edits_of(view.n_layer - 1, 1, row, 2, 5)
            cases += [{"tokens": tokens, "edits": edits} for edits in ([cut], [exchange], [cut, later])]
    differences = [found for *_, found in computed(script, GO_ON, model, cases)]
    assert max(difference for difference, _ in differences) < 1e-5 < max(change for _, change in differences)


@pytest.mark.parametrize("make", EXPLAINED.values(), ids=EXPLAINED)
def test_the_derivation_of_a_weight_is_torch_s(script, make):
    """At a word in the middle, with and without an edit: scores, weights, values, and what they add to a logit."""
    rng = random.Random(0)
    model = make()
    view, config, _ = parts_of(model)
    streams: list[Tensor] = []  # what the final norm reads in each pass
    norm = model.final_norm if isinstance(model, Transformer) else model.model.norm
    norm.register_forward_pre_hook(lambda module, inputs: streams.append(inputs[0]))
    cases, row = [], 9
    for layer, head in np.ndindex(2, 2):
        tokens = [rng.randrange(view.vocab_size) for _ in range(14)]
        removed, cut, _ = edits_of(layer, head, row, 3, 4)
        for edits in ([], [cut], [removed]):
            cases.append({"tokens": tokens, "edits": edits, "layer": layer, "head": head, "row": row, "id": 5})

    near = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    for tokens, edits, case, found in computed(script, EXPLAIN, model, cases):
        layer, head = case["layer"], case["head"]
        record = view.record(tokens)[layer]
        weights = record.weights().clone()
        apply_edits(weights, layer, [edits], "weights")
        outputs = weights @ record.values
        apply_edits(outputs, layer, [edits], "output")
        rows = {name: np.array([each[name] for each in found["rows"]], dtype=float) for name in found["rows"][0]}
        near(rows["products"].sum(1), rows["sum"])
        near(rows["products"], np.array(found["query"]) * rows["key"])
        if config.weighting is Weighting.softmax:
            near(rows["score"], record.scores[0, head, row])  # -inf where masked
        near(rows["share"], record.weights()[0, head, row])
        near(rows["weight"], weights[0, head, row])
        near(rows["value"], record.values[0, head])
        near(rows["moved"].sum(0), outputs[0, head, row])

        # The final norm as it is in this pass, with the edit
        view.logits(tokens, edits=edits)
        direction = view.final_norm_pullback(view.unembedding()[case["id"]], streams[-1][0, row])
        near(found["adds"], rows["moved"] @ (direction @ view.output_weights(layer)[head]).numpy())


def test_float16_weights_are_read_as_numpy_reads_them(script):
    halves = np.concatenate([np.arange(0x7C00, dtype="<u2"), np.arange(0x8000, 0xFC00, dtype="<u2")])  # all finite ones
    packed = b64encode(halves.tobytes()).decode()
    read = script("(data) => Array.from(floatsOf(data, 'float16'))", packed)
    np.testing.assert_array_equal(np.array(read, np.float32), halves.view("<f2").astype(np.float32))


SAMPLE = [
    "The cat sat near the buses. It purred, didn't it? They'll say \"we've 12 of them\"!",
    "Ünïcödé naïve Straße 東京 привет שלום नमस्ते 👩‍👩‍👧 e\u0301 ＡＢ ½ ² Ⅷ _under_score",
    "tabs\tand\nlines\r\n  and   spaces\u00a0and\u2003wide\u3000ones\u0085end",
] * 3
HARD = (
    " \t\n\r\u00a0\u0085\u2028\u2029\ufeff\u200b\u200c\u200d\u2003\u3000\x1c\x00'sdmtrevl.,!?-_“”…<|>endoftxaAzßİıÉ"
    "e\u0301\u0903नम東京½²Ⅷ٣👩🏽👧🇫🇷ﬁΩ"
)
# Characters that this Python does not know may be letters of a newer Unicode in the browser.
characters = st.one_of(st.sampled_from(HARD), st.characters(codec="utf-8", exclude_categories=["Cn"]))
texts = st.lists(st.text(alphabet=characters, max_size=40), min_size=50, max_size=50)


def fallback_tokenizer(sample, space):
    """Return a tokenizer like those of sentencepiece: of characters of the whole text, and bytes of unknown ones."""
    normalizer = normalizers.Prepend(space)
    if space != " ":
        normalizer = normalizers.Sequence([normalizer, normalizers.Replace(" ", space)])
    learned = Tokenizer(models.BPE())
    learned.normalizer = normalizer
    # Of equally frequent letters the trainer takes any, so they are chosen here.
    letters = [letter for letter, _ in Counter("".join(sample)).most_common(49)]
    trainer = trainers.BpeTrainer(
        vocab_size=200, limit_alphabet=50, initial_alphabet=[space, *letters], show_progress=False
    )
    learned.train_from_iterator(sample, trainer)
    model = json.loads(learned.to_str())["model"]
    names = [END, "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *model["vocab"]]
    vocabulary = {name: i for i, name in enumerate(names)}
    merges = [tuple(pair) for pair in model["merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizer
    tokenizer.add_special_tokens([END])
    tokenizer.encode_special_tokens = True
    return tokenizer


TOKENIZERS = {"words": word_tokenizer, "characters": character_tokenizer, "bpe": partial(bpe_tokenizer, vocab_size=400)}
TOKENIZERS |= {space: partial(fallback_tokenizer, space=space) for space in " ▁"}


def utf16(text, position):
    return len(text[:position].encode("utf-16-le")) // 2


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_the_page_reads_texts_as_the_tokenizer_and_the_probe_do(script, kind):
    tokenizer = TOKENIZERS[kind](SAMPLE)
    described = live_tokenizer(tokenizer, end_id(tokenizer), tokenizer.get_vocab_size())
    assert kind in (described.kind, described.space)

    @settings(max_examples=20)
    @given(texts)
    def check(batch):
        read = script(READ, {"tokenizer": asdict(described), "texts": batch})
        for text, found in zip(batch, read, strict=True):
            expected = tokenize_text(tokenizer, text, end_id(tokenizer))
            spans = [[utf16(text, start), utf16(text, end)] for start, end in expected.spans]
            members = [expected.tokens_of(word) for word in range(len(expected.words))]
            all_of_it = {"tokens": expected.tokens, "spans": spans, "words": expected.words, "members": members}
            assert found == all_of_it, repr(text)

    check()


def test_a_llama_of_transformers_runs_in_the_page_with_every_edit(show):
    tokenizer = fallback_tokenizer(" ".join(SAMPLE).split(), " ")
    model = llama(vocab_size=tokenizer.get_vocab_size())
    opened = open_model(model, tokenizer=tokenizer)
    read = opened.tokenize("The cat sat near the buses. It")
    (*_, last), cat, buses = (read.tokens_of(read.words.index(word)) for word in ("It", "cat", "buses"))
    exchange = exchange_links(1, 3, last, cat, buses)
    states = [[], [cut_link(1, 3, last, cat)], [exchange], [exchange, remove_head(0, 2)]]
    with show(page_content(opened, None, None)) as view:
        assert view.said("#live-chips .chip") == "Lily"  # not a part of a word
        view.type(read.text)
        view.pick("L1H3")
        clicks = [view.line("cat").click, view.line("buses").click, partial(view.remove, "L0H2"), list]
        shown = []
        for edits, click in zip(states, clicks, strict=True):
            chances = opened.model.logits(torch.tensor([read.tokens]), edits=edits)[0, -1].softmax(-1).topk(5).values
            shown.append([words.split()[-1] for words in view.next_words()])
            assert shown[-1] == [f"{chance:.2f}" for chance in chances] not in shown[:-1]
            click()


REFUSED = {
    "head_dim=8": {"head_dim": 16},
    "hidden_act=silu": {"hidden_act": "gelu"},
    "mlp_bias=False": {"mlp_bias": True},
    "attention_bias=False": {"attention_bias": True},
    "the default RoPE": {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}},
    "not a model_type=mistral": None,
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_model_that_computes_otherwise_has_a_reason(reason):
    changes = REFUSED[reason]
    model = pretrained("mistral", vocab_size=300) if changes is None else llama(vocab_size=300, **changes)
    live = page_content(open_model(model, tokenizer=bpe_tokenizer(SAMPLE, 300)), None, None).live
    assert live.model is None and live.reason.startswith("No live model: only a Llama") and reason in live.reason


KIND, CANNOT_WRITE = "kind of tokenizer", "cannot write every text"


@pytest.mark.parametrize(("kind", "part", "changed", "reason"), [
    ("bpe", "pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=True), KIND),
    ("words", "normalizer", normalizers.Lowercase(), KIND),
    (" ", "normalizer", normalizers.Prepend("_"), KIND),
    ("bpe", "model", models.Unigram([("a", 0.0)]), "Unigram"),
    ("bpe", "model", models.BPE({"a": 0}, [], continuing_subword_prefix="#"), KIND),
    ("bpe", "model", models.BPE({"a": 0}, []), CANNOT_WRITE),
    (" ", "model", models.BPE({" ": 0}, [], byte_fallback=True), CANNOT_WRITE),
    ("words", "model", models.WordLevel({"a": 0}, unk_token="x"), CANNOT_WRITE),
])  # fmt: skip
def test_a_tokenizer_that_the_page_does_not_run_has_a_reason(kind, part, changed, reason):
    tokenizer = TOKENIZERS[kind](SAMPLE)
    setattr(tokenizer, part, changed)
    with pytest.raises(UserError, match=reason):
        live_tokenizer(tokenizer, 0, 1000)


def test_every_row_of_the_embedding_has_a_name_and_added_words_none():
    tokenizer = TOKENIZERS["bpe"](SAMPLE)
    with pytest.raises(UserError, match=CANNOT_WRITE):
        live_tokenizer(tokenizer, 0, 20)
    assert len(live_tokenizer(tokenizer, 0, 1000).vocabulary) == 1000  # rows without a token too
    tokenizer.add_tokens([AddedToken("the cat", special=False)])
    with pytest.raises(UserError, match=KIND):
        live_tokenizer(tokenizer, 0, 1000)
