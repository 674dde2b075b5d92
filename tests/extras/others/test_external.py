"""Models of other programs: opened or refused in one line, equal to their own eager attention; ours as a Llama."""

import json
import re
import struct
from base64 import b64decode
from collections import defaultdict
from copy import deepcopy
from dataclasses import replace
from functools import cache, partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from data.tokenizer import END, bpe_tokenizer
from extras.others.export import ExportSettings, card_facts
from extras.others.external import find_model, open_transformers
from extras.others.llama import as_llama, export_transformers, from_llama, own_model
from extras.others.own_model import check_passes
from extras.others.pretrained_view import PretrainedView
from model.edits import cut_weights, exchange_links, remove_head
from model.observe import CachedSitePass, HeadEdit, SiteEdit, SitePass, TransformerView, softmax
from probe.contract import check_observed
from probe.edits import all_heads
from probe.results import Head, ProbeResults
from settings.errors import UserError
from settings.model import ModelConfig, departures
from settings.train import compose_settings
from tests.extras.others.pretrained import EXPERTS, GROUPED, SHAPES, D, H, L, V, pretrained
from tests.model.site_passes import SITE, check_against_whole_passes, check_refusals, cut_first, texts
from tests.program import ROOT, SMALL_PROBE, run_program
from tests.tiny_models import VARIANTS, config, random_model, untrained

transformers = pytest.importorskip("transformers")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tokenizer():
    return bpe_tokenizer(["One sunny day, the cat sat near the buses. It purred.\n" * 3], 280)


@pytest.fixture
def folder(tmp_path, tokenizer):
    model = untrained(tokenizer.get_vocab_size(), seed=5)
    export_transformers(model, tmp_path / "model", tokenizer.token_to_id(END), tokenizer)
    return tmp_path / "model"


def test_an_exported_folder_opens_with_the_same_tokens(folder, tokenizer):
    opened, text = open_transformers(str(folder), CPU), "The cat purred near it.\n"
    assert opened.tokenizer.encode(text).ids == tokenizer.encode(text).ids
    assert (opened.bos_id, opened.view.n_layer) == (tokenizer.token_to_id(END), 2)
    assert opened.facts.items() >= {"model_type": "llama", "commit": None}.items()
    assert find_model(str(folder)) == (folder, None)


def change_config(folder, **values):
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | values))


def change_norm(folder, weight):
    weights = load_file(folder / "model.safetensors")
    weights.pop("model.norm.weight")
    added = {} if weight is None else {"model.norm.weight": weight}
    save_file(weights | added, folder / "model.safetensors", {"format": "pt"})


class Gadget:
    """Creates the file "executed" when it is unpickled without protection, as remote code does when it is imported."""

    def __reduce__(self):
        return Path.touch, (Path("executed"),)


def add_remote_code(folder):
    change_config(folder, model_type="hostile", auto_map={"AutoConfig": "code.A", "AutoModelForCausalLM": "code.B"})
    (folder / "code.py").write_text("open('executed', 'w').close()")


def name_shard(folder, name):
    weights = dict.fromkeys(load_file(folder / "model.safetensors"), name)
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weights}))


def add_gadget(folder):
    (folder / "model.safetensors").unlink()
    torch.save({"weight": Gadget()}, folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "has no config.json, so it is neither a run"),
        ({"tokenizer_sha256": ""}, "no checkpoint yet; continue it with resume=true"),
        (lambda folder: (folder / "config.json").write_text("{"), "not a valid JSON file"),
        ({"quantization_config": {"bits": 4}}, "its weights are quantized"),
        (lambda folder: (folder / "adapter_config.json").write_text("{}"), "merge_and_unload"),
        ({"model_type": "nonsense"}, "nonsense"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors"),
        (lambda folder: change_norm(folder, None), "model.norm.weight is missing"),
        (lambda folder: change_norm(folder, torch.ones(7)), "another shape"),
        (lambda folder: change_norm(folder, torch.full((30,), torch.nan)), "not finite"),
        (add_gadget, "more than tensors"),
        (add_remote_code, "custom code"),
        ({"_attn_implementation": "someone/kernel"}, "code from the hub"),
        ({"num_hidden_layers": 10**9}, "layers"),
        ({"num_hidden_layers": 1}, "does not use all weights: model.layers.1"),
        (lambda folder: name_shard(folder, ".."), "outside the folder"),
        (lambda folder: name_shard(folder, "../../model.safetensors"), "outside the folder: ../../model.safetensors"),
        ({"hidden_size": 3 * 2**16, "intermediate_size": 2**20}, "bytes"),
        (lambda folder: (folder / "model.safetensors").write_bytes(struct.pack("<Q", 10**10) + b"{}"), ""),
        (lambda folder: [path.unlink() for path in folder.glob("tokenizer*")], "no tokenizer"),
    ],
)
def test_a_bad_folder_is_refused(folder, damage, message, monkeypatch):
    monkeypatch.chdir(folder)
    if isinstance(damage, dict):
        change_config(folder, **damage)
    else:
        damage(folder)
    with pytest.raises(ValueError) as refused:
        open_transformers(str(folder), CPU)
    assert str(folder) in str(refused.value) and message in str(refused.value) and "\n" not in str(refused.value)
    assert not Path("executed").exists()


def test_a_missing_model_is_refused_with_its_setting(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for source in ("", "./nowhere", "/nowhere", "not a/hub/name"):
        with pytest.raises(UserError, match=f"model={re.escape(source)}"):
            find_model(source)


def test_sharded_weights_in_bfloat16_are_read_in_float32(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="20KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    view, tokens = open_transformers(str(folder), CPU).view, torch.arange(11)[None]
    assert torch.equal(view.logits(tokens), PretrainedView(model.float()).logits(tokens))


@pytest.mark.parametrize("changes", [{}, {"tie_query_key": True, "tie_key_value": True}])
def test_our_model_and_its_llama_give_the_same_numbers_also_edited(changes):
    model = random_model(**changes)
    view, llama = TransformerView(model), PretrainedView(as_llama(model))
    tokens = torch.randint(model.vocab_size, (3, 9), generator=torch.Generator().manual_seed(0))
    assert (llama.n_layer, llama.n_head, llama.context_length) == (view.n_layer, view.n_head, view.context_length)
    assert torch.equal(as_llama(model)(tokens).logits, model(tokens))
    shape, weights = from_llama(as_llama(model))
    assert shape == replace(model.config, **dict.fromkeys(changes, False))
    assert all(torch.equal(weights[name], weight) for name, weight in model.state_dict().items())
    assert torch.equal(own_model(as_llama(model))(tokens), model(tokens))
    edits = [HeadEdit(0, 1, weights=lambda weights: weights.flip(0)), HeadEdit(1, 2, output=torch.zeros_like)]
    edited = view.logits(tokens, edits=edits)
    torch.testing.assert_close(llama.logits(tokens, edits=edits), edited, rtol=1e-4, atol=1e-5)
    for record, expected in zip(llama.record(tokens), view.record(tokens), strict=True):
        for name in ("scores", "values", "head_output"):
            found, of_ours = getattr(record, name), getattr(expected, name)
            torch.testing.assert_close(found, of_ours, rtol=1e-4, atol=1e-5)


def test_a_llama_whose_output_embedding_is_its_own_is_not_made_ours():
    with pytest.raises(UserError, match="only a Llama whose output embedding is the token embedding"):
        own_model(make_view("llama").model)


def test_switches_that_no_llama_has_are_refused_by_name():
    for variant in list(VARIANTS.values())[1:]:
        with pytest.raises(UserError, match="not exportable") as refused:
            as_llama(random_model(**variant))
        switches = {f"model.{switch}={str(value).lower()}" for switch, value in variant.items()}
        assert set(departures(config(**variant))) == switches
        for switch in switches:
            assert (switch in str(refused.value)) == (not switch.startswith("model.tie_"))
    every = {name for variant in VARIANTS.values() for name in variant}
    others = set("n_layer n_head d_model d_mlp context_length rope_theta norm_eps dropout".split())
    assert ModelConfig.__dataclass_fields__.keys() - every == others, "a switch is in no variant"


export = partial(run_program, "antecedent_lab/__main__.py", "export")


def test_an_exported_run_opens_in_transformers_and_has_a_card(run):
    assert export(f"run={run}").status == 0
    folder = run / "export" / "hf"
    llama = transformers.AutoModelForCausalLM.from_pretrained(folder)
    [checkpoint] = [torch.load(path, weights_only=True) for path in (run / "checkpoints").glob("*4.pt")]
    torch.testing.assert_close(llama.get_output_embeddings().weight, checkpoint["model"]["token_embedding.weight"])
    exported, text = transformers.AutoTokenizer.from_pretrained(folder), "The cat sat. It purred"
    assert exported(text)["input_ids"] == Tokenizer.from_file(str(run / "tokenizer.json")).encode(text).ids
    assert exported.bos_token == exported.eos_token == exported.pad_token == END
    card = (folder / "README.md").read_text()
    assert "1 layers of 2 heads" in card and "data=stories, step 4" in card and "Not probed" in card
    facts = ModelCard(card).data
    assert (facts.library_name, facts.license, facts.language) == ("transformers", "apache-2.0", "en")
    assert ExportSettings.__dataclass_fields__.keys() <= set(export("--help").out.split())


@pytest.mark.parametrize("argument", ["outt=a", "run=nowhere", "out=run/config.json", "out=run/config.json/new"])
def test_an_impossible_export_is_one_line_and_writes_nothing(run, argument):
    before = set(run.parent.rglob("*"))
    named = argument.replace("out=run/config.json/new", "run/config.json")  # the file that is in the way
    assert named in export("run=run", argument, cwd=run.parent).error
    assert before == set(run.parent.rglob("*"))


@pytest.mark.parametrize(
    ("arguments", "known"),
    [
        (["init=other"], ["language: en"]),
        (["experiment=english"], ["language: en", "datasets: roneneldan/TinyStories"]),
        (["data=text", "data.path=mine.txt"], []),
        (["data=hub", "data.name=someone/texts"], ["datasets: someone/texts"]),
        (["data=hub", "data.name=tests"], []),  # a folder
    ],
)
def test_a_card_has_no_fact_about_texts_that_is_not_known(arguments, known):
    card = card_facts("a", compose_settings(arguments), None)
    assert sorted(re.findall(r"^(?:license|language|datasets):.*", card, re.MULTILINE)) == sorted(known)


class Hub(BaseHTTPRequestHandler):
    """Answers the four requests of an upload as the hub does, and keeps the last one, which has the files."""

    sent = b""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        address = f"http://{self.headers['Host']}/someone/story-model"
        answer: Any = {"errors": [], "warnings": []}
        if self.path == "/api/repos/create":
            answer = {"url": address}
        elif "/preupload/" in self.path:
            paths = [file["path"] for file in json.loads(body)["files"]]
            answer = {"files": [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in paths]}
        elif "/commit/" in self.path:
            assert self.path.startswith("/api/models/someone/story-model/")
            Hub.sent, answer = body, {"commitUrl": f"{address}/commit/1", "commitOid": "1"}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *message):
        """Print nothing."""


def test_a_tested_run_is_pushed_with_a_card_that_has_its_scores(run, cache, monkeypatch):
    assert run_program("eval.py", f"run={run}", cache, *SMALL_PROBE).status == 0
    results = run / "probe" / "probe.json"
    content = json.loads(results.read_text())
    content["findings"][1]["head"]["values"]["swap"] = {"value": 0.25}  # one layer has none
    results.write_text(json.dumps(content))
    with HTTPServer(("127.0.0.1", 0), Hub) as server:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("HF_TOKEN", "any")
        Thread(target=server.serve_forever, daemon=True).start()
        pushed = export(f"run={run}", "push=someone/story-model")
        server.shutdown()
    assert pushed.status == 0 and re.match(r"pushed http://127.*/someone/story-model\n", pushed.out), pushed.err
    files = [json.loads(line)["value"] for line in Hub.sent.splitlines()][1:]
    folder = run / "export" / "hf"
    assert {file["path"]: b64decode(file["content"]) for file in files} == {
        path.name: path.read_bytes() for path in folder.iterdir()
    }
    data = ModelCard.load(folder / "README.md").data
    scores = {(score.dataset_config, score.metric_type): score.metric_value for score in data.eval_results}
    assert scores["number", "swap"] == 0.25
    for finding in ProbeResults.from_json(content).findings:
        assert scores[finding.question, "accuracy"] == finding.judged.value("accuracy")
        assert scores[finding.question, "verdict"] == finding.verdict == "not established"
        assert finding.question == "number" or (finding.question, "swap") not in scores  # not measured


@pytest.mark.parametrize("name", ["someone/story-model", "story-model"])
def test_a_push_that_the_hub_does_not_take_is_one_line_and_writes_nothing(run, name, monkeypatch):
    with HTTPServer(("127.0.0.1", 0), Hub) as closed:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{closed.server_port}")
    assert export(f"run={run}", f"push={name}").error.startswith(f"push={name}: ")
    assert not (run / "export" / "hf").exists()


T = 11
HYBRIDS = {"qwen3_5_text": (1,), "olmo_hybrid": (0, 2)}  # the layers with attention
each_type = pytest.mark.parametrize("model_type", SHAPES)
each_without_hybrids = pytest.mark.parametrize("model_type", [name for name in SHAPES if name not in HYBRIDS])


@cache
def make_view(model_type):
    return PretrainedView(pretrained(model_type, **MORE.get(model_type, {})))


TOKENS = torch.randint(V, (5, T), generator=torch.Generator().manual_seed(2))


@each_type
def test_maps_logits_and_residual_stream_equal_eager(model_type):
    view = make_view(model_type)
    facts = deepcopy(view.model.config)
    reference = transformers.AutoModelForCausalLM.from_config(facts, dtype=torch.float32, attn_implementation="eager")
    reference.load_state_dict(view.model.state_dict())
    with torch.no_grad():
        expected = reference.eval()(TOKENS, output_attentions=True, output_hidden_states=True, use_cache=False)
    layers = list(HYBRIDS.get(model_type, range(L)))
    maps = view.attention_weights(TOKENS)
    assert maps[layers].std() > 0.05 and maps.isnan().sum() == (L - len(layers)) * maps[0].numel()
    torch.testing.assert_close(maps[layers], torch.stack(expected.attentions))
    torch.testing.assert_close(view.logits(TOKENS), expected.logits)
    streams = view.residual_stream(TOKENS)
    assert len(streams) == len(expected.hidden_states) == L + 1
    torch.testing.assert_close(streams[:-1], list(expected.hidden_states[:-1]))


@each_without_hybrids
def test_the_pass_over_the_site_alone_equals_whole_passes(model_type):
    check_against_whole_passes(make_view(model_type), CachedSitePass)


@each_without_hybrids
def test_an_edited_pass_runs_the_layers_from_the_edit_on(model_type):
    view = make_view.__wrapped__(model_type)  # not from the cache: its layers get hooks
    site_pass, streams = view.site_pass(texts(), SITE), view.residual_stream(TOKENS)
    edit_lists = [[], [SiteEdit(2, 0, weights=cut_first)], [SiteEdit(1, 1, weights=cut_first)]]
    words = torch.tensor([[4, 36], [11, 2], [8, 3], [7, 7]])
    of_words = site_pass.edited_logits(edit_lists).gather(2, words.expand(3, -1, -1))
    edits = [exchange_links(1, 2, 6, [4], [5])]
    late = view.logits(TOKENS, None, edits)
    calls: list[int] = []
    for i, module in view._modules.items():
        module.register_forward_hook(lambda *_, i=i: calls.append(i))
    torch.testing.assert_close(site_pass.edited_logits(edit_lists, words), of_words)
    assert sorted(calls) == [1, 2, 2]
    calls.clear()
    torch.testing.assert_close(view.logits(TOKENS, None, edits, streams), late)
    assert calls == [1, 2]


def test_a_model_that_mixes_positions_outside_attention_gets_whole_passes():
    view = make_view.__wrapped__("llama")  # not from the cache: its layers change
    check_refusals(view)
    view.model.model.layers[1].mlp.register_forward_hook(lambda _, __, output: output + output.roll(1, dims=1) / 2)
    hybrid = make_view.__wrapped__("qwen3_5_text")
    for layer in (0, 2):  # so little that the logits hardly differ
        hybrid.model.model.layers[layer].linear_attn.out_proj.weight.mul_(1e-6)
    for mixing in (view, hybrid):
        assert type(mixing.site_pass(torch.randint(V, (2, 6)), torch.tensor([5, 3]))) is SitePass


@each_type
def test_the_heads_of_the_record_write_the_output_of_their_module(model_type):
    view = make_view.__wrapped__(model_type)  # not from the cache: its layers get hooks
    written = []
    for module in view._modules.values():
        module.register_forward_hook(lambda _, __, output: written.append(output[0]))
    records = view.record(TOKENS)
    for layer, record, output in zip(view.attention_layers, records, written, strict=True):
        torch.testing.assert_close(record.weights() @ record.values, record.head_output)
        gated = record.head_output if record.gate is None else record.head_output * record.gate
        added = torch.einsum("bhtk,hdk->btd", gated, view.output_weights(layer))
        module = view._modules[layer]
        name = next(name for name in ("o_proj", "out_proj", "c_proj", "dense") if hasattr(module, name))
        bias = getattr(module, name)(torch.zeros(gated.shape[1] * gated.shape[3]))
        torch.testing.assert_close(added + bias, output, rtol=1e-4, atol=1e-5)
        assert (record.gate is not None) == (model_type == "qwen3_5_text")


@pytest.mark.parametrize("model_type", [*HYBRIDS, "gpt_oss"])
def test_hybrids_and_sinks_keep_the_contract_and_the_numbers_of_their_layers(model_type):
    view = make_view(model_type)
    found = check_observed(view, TOKENS, torch.full((len(TOKENS), 1), 6))
    assert view.attention_layers == HYBRIDS.get(model_type, (0, 1, 2))
    assert all_heads(view) == [Head(layer, head) for layer in view.attention_layers for head in range(H)]
    if model_type == "gpt_oss":
        assert found["row_sum"] < 0  # a sink has the rest
        record, mask = view.record(TOKENS)[1], torch.zeros(len(TOKENS), T, dtype=torch.bool)
        mask[:, 5] = True
        cut = softmax(record.scores.masked_fill(mask[:, None, None], -torch.inf), record.sinks)
        torch.testing.assert_close(cut_weights(record.weights()[:, 0, 6], mask), cut[:, 0, 6])
        return
    without = min({0, 1, 2} - {*view.attention_layers})
    layers = ", ".join(map(str, view.attention_layers))
    with pytest.raises(UserError, match=f"^edits: no head L{without}H0; .* attention in the layers {layers} only$"):
        view.logits(TOKENS, edits=[remove_head(without, 0)])


# What opens, besides SHAPES
MORE = {
    "gemma3_text": {**GROUPED, "head_dim": 10, "sliding_window": 4},
    "qwen3_next": {**SHAPES["qwen3_5_text"], **EXPERTS, "moe_intermediate_size": 32},
    "lfm2": {**GROUPED, "layer_types": ["conv", "full_attention", "conv"], "block_ff_dim": 32},
    "nemotron_h": {
        **GROUPED, "layers_block_type": ["mamba", "attention", "mlp"], "mamba_num_heads": 4, "mamba_head_dim": 16,
        "n_groups": 1,
    },
    "bloom": {"hidden_size": D, "n_layer": 2, "n_head": H},
    "doge": GROUPED,  # it calls our attention with a mask of numbers
    "gpt_neo": {
        "hidden_size": D, "num_layers": 2, "num_heads": H, "attention_types": [[["global", "local"], 1]],
        "max_position_embeddings": 16,
    },
    "mamba": {"hidden_size": D, "num_hidden_layers": 2, "state_size": 4},
}  # fmt: skip


def what_opens(model_type):
    """Return the cell of the table of docs/usage.md about a model type."""
    try:
        view = make_view(model_type)
    except UserError as error:
        assert f"model_type={model_type}: cannot be observed" in str(error)
        return "no"
    check_passes(view)
    config = view.model.config
    facts = {
        "grouped queries": getattr(config, "num_key_value_heads", H) < H,
        "windows": view.context_length < config.max_position_embeddings,
        "sinks": any(record.sinks is not None for record in view.record(TOKENS[:, :4])),
        "hybrid": len(view.attention_layers) < view.n_layer,
    }
    return ", ".join(name for name, is_true in facts.items() if is_true) or "yes"


def test_the_table_of_what_opens_is_what_opened():
    types = defaultdict[str, list[str]](list)
    for model_type in [*SHAPES, *MORE]:
        types[what_opens(model_type)].append(model_type)
    types["no"].append("quantized weights")  # a bad folder above
    table = "".join(f"| {', '.join(names)} | {opens} |\n" for opens, names in types.items())
    assert f"| model type | opens |\n|---|---|\n{table}\n" in (ROOT / "docs/usage.md").read_text(), table


@each_type
def test_contributions_to_the_final_norm_add_up_to_logits(model_type):
    view = make_view(model_type)
    stream, unembedding = view.residual_stream(TOKENS)[-1], view.unembedding()
    difference = unembedding[3] - unembedding[8]
    pulled = view.final_norm_pullback(difference.expand_as(stream), stream)
    body = getattr(view.model.base_model, "decoder", view.model.base_model)
    norm = next(module for name, module in body.named_children() if "norm" in name or name == "ln_f")
    expected = (norm(stream) - norm(0 * stream)) @ difference  # without the bias
    torch.testing.assert_close((pulled * stream).sum(-1), expected, rtol=1e-4, atol=1e-4)
