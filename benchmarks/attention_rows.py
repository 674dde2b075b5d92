"""Attention rows of every head, ours and transformers': python -m benchmarks.attention_rows [text=FILE] [out=FILE].

Both read the same sentences with the same weights, 6 layers of 8 heads, width 256, and return one row of every head for
each: what its last pronoun looks at, and in a second measurement what its last token does. Theirs is LlamaForCausalLM,
attn_implementation="eager", output_attentions=True, sentences sorted by length, in the best of three batch sizes: as
most call it, all logits computed, and without its unembedding, as one who knows that no row needs it may. Ours is
`attention_maps` of batches alike in length, of what stands up to the asked token: what follows cannot change its row.
Each passes once in a process of its own, in turn, on one thread; CPU-seconds are those of the pass, memory is the
process's peak. Weights in float32 are compared to 1e-5. Sentences with a pronoun, two of a text's own together, of our
generated stories where no text=FILE is given. quick=true: fewer. Needs requirements-dev.txt.
"""

from __future__ import annotations

import json
import re
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from benchmarks.rows import ROOT, Row, alone, number, repeats, timed
from data.tokenizer import bpe_tokenizer, end_id
from model.config import Mask, ModelConfig, Position, Scale, Weighting
from model.export import llama_config, llama_weights
from model.observe import attention_maps
from model.transformer import Transformer
from probe.scores import text_batches

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

LIMIT = 1e-5  # of a float32 weight's distance from the peer's
_VOCABULARY = 4096  # of the text's own tokens
# Of the models: GPT-2's, as public models have it. It costs whoever computes the logits, and nobody else.
_MODEL_VOCABULARY = 50_257
_LENGTHS = range(8, 65)  # tokens: what is no sentence, and what is several
_SHAPE = ModelConfig(
    n_layer=6, n_head=8, d_model=256, d_mlp=768, context_length=_LENGTHS[-1], rope_theta=1e4, norm_eps=1e-5,
    dropout=0.0, scale=Scale.inverse_sqrt, weighting=Weighting.softmax, position=Position.rope, mask=Mask.causal,
    tie_query_key=False, tie_key_value=False, token_shift=False,
)  # fmt: skip
_TOKENS_PER_BATCH = 2048  # of ours: activations of a layer then stay in the cache
_PEER_BATCHES = (8, 32, 128)  # sentences
_PRONOUN = re.compile(r"(?<!^)\b(it|he|she|they|him|her|them|his|its|their)\b", re.IGNORECASE)

Asked = list[tuple[tuple[int, ...], int]]  # the tokens of each text, and the place of the token whose rows are wanted
Weights = list[np.ndarray]  # of each text [L, H, place + 1]


def sentences(text: str) -> list[str]:
    """Return every two successive sentences of each paragraph, so that a pronoun may have its antecedent there."""
    found = []
    for paragraph in text.split("\n"):
        some = [one for one in re.split(r"(?<=[.!?])[\"']?\s+", paragraph.strip()) if one]
        found += [" ".join(some[i : i + 2]) for i in range(0, len(some) - 1, 2)]
    return found


def own_text(n_stories: int) -> str:
    """Return generated stories, one a line."""
    from hydra import compose, initialize_config_dir

    from data.config import StoriesConfig
    from data.stories import generate_split
    from training.settings import typed_train

    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        config = typed_train(compose("train", [f"data.n_train_stories={n_stories}"])).data
    assert isinstance(config, StoriesConfig)
    return "\n".join(story.text for story in generate_split(config, "train"))


def made(text: str, n_texts: int) -> tuple[Asked, Transformer]:
    """Return the first sentences of `text` that have a pronoun, each asked there, and a model to read them.

    Its weights are random, the output projections' too, which would begin at 0: every layer does something.
    """
    tokenizer = bpe_tokenizer([text], _VOCABULARY)
    end, found = end_id(tokenizer), {}
    for sentence in sentences(text):
        encoding = tokenizer.encode(sentence)
        pronouns = [match.end() - 1 for match in _PRONOUN.finditer(sentence)]
        if len(encoding.ids) in _LENGTHS and pronouns:
            place = encoding.char_to_token(pronouns[-1])
            assert place is not None  # byte-level BPE has a token for every character but spaces
            found[end, *encoding.ids] = 1 + place
        if len(found) == n_texts:
            break
    model = Transformer(_SHAPE, _MODEL_VOCABULARY, seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, one in model.named_parameters():
            if name.endswith(("output.weight", "down.weight")):
                one.normal_(0.0, one.shape[1] ** -0.5, generator=generator)
    return list(found.items()), model.eval()


def our_rows(model: Transformer, asked: Asked) -> Weights:
    """Return what the asked token of each text looks at."""
    found: Weights = [np.empty(0)] * len(asked)
    with torch.no_grad():
        for members, rows, tokens in text_batches([text[: place + 1] for text, place in asked], _TOKENS_PER_BATCH):
            places = torch.zeros(len(tokens), 1, dtype=torch.int64)
            places[rows, 0] = torch.tensor([asked[i][1] for i in members])
            maps = attention_maps(model, tokens, places)[:, :, :, 0].numpy()  # [L, B, H, T]
            for i, row in zip(members, rows, strict=True):
                found[i] = maps[:, row, :, : asked[i][1] + 1]
    return found


def peer_rows(model: LlamaForCausalLM, asked: Asked, n_at_once: int, *, head: bool = True) -> Weights:
    """Return the same by transformers; `head` False: by its model without the unembedding."""
    found: Weights = [np.empty(0)] * len(asked)
    order = sorted(range(len(asked)), key=lambda i: len(asked[i][0]))
    reader = model if head else model.model
    for first in range(0, len(order), n_at_once):
        members = order[first : first + n_at_once]
        tokens = torch.zeros(len(members), len(asked[members[-1]][0]), dtype=torch.int64)
        there = torch.zeros_like(tokens)
        for row, i in enumerate(members):
            tokens[row, : len(asked[i][0])] = torch.tensor(asked[i][0])
            there[row, : len(asked[i][0])] = 1
        with torch.no_grad():
            out = reader(input_ids=tokens, attention_mask=there, output_attentions=True, use_cache=False)
        for row, i in enumerate(members):
            place = asked[i][1]
            found[i] = torch.stack([layer[row, :, place, : place + 1] for layer in out.attentions]).float().numpy()
    return found


def llama(model: Transformer) -> LlamaForCausalLM:
    """Return transformers' Llama with the weights of `model`."""
    from transformers import LlamaConfig, LlamaForCausalLM

    peer = LlamaForCausalLM(LlamaConfig.from_dict(llama_config(model.config, model.vocab_size, end=0)))
    peer.set_attn_implementation("eager")
    weights = llama_weights(model)
    peer.load_state_dict(weights | {"lm_head.weight": weights["model.embed_tokens.weight"]})
    return peer.eval()


def _reader(kind: str, model: Transformer) -> Callable[[Asked], Weights]:
    """Return what reads: "ours", "ours bfloat16", "peer N", "peer N bfloat16" or "headless peer N"."""
    if "bfloat16" in kind:
        model = model.bfloat16()
    if "peer" not in kind:
        return lambda asked: our_rows(model, asked)
    peer, size = llama(model), int(re.findall(r"\d+", kind)[0])
    if "bfloat16" in kind:
        peer = peer.bfloat16()
    return lambda asked: peer_rows(peer, asked, size, head="headless" not in kind)


def child(kind: str, at_end: bool, folder: Path) -> None:
    """Pass once over all texts in this process; print CPU-seconds and memory, and write the rows."""
    torch.set_num_threads(1)
    kept = torch.load(folder / "made.pt", mmap=True, weights_only=True)
    model = Transformer(_SHAPE, kept["vocab_size"], seed=0).eval()
    model.load_state_dict(kept["model"])
    asked = [(text, len(text) - 1) for text, _ in kept["asked"]] if at_end else kept["asked"]
    read = _reader(kind, model)
    read(asked[:50])  # what is made at the first call only
    before = _peak()
    began = time.process_time()
    rows = read(asked)
    seconds = time.process_time() - began
    np.save(folder / "rows.npy", np.concatenate([one.reshape(-1) for one in rows]))
    print(json.dumps({"seconds": seconds, "before": before, "peak": _peak()}))


def _peak() -> float:
    """Return the most that this process has held so far, in megabytes; Linux counts kilobytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@dataclass(frozen=True, slots=True)
class Pass:
    """What a process of its own measures."""

    n: int  # sentences
    seconds: float  # CPU
    before: float  # MB, the most that it held after 50 sentences
    peak: float  # MB, the most that it held
    rows: np.ndarray  # all weights

    @property
    def speed(self) -> float:
        """Sentences a CPU-second."""
        return self.n / self.seconds


def passed(kind: str, folder: Path, n: int, *, at_end: bool = False) -> Pass:
    """Let a process of its own pass over `n` sentences."""
    door = [sys.executable, "-m", "benchmarks.attention_rows", f"child={kind}", f"folder={folder}", f"end={at_end}"]
    measured = json.loads(timed(door).said.splitlines()[-1])
    return Pass(n=n, rows=np.load(folder / "rows.npy"), **measured)


Found = dict[tuple[str, bool], list[Pass]]  # by who reads and whether at the last token: a pass of each repeat
_OURS, _HALF = "ours", "ours bfloat16"


def rows(given: dict[str, str]) -> list[Row]:
    """Measure ours and transformers' in turn; SystemExit where float32 rows differ by more than `LIMIT`."""
    quick = given.get("quick") == "true"
    text = Path(given["text"]).read_text() if "text" in given else own_text(2000 if quick else 20_000)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        asked, model = made(text, 100 if quick else 2000)
        about = {"asked": asked, "model": model.state_dict(), "vocab_size": model.vocab_size}
        torch.save(about, folder / "made.pt")
        first = {size: passed(f"peer {size}", folder, len(asked)) for size in _PEER_BATCHES}
        size = max(first, key=lambda one: first[one].speed)
        kinds = (_OURS, f"peer {size}", f"headless peer {size}", _HALF)
        cases = [(kind, at_end) for at_end in (False, True) for kind in kinds] + [(f"peer {size} bfloat16", False)]
        found: Found = {case: [] for case in cases}
        for _ in range(repeats(given)):
            for kind, at_end in cases:
                found[kind, at_end].append(passed(kind, folder, len(asked), at_end=at_end))
    n_tokens, n_read = sum(len(one) for one, _ in asked), sum(place + 1 for _, place in asked)
    what = (
        f"{len(asked):,} sentences of {n_tokens / len(asked):.1f} tokens, {n_read / len(asked):.1f} of them up to the "
        f"asked pronoun; one row of each of {_SHAPE.n_layer * _SHAPE.n_head} heads. The models have GPT-2's vocabulary "
        f"of {model.vocab_size:,}, as public ones do; the text uses {_VOCABULARY:,} of it."
    )
    return [*judged(found, size, what), *memory(found, size)]


def judged(found: Found, size: int, what: str) -> list[Row]:
    """Return a row for each kind of numbers, place and peer; SystemExit where float32 rows are not the peer's.

    Args:
        found: of ours and of the peer with and without its unembedding, `size` sentences at a time.
        size: see there.
        what: was read.

    """
    peer, headless = (f"{kind} {size}" for kind in ("peer", "headless peer"))
    worst = max(apart(found[_OURS, at_end], found[one, at_end]) for at_end in (False, True) for one in (peer, headless))
    if not worst <= LIMIT:
        sys.exit(f"a weight of ours is {worst:.1e} from the peer's, more than {LIMIT:.0e}")
    notes = {
        _OURS: f"{what} The largest difference of a weight is {worst:.1e}.",
        _HALF: f"The largest difference from float32 is {apart(found[_HALF, False], found[peer, False]):.1e}. Against "
        f"the whole of transformers in bfloat16: {times(found[_HALF, False], found[f'{peer} bfloat16', False])}x.",
    }
    result = []
    for mine, numbers, least in ((_OURS, "float32", 5), (_HALF, "bfloat16", 9)):
        for at_end, place in ((False, "at a pronoun"), (True, "at the last token")):
            for other, which in ((peer, "the whole model"), (headless, "without its unembedding, which no row needs")):
                pairs = list(zip(found[mine, at_end], found[other, at_end], strict=True))
                row = Row(
                    work=f"attention rows of all heads, {numbers}, {place}",
                    goal=f"{least}x transformers in float32 or more",
                    aim="",
                    unit="sentences/s",
                    ours=[one.speed for one, _ in pairs],
                    peer_name=f"transformers, eager, {size} sentences at a time, {which}",
                    peer=[one.speed for _, one in pairs],
                    met=all(one.speed >= least * two.speed for one, two in pairs),
                    aim_met=None,
                    note=notes.pop(mine, ""),
                )
                result.append(row)
    return result


def memory(found: Found, size: int) -> list[Row]:
    """Return the rows of memory, at a pronoun in float32."""
    result = []
    for kind, which in (("peer", "the whole model"), ("headless peer", "without its unembedding")):
        ours, peer = found[_OURS, False], found[f"{kind} {size}", False]
        rise = [statistics.median(one.peak - one.before for one in some) for some in (ours, peer)]
        row = Row(
            work="memory for it, float32",
            goal="half of transformers' or less",
            aim="",
            unit="MB",
            ours=[one.peak for one in ours],
            peer_name=f"transformers, eager, {size} sentences at a time, {which}",
            peer=[one.peak for one in peer],
            met=all(a.peak <= b.peak / 2 for a, b in zip(ours, peer, strict=True)),
            aim_met=None,
            note="Peak of the whole process, libraries and weights among it. Over what the first 50 sentences took, "
            f"ours rises by {rise[0]:.0f} MB, theirs by {rise[1]:.0f}.",
        )
        result.append(row)
    return result


def apart(some: list[Pass], others: list[Pass]) -> float:
    """Return the largest difference of a weight; nan where a weight is none."""
    return float(np.max([np.abs(one.rows - two.rows).max() for one, two in zip(some, others, strict=True)]))


def times(some: list[Pass], others: list[Pass]) -> str:
    """Write how often faster, the median of pairs."""
    return number(statistics.median(one.speed / two.speed for one, two in zip(some, others, strict=True)))


if __name__ == "__main__":
    told = dict(one.partition("=")[::2] for one in sys.argv[1:])
    if "child" in told:
        child(told["child"], told["end"] == "True", Path(told["folder"]))
    else:
        alone(rows, ("text",))
