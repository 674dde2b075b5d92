"""A model without weights in which some heads are known to write the gender that they see."""

from collections.abc import Iterable, Sequence

import torch
from tokenizers import Tokenizer
from torch import Tensor

from data.english import FEMININE_NAMES, FEMININE_NOUNS, MASCULINE_NAMES, MASCULINE_NOUNS
from model.observe import HeadEdit, HeadWeights, LayerRecord, ObservableModel, apply_edits


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

        def signs(first: Iterable[str], second: Iterable[str]) -> Tensor:
            values = torch.zeros(self.vocab_size)
            values[[vocabulary[word] for word in first if word in vocabulary]] = 1.0
            values[[vocabulary[word] for word in second if word in vocabulary]] = -1.0
            return values

        # +1 feminine, -1 masculine, 0 neither, [V]
        self.name_class = signs(FEMININE_NAMES | FEMININE_NOUNS, MASCULINE_NAMES | MASCULINE_NOUNS)
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
        # The heads write into the logits.
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
        weights = record.scores.softmax(-1)  # [B, H, T, T]
        apply_edits(weights, 0, [edits], "weights")
        outputs = weights @ record.values  # [B, H, T, 1]
        apply_edits(outputs, 0, [edits], "output")
        margin = torch.einsum("bhtk,h->bt", outputs, self.gains) + self.word_bias[tokens].cumsum(-1)
        logits = margin[..., None] * self.pronoun_class / 2
        return logits if positions is None else logits[torch.arange(len(tokens)), positions]

    def head_weights(self, layer: int) -> HeadWeights:
        return HeadWeights(None, None, None, self.gains[:, None, None])

    def unembedding(self) -> Tensor:
        return self.pronoun_class[:, None] / 2

    def final_norm_pullback(self, direction: Tensor, stream: Tensor) -> Tensor | None:
        return direction
