"""A model that is ready to be measured, with its tokenizer: texts in, arrays out.

Texts are batched by length and padded on the right. Every number is that of its text alone: the padding changes nothing
before it.

Axes: N texts, L layers, H heads per layer, T tokens of a text; in a batch B rows, S next tokens, A answers.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import cached_property
from itertools import starmap
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from torch import Tensor

from data.tokenizer import encode_text, unknown_id
from model.edits import remove_head
from model.observe import HeadEdit, ObservableModel, SiteEdit, check_edits, only_layers
from model.transformer import Transformer
from probe.batches import length_batches, pad_rows, progress_bar, text_batches
from probe.deciding import Deciding, deciding
from probe.edits import NO_TOKEN, all_heads, margins_at_site
from probe.questions import Example
from probe.results import Head, Shown
from probe.sentences import TokenizedText, next_tokens, tokenize_text, word_attention
from probe.writing import Sampling, write_on
from settings.data import DataConfig
from settings.errors import UserError
from settings.model import ModelConfig
from settings.train import TrainSettings

# Larger activations are allocated again in each layer.
# GPT-2 took 164 s of system time with 16,384 tokens, 15 s with 2,048.
BATCH_TOKENS = 2048


@dataclass(frozen=True)
class _Batch:
    """Rows of tokens with the answers that are read there: the tokens of an answer but the last are in its row."""

    texts: list[int]  # index of each text
    tokens: Tensor  # [B, T]
    positions: Tensor  # [B, S] each gives the logits of the next token
    row: Tensor  # [A] of each answer; the answers of a text stand together
    ids: Tensor  # [A, S] tokens of each answer, padded with NO_TOKEN

    def log_probs(self, logits: Tensor) -> np.ndarray:
        """Return log p of every answer in nats from the logits [B, S, V], [texts, answers of each]."""
        steps = torch.arange(logits.shape[1], device=logits.device)
        of_tokens = logits[self.row[:, None], steps, self.ids.clamp(min=0)]
        of_tokens = of_tokens - logits.logsumexp(-1)[self.row]  # [A, S]
        total = of_tokens.masked_fill(self.ids == NO_TOKEN, 0).double().sum(-1)
        return total.cpu().numpy().reshape(len(self.texts), -1)


@dataclass(frozen=True, kw_only=True)
class OpenedModel:
    """The best checkpoint of a run of train.py, or a model that another program trained."""

    folder: Path  # the run, or the results folder of an external model; with probe/ in it
    name: str
    source: str  # the run's directory; the folder or hub name of an external model
    model: ObservableModel
    untrained: Callable[[int], ObservableModel]  # seed -> an untrained model of the same shape
    tokenizer: Tokenizer
    bos_id: int  # the token before every text
    data: DataConfig | None  # corpus of a run; external model: the stories, or None: English text
    data_fingerprint: str
    shape: Mapping[str, Any]  # for probe.json: model settings, or the facts about an external model
    n_parameters: int
    departures: tuple[str, ...]  # from a Llama-style decoder
    environment: Mapping[str, Any]  # versions, for the page
    step: int = 0
    checkpoint: str = "best"  # which one of a run was opened: "best", "last" or a step
    arguments: Sequence[str] | None = None  # given to train.py; None: unknown
    view: Callable[["OpenedModel", str], str] | None = None  # makes the page of one sentence
    # For a model of another program: shape and weights by our names, or UserError if our formulas do not fit
    as_ours: Callable[[], tuple[ModelConfig, dict[str, Tensor]]] | None = None
    settings: TrainSettings | None = None  # those of a run; None: an external model, of unknown training
    transformer: Transformer | None = None  # None: an external model
    began: tuple[str, ...] = ()  # a sentence about the model that training began with, if any

    @property
    def is_external(self) -> bool:
        return self.settings is None

    @property
    def results_folder(self) -> Path:
        """The folder of the results, with one of its own for a checkpoint that is not the best."""
        results = self.folder / "probe"
        return results if self.checkpoint == "best" else results / f"step_{self.step}"

    @property
    def has_stories(self) -> bool:
        """Whether the heads are tested on the built-in stories, not on English text."""
        return self.data is not None and self.data.source == "stories"

    @cached_property
    def unknown(self) -> int | None:
        """The token that replaces what the tokenizer cannot write, if it has one."""
        return unknown_id(self.tokenizer)

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the tokens of `text`, the start token first."""
        return (self.bos_id, *encode_text(self.tokenizer, text).ids)

    def tokenize(self, text: str) -> TokenizedText:
        """Return the tokens and words of `text`, the start token first."""
        return tokenize_text(self.tokenizer, text, self.bos_id)

    def measure_example(self, example: Example, head: Head) -> Shown:
        """Return a head's weights on both nouns at the query, and the most probable next words after a last query."""
        text = self.tokenize(example.text)
        attention = word_attention(self.model, text)  # [L, H, W, W]
        words = (example.query, example.antecedent, example.distractor)
        query, meant, other = map(text.words.index, words)
        row = attention[*head, query]
        weights = {example.antecedent: float(row[meant]), example.distractor: float(row[other])}

        # A sentence that continues after the query has its next words already.
        is_last = example.text.endswith(example.query)
        following = next_tokens(self.model, text.tokens, 3) if is_last else []
        return Shown(
            kind="worked",
            text=example.text,
            query=text.tokens_of(query)[-1],
            word=example.query,
            meant=[text.tokens_of(meant)],
            other=[text.tokens_of(other)],
            weights=dict(sorted(weights.items())),
            next=[(self.decode(token), probability) for token, probability in following],
        )

    def decode(self, token: int) -> str:
        """Return the text of a token as a next word, as the page does.

        A piece of a word is "…ves", the start token "(end of the text)", other special tokens have their name; white
        space is in quotation marks, but for "(new line)".
        """
        if token == self.bos_id:
            return "(end of the text)"
        text = self.tokenizer.decode([token], skip_special_tokens=False)
        name = self.tokenizer.id_to_token(token) or ""
        if isinstance(self.tokenizer.model, BPE) and text[:1].isalpha() and name[0] not in " ▁":
            return f"…{text}"
        return "(new line)" if text == "\n" else text.strip() or json.dumps(text or name)

    def decode_all(self, tokens: Sequence[int]) -> str:
        """Return the text of several tokens."""
        return self.tokenizer.decode(list(tokens), skip_special_tokens=False)

    def __repr__(self) -> str:
        shape = f"{self.model.n_layer} layers of {self.model.n_head} heads{only_layers(self.model)}"
        return f"<{self.name[:80]}: {shape}, {self.n_parameters:,} weights, reads {self.model.context_length:,} tokens>"

    @torch.no_grad()
    def attention(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the attention weights of all heads, for each text one array [L, H, T, T] of float32.

        A row is the token that attends and sums to 1, with sinks (gpt-oss) to less; a layer without attention has nan.
        T is len(encode(text)), and token 0 is the start token. Raises UserError for texts that the model cannot read.
        """
        rows = self._encode_all(texts)
        maps = [np.empty(0)] * len(rows)
        for members, places, tokens, _ in text_batches(rows, BATCH_TOKENS):
            weights = self.model.attention_weights(tokens.to(self.model.device)).cpu().numpy()  # [L, B, H, T, T]
            for i, place in zip(members, places, strict=True):
                length = len(rows[i])
                maps[i] = weights[:, place, :, :length, :length].copy()
        return maps

    @torch.no_grad()
    def log_probs(
        self,
        texts: Sequence[str],
        *answers: str,
        each: Sequence[Sequence[str]] | None = None,
        edits: Sequence[HeadEdit] = (),
    ) -> np.ndarray:
        """Return log p of each answer after each text, in nats, [N, answers]: the sum over the tokens of an answer.

        `answers` are those of all texts; or `each` [N, answers] has those of every text. An answer follows its text as
        written: " she", not "she". `edits` are applied in every pass. Raises UserError for texts, answers or edits that
        cannot be used.
        """
        check_edits(self.model, edits)
        if each is None:
            each = [answers] * len(texts)
        elif answers:
            raise UserError("answers: give those of all texts, or with each= a list of those of every text")
        n_answers = len(each[0]) if each else len(answers)
        if len(each) != len(texts) or len(set(map(len, each))) > 1:
            raise UserError(f"each: must be {len(texts)} lists, with as many answers for every text")
        values = np.empty((len(texts), n_answers))
        for batch in self._batches(texts, each):
            last = int(batch.positions[:, 0].min())  # last token of the shortest text
            if any(edit.token > last for edit in edits):
                raise UserError(
                    f"edits: a text has tokens 0 to {last}; edit texts of other lengths in calls of their own"
                )
            values[batch.texts] = batch.log_probs(self.model.logits(batch.tokens, batch.positions, edits))
        return values

    def effects(
        self,
        texts: Sequence[str],
        answers: str | Sequence[str],
        foils: str | Sequence[str],
        heads: str | Sequence[tuple[int, int]] = "all",
        at: str = "everywhere",
    ) -> np.ndarray:
        """Return what removing each head alone takes from log p(answer) - log p(foil), in nats, [N, L, H].

        Positive: the head supports the answer. `heads` is "all" or a list of (layer, head); the others are nan. `at`:
        "everywhere" sets the output of the head to 0 at every token, "last" at the last token of the text only. These
        are two questions: "last" leaves what the head has written at earlier tokens, which later layers read. Answers
        and foils as in `log_probs`. Later layers may compensate for a head, so an effect near 0 is no proof that it
        does nothing. Raises UserError for arguments that cannot be used.
        """
        chosen = self._heads(heads)
        sides = []
        for side in (answers, foils):
            of_texts = [side] * len(texts) if isinstance(side, str) else side
            if not isinstance(of_texts, Sized) or len(of_texts) != len(texts):
                raise UserError(f"answers: must be one text, or a list of {len(texts)} with one for each text")
            sides.append(of_texts)
        if at not in ("everywhere", "last"):
            raise UserError(f'at={at!r}: must be "everywhere" or "last"')
        effects = np.full((len(texts), self.model.n_layer, self.model.n_head), np.nan)
        layers, in_layer = np.array(chosen, dtype=int).reshape(-1, 2).T
        with progress_bar(len(texts) * len(chosen), "head") as bar:
            for batch in self._batches(texts, list(zip(*sides, strict=True))):
                if (batch.ids[::2] == batch.ids[1::2]).all(dim=1).any():
                    raise UserError("foils: a foil is the same as its answer, so that every effect is 0")
                of_heads = self._effects_of(batch, chosen, at)  # [heads, texts]
                effects[np.array(batch.texts)[:, None], layers, in_layer] = of_heads.T
                bar.update(of_heads.size)
        return effects

    def lines_that_decide(self, text: str) -> Deciding:
        """Return what the most probable next word loses if each line of the last word is cut (probe/deciding.py).

        Raises UserError for a text that the model cannot read.
        """
        self._encode_all([text])
        return deciding(self.model, self.tokenize(text), self.decode)

    def write(self, text: str = "", **settings: Any) -> list[str]:
        """Return texts that the model writes after `text`, without it; `settings` are those of `pieces`."""
        return ["".join(pieces) for pieces in self.pieces(text, **settings)]

    def pieces(
        self,
        text: str,
        *,
        n: int = 1,
        length: int = 100,
        temperature: float = 0.8,
        top_k: int | None = None,
        seed: int = 0,
    ) -> list[Iterator[str]]:
        """Return `n` texts that the model writes after `text`, in pieces as it writes them: the same for the same seed.

        Each has at most `length` tokens, and ends at the end of a text or with the context of the model. The next token
        is drawn with softmax(logits / `temperature`), of the `top_k` most probable ones (None: of all); a temperature
        of 0 takes the most probable. Raises UserError for a text that the model cannot read.
        """
        sampling = Sampling(temperature, top_k)
        begun = self.encode(text)
        self._check_lengths([len(begun)])
        return [write_on(self.model, self.tokenizer, begun, length, sampling, [seed, i]) for i in range(n)]

    def show(self, text: str) -> str:
        """Return the report's view of one sentence, for a notebook; UserError for a text that the model cannot read."""
        self._encode_all([text])
        assert self.view is not None  # open_model sets it
        return self.view(self, text)

    @torch.no_grad()
    def _effects_of(self, batch: _Batch, heads: Sequence[Head], at: str) -> np.ndarray:
        """Return the effects of `heads` in a batch with one answer and one foil for each text, [heads, texts]."""
        removals = [[], *([SiteEdit(*head, output=torch.zeros_like)] for head in heads)]
        site = batch.positions[:, 0]

        # At the last token alone: all positions are read once, and only the two words are computed.
        if at == "last" and batch.ids.shape[1] == 1:
            site_pass = self.model.site_pass(batch.tokens, site)
            margins = margins_at_site(site_pass, removals, batch.ids[::2], batch.ids[1::2])
            return np.asarray(margins[0] - margins[1:])

        streams = self.model.residual_stream(batch.tokens)
        margins = np.empty((len(removals), len(batch.texts)))
        for number, removal in enumerate(removals):
            if at == "everywhere":
                edits = [remove_head(edit.layer, edit.head) for edit in removal]
            else:
                edits = [edit.at(site) for edit in removal]
            both = batch.log_probs(self.model.logits(batch.tokens, batch.positions, edits, streams))
            margins[number] = both[:, 0] - both[:, 1]
        return np.asarray(margins[0] - margins[1:])

    def _heads(self, heads: str | Sequence[tuple[int, int]]) -> list[Head]:
        if isinstance(heads, str) and heads == "all":
            return all_heads(self.model)
        try:
            chosen = [Head(*map(index, head)) for head in heads]  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise UserError('heads: must be "all" or a list of (layer, head), for example [(0, 1)]') from None
        check_edits(self.model, list(starmap(remove_head, chosen)))
        return chosen

    def _encode_all(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """Return the tokens of texts, the start token first; UserError if the model cannot read one."""
        if isinstance(texts, str) or not isinstance(texts, Sequence):
            raise UserError("texts: must be a list of str; put one text into a list")
        rows = []
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                raise UserError(f"texts[{number}]: must be a str, not {type(text).__name__}")
            rows.append(self.encode(text))
        self._check_lengths(list(map(len, rows)))
        for number, row in enumerate(rows):
            if self.unknown in row:
                start, end = self.tokenize(texts[number]).spans[row.index(self.unknown) - 1]
                raise UserError(f"texts[{number}]: {texts[number][start:end]!r} is not in this model's vocabulary")
        return rows

    def _batches(self, texts: Sequence[str], each: Sequence[Sequence[str]]) -> Iterator[_Batch]:
        """Yield the texts with the answers of each, equally many, in batches of similar length."""
        rows = self._encode_all(texts)
        asked = []  # the tokens of every answer, by text
        lengths = []  # texts are read with all tokens of an answer but the last
        for text, row, answers in zip(texts, rows, each, strict=True):
            if isinstance(answers, str) or not answers:
                raise UserError("answers: give at least one word, and in each= a list for every text")
            asked.append([self._tokens_after(text, row, answer) for answer in answers])
            lengths.append(len(row) + max(map(len, asked[-1])) - 1)
        self._check_lengths(lengths, " with its answer")
        n_rows = 1 if lengths == list(map(len, rows)) else len(each[0])
        for chosen in length_batches(lengths, BATCH_TOKENS, n_rows):
            yield self._batch(chosen, rows, asked)

    def _batch(
        self, chosen: Sequence[int], rows: Sequence[tuple[int, ...]], asked: Sequence[Sequence[tuple[int, ...]]]
    ) -> _Batch:
        """Return the texts `chosen` as a batch; one row of a text serves all answers that differ in the last token."""
        row_of = []
        answers = list[tuple[int, ...]]()
        begins: dict[tuple[int, tuple[int, ...]], int] = {}  # row by text and the answer's tokens in it
        for i in chosen:
            answers += asked[i]
            for answer in asked[i]:
                row_of.append(begins.setdefault((i, answer[:-1]), len(begins)))
        ids = pad_rows(answers, NO_TOKEN)  # [A, S]

        # The logits at a position are those of the next token.
        first = []
        texts = []
        for i, begin in begins:
            first.append([len(rows[i]) - 1])
            texts.append(rows[i] + begin)
        last = torch.tensor(list(map(len, texts)))[:, None] - 1
        positions = (torch.tensor(first) + torch.arange(ids.shape[1])).minimum(last)
        device = self.model.device
        row = torch.tensor(row_of, device=device)
        return _Batch(list(chosen), pad_rows(texts).to(device), positions.to(device), row, ids.to(device))

    def _check_lengths(self, lengths: Sequence[int], what: str = "") -> None:
        limit = self.model.context_length
        for number, length in enumerate(lengths):
            if length > limit:
                raise UserError(f"texts[{number}]: has {length:,} tokens{what}; the model reads {limit:,}")

    def _tokens_after(self, text: str, row: tuple[int, ...], answer: str) -> tuple[int, ...]:
        """Return the tokens of an answer after a text; UserError if it would change the text's own tokens."""
        if not isinstance(answer, str) or not answer:
            raise UserError(f"answers: {answer!r} is no text; each= takes a list of answers for every text")
        is_word = text[-1:].isalnum() and answer[0].isalnum() and text[-1].lower() != text[-1].upper()
        if is_word or (text[-1:] and text[-1] in ".,;:!?" and answer[0].isalpha()):
            raise UserError(f"answers: {answer!r} would continue the word {text.split()[-1]!r}; begin it with a space")
        both = self.encode(text + answer)
        if both[: len(row)] != row:
            problem = f"changes the tokens of {text[-30:]!r}"
            raise UserError(f"answers: {answer!r} {problem}; the space belongs to the answer, not to the text")
        ids = both[len(row) :]
        if not ids or self.unknown in ids or max(ids) >= self.model.vocab_size:
            raise UserError(f"answers: {answer!r} has no tokens in this model's vocabulary")
        return ids
