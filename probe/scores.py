"""How well a head, or a rule, tells antecedents from distractors: every score from one array of preferences."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from data.links import LinkItem
from model.observe import observed, streams
from model.transformer import Attention, Transformer


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of several heads per block; a mean over blocks is the score itself. Axes: N_b blocks, ... heads.

    A block holds four cells, order of the mentions x which is meant. One that looks at position, at a noun's taste
    or at the pronoun alone is right in half of them, so it scores accuracy 1/2, block_accuracy 0 and pronoun_contrast 0 (up to chance).
    """

    accuracy: np.ndarray  # [N_b, ...] share of cells where the antecedent is preferred; a tie counts half
    pair_accuracy: np.ndarray  # [N_b, ...] share of orders for which both pronouns are right
    block_accuracy: np.ndarray  # [N_b, ...] whether all four cells are right
    pronoun_contrast: (
        np.ndarray
    )  # [N_b, ...] mean preference: half of lambda(one pronoun) - lambda(the other), one prefix
    strict_accuracy: np.ndarray  # [N_b, ...] share of cells where no token but the first outweighs the antecedent
    preference: (
        np.ndarray
    )  # [N_b, ...] mean lambda; over whole blocks the same number as pronoun_contrast, under its own name


def score(preference: np.ndarray, selects: np.ndarray, strict: np.ndarray) -> Scores:
    """Score items that come in whole blocks, cells in the order (0, 0), (0, 1), (1, 0), (1, 1) of (order, meant).

    Args:
        preference: [4 N_b, ...] lambda.
        selects: [4 N_b, ...] positive where the antecedent is the preferred candidate, 0 for a tie.
        strict: [4 N_b, ...] 1 where it is preferred to every token but the first.

    """

    def cells(values: np.ndarray) -> np.ndarray:
        return values.reshape(-1, 2, 2, *values.shape[1:])  # [N_b, order, meant, ...]

    right = cells((selects > 0) + 0.5 * (selects == 0))
    both = (right == 1).all(axis=2)  # [N_b, order, ...]
    exact = preference.astype(np.float64)  # in single precision a mean depends on the order of its terms
    mean = cells(exact).mean(axis=2)  # over the two pronouns of one prefix
    return Scores(
        accuracy=right.mean(axis=(1, 2)),
        pair_accuracy=both.mean(axis=1),
        block_accuracy=both.all(axis=1).astype(float),
        pronoun_contrast=mean.mean(axis=1),
        strict_accuracy=cells(strict).mean(axis=(1, 2)),
        preference=mean.mean(axis=1),
    )


def check_blocks(items: Sequence[LinkItem]) -> None:
    """Raise ValueError unless the items are whole blocks, in the order in which `score` reads them."""
    cells = [(item.order, item.meant) for item in items]
    blocks = [item.block for item in items]
    whole = cells == [(0, 0), (0, 1), (1, 0), (1, 1)] * (len(items) // 4)
    if not whole or any(len(set(blocks[i : i + 4])) > 1 for i in range(0, len(blocks), 4)):
        raise ValueError("probe items are not whole blocks of four cells")


def best_head(scores: Scores) -> tuple[int, int]:
    """Return the (layer, head) of highest mean F4, ties broken by Sel@1 and then by DD."""
    order = np.lexsort(
        [getattr(scores, name).mean(axis=0).ravel() for name in ("pronoun_contrast", "accuracy", "block_accuracy")]
    )
    layer, head = np.unravel_index(order[-1], scores.block_accuracy.shape[1:])
    return int(layer), int(head)


@dataclass(frozen=True, slots=True)
class Factorial:
    """What lambda is made of, in each head: effects b of a regression on contrasts of +1 and -1. Axes: ... heads.

    A block's four cells, order x meant, bear four effects and no more: the mean, *first* (+1 where the antecedent is
    mentioned first), *member* (+1 where the pair's first member is meant) and their product, which is the order.
    Within a block the pronoun and the member that is meant are the same thing, since the pair's first member is
    always the singular, the feminine or the animal one. What the blocks share of the member effect is called
    `pronoun`: a taste for the singular, or sharper looks at "It", which cannot be told apart. What differs from
    noun to noun is called `lexical`: its standard deviation over words, from how alike two blocks are that share a
    word, so that noise does not count as taste.
    """

    coreference: np.ndarray  # b0: lambda over balanced cells, position, taste and pronoun cancelled
    first: np.ndarray  # bf: half of what being mentioned first is worth
    pronoun: np.ndarray  # bg: the member effect that all nouns share
    lexical: np.ndarray  # bx, 0 or more: SD of the member effect over words; nan where no two blocks share a word
    order: np.ndarray  # first x member: the interaction

    @property
    def share(self) -> np.ndarray:
        """Coreference's share, b0^2 / sum of b^2; nan for a head whose lambda is always 0."""
        effects = np.stack([self.coreference, self.first, self.pronoun, self.lexical, self.order]) ** 2
        total = effects.sum(axis=0)
        return np.divide(effects[0], total, out=np.full_like(total, np.nan), where=total != 0)


# Of the cells (order, meant) = (0, 0), (0, 1), (1, 0), (1, 1).
_CONTRASTS = {"coreference": (1, 1, 1, 1), "first": (1, -1, -1, 1), "member": (1, -1, 1, -1), "order": (1, 1, -1, -1)}


def factorial(preference: np.ndarray, items: Sequence[LinkItem]) -> Factorial:
    """Take lambda [4 N_b, ...] of whole blocks apart; the effects are those of ordinary least squares."""
    check_blocks(items)
    cells = preference.reshape(-1, 4, *preference.shape[1:]).astype(float)  # [N_b, 4, ...]
    effect = {name: np.tensordot(signs, cells, (0, 1)) / 4 for name, signs in _CONTRASTS.items()}  # each [N_b, ...]
    taste = effect["member"] - effect["member"].mean(axis=0)
    words = np.array([item.pair.split()[:2] for item in items[::4]]).T
    variance = sum(_shared_variance(taste, some) for some in words)
    return Factorial(
        coreference=effect["coreference"].mean(axis=0),
        first=effect["first"].mean(axis=0),
        pronoun=effect["member"].mean(axis=0),
        lexical=np.sqrt(variance),
        order=effect["order"].mean(axis=0),
    )


def _shared_variance(deviations: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return the mean product of two deviations [N_b, ...] of one group, at least 0: the variance over groups.

    Unlike the variance of the groups' means it holds no noise: noise is not shared. nan where no group has two.
    """
    _, index, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    sums = np.zeros((len(sizes), *deviations.shape[1:]))
    np.add.at(sums, index, deviations)
    n_products = (sizes * (sizes - 1)).sum()
    if not n_products:
        return np.full(deviations.shape[1:], np.nan)
    return np.maximum(((sums**2).sum(axis=0) - (deviations**2).sum(axis=0)) / n_products, 0)


@dataclass(frozen=True, slots=True)
class Rows:
    """Per item and head, in the order of the items. Axes: N items, L layers, H heads."""

    preference: np.ndarray  # [N, L, H] lambda: log of the weight on antecedents over the weight on distractors
    value_preference: (
        np.ndarray
    )  # [N, L, H] value_weighted_contrast: the same of what is moved, weight x length of the moved vector
    selects: np.ndarray  # [N, L, H] the best antecedent's score minus the best distractor's
    strict: np.ndarray  # [N, L, H] share of the tokens of largest weight, the first left aside, that are antecedents
    mass: np.ndarray  # [N, L, H] weight on all mentions together
    first_mass: np.ndarray  # [N, L, H] weight on the first token, where unused attention rests
    share: np.ndarray  # [N, L, H] AM*: weight on antecedents, of all weight that does not rest on the first token

    def take(self, index: np.ndarray) -> "Rows":
        """Return the rows of some items."""
        return Rows(**{field.name: getattr(self, field.name)[index] for field in fields(self)})


@dataclass(frozen=True, slots=True)
class Candidates:
    """Where the mentions of some items stand. Axes: N items, W mentions of an item, P pieces of a mention."""

    positions: Tensor  # [N, W, P] of tokens, 0 where there is none
    present: Tensor  # [N, W, P] True where there is one
    gold: Tensor  # [N, W] True for antecedents

    def to(self, device: torch.device) -> "Candidates":
        """Return the same on another device."""
        return Candidates(self.positions.to(device), self.present.to(device), self.gold.to(device))


def candidates(items: Sequence[LinkItem]) -> Candidates:
    """Return the mentions of `items`, antecedents first."""
    words = [item.antecedents + item.distractors for item in items]
    n_words = max(1, *(len(some) for some in words))
    n_pieces = max((len(word) for some in words for word in some), default=1)
    positions = np.full((len(items), n_words, n_pieces), -1)
    gold = np.zeros((len(items), n_words), dtype=bool)
    for i, some in enumerate(words):
        gold[i, : len(items[i].antecedents)] = True
        for j, word in enumerate(some):
            positions[i, j, : len(word)] = word
    present = torch.from_numpy(positions >= 0)
    return Candidates(torch.from_numpy(positions.clip(min=0)), present, torch.from_numpy(gold))


@dataclass(frozen=True, slots=True)
class Batch:
    """Some texts and who asks what of them. Axes: N items, B texts."""

    members: list[int]  # [N] the place of each item among all
    index: Tensor  # [N] the row of its text
    tokens: Tensor  # [B, T] up to the query
    query: Tensor  # [B, 1] its position
    mentions: Candidates  # of the N items


@dataclass(frozen=True, slots=True)
class Texts:
    """What a model is given to read the rows of some items, for any number of models."""

    n_items: int
    batches: list[Batch]

    @classmethod
    def of(cls, items: Sequence[LinkItem], tokens_per_batch: int) -> "Texts":
        """Lay out `items`; texts that are the same up to the query are one."""
        batches = []
        for members, place, tokens in text_batches([item.tokens[: item.query + 1] for item in items], tokens_per_batch):
            some = [items[i] for i in members]
            query = torch.zeros(len(tokens), 1, dtype=torch.int64)
            query[place, 0] = torch.tensor([item.query for item in some])
            batches.append(Batch(members, torch.tensor(place), tokens, query, candidates(some)))
        return cls(len(items), batches)


def read_rows(model: Transformer, items: Sequence[LinkItem], tokens_per_batch: int) -> Rows:
    """Read every head at every item's query.

    Texts that are the same up to the query are read once, so that their rows are the same to the last bit.

    Args:
        model: in eval mode, float32.
        items: with any number of antecedents and distractors, each of any number of tokens.
        tokens_per_batch: of one forward pass.

    """
    return read_texts(model, Texts.of(items, tokens_per_batch))


@torch.no_grad()
def read_texts(model: Transformer, texts: Texts) -> Rows:
    """Return `read_rows` of the items of `texts`."""
    shape = (texts.n_items, model.config.n_layer, model.config.n_head)
    rows = Rows(**{field.name: np.empty(shape, dtype=np.float32) for field in fields(Rows)})
    device = model.token_embedding.weight.device
    for batch in texts.batches:
        index, mentions = batch.index.to(device), batch.mentions.to(device)
        seen = zip(model.layers(), observed(model, batch.tokens.to(device), batch.query.to(device)), strict=True)
        for layer, (block, (normed, scores)) in enumerate(seen):
            moved = _moved(block.attention, normed, index, mentions.positions)
            for name, values in reduce_scores(scores[index, :, 0], mentions, moved).items():  # of [N, H, Tk]
                getattr(rows, name)[batch.members, layer] = values.cpu().numpy()
    return rows


def _moved(attention: Attention, normed: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
    """Return the length of what each head would add to the stream for each mention's pieces.

    ||W_O W_V x_j|| (Kobayashi et al. 2020, eq. 5), of the mentions alone; its square is v' (W_O' W_O) v.

    Args:
        attention: of one layer.
        normed: [B, T, D] what it reads.
        rows: [N] the batch row of each item.
        positions: [N, W, P].

    Returns:
        [N, H, W, P].

    """
    found = normed[rows[:, None], positions.flatten(1)]  # [N, W P, D]
    value = attention.value(found).unflatten(-1, (attention.n_head, -1)).float()  # [N, W P, H, K]
    output = attention.output.weight.unflatten(-1, (attention.n_head, -1)).float()  # [D, H, K]
    gram = torch.einsum("dhk,dhl->hkl", output, output)
    squares = torch.einsum("nphl,nphl->nhp", torch.einsum("nphk,hkl->nphl", value, gram), value)
    return squares.clamp(min=0).sqrt().unflatten(-1, positions.shape[1:])


def reduce_scores(scores: Tensor, mentions: Candidates, moved: Tensor) -> dict[str, Tensor]:
    """Reduce what the query thinks of every key to the fields of `Rows`.

    A word's score is the LSE of its pieces' scores, the log of the weight they sum to. lambda = LSE over antecedents -
    LSE over distractors: the softmax's denominator, and with it whatever rests on the first token, cancels exactly.
    Where a side is empty it is infinite or nan. A head that moves nothing for either side has no value_weighted_contrast: it is 0.

    Args:
        scores: [N, H, Tk] before the softmax, -inf after the query.
        mentions: of the same items.
        moved: [N, H, W, P] length of what each piece would add to the stream.

    Returns:
        each [N, H].

    """
    of_pieces = scores.gather(-1, mentions.positions.flatten(1)[:, None].expand(-1, scores.shape[1], -1))
    of_pieces = of_pieces.unflatten(-1, mentions.positions.shape[1:]).masked_fill(~mentions.present[:, None], _NEVER)
    words, gold = of_pieces.logsumexp(-1), mentions.gold[:, None]  # [N, H, W]
    right, wrong = words.masked_fill(~gold, _NEVER), words.masked_fill(gold, _NEVER)
    carried = (of_pieces + moved.log()).logsumexp(-1)
    right_moved, wrong_moved = (carried.masked_fill(side, _NEVER).logsumexp(-1) for side in (~gold, gold))
    nothing = (moved * mentions.present[:, None]).sum((-1, -2)) == 0
    on_right, whole = right.logsumexp(-1), scores.logsumexp(-1)
    beyond_first = scores[..., 1:]
    largest = beyond_first == beyond_first.amax(-1, keepdim=True)
    largest_right = of_pieces.masked_fill(~gold[..., None], _NEVER) == beyond_first.amax(-1)[..., None, None]
    return {
        "preference": on_right - wrong.logsumexp(-1),
        "value_preference": (right_moved - wrong_moved).masked_fill(nothing, 0),
        "selects": right.amax(-1) - wrong.amax(-1),
        "strict": largest_right.sum((-1, -2)) / largest.sum(-1),
        "mass": (words.logsumexp(-1) - whole).exp(),
        "first_mass": (scores[..., 0] - whole).exp(),
        "share": (on_right - beyond_first.logsumexp(-1)).exp(),
    }


_NEVER = float("-inf")  # the score of what is not looked at


def length_fair(preference: np.ndarray, items: Sequence[LinkItem]) -> np.ndarray:
    """Return lambda less log(|C| / |D|), counted in tokens: 0 for a head that spreads its weight evenly.

    Args:
        preference: [N, ...].
        items: the N items, each with an antecedent and a distractor.

    """
    sizes = [[sum(map(len, side)) for side in (item.antecedents, item.distractors)] for item in items]
    right, wrong = np.array(sizes, dtype=float).T
    return preference - np.log(right / wrong).reshape(-1, *[1] * (preference.ndim - 1))


@torch.no_grad()
def payoff_logits(
    model: Transformer, items: Sequence[LinkItem], tokens_per_batch: int
) -> Iterator[tuple[list[int], Tensor]]:
    """Yield (places of some items, the logits [N, V] at their payoffs) for all items that have one; float32."""
    asked = [i for i, item in enumerate(items) if item.payoff is not None]
    device = model.token_embedding.weight.device
    for members, place, tokens in text_batches([items[i].tokens for i in asked], tokens_per_batch):
        found = [asked[i] for i in members]
        *_, stream = streams(model, tokens.to(device))
        payoffs = torch.tensor([items[i].payoff for i in found], device=device)
        yield found, model.unembed(stream[torch.tensor(place, device=device), payoffs]).float()


def read_margins(model: Transformer, items: Sequence[LinkItem], tokens_per_batch: int) -> np.ndarray:
    """Return [N] log p(answers) - log p(foils) at each item's payoff: above 0 where the model prefers the right ones.

    nan for items without a payoff.
    """
    margins = np.full(len(items), np.nan)
    for places, logits in payoff_logits(model, items, tokens_per_batch):
        margins[places] = margins_of([items[i] for i in places], logits)
    return margins


def margins_of(items: Sequence[LinkItem], logits: Tensor) -> np.ndarray:
    """Return `read_margins` [N] of items whose logits at their payoffs [N, V] are known."""
    inf = float("-inf")
    answers = _mask([item.answers for item in items], logits)[:, 0, 0]
    foils = _mask([item.foils for item in items], logits)[:, 0, 0]
    found = logits.masked_fill(~answers, inf).logsumexp(-1) - logits.masked_fill(~foils, inf).logsumexp(-1)
    return found.cpu().numpy()


def text_batches(
    texts: Sequence[tuple[int, ...]], tokens_per_batch: int
) -> Iterator[tuple[list[int], list[int], Tensor]]:
    """Yield (indices of texts, the batch row of each, tokens [B, T]): equal texts share a row, like lengths a batch.

    Rows are padded behind, where causality hides it.
    """
    sharing: dict[tuple[int, ...], list[int]] = {}
    for i, text in enumerate(texts):
        sharing.setdefault(text, []).append(i)
    order = sorted(sharing, key=len)
    while order:
        n_rows = max(1, tokens_per_batch // len(order[-1]))
        some, order = order[-n_rows:], order[:-n_rows]
        padded = np.zeros((len(some), len(some[-1])), dtype=np.int64)
        for row, text in enumerate(some):
            padded[row, : len(text)] = text
        members = [i for text in some for i in sharing[text]]
        place = [row for row, text in enumerate(some) for _ in sharing[text]]
        yield members, place, torch.from_numpy(padded)


def _mask(positions: list[tuple[int, ...]], like: Tensor) -> Tensor:
    """Return [B, 1, 1, n] True at the given places of each row, n the last axis of `like`."""
    mask = torch.zeros(len(positions), 1, 1, like.shape[-1], dtype=torch.bool)
    rows = [row for row, some in enumerate(positions) for _ in some]
    mask[rows, 0, 0, [place for some in positions for place in some]] = True
    return mask.to(like.device)
