"""How often does the study of the next pronoun err?

On the shipped validation text it is applied to

- untrained: initial weights of the shape of the first run.
- permuted classes: the trained models of the runs, but a coin for each document decides whether its entities exchange
  their classes, so that no edge moves the pronoun consistently.
- planted: a model of one layer of which one head, at a random place, writes the gender that it sees.

Writes docs/results/next_pronoun_controls.{json,md}.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import torch
from omegaconf import MISSING
from tokenizers import Tokenizer
from torch import Tensor

from antecedent_lab.english_text import EnglishText, english_text
from antecedent_lab.opened import open_run
from benchmarks.measure import listed, row_table, share_range, start_benchmark, write_page
from data.english import FEMININE_NAMES, FEMININE_NOUNS, MASCULINE_NAMES, MASCULINE_NOUNS
from data.text import SHIPPED_TEXT
from data.tokenizer import end_id, word_tokenizer
from data.words import ENGLISH_WORD
from model.observe import HeadEdit, HeadWeights, LayerRecord, ObservableModel, apply_edits
from probe.config import ProbeConfig
from probe.next_pronoun import NextPronounResult, QuestionItems, question_items, study_next_pronoun, study_passage_items
from probe.passage_items import PassageItem
from probe.results import Head
from probe.verdict import SUPPORTED

FEMININE = FEMININE_NAMES | FEMININE_NOUNS
MASCULINE = MASCULINE_NAMES | MASCULINE_NOUNS
PLANTED = "planted"


@dataclass
class _ControlOptions:
    """python -m benchmarks.next_pronoun_controls runs=DIR,DIR [n_untrained=200] [n_permuted=200] [n_planted=60]."""

    runs: str = MISSING
    n_untrained: int = 200
    n_permuted: int = 200
    n_planted: int = 60


@dataclass
class _ControlCount:
    """The verdicts over the models of one control."""

    control: str
    n: int = 0
    verdicts: dict[str, int] = field(default_factory=dict)
    p_below_01: int = 0
    found: int = 0  # the planted head was chosen

    @property
    def supported(self) -> str:
        count = self.verdicts.get(SUPPORTED, 0)
        return f"{count} {share_range(count, self.n)}"

    @property
    def all_verdicts(self) -> str:
        return "; ".join(f"{count} {verdict}" for verdict, count in Counter(self.verdicts).most_common())

    @property
    def found_planted(self) -> str:
        return str(self.found) if self.control == PLANTED else ""


@dataclass(frozen=True)
class ControlResults:
    """The table of the page."""

    controls: list[_ControlCount]
    n_words: int  # of the text

    def lines(self) -> list[str]:
        controls = row_table(
            "control | models | supported [95 %] | corrected p < .01 | verdicts | planted head chosen",
            "{control} | {n} | {supported} | {p_below_01} | {all_verdicts} | {found_planted}",
            self.controls,
        )
        return [*controls, "", f"{self.n_words:,} words."]


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
        """Make the heads; `tokenizer` has whole words. Without `knows_gender` they copy a random value per person."""
        self.n_head = len(gains)
        self.gains = torch.tensor(gains)
        self.vocab_size = tokenizer.get_vocab_size()
        self.context_length = context_length
        vocabulary = tokenizer.get_vocab()

        def signs(first: Sequence[str], second: Sequence[str]) -> Tensor:
            values = torch.zeros(self.vocab_size)
            values[[vocabulary[word] for word in first if word in vocabulary]] = 1.0
            values[[vocabulary[word] for word in second if word in vocabulary]] = -1.0
            return values

        # +1 feminine, -1 masculine, 0 neither, [V]
        self.name_class = signs(sorted(FEMININE), sorted(MASCULINE))
        self.pronoun_class = signs(("she", "She", "her", "Her"), ("he", "He", "him", "his", "His"))
        # What makes these models differ from each other
        generator = torch.Generator().manual_seed(seed)
        self.place_bias = torch.randn(self.context_length, generator=generator)  # the same for all heads
        self.word_bias = 0.05 * torch.randn(self.vocab_size, generator=generator) * (self.name_class == 0)
        noise = torch.randn(self.vocab_size, generator=generator) * self.name_class.abs()
        self.copied = self.name_class if knows_gender else noise  # what the heads' values hold

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def record(self, tokens: Tensor, query_positions: Tensor | None = None) -> list[LayerRecord]:
        """Return what the layer's attention computes."""
        n, length = tokens.shape
        if query_positions is None:
            query_positions = torch.arange(length).expand(n, -1)
        # Persons get more attention than other words, the same in all heads
        is_person = (self.name_class[tokens] != 0).float()
        scores = (5 * is_person + self.place_bias[:length])[:, None].expand(-1, self.n_head, -1)  # [B, H, T]
        # No head sees later tokens: scores [B, H, Q, T]
        later = torch.arange(length) > query_positions[..., None]
        scores = scores[:, :, None].expand(-1, -1, query_positions.shape[1], -1)
        scores = scores.masked_fill(later[:, None], float("-inf"))
        # Values hold the gender, [B, H, T, 1]
        values = self.copied[tokens][:, None, :, None].expand(-1, self.n_head, -1, -1)
        complete = torch.zeros_like(values)
        rows = query_positions[:, None, :, None].expand(-1, self.n_head, -1, 1)
        complete.scatter_(2, rows, scores.softmax(-1) @ values)
        return [LayerRecord(scores, values, complete, values[:, 0])]

    def residual_stream(self, tokens: Tensor) -> list[Tensor]:
        """Return an empty stream before and after the layer: the heads write into the logits."""
        return [torch.zeros(*tokens.shape, 1)] * 2

    def logits(
        self,
        tokens: Tensor,
        positions: Tensor | None = None,
        edits: Sequence[HeadEdit] = (),
        streams: Sequence[Tensor] | None = None,
    ) -> Tensor:
        """Return the logits [B, T, V], or [B, V] at `positions` [B]: only the pronouns differ."""
        # Outputs of the heads, [B, H, T], add up to the margin of "she", [B, T]
        [record] = self.record(tokens)
        outputs = apply_edits(record.scores.softmax(-1), record.values, edits)[..., 0]  # [B, H, T]
        margin = torch.einsum("bht,h->bt", outputs, self.gains) + self.word_bias[tokens].cumsum(-1)
        logits = margin[..., None] * self.pronoun_class / 2
        return logits if positions is None else logits[torch.arange(len(tokens)), positions]

    def head_weights(self, layer: int) -> HeadWeights:
        """Return the gains as output projections."""
        return HeadWeights(None, None, None, self.gains[:, None, None])

    def unembedding(self) -> Tensor:
        """Return the output embedding [V, 1]."""
        return self.pronoun_class[:, None] / 2

    def final_norm_pullback(self, direction: Tensor, stream: Tensor) -> Tensor | None:
        """Return `direction`: there is no norm."""
        return direction


def _permute_classes(items: QuestionItems, seed: int) -> QuestionItems:
    """Return the items with the classes of all mentions exchanged in the documents that a coin chooses."""
    rng = Random(seed)
    # One coin for each document
    documents = sorted({item.passage.doc for item in (*items.choosing, *items.tested)})
    is_exchanged = {document: rng.random() < 0.5 for document in documents}

    def permuted(item: PassageItem) -> PassageItem:
        if not is_exchanged[item.passage.doc]:
            return item
        return replace(item, mentions=tuple((second, first) for first, second in item.mentions))

    choosing = [permuted(item) for item in items.choosing]
    tested = [permuted(item) for item in items.tested]
    return QuestionItems(choosing, tested, items.earlier, items.left_out, items.problem)


def _studies(
    options: _ControlOptions, config: ProbeConfig, text: EnglishText
) -> Iterator[tuple[str, NextPronounResult | str, Head | None]]:
    """Yield (control, result, known head) of every model."""
    runs = [open_run(Path(run), torch.device("cpu")) for run in listed(options.runs)]
    passages = text.passages["gender"]
    items_of = [question_items(run.model, run.tokenizer, run.bos_id, "gender", passages, config) for run in runs]

    # Initial weights
    first = runs[0]
    for seed in range(options.n_untrained):
        untrained = (first.untrained(1000 + 2 * seed + i) for i in (0, 1))
        model = first.untrained(10_000 + seed)
        yield "untrained", study_passage_items(model, untrained, items_of[0], "gender", text.documents, config), None

    # Classes exchanged in half of the documents
    for seed in range(options.n_permuted):
        run = runs[seed % len(runs)]
        permuted = _permute_classes(items_of[seed % len(runs)], seed)
        untrained = (run.untrained(i) for i in (0, 1))
        result = study_passage_items(run.model, untrained, permuted, "gender", text.documents, config)
        yield "permuted classes", result, None

    # One head that copies the gender; these models compute the logits of all positions, so batches are small
    small = replace(config, tokens_per_batch=1024)
    words = word_tokenizer([*(document for _, document in text.documents), *FEMININE_NAMES, *MASCULINE_NAMES])
    rng = Random(0)
    for seed in range(options.n_planted):
        n_heads = rng.randint(2, 8)
        place = rng.randrange(n_heads)
        gains = [0.0] * n_heads
        gains[place] = rng.choice((1.0, 2.0, 4.0))
        copying = CopyingModel(gains, words, seed=seed)
        blind = [CopyingModel([1.0] * n_heads, words, seed=1000 + i, knows_gender=False) for i in (0, 1)]
        planted = study_next_pronoun(copying, blind, words, end_id(words), "gender", passages, text.documents, small)
        yield PLANTED, planted, Head(0, place)


def main(options: _ControlOptions) -> None:
    """Study every model, count and write the page."""
    torch.set_num_threads(1)
    config = ProbeConfig(n_untrained=2)
    text = english_text(str(SHIPPED_TEXT), None)
    # Verdicts of all models, by control
    counts: dict[str, _ControlCount] = {}
    for control, result, head in _studies(options, config, text):
        assert isinstance(result, NextPronounResult), result
        count = counts.setdefault(control, _ControlCount(control))
        count.n += 1
        count.verdicts[result.verdict] = count.verdicts.get(result.verdict, 0) + 1
        count.p_below_01 += result.p_corrected < 0.01
        count.found += head == result.place
    n_words = len(ENGLISH_WORD.findall(" ".join(document for _, document in text.documents)))
    title = "Controls of the study of the next pronoun"
    results = ControlResults(list(counts.values()), n_words)
    write_page("next_pronoun_controls", title, results, threads=1)


if __name__ == "__main__":
    start_benchmark(main, _ControlOptions)
