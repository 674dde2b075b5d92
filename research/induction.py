"""Induction: the question's file, the recipe over seeds, worlds without such heads, and models of other programs.

    python -m research.induction write            writes docs/questions/induction.jsonl
    python -m research.induction models=FOLDER    measures; needs transformers and transformer_lens

Each item of the question is words at random, "... tin cat fox ... log dog hill ... tin", and ends with one of two cues.
What followed the cue is meant (Olsson et al. 2022, arXiv 2209.11895); the other cue and its word are the distractor.
The recipe is `experiment=induction`, in the worlds with other text; in the last one, where word t decides word t + 2,
heads look at the previous word. The models are folders of save_pretrained, and a GPT-2 that is trained here on the text
of the recipe; `detect_head` is of TransformerLens. Writes research/results/induction.{json,md}.
"""

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import spearmanr

from antecedent_lab.api import open_model, probe_model
from data.corpus import load_corpus
from data.loader import training_batches
from data.repeats import WORDS
from probe.claim import claim_of
from probe.results import Finding, ProbeResults
from probe.text_tables import markdown_table
from probe.weights import head_types, type_scores
from research.measure import listed, median_range, run_script, share_range, start_benchmark, write_page
from settings.train import compose_settings

FILE = Path(__file__).parent.parent / "docs" / "questions" / "induction.jsonl"
N_FRAMES, N_WORDS = {"dev": 12, "test": 24}, {"dev": 15, "test": 24}  # words of each side; two blocks a word
N_FILLERS = (2, 4)  # words at random before, between and after the pairs
RECIPE, LAST, DEFAULT = "the recipe", "a word decides the next but one", "the default run, on the stories"
ROWS = {
    RECIPE: ["experiment=induction"],
    "with one layer": ["experiment=induction", "model.n_layer=1"],
    "no word comes again": ["experiment=induction", "data.fewest_words=62", "data.most_words=62"],
    "again in any order": ["experiment=induction", "data.same_order=false"],
    LAST: ["experiment=induction", "data=text", "data.tokenizer=words", "data.vocab_size=1000"],
    DEFAULT: [],
}
GPT2_STEPS, GPT2_RATE = 2000, 2e-3  # not tuned
N_TEXTS, N_REPEATED = 16, 24  # of `detect_head`, as in `head_types`


@dataclass
class _Options:
    """python -m research.induction [seeds=11,12,13,14,15] [models=FOLDER,FOLDER] [threads=1].

    - models: folders of save_pretrained
    """

    seeds: str = "11,12,13,14,15"  # the recipe was made with seeds 1 to 5
    models: str = ""
    threads: int = 1


@dataclass(frozen=True)
class _Row:
    """Runs of train.py with the same settings, one for each seed."""

    name: str
    settings: list[str]
    verdicts: list[str]
    heads: list[str]
    accuracies: list[float]
    answers: list[float]
    previous: list[float]  # the largest weight of a head on the previous token, of random tokens
    cpu_seconds: list[float]  # of train.py

    @property
    def n_supported(self) -> int:
        return self.verdicts.count("supported")

    def cells(self) -> list[str]:
        values = [median_range(values, 2) for values in (self.accuracies, self.answers, self.previous)]
        return [
            self.name,
            f"{self.n_supported} of {len(self.verdicts)} {share_range(self.n_supported, len(self.verdicts))}",
            *values,
            median_range(self.cpu_seconds, 0),
            "; ".join(self.heads),
        ]


@dataclass(frozen=True)
class _Model:
    """A model of another program."""

    name: str
    head: str
    verdict: str
    accuracy: float
    swap: float
    answer: float
    same_words: float  # correlation of the ranks of all heads: our weight and `detect_head`, in the same texts
    random_tokens: float  # the same, with our weight in random tokens, as in every verdict
    n_heads: int
    claim: str


@dataclass(frozen=True)
class InductionResults:
    """The tables of the page."""

    seeds: list[int]
    rows: list[_Row]
    models: list[_Model]

    def lines(self) -> list[str]:
        columns = ["text and model", "supported", "accuracy", "answers right", "previous", "CPU-seconds", "heads"]
        measured = [
            [each.name, each.head, each.verdict, f"{each.accuracy:.3f}", f"{each.swap:.2f}", f"{each.answer:.2f}",
             f"{each.same_words:.3f}", f"{each.random_tokens:.3f}", str(each.n_heads)]
            for each in self.models
        ]  # fmt: skip
        return [
            f"Seeds {', '.join(map(str, self.seeds))}, heads in their order; the recipe was made with seeds 1 to 5. "
            "Medians and ranges; for the supported runs the 95 % interval. Previous: the largest weight of a head on "
            "the previous token, in random tokens. CPU-seconds: of train.py.",
            "",
            *markdown_table(columns, [row.cells() for row in self.rows]),
            "",
            "The same question in models of other programs. Ranks: Spearman's correlation, over all heads, of our "
            "weight on what followed the first time and the score of `detect_head` of TransformerLens in random words "
            "that repeat; ours in the same words, and in random tokens, as in every verdict.",
            "",
            *markdown_table(
                [
                    "model",
                    "heads",
                    "verdict",
                    "accuracy",
                    "swap",
                    "answers right",
                    "ranks, same words",
                    "ranks, random tokens",
                    "all heads",
                ],
                measured,
            ),
            "",
            *(f"{each.name}: {each.claim}" for each in self.models),
        ]


def lines() -> list[dict[str, object]]:
    """Return the header of the question's file and its blocks."""
    rng = np.random.default_rng(0)
    words = rng.permutation(WORDS).tolist()
    header: dict[str, object] = {
        "question": "induction", "head_type": "induction",
        "description": "the same word again: what followed it the first time",
    }  # fmt: skip
    blocks = [header]
    for part, n_words in N_WORDS.items():
        first, second, cues = ([words.pop() for _ in range(n)] for n in (n_words, n_words, 2 * N_FRAMES[part]))
        for i in range(2 * n_words):
            frame = i % N_FRAMES[part]
            pair = first[i % n_words], second[(i + 5 * (i // n_words)) % n_words]
            one, two = cues[2 * frame : 2 * frame + 2]
            local = np.random.default_rng([frame, n_words])  # the fillers of a frame are the same in each of its blocks
            sizes = local.integers(*N_FILLERS, endpoint=True, size=3)
            gaps = [" ".join(gap) for gap in np.split(local.choice(words, sizes.sum(), False), sizes.cumsum())[:3]]
            orders = [(one, two), (two, one)]
            patterns = [
                f"{gaps[0]} {left} {{A}} {gaps[1]} {right} {{B}} {gaps[2]} <{one}|{two}> [{{X}}]"
                for left, right in orders
            ]
            blocks.append({"pattern": patterns, "words": pair, "frame": f"{one} {two}", "split": part})
    return blocks


def next_but_one(path: Path) -> None:
    """Write documents in which word t decides word t + 2, always the same one."""
    rng = np.random.default_rng(0)
    follows = dict(zip(WORDS, np.roll(rng.permutation(WORDS), 1).tolist(), strict=True))
    documents = []
    for _ in range(20_000):
        words = rng.choice(WORDS, 2, replace=False).tolist()
        while len(words) < 40:
            words.append(follows[words[-2]])
        documents.append(" ".join(words))
    path.write_text("\n<|endoftext|>\n".join(documents))


def _row(name: str, seeds: list[int], threads: int, folder: Path) -> _Row:
    found: list[Finding] = []
    previous = []
    seconds = []
    settings = list(ROWS[name])
    if name == LAST:
        settings.append(f"data.path={folder / 'next_but_one.txt'}")
    for seed in seeds:
        run = folder / name.replace(" ", "_") / str(seed)
        places = [f"out={run}", f"cache_dir={folder / 'cache'}", f"threads={threads}"]
        seconds.append(run_script("train", *settings, f"seed={seed}", *places).cpu_seconds)
        opened = open_model(str(run), device="cpu", threads=threads)
        found += probe_model(opened, items=str(FILE)).results.findings
        previous.append(float(head_types(opened.model, opened.bos_id, 0)["previous"].max()))
        print(f"{name}, seed {seed}: {found[-1].verdict}, {seconds[-1]:.0f} s", file=sys.stderr, flush=True)
    return _Row(
        name=name,
        settings=ROWS[name],
        verdicts=[each.verdict for each in found],
        heads=[_heads(each) for each in found],
        accuracies=[each.judged.value("accuracy") for each in found],
        answers=[each.judged.value("answer_accuracy") for each in found],
        previous=previous,
        cpu_seconds=seconds,
    )


def _heads(finding: Finding) -> str:
    return " + ".join(map(str, finding.judged.heads))


def train_gpt2(folder: Path, cache: Path) -> None:
    """Train a GPT-2 of transformers with two layers on the text of the recipe, and save it with its tokenizer."""
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    settings = compose_settings(["experiment=induction"])
    corpus = load_corpus(settings.data, cache)
    end = corpus.tokenizer.token_to_id("<|endoftext|>")
    torch.manual_seed(1)
    width, n_tokens = settings.model.d_model, settings.model.context_length
    config = GPT2Config(
        vocab_size=corpus.tokenizer.get_vocab_size(), n_positions=n_tokens, n_embd=width, n_layer=2, n_head=4,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=end, eos_token_id=end,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), GPT2_RATE, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, GPT2_RATE, GPT2_STEPS, pct_start=0.05)
    batches = training_batches(corpus.train, tokens_per_batch=3072, context_length=n_tokens, seed=1)
    for step in range(GPT2_STEPS):
        batch = batches.at(step)  # each document of 62 words has a row of its own
        loss = F.cross_entropy(model(batch.tokens).logits.flatten(0, 1), batch.targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 200 == 0:
            print(f"GPT-2, step {step}: loss {loss.item():.3f}", file=sys.stderr, flush=True)
    model.save_pretrained(folder)
    names = {name: "<|endoftext|>" for name in ("bos_token", "eos_token", "unk_token")}
    PreTrainedTokenizerFast(tokenizer_object=corpus.tokenizer, **names).save_pretrained(folder)


def _model(folder: str, threads: int) -> _Model:
    from transformer_lens.head_detector import detect_head
    from transformer_lens.model_bridge import TransformerBridge

    opened = open_model(folder, device="cpu", threads=threads)
    of_tokens = head_types(opened.model, opened.bos_id, 0)["induction"]
    bridge = TransformerBridge.boot_transformers(folder, device="cpu", dtype=torch.float32)
    rng = np.random.default_rng(0)
    texts = []
    for _ in range(N_TEXTS):
        words = rng.choice(WORDS, N_REPEATED, replace=False).tolist()
        texts.append(" " + " ".join([*words, *words]))
    with torch.no_grad():
        theirs = detect_head(bridge, texts, "induction_head").numpy()
    tokens = torch.tensor([opened.tokenize(text).tokens for text in texts])
    of_words = type_scores(opened.model.attention_weights(tokens).cpu())["induction"]
    results: ProbeResults = probe_model(opened, items=str(FILE)).results
    (finding,) = results.findings
    return _Model(
        name=Path(folder).name,
        head=_heads(finding),
        verdict=finding.verdict,
        accuracy=finding.judged.value("accuracy"),
        swap=finding.judged.value("swap"),
        answer=finding.judged.value("answer_accuracy"),
        same_words=float(spearmanr(of_words.ravel(), theirs.ravel()).statistic),
        random_tokens=float(spearmanr(of_tokens.ravel(), theirs.ravel()).statistic),
        n_heads=theirs.size,
        claim=claim_of(finding, results.model),
    )


def main(options: _Options) -> None:
    """Train the recipe and the worlds with every seed, test the models, and write the page."""
    seeds = list(map(int, listed(options.seeds)))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        next_but_one(folder / "next_but_one.txt")
        rows = [_row(name, seeds, options.threads, folder) for name in ROWS]
        train_gpt2(folder / "GPT-2 of two layers", folder / "cache")
        models = [
            _model(each, options.threads) for each in (str(folder / "GPT-2 of two layers"), *listed(options.models))
        ]
    write_page("induction", "Induction", InductionResults(seeds, rows, models), options.threads)


if __name__ == "__main__":
    if sys.argv[1:] == ["write"]:
        FILE.write_text("".join(json.dumps(line) + "\n" for line in lines()))
    else:
        start_benchmark(main, _Options)
