"""Models that are loaded already: the page's own module, one of transformers, and wrong adapters, which are refused."""

import io
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from antecedent_lab import UserError, open_model, probe_model, remove_head
from data.text import SHIPPED_TEXT, read_documents
from data.tokenizer import END, bpe_tokenizer
from tests.program import ROOT, SMALL, process_state

USAGE = (ROOT / "docs" / "usage.md").read_text()
TEXTS = ["Lily met Tom in the park.", "The dog"]
VOCABULARY = 500
Pass = Callable[..., Any]  # of an adapter


def example(name: str) -> str:
    """Return a code block of the page."""
    match = re.search(rf"<!-- {name} -->\n```python\n(.*?)```", USAGE, re.DOTALL)
    assert match
    return match[1]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The names that the page's example of an own module defines; it was run in a folder with a tokenizer.json."""
    path = tmp_path_factory.mktemp("own") / "tokenizer.json"
    bpe_tokenizer(read_documents([SHIPPED_TEXT])[:200], VOCABULARY).save(str(path))
    names: dict[str, Any] = {"path": path}
    torch.manual_seed(0)
    exec(example("own model").replace("tokenizer.json", str(path)), names)
    return names


def test_the_module_of_the_page_is_measured_as_its_forward_pass(page: dict[str, Any]) -> None:
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
    assert opened.effects(TEXTS, " she", " he", at="last").shape == (2, 2, 4)
    assert opened.attention(TEXTS)[0].shape[:2] == (2, 4) and "View" in repr(opened)


@pytest.mark.slow
def test_an_own_module_is_probed_like_any_other(page: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "part.txt"
    path.write_text("\n\n".join(read_documents([SHIPPED_TEXT])[:800]))
    result = probe_model(page["opened"], path=str(path), n_bootstrap=100, n_untrained=2, n_controls=10)
    assert "the model does not know" in str(result) and result.save(tmp_path / "out").is_file()


def test_a_loaded_model_of_transformers_is_the_one_of_its_folder(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = bpe_tokenizer(read_documents([SHIPPED_TEXT])[:200], VOCABULARY)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=END)
    sizes = {"hidden_size": 32, "intermediate_size": 31, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    settings = transformers.LlamaConfig(**sizes, vocab_size=VOCABULARY, max_position_embeddings=64)
    model = transformers.LlamaForCausalLM(settings)
    model.save_pretrained(tmp_path)
    fast.save_pretrained(tmp_path)
    expected = open_model(tmp_path, device="cpu").effects(TEXTS, " she", " he")
    for given in (fast, tokenizer, tmp_path, str(tmp_path)):
        effects = open_model(model, tokenizer=given).effects(TEXTS, " she", " he")
        np.testing.assert_allclose(effects, expected, atol=1e-6)
    with pytest.raises(UserError, match="^model=LlamaForCausalLM: give its tokenizer too"):
        open_model(model)
    with pytest.raises(UserError, match="^model=LlamaForCausalLM: its weights are not float32"):
        open_model(model.to(torch.bfloat16), tokenizer=fast)
    with pytest.raises(UserError, match="^model=LlamaModel: it has no output layer"):
        open_model(transformers.LlamaModel(settings), tokenizer=fast)


@pytest.mark.slow
def test_the_example_of_the_page_runs(trained_run: Path, tmp_path: Path) -> None:
    small = f"n_bootstrap=100, n_untrained=2, n_controls=10, cache_dir='{tmp_path}/cache'"
    changes = {
        "runs/mine": str(trained_run),
        "out/": f"{tmp_path}/out/",
        "probe_model(opened)": f"probe_model(opened, {small})",
    }
    script = example("python")
    for old, new in changes.items():
        assert old in script
        script = script.replace(old, new)
    names: dict[str, Any] = {}
    exec(script, names)
    assert (tmp_path / "out" / "report.html").is_file() and names["finding"].verdict


@pytest.mark.slow
def test_the_lines_for_wandb_start_it_first(cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    calls = []
    package = ModuleType("wandb")
    package.init = lambda **settings: calls.append((settings, run.exists()))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", package)
    monkeypatch.chdir(ROOT)
    arguments = [f"out={run}", cache, *SMALL]
    script = example("wandb").replace('"out=runs/mine"', ", ".join(map(repr, arguments)))
    with process_state(), redirect_stdout(io.StringIO()):
        exec(script, {})
    assert calls == [({"project": "antecedent", "sync_tensorboard": True}, False)]
    assert list((run / "tb").glob("events.out.tfevents.*"))


def twice_the_scores(run: Pass, tokens: Tensor, attend: Pass) -> Any:
    return run(tokens, lambda layer, stream, scores, values: attend(layer, stream, 2 * scores, values))


def no_mask(record: Pass, *arguments: Any) -> Any:
    return [layer._replace(scores=layer.scores.clamp(min=-9)) for layer in record(*arguments)]


def first_rows(logits: Pass, tokens: Tensor, positions: Any = None, **edits_and_streams: Any) -> Any:
    return logits(tokens, None if positions is None else 0 * positions, **edits_and_streams)


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("run", twice_the_scores, "the logits of run are not those of the module"),
        ("record", no_mask, "no report for this model: the recorded attention is not"),
        ("logits", lambda logits, tokens, positions=None, **_: logits(tokens, positions), "edits .* change nothing"),
        ("logits", first_rows, "the logits at positions are not those rows"),
        ("logits", lambda logits, tokens, positions=None, *_, **__: logits(tokens), "the logits at positions are not"),
        ("residual_stream", lambda streams, tokens: streams(tokens)[:1], "residual_stream must have the stream before"),
    ],
)
def test_a_wrong_adapter_is_refused(page: dict[str, Any], name: str, change: Pass, problem: str) -> None:
    class Wrong(page["View"]):  # type: ignore[misc]
        """The page's adapter with one changed pass."""

    right = getattr(page["View"], name)
    setattr(Wrong, name, lambda self, *values, **named: change(partial(right, self), *values, **named))
    view = Wrong(page["module"], n_layer=2, n_head=4, context_length=64, vocab_size=VOCABULARY)
    with pytest.raises(UserError, match=f"^model=Wrong: (Wrong: )?{problem}[^\n]*$"):
        open_model(view, tokenizer=page["path"])


def test_an_object_without_passes_or_of_another_shape_is_refused(page: dict[str, Any]) -> None:
    view = page["View"](page["module"], n_layer=3, n_head=4, context_length=64, vocab_size=VOCABULARY)
    for model, problem in (
        (nn.Linear(2, 2), "Linear: Linear has no n_layer; write a subclass of OwnModel"),
        (view, r"View: View: record has 2 layers of \[4\] heads"),
    ):
        with pytest.raises(UserError, match=f"^model={problem}"):
            open_model(model, tokenizer=page["path"])
    with pytest.raises(UserError, match="edits: no head L2H0"):
        page["opened"].log_probs(TEXTS, " she", edits=[remove_head(2, 0)])
