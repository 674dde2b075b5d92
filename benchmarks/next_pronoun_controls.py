"""How often does the study of the next pronoun err? python -m benchmarks.next_pronoun_controls runs=DIR,DIR.

It is applied to the shipped validation text and to models in which there is nothing to find, or one known head:

- untrained: initial weights of the shape of the first run.
- permuted classes: the trained models of the runs, but a coin for each document decides whether its entities exchange
  their classes, so that no edge moves the pronoun consistently.
- planted: a model of one layer of which one head, at a random place, writes the gender that it sees.

Further arguments: n_untrained=200 n_permuted=200 n_planted=60 threads=1. Writes docs/results/next_pronoun_controls.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from benchmarks.measure import arguments, write_results
from data.english import FEMININE_NAMES, FEMININE_NOUNS, MASCULINE_NAMES, MASCULINE_NOUNS
from data.natural import WORD
from data.tokenizer import end_id, word_tokenizer
from model.observe import HeadEdit, HeadWeights, LayerRecord, ObservableModel, apply_edits
from probe.config import ProbeConfig
from probe.external import markdown_table
from probe.next_pronoun import NextPronounResult, QuestionItems, question_items, study_items, study_question
from probe.open import open_run
from probe.passage_items import Item
from probe.statistics import share_interval
from probe.verdict import SUPPORTED
from report.api import SHIPPED_TEXT, EnglishText, english_text
from report.content import yaml_values
from training.settings import to_settings

FEMININE, MASCULINE = FEMININE_NAMES | FEMININE_NOUNS, MASCULINE_NAMES | MASCULINE_NOUNS


class CopyingModel(ObservableModel):
    """One layer of heads that look at persons; head h writes `gains[h]` times the gender it sees into the logits."""

    n_layer = 1

    def __init__(
        self,
        gains: Sequence[float],
        tokenizer: Tokenizer,
        *,
        seed: int = 0,
        knows_gender: bool = True,
        context_length: int = 256,
    ) -> None:
        """Makes the heads; `tokenizer` has whole words. Without `knows_gender` they copy a random value per person."""
        self.n_head, self.gains, self.vocab_size = len(gains), torch.tensor(gains), tokenizer.get_vocab_size()
        self.context_length = context_length
        vocabulary = tokenizer.get_vocab()

        def signs(first: Sequence[str], second: Sequence[str]) -> Tensor:
            values = torch.zeros(self.vocab_size)
            values[[vocabulary[word] for word in first if word in vocabulary]] = 1.0
            values[[vocabulary[word] for word in second if word in vocabulary]] = -1.0
            return values

        self.name_class = signs(sorted(FEMININE), sorted(MASCULINE))
        self.pronoun_class = signs(("she", "She", "her", "Her"), ("he", "He", "him", "his", "His"))
        generator = torch.Generator().manual_seed(seed)
        self.place_bias = torch.randn(self.context_length, generator=generator)  # the same for all heads
        self.word_bias = 0.05 * torch.randn(self.vocab_size, generator=generator) * (self.name_class == 0)
        noise = torch.randn(self.vocab_size, generator=generator) * self.name_class.abs()
        self.copied = self.name_class if knows_gender else noise  # what the heads' values hold

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return torch.device("cpu")

    def record(self, tokens: Tensor, query_positions: Tensor | None = None) -> list[LayerRecord]:
        """Returns what the layer's attention computes."""
        n, length = tokens.shape
        if query_positions is None:
            query_positions = torch.arange(length).expand(n, -1)
        is_person = (self.name_class[tokens] != 0).float()
        scores = (5 * is_person + self.place_bias[:length])[:, None].expand(-1, self.n_head, -1)  # [B, H, T]
        later = torch.arange(length) > query_positions[..., None]
        scores = scores[:, :, None].expand(-1, -1, query_positions.shape[1], -1)
        scores = scores.masked_fill(later[:, None], float("-inf"))
        values = self.copied[tokens][:, None, :, None].expand(-1, self.n_head, -1, -1)
        complete = torch.zeros_like(values)
        rows = query_positions[:, None, :, None].expand(-1, self.n_head, -1, 1)
        complete.scatter_(2, rows, scores.softmax(-1) @ values)
        return [LayerRecord(scores, values, complete, values[:, 0])]

    def residual_stream(self, tokens: Tensor) -> list[Tensor]:
        """Returns an empty stream before and after the layer: the heads write into the logits."""
        return [torch.zeros(*tokens.shape, 1)] * 2

    def logits(
        self,
        tokens: Tensor,
        positions: Tensor | None = None,
        edits: Sequence[HeadEdit] = (),
        streams: Sequence[Tensor] | None = None,
    ) -> Tensor:
        """Returns the logits [B, T, V], or [B, V] at `positions` [B]: only the pronouns differ."""
        [record] = self.record(tokens)
        outputs = apply_edits(record.scores.softmax(-1), record.values, edits)[..., 0]  # [B, H, T]
        margin = torch.einsum("bht,h->bt", outputs, self.gains) + self.word_bias[tokens].cumsum(-1)
        logits = margin[..., None] * self.pronoun_class / 2
        return logits if positions is None else logits[torch.arange(len(tokens)), positions]

    def head_weights(self, layer: int) -> HeadWeights:
        """Returns the gains as output projections."""
        return HeadWeights(None, None, None, self.gains[:, None, None])

    def unembedding(self) -> Tensor:
        """Returns the output embedding [V, 1]."""
        return self.pronoun_class[:, None] / 2

    def final_norm_pullback(self, direction: Tensor, stream: Tensor) -> Tensor | None:
        """Returns `direction`: there is no norm."""
        return direction


def permute_classes(items: QuestionItems, seed: int) -> QuestionItems:
    """Returns the items with the classes of all mentions exchanged in the documents that a coin chooses."""
    rng = Random(seed)
    documents = sorted({item.passage.doc for item in (*items.choosing, *items.tested)})
    is_exchanged = {document: rng.random() < 0.5 for document in documents}

    def permuted(item: Item) -> Item:
        if not is_exchanged[item.passage.doc]:
            return item
        return replace(item, mentions=tuple((second, first) for first, second in item.mentions))

    choosing = [permuted(item) for item in items.choosing]
    tested = [permuted(item) for item in items.tested]
    return QuestionItems(choosing, tested, items.earlier, items.left_out, items.problem)


def studies(
    options: dict[str, str], config: ProbeConfig, text: EnglishText
) -> Iterator[tuple[str, NextPronounResult | str, Any]]:
    """Yields (control, result, known head or None) of every model."""
    runs = [open_run(Path(run), torch.device("cpu")) for run in options["runs"].split(",")]
    passages, few = text.passages["gender"], replace(config, n_untrained=2)

    first = runs[0]
    items = question_items(first.model, first.tokenizer, first.start, "gender", passages, few)
    for seed in range(int(options["n_untrained"])):
        others = (first.untrained(1000 + 2 * seed + i) for i in (0, 1))
        result = study_items(first.untrained(10_000 + seed), others, items, "gender", text.documents, few)
        yield "untrained", result, None

    items_of = [question_items(run.model, run.tokenizer, run.start, "gender", passages, few) for run in runs]
    for seed in range(int(options["n_permuted"])):
        run, items = runs[seed % len(runs)], items_of[seed % len(runs)]
        others = (run.untrained(i) for i in (0, 1))
        permuted = permute_classes(items, seed)
        yield "permuted classes", study_items(run.model, others, permuted, "gender", text.documents, few), None

    small = replace(few, tokens_per_batch=1024)  # these models compute the logits of all positions
    words = word_tokenizer([*(document for _, document in text.documents), *FEMININE_NAMES, *MASCULINE_NAMES])
    rng = Random(0)
    for seed in range(int(options["n_planted"])):
        n_heads = rng.randint(2, 8)
        gains = [0.0] * n_heads
        place = rng.randrange(n_heads)
        gains[place] = rng.choice((1.0, 2.0, 4.0))
        models = [CopyingModel(gains, words, seed=seed)]
        models += [CopyingModel([1.0] * n_heads, words, seed=1000 + i, knows_gender=False) for i in (0, 1)]
        planted = study_question(models[0], models[1:], words, end_id(words), "gender", passages, text.documents, small)
        yield "planted", planted, (0, place)


def main() -> None:
    """Studies every model, writes, prints."""
    defaults = {"n_untrained": "200", "n_permuted": "200", "n_planted": "60", "threads": "1"}
    options = arguments(defaults, required=["runs"])
    torch.set_num_threads(int(options["threads"]))
    config = to_settings(ProbeConfig, yaml_values("eval/eval")["probe"], "probe.")
    text = english_text(SHIPPED_TEXT, None)
    verdicts: dict[str, Counter[str]] = {}
    small_p, found = Counter[str](), Counter[str]()
    start = time.monotonic()
    for control, result, head in studies(options, config, text):
        assert isinstance(result, NextPronounResult), result
        verdicts.setdefault(control, Counter())[result.verdict] += 1
        small_p[control] += result.p_corrected < 0.01
        found[control] += head == (result.layer, result.head)
    rows, results = [], {}
    for control, counts in verdicts.items():
        n, n_supported = counts.total(), counts[SUPPORTED]
        low, high = share_interval(n_supported, n)
        rows.append([
            control, str(n), f"{n_supported} [{low:.1%}, {high:.1%}]", str(small_p[control]),
            "; ".join(f"{count} {verdict}" for verdict, count in counts.most_common()),
            f"{found[control]}" if control == "planted" else "",
        ])  # fmt: skip
        results[control] = {"n": n, "verdicts": dict(counts), "p_below_01": small_p[control], "found": found[control]}
    names = ("control", "models", "supported [95 %]", "corrected p < .01", "verdicts", "planted head chosen")
    lines = [*markdown_table(names, rows), "", f"{len(WORD.findall(' '.join(t for _, t in text.documents))):,} words."]
    print(f"{time.monotonic() - start:.0f} s")
    title = "Controls of the study of the next pronoun"
    write_results("next_pronoun_controls", title, {"controls": results}, lines, int(options["threads"]))


if __name__ == "__main__":
    main()
