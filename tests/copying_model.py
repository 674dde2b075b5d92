"""A model without weights in which some heads are known to write the gender that they see."""

from collections.abc import Sequence

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from extras.english.lexicon import FEMININE_NAMES, FEMININE_NOUNS, MASCULINE_NAMES, MASCULINE_NOUNS
from extras.others.own_model import Attend, OwnModel


class CopyingModel(OwnModel):
    """One layer of heads that look at persons; head h writes `gains[h]` times the gender it sees into the logits."""

    n_layer = 1
    context_length = 256
    device = torch.device("cpu")

    def __init__(self, gains: Sequence[float], reader: Tokenizer, *, seed: int = 0, knows_gender: bool = True) -> None:
        """Make the heads; `reader` has whole words. Without `knows_gender` they copy a random value per person."""
        self.module = nn.Module()  # it computes nothing
        self.n_head, self.gains = len(gains), torch.tensor(gains)
        self.vocab_size = reader.get_vocab_size()

        # +1 feminine, -1 masculine, 0 neither, [V]
        self.name_class, self.pronoun_class = torch.zeros(2, self.vocab_size)
        pronouns = {"she", "She", "her", "Her"}, {"he", "He", "him", "his", "His"}
        names = FEMININE_NAMES | FEMININE_NOUNS, MASCULINE_NAMES | MASCULINE_NOUNS
        for word, number in reader.get_vocab().items():
            self.name_class[number] = (word in names[0]) - (word in names[1])
            self.pronoun_class[number] = (word in pronouns[0]) - (word in pronouns[1])
        # What makes these models differ from each other
        generator = torch.Generator().manual_seed(seed)
        self.place_bias = torch.randn(self.context_length, generator=generator)  # the same for all heads
        self.word_bias = 0.05 * torch.randn(self.vocab_size, generator=generator) * (self.name_class == 0)
        noise = torch.randn(self.vocab_size, generator=generator) * self.name_class.abs()
        self.copied = self.name_class if knows_gender else noise  # what the heads' values hold

    def run(self, tokens: Tensor, attend: Attend) -> tuple[Tensor, Tensor]:
        # Persons get more attention than other words, the same in all heads; the values hold the gender.
        length = tokens.shape[1]
        is_person = (self.name_class[tokens] != 0).float()
        scores = 5 * is_person + self.place_bias[:length]  # [B, T]
        scores = scores[:, None, None].expand(-1, self.n_head, length, -1)  # [B, H, T, T]
        values = self.copied[tokens][:, None, :, None].expand(-1, self.n_head, -1, -1)  # [B, H, T, 1]

        # The heads write the margin of "she" into the logits, not into the stream.
        stream = torch.zeros(*tokens.shape, 1)
        outputs = attend(0, stream, scores, values)  # [B, T, H]
        margin = outputs @ self.gains + self.word_bias[tokens].cumsum(-1)  # [B, T]
        return margin[..., None] * self.pronoun_class / 2, stream

    def output_weights(self, layer: int) -> Tensor | None:
        return self.gains[:, None, None]

    def unembedding(self) -> Tensor:
        return self.pronoun_class[:, None] / 2

    def final_norm_pullback(self, direction: Tensor, stream: Tensor) -> Tensor | None:
        return direction
