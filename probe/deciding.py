"""Which attention line decides the next word? Every line that ends at the last word is cut in turn.

A line is the weight of one head on one word. Its weight says where the head looks; what the next word loses without the
line says whether the answer hangs on it. These are single cuts: the other weights of the head are scaled to a sum of 1
(attention knockout, Geva et al. 2023), effects do not add up, and a line that counts only if another is cut too (a
backup, McGrath et al. 2023) is missed. So where no single line decides, pairs are cut together.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from model.edits import cut_weights
from model.observe import ObservableModel, SiteEdit, SitePass
from probe.batches import progress_bar
from probe.edits import all_heads
from probe.results import Head
from probe.sentences import TokenizedText

LEAST_WEIGHT = 0.05  # of a line that is cut
DECIDES = 0.1  # what a line takes from the probability of the next word if it decides; our convention
MOST_PAIRED = 12  # lines of largest effect of which two are cut together
_CUT_AT_ONCE = 64  # lists of edits: their logits are stored together


@dataclass(frozen=True)
class Line:
    """A line from the last word of a text to one of its words."""

    head: Head
    word: str
    place: int  # index of the word, 0 is the start
    weight: float  # 0 to 1
    lost: float  # of the probability of the next word, if this line is cut; below 0: it gains

    def __str__(self) -> str:
        return f"{self.head} to “{self.word}”"


@dataclass(frozen=True)
class Deciding:
    """The lines of a text and what the next word loses without each."""

    answer: int  # the most probable next token
    name: str  # its text
    chance: float  # its probability
    lines: list[Line]  # the largest loss first
    pair: tuple[Line, Line] | None  # that takes most together, if no single line decides
    pair_lost: float = 0.0

    @property
    def decides(self) -> bool:
        """Whether a single line takes DECIDES or more."""
        return bool(self.lines) and self.lines[0].lost >= DECIDES

    def statement(self) -> str:
        """Return what was found, in words."""
        question = f"Which line decides “{self.name}” ({self.chance:.2f})?"
        if not self.lines:
            return f"{question} There is no line of weight {LEAST_WEIGHT} or more."
        first, *others = self.lines
        if self.decides:
            losses = [0.0, *(line.lost for line in others)]
            rest = f"take at most {max(losses):.2f} or add at most {abs(min(losses)):.2f}"
            cut = f"{first} (weight {first.weight:.2f}): cut, {self.chance - first.lost:.2f}"
            return f"{question} {cut}. The other {len(others)} lines {rest}."
        found = f"{question} No single line: none of {len(self.lines)} takes {DECIDES:.2f}"
        if self.pair is None or self.pair_lost <= 0:
            return f"{found}."
        return f"{found}; together {self.pair[0]} and {self.pair[1]} take {self.pair_lost:.2f}."


@torch.no_grad()
def deciding(model: ObservableModel, text: TokenizedText, name_of: Callable[[int], str]) -> Deciding:
    """Return what the most probable next token loses if each line of the last token is cut.

    `name_of` gives the text of a token. The last token is looked from, also where it is of no word: the page looks from
    the last word.
    """
    tokens = torch.tensor([text.tokens], device=model.device)
    site_pass = model.site_pass(tokens, torch.tensor([len(text.tokens) - 1], device=model.device))
    chances = site_pass.logits()[0].softmax(-1)
    answer = int(chances.argmax())
    chance = float(chances[answer])
    edits: list[tuple[Head, int, float, SiteEdit]] = []
    weights = {layer: record.weights[0] for layer, record in site_pass.records().items()}  # [H, T]
    for place in range(len(text.words)):
        mask = torch.zeros_like(tokens, dtype=torch.bool)
        mask[0, text.tokens_of(place)] = True
        for head in all_heads(model):
            weight = float(weights[head.layer][head.head, mask[0]].sum())
            if weight >= LEAST_WEIGHT:
                edit = SiteEdit(*head, weights=partial(cut_weights, mask=mask))
                edits.append((head, place, weight, edit))

    cuts = [edit for *_, edit in edits]
    lost = chance - _chances(site_pass, [[cut] for cut in cuts], answer)
    order = np.argsort(-lost, kind="stable").tolist()
    lines = []
    for i in order:
        head, place, weight, _ = edits[i]
        lines.append(Line(head, text.words[place], place, weight, float(lost[i])))
    found = Deciding(answer, name_of(answer), chance, lines, None)
    pairs = list(combinations(range(min(len(lines), MOST_PAIRED)), 2))
    if found.decides or not pairs:
        return found
    both = chance - _chances(site_pass, [[cuts[order[i]] for i in pair] for pair in pairs], answer)
    left, right = pairs[int(both.argmax())]
    return replace(found, pair=(lines[left], lines[right]), pair_lost=float(both.max()))


def _chances(site_pass: SitePass, edit_lists: Sequence[Sequence[SiteEdit]], answer: int) -> np.ndarray:
    """Return the probability [E] of the token `answer` with each of E lists of edits."""
    found: list[Tensor] = []
    with progress_bar(len(edit_lists), "line") as bar:
        for first in range(0, len(edit_lists), _CUT_AT_ONCE):
            logits = site_pass.edited_logits(edit_lists[first : first + _CUT_AT_ONCE])[:, 0]  # [E, V]
            found.append(logits.softmax(-1)[:, answer].double().cpu())
            bar.update(len(logits))
    return torch.cat([*found, torch.empty(0)]).numpy()
