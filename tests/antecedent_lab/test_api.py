"""The probe from Python: the same results as eval.py, arrays of texts equal plain passes, and own models."""

import copy
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from antecedent_lab import UserError, compare_models, cut_link, open_model, probe_model, remove_head
from data.text import SHIPPED_TEXT, read_documents
from data.tokenizer import END, bpe_tokenizer, character_tokenizer, end_id, word_tokenizer
from model.observe import SiteEdit
from probe.results import ProbeResults
from tests.extras.others.pretrained import H, L, pretrained
from tests.extras.page.sample import opened_run
from tests.probe.factories import documents
from tests.program import ROOT, SMALL_PROBE, run_program

transformers = pytest.importorskip("transformers")
QUESTION = str(ROOT / "docs/questions/it_cat.jsonl")
SETTINGS = {"n_bootstrap": 100, "n_untrained": 2, "n_controls": 10}
LONG = {"max_position_embeddings": 128}
HYBRID = {**LONG, "layer_types": ["linear_attention", "full_attention", "full_attention"]}
CHANGES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_positions": 128}, "qwen3": LONG, "qwen3_5_text": HYBRID, "olmo_hybrid": HYBRID,
    "gpt_oss": {**LONG, "sliding_window": 128},
}  # fmt: skip
HYBRIDS = ("qwen3_5_text", "olmo_hybrid")
TEXTS = ["Lily met Tom in the park.", "The dog", "Once upon a time, the cat sat near the big red ball. It"]
ANSWERS = (" she", " unbelievable", [" he", " they", " was"])  # of one token and of several
VOCABULARY = 500
each_model = pytest.mark.parametrize("name", CHANGES)


@cache
def tokenizer():
    return bpe_tokenizer(read_documents([SHIPPED_TEXT])[:200], VOCABULARY)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Models with random weights, as `save_pretrained` writes them."""
    paths = {}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer(), bos_token=END, eos_token=END)
    special = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), fast.bos_token_id)
    for name, changes in CHANGES.items():
        paths[name] = tmp_path_factory.mktemp("models") / name
        pretrained(name, **special, **changes, vocab_size=VOCABULARY).save_pretrained(paths[name])
        fast.save_pretrained(paths[name])
    return paths


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Short documents that have enough passages."""
    path = tmp_path_factory.mktemp("text") / "part.jsonl"
    path.write_text("".join(json.dumps({"text": each}) + "\n" for _, each in documents(160)))
    return str(path)


@pytest.fixture(scope="module")
def result(folders, text):
    return probe_model(open_model(folders["qwen3"], device="cpu"), path=text, **SETTINGS)


def test_a_model_of_transformers_is_tested_and_shown_in_a_frame(result):
    (finding,) = result.findings.values()
    assert finding.outcome == "edge" and finding.verdict == "the model does not know" and finding.level == "E0"
    assert finding.verdict in str(result) and "training data of this model is unknown" in str(result)
    (row,) = result.table()
    assert row["question"] == finding.question and row["p"] == finding.head.value("p")
    assert all(isinstance(value, str | int | float) for value in row.values())
    frame = result._repr_html_()
    assert frame.startswith("<iframe") and "allow-same-origin" not in frame and frame.count("<iframe") == 1


@pytest.mark.parametrize("name", [*HYBRIDS, "gpt_oss"])
def test_hybrids_and_sinks_are_probed_by_attention_and_by_edges(name, folders, text):
    opened = open_model(folders[name], device="cpu")
    layers = list(opened.model.attention_layers)
    without = [layer for layer in range(L) if layer not in layers]
    assert layers == ([1, 2] if name in HYBRIDS else [0, 1, 2])
    result = probe_model(opened, items=QUESTION, **SETTINGS)
    (finding,) = result.findings.values()
    assert finding.outcome == "attention" and finding.place.layer in layers
    for grid in map(np.array, finding.grids.values()):
        assert np.isnan(grid[without]).all() and np.isfinite(grid[layers]).all()
    assert 0 < finding.head.value("mass") < 1
    content = json.loads(re.search(r'id="content">(.*?)</script>', result.page([TEXTS[0]]), re.DOTALL)[1])
    assert [layer for layer in range(L) if not content["sentences"][0]["weights"][layer]] == without
    (edge,) = probe_model(opened, path=text, **SETTINGS).findings.values()
    assert edge.outcome == "edge" and edge.place.layer in layers


def test_memory_for_an_untrained_copy_is_asked_of_the_probe_only(folders, monkeypatch):
    n_bytes = 4 * open_model(folders["qwen3"], device="cpu").n_parameters
    pages = {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": 2 * n_bytes - 1}
    monkeypatch.setattr(os, "sysconf", pages.__getitem__)
    opened = open_model(folders["qwen3"], device="cpu")
    assert np.isfinite(opened.effects(TEXTS, " she", " he")).all()
    with pytest.raises(UserError, match=f"^the model needs {2 * n_bytes:,} bytes with the untrained copy .*$"):
        probe_model(opened, items=QUESTION, **SETTINGS)
    pages["SC_PHYS_PAGES"] = n_bytes - 1
    with pytest.raises(UserError, match=f"^model=.*: the model needs {n_bytes:,} bytes, but cpu has"):
        open_model(folders["qwen3"], device="cpu")


def test_eval_writes_the_same_files(result, folders, text, tmp_path):
    page = result.save(tmp_path / "python")
    arguments = [f"model={folders['qwen3']}", f"path={text}", f"out={tmp_path / 'program'}", "device=cpu", *SMALL_PROBE]
    program = run_program("eval.py", *arguments)
    assert program.status == 0, program.err
    written = tmp_path / "program" / "probe" / "outside" / "part"
    names = {"probe.json", "claims.md", "report.html", "table.csv", "table.tex"}
    assert {*os.listdir(page.parent)} == names <= {*os.listdir(written)}
    contents = [json.loads((folder / "probe.json").read_text()) for folder in (written, page.parent)]
    assert [content.pop("environment").keys() for content in contents] == [result.results.environment.keys()] * 2
    assert contents[0] == contents[1] and ProbeResults.from_json(contents[0] | {"environment": {}}) == result.results
    for name in names - {"report.html", "probe.json"}:
        _, *lines = (written / name).read_text().splitlines()
        assert lines == (page.parent / name).read_text().splitlines()[1:]


def test_two_folders_of_one_name_have_results_of_their_own(folders, tmp_path):
    copy = shutil.copytree(folders["gpt2"], tmp_path / "gpt2")
    first, second = (open_model(folder, device="cpu") for folder in (folders["gpt2"], copy))
    assert first.name == second.name == "gpt2" and first.folder != second.folder


def test_a_bad_comparison_is_named(result):
    opened = result.opened
    other = copy.deepcopy(opened.model)
    next(other.model.parameters()).add_(1)
    changed = replace(opened, model=other)
    for after, settings, problem in (
        (changed, {"n_bootstrap": 1}, "probe.n_bootstrap=1: "),
        (replace(changed, bos_id=3), {}, "before=.*other tokens"),
        (opened, {}, "before=.*: has the weights of .*, so that nothing can differ"),
    ):
        with pytest.raises(UserError, match=f"^{problem}"):
            compare_models(opened, after, items=QUESTION, **settings)


class WithoutModule:
    """A model of the user's own, whose weights nobody knows."""

    def __init__(self, view):
        self.view = view

    def __getattr__(self, name):
        if name in ("model", "module"):
            raise AttributeError(name)
        return getattr(self.view, name)


def test_models_whose_weights_are_not_known_are_compared(result):
    opened = replace(result.opened, model=WithoutModule(result.opened.model))
    assert compare_models(opened, opened, items=QUESTION, **SETTINGS).changes


@pytest.fixture
def opened(name, folders):
    return open_model(folders[name], device="cpu")


def plain_log_probs(opened, text, answer, edits):
    """Return log p of an answer by a pass over one text without padding."""
    both = torch.tensor([opened.encode(text + answer)])
    after = opened.model.logits(both, edits=edits)[0].double().log_softmax(-1)
    return sum(float(after[i - 1, both[0, i]]) for i in range(len(opened.encode(text)), both.shape[1]))


@each_model
def test_attention_and_log_probabilities_are_those_of_plain_passes(name, opened):
    for text, weights in zip(TEXTS, opened.attention(TEXTS), strict=True):
        expected = opened.model.attention_weights(torch.tensor([opened.encode(text)]))[:, 0]
        np.testing.assert_allclose(weights, expected, atol=1e-5, strict=True)
        assert np.nanstd(expected) > 0.05 and np.isnan(weights[0]).all() == (name in HYBRIDS)
    first, second = opened.model.attention_layers[:2]
    for edits in ([], [remove_head(second, 2), cut_link(first, 1, 1, [0])]):
        each = [[*ANSWERS[:-1], last] for last in ANSWERS[-1]]
        values = opened.log_probs(TEXTS, each=each, edits=edits)
        np.testing.assert_allclose(opened.log_probs(TEXTS, *ANSWERS[:-1], edits=edits), values[:, :-1], atol=1e-5)
        for text, last, of_text in zip(TEXTS, ANSWERS[-1], values, strict=True):
            expected = [plain_log_probs(opened, text, answer, edits) for answer in (*ANSWERS[:-1], last)]
            np.testing.assert_allclose(of_text, expected, atol=1e-4)
    assert len(opened.encode("It unbelievable")) > len(opened.encode("It she")) and values.std() > 0.5


@each_model
@pytest.mark.parametrize("at", ["everywhere", "last"])
@pytest.mark.parametrize("answer", [" she", " unbelievable"])
def test_effects_are_those_of_plain_passes(name, opened, at, answer):
    foils = ANSWERS[-1]
    effects = opened.effects(TEXTS, answer, foils, at=at)
    expected = np.full_like(effects, np.nan)
    layers = list(opened.model.attention_layers)
    for i, (text, foil) in enumerate(zip(TEXTS, foils, strict=True)):

        def difference(*edits, text=text, foil=foil):
            return plain_log_probs(opened, text, answer, edits) - plain_log_probs(opened, text, foil, edits)

        whole = difference()
        for layer, head in product(layers, range(H)):
            edit = remove_head(layer, head)
            if at == "last":
                edit = SiteEdit(layer, head, output=torch.zeros_like).at(torch.tensor([len(opened.encode(text)) - 1]))
            expected[i, layer, head] = whole - difference(edit)
    np.testing.assert_allclose(effects, expected, atol=2e-4)
    assert (np.abs(expected[:, layers]).mean(axis=0) > 1e-3).all() and np.isnan(effects[:, 0]).all() == (layers[0] > 0)
    assert np.isnan(opened.effects(TEXTS, answer, foils, [], at)).all()  # of no head
    assert opened.effects([], answer, " he", at=at).shape[0] == 0 and opened.attention([]) == []


@pytest.mark.parametrize(("call", "problem"), [
    (lambda m: open_model(m.source, threads=0), "threads=0: must be at least 1 and at most"),
    (lambda m: open_model(m.source, device="tpu"), "device=tpu: must be one of auto, cpu, cuda"),
    (lambda m: open_model(m.source, tokenizer="nowhere.json"), "tokenizer=nowhere.json: "),
    (lambda m: open_model(m.source, checkpoint="2"), "checkpoint=2: only for a run"),
    (lambda m: probe_model(m, n_untraned=2), "probe.n_untraned=2: no such setting; did you mean n_untrained"),
    (lambda m: probe_model(m, path="a.txt", items="b.jsonl"), "path=a.txt: cannot be combined with items="),
    (lambda m: m.effects(TEXTS, " she", " he", [(0, 9)], "last"), "edits: no head L0H9; the model has "),
    (lambda m: m.effects(TEXTS, " she", " he", [(0, 0.5)]), 'heads: must be "all" or a list of'),
    (lambda m: m.effects(TEXTS, " she", " he", at="first"), "at='first': must be \"everywhere\" or \"last\""),
    (lambda m: m.attention("The cat"), "texts: must be a list of str"),
    (lambda m: m.attention(["It", "cat " * 500]), r"texts\[1\]: has [\d,]+ tokens; the model reads 128"),
    (lambda m: m.log_probs(["It" + 125 * " It"], " unbelievable"), r"texts\[0\]: has \d+ tokens with"),
    (lambda m: m.log_probs(["It", None], " she"), r"texts\[1\]: must be a str, not NoneType"),
    (
        lambda m: m.log_probs(TEXTS, " she", edits=[cut_link(0, 0, 4, [1])]), "edits: a text has tokens 0 to ",
    ),
    (lambda m: m.log_probs(["The dog"], "she"), "answers: 'she' would continue the word 'dog'"),
    (lambda m: m.log_probs(["The dog "], "she"), "answers: 'she' changes the tokens of 'The dog '"),
    (lambda m: m.log_probs(TEXTS), "answers: give at least one word"),
    (lambda m: m.log_probs(TEXTS, ""), "answers: '' is no text"),
    (lambda m: m.log_probs(TEXTS[:2], [" a", " b"]), r"answers: \[' a', ' b'\] is no text"),
    (lambda m: m.log_probs(TEXTS[:1], " a", each=[[" b"]]), "answers: give those of all texts"),
    (lambda m: m.log_probs(TEXTS[:2], each=[" ab", " cd"]), "answers: .* in each= a list for every"),
    (lambda m: m.log_probs(TEXTS[:2], each=[[" b"]]), "each: must be 2 lists"),
    (lambda m: m.log_probs(TEXTS[:2], each=[[" b"], [" b", " c"]]), "each: must be 2 lists"),
    (lambda m: m.effects(TEXTS, " she", [" he", " it", " she"]), "foils: a foil is the same as"),
    (lambda m: m.effects(TEXTS, 5, " he"), "answers: must be one text, or a list of 3"),
    (lambda m: m.effects(TEXTS, [" a", " b"], " he"), "answers: must be one text, or a list of 3"),
])  # fmt: skip
@pytest.mark.parametrize("name", ["gpt2"])
def test_a_wrong_call_is_one_line(name, opened, call, problem):
    with pytest.raises(UserError, match=f"^{problem}") as error:
        call(opened)
    assert "\n" not in str(error.value)


def test_unknown_words_are_refused(trained_run):
    run = open_model(trained_run, device="cpu")
    with pytest.raises(UserError, match="answers: ' xylophonist' has no tokens"):
        run.log_probs(["The cat"], " xylophonist")
    with pytest.raises(UserError, match=r"texts\[1\]: 'xylophonist' is not in"):
        run.attention(["The cat", "The xylophonist sat."])
    assert run.log_probs(["The cat"], " sat").shape == (1, 1)


Pass = Callable[..., Any]  # of an adapter
SIZES = {"n_layer": 2, "n_head": 4, "context_length": 64, "vocab_size": VOCABULARY}


def example(name):
    usage = (ROOT / "docs" / "usage.md").read_text()
    return re.search(rf"<!-- {name} -->\n```python\n(.*?)```", usage, re.DOTALL)[1]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The names that the page's example of an own module defines; it was run in a folder with a tokenizer.json."""
    path = tmp_path_factory.mktemp("own") / "tokenizer.json"
    tokenizer().save(str(path))
    names: dict[str, Any] = {"path": path}
    torch.manual_seed(0)
    exec(example("own model").replace("tokenizer.json", str(path)), names)
    return names


def test_the_module_of_the_page_is_measured_as_its_forward_pass(page):
    opened, module = page["opened"], page["module"]
    values = opened.log_probs(TEXTS, " she", " he")
    for text, of_text in zip(TEXTS, values, strict=True):
        with torch.no_grad():
            after = module(torch.tensor([opened.encode(text)]))[0, -1].log_softmax(-1)
        words = [opened.encode(text + word)[-1] for word in (" she", " he")]
        np.testing.assert_allclose(of_text, after[words], atol=1e-5)

    # A head without its columns of the output projection is a removed one.
    effects = opened.effects(TEXTS, " she", " he")
    kept = module.out[1].weight.detach().clone()
    module.out[1].weight.data[:, 16:24] = 0
    changed = opened.log_probs(TEXTS, " she", " he")
    module.out[1].weight.data = kept
    lost = (values[:, 0] - values[:, 1]) - (changed[:, 0] - changed[:, 1])
    np.testing.assert_allclose(effects[:, 1, 2], lost, atol=1e-5)
    assert np.abs(effects).min() > 0
    assert opened.attention(TEXTS)[0].shape[:2] == (2, 4)


@pytest.mark.slow
def test_an_own_module_is_probed_like_any_other(page, text, tmp_path):
    result = probe_model(page["opened"], path=text, **SETTINGS)
    assert "the model does not know" in str(result) and result.save(tmp_path / "out").is_file()


def test_a_loaded_model_of_transformers_is_the_one_of_its_folder(folders):
    folder = folders["qwen3"]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    fast = transformers.AutoTokenizer.from_pretrained(folder)
    expected = open_model(folder, device="cpu").effects(TEXTS, " she", " he")
    for given in (fast, tokenizer(), folder, str(folder)):
        effects = open_model(model, tokenizer=given).effects(TEXTS, " she", " he")
        np.testing.assert_allclose(effects, expected, atol=1e-6)
    opened = open_model(model, tokenizer=fast)
    model.train()  # by its owner
    np.testing.assert_allclose(opened.effects(TEXTS, " she", " he"), expected, atol=1e-6)
    model.set_attn_implementation("sdpa")
    with pytest.raises(UserError, match="^the model's attention was changed after it was opened; open it again$"):
        opened.effects(TEXTS, " she", " he")
    half = type(model).from_pretrained(folder, dtype=torch.bfloat16)
    for given, reader, problem in (
        (model.model, fast, "Qwen3Model: it has no output layer"),
        (model, None, "Qwen3ForCausalLM: give its tokenizer too"),
        (3, None, "int: is no folder, name or module"),
        (half, fast, "Qwen3ForCausalLM: its weights are not float32"),
    ):
        with pytest.raises(UserError, match=f"^model={problem}"):
            open_model(given, tokenizer=reader)


@pytest.mark.slow
def test_the_example_of_the_page_runs(trained_run, tmp_path):
    small = f"n_bootstrap=100, n_untrained=2, n_controls=10, cache_dir='{tmp_path}/cache'"
    script = example("python").replace("runs/mine", str(trained_run)).replace("out/", f"{tmp_path}/out/")
    names: dict[str, Any] = {}
    exec(script.replace("probe_model(opened)", f"probe_model(opened, {small})"), names)
    assert (tmp_path / "out" / "report.html").is_file() and names["finding"].verdict


def twice_the_scores(run, tokens, attend):
    return run(tokens, lambda layer, stream, scores, values: attend(layer, stream, 2 * scores, values))


def one_head_apart(run, tokens, attend):
    def mixed(layer, stream, scores, values):
        weights = scores.masked_fill(torch.ones_like(scores).triu(1) > 0, -torch.inf).softmax(-1)
        own = (weights @ values).transpose(1, 2)[:, :, :1].flatten(2)
        return torch.cat([own, attend(layer, stream, scores, values)[..., own.shape[-1] :]], -1)

    return run(tokens, mixed)


def no_mask(record, *arguments):
    return [layer._replace(scores=layer.scores.clamp(min=-9)) for layer in record(*arguments)]


def first_rows(logits, tokens, positions=None, **others):
    return logits(tokens, None if positions is None else 0 * positions, **others)


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("run", twice_the_scores, "the logits of run are not those of the module"),
        ("run", one_head_apart, "edits of the output of L0H0 change nothing"),
        ("record", no_mask, "no report for this model: the recorded attention is not"),
        ("logits", lambda logits, tokens, positions=None, **_: logits(tokens, positions), "edits .* change nothing"),
        ("logits", first_rows, "the logits at positions are not those rows"),
        ("logits", lambda logits, *a, **b: logits(*a, **b) + len(a[0]), "a text has other logits alone than beside"),
        ("logits", lambda logits, tokens, positions=None, *_, **__: logits(tokens), "the logits at positions are not"),
        ("residual_stream", lambda streams, tokens: streams(tokens)[:1], "residual_stream must have the stream before"),
    ],
)
def test_a_wrong_adapter_is_refused(page, name, change, problem):
    right = getattr(page["View"], name)
    passes = {name: lambda self, *values, **named: change(partial(right, self), *values, **named)}
    view = type("Wrong", (page["View"],), passes)(page["module"], **SIZES)
    with pytest.raises(UserError, match=f"^model=Wrong: (Wrong: )?{problem}[^\n]*$"):
        open_model(view, tokenizer=page["path"])


def test_an_object_without_passes_or_of_another_shape_is_refused(page):
    view = page["View"](page["module"], **SIZES | {"n_layer": 3})
    larger = page["View"](page["module"], **SIZES | {"vocab_size": 1000})
    for model, problem in (
        (nn.Linear(2, 2), "Linear: Linear has no n_layer; write a subclass of OwnModel"),
        (view, r"View: View: record has 2 layers of \[4\] heads"),
        (larger, "View: View: cannot read the tokens 0 to 999: "),
    ):
        with pytest.raises(UserError, match=f"^model={problem}"):
            open_model(model, tokenizer=page["path"])


def test_a_token_without_a_word_of_its_own_has_a_plain_name():
    tokenizer = bpe_tokenizer(["one\ntwo three\n"] * 10, 300)
    opened = replace(opened_run()[0], tokenizer=tokenizer, bos_id=end_id(tokenizer))
    names = {"Ċ": "(new line)", "Ġ": '" "', "n": "…n", "Ġthree": "three", ".": ".", END: "(end of the text)"}
    assert [opened.decode(tokenizer.token_to_id(name)) for name in names] == list(names.values())
    words, letters = word_tokenizer(["one two"]), character_tokenizer(["one\n"])
    for other, name in ((words, "two"), (letters, "n")):  # whole words, and no words at all
        assert replace(opened, tokenizer=other).decode(other.token_to_id(name)) == name
