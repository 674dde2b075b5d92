"""Writing: the same text for the same seed, and the tokens and probabilities of transformers."""

import os
import runpy
import signal
import sys

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from antecedent_lab import open_model
from data.tokenizer import END, bpe_tokenizer
from extras.others.llama import export_transformers
from probe.writing import Sampling, write_on
from settings.errors import UserError
from tests.program import ROOT, forked, run_program
from tests.tiny_models import untrained

transformers = pytest.importorskip("transformers")
BEGUN = "One sunny day, the cat"
SAMPLED = [{"temperature": 0.7}, {"temperature": 1.5, "top_k": 7}, {"top_k": 10_000}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An exported model whose layers write something, with a byte-level tokenizer."""
    tokenizer = bpe_tokenizer(["One sunny day, the cat sat near the buses. It purred.\n" * 3], 280)
    folder = tmp_path_factory.mktemp("export") / "model"
    export_transformers(untrained(tokenizer.get_vocab_size(), seed=5), folder, tokenizer.token_to_id(END), tokenizer)
    return folder


def test_greedy_text_is_that_of_generate(folder, tmp_path):
    opened = open_model(folder, device="cpu", out=str(tmp_path))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokens = torch.tensor([opened.encode(BEGUN)])
    length = min(12, opened.model.context_length - tokens.shape[1])
    expected = model.generate(tokens, max_new_tokens=length, do_sample=False, pad_token_id=0)[0, tokens.shape[1] :]
    expected = [token for token in expected.tolist() if token != opened.bos_id]
    assert length > 1
    whole = opened.tokenizer.decode([*tokens[0, 1:].tolist(), *expected])
    assert opened.write(BEGUN, temperature=0, length=12) == [whole[len(BEGUN) :].rstrip("\ufffd")]


@pytest.mark.parametrize("settings", SAMPLED, ids=str)
def test_the_probabilities_of_a_step_are_those_of_transformers(folder, settings):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokens = torch.arange(5)[None]
    logits = model(tokens).logits[0, -1].detach()
    options = {"do_sample": True, "max_new_tokens": 1, "pad_token_id": 0, "top_k": 0, "top_p": 1.0} | settings
    made = model.generate(tokens, **options, output_scores=True, return_dict_in_generate=True)
    found = Sampling(**settings if "temperature" in settings else {"temperature": 1.0, **settings}).chances(logits)
    torch.testing.assert_close(found.float(), made.scores[0][0].softmax(-1))


def test_the_tokens_are_drawn_with_these_probabilities(trained_run):
    opened = open_model(trained_run, device="cpu")
    texts = opened.write("The cat", n=400, length=1, temperature=1.0)
    logits = opened.model.logits(torch.tensor([opened.encode("The cat")]), torch.tensor([2]))[0]
    chances = Sampling(1.0).chances(logits).numpy()
    likeliest = int(chances.argmax())
    share = np.mean([text.strip() == opened.tokenizer.id_to_token(likeliest) for text in texts])
    assert share == pytest.approx(chances[likeliest], abs=0.1)  # four standard errors


def test_a_text_is_the_same_for_the_same_seed_and_ends(trained_run):
    opened = open_model(trained_run, device="cpu")
    texts = opened.write(BEGUN, n=3, seed=4)
    assert texts == [*opened.write(BEGUN, n=2, seed=4), texts[2]] != opened.write(BEGUN, n=3, seed=5)
    assert len(set(texts)) == 3
    longest = opened.model.context_length
    assert all(len(opened.encode(BEGUN + text)) <= longest for text in opened.write(BEGUN, n=5, length=10_000))
    assert [len(opened.encode(text)) for text in opened.write("", length=3, temperature=1.0)] == [4]
    with pytest.raises(UserError, match="the model reads 64"):
        opened.write("the cat " * 40)
    for wrong in ({"temperature": -1.0}, {"temperature": float("nan")}, {"top_k": 0}):
        with pytest.raises(UserError, match=next(iter(wrong))):
            opened.write(BEGUN, **wrong)


def test_eval_writes_as_it_goes_and_says_what_it_cannot(run, tmp_path):
    written = run_program("eval.py", f"run={run}", f"write={BEGUN}", "n=2", "seed=4")
    opened = open_model(run, device="cpu")
    expected = [BEGUN + text for text in opened.write(BEGUN, n=2, seed=4)]
    assert (written.status, written.err) == (0, "") and written.out.split("\n\n")[1:] == [
        expected[0], expected[1] + "\n"
    ]  # fmt: skip
    assert not (run / "probe").exists()
    for arguments, said in [
        (["temperature=0"], "temperature=0.0: only with write=TEXT"),
        (["write=a", "text=b"], "cannot be combined"),
        (["write=the zebra", "top_k=0"], "top_k"),
    ]:
        refused = run_program("eval.py", f"run={run}", *arguments)
        assert refused.status == 2 and said in refused.err and refused.err.count("\n") == 1
    assert "zebra" in run_program("eval.py", f"run={run}", "write=the zebra", "length=1").out.splitlines()[1]


def test_ctrl_c_ends_a_text_and_keeps_what_was_written(run):
    reader, writer = os.pipe()

    def write():
        sys.argv = ["eval.py", f"run={run}", f"write={BEGUN}", "n=100000"]
        sys.stdout = os.fdopen(writer, "w")
        try:
            runpy.run_path(str(ROOT / "eval.py"), run_name="__main__")
        except SystemExit as ended:
            return ended.code
        return 0

    pid = forked(write)
    os.close(writer)
    with os.fdopen(reader) as stream:
        first = "".join(stream.readline() for _ in range(4))
        os.kill(pid, signal.SIGINT)
        rest = stream.read()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    assert first.count(BEGUN) >= 1 and len(rest) < 10**6


class Next:
    """A model whose next token is always that after the last one."""

    context_length, device = 20, "cpu"

    def logits(self, tokens, positions):
        return torch.nn.functional.one_hot(tokens[:, -1] + 1, 20).float()


def test_a_text_ends_at_a_token_of_its_own_too_but_not_at_an_unknown_word():
    tokenizer = Tokenizer(WordLevel({f"w{i}": i for i in range(20)}, unk_token="w3"))
    tokenizer.decoder = None
    tokenizer.add_special_tokens(["w3", "w6"])  # the unknown word, and the end, which begins no text
    pieces = write_on(Next(), tokenizer, (0, 1), 15, Sampling(0), [0])
    assert list(pieces) == [" w2", "", " w4", " w5"]
