"""How often is the probe wrong on natural text?

The question "gender" is asked of a run's validation text, in

- untrained: models with initial weights.
- permuted pronouns: the trained model, but a coin for each pair of entities exchanges the two readings.
- permuted mentions: the trained model, but two random tokens of each prefix take the place of the two entities.
- planted: the trained model, in which one head of the first layer is made to turn with the pronoun, to the matching
  entity or to the other one. The head does nothing else, or ("with noise") keeps all that it has learned besides.

Counted are models in which a chosen head passes the first two criteria of a verdict: corrected p below 0.01 with the
sign for which it was chosen, and |t| above that of every untrained model. Writes docs/results/natural.{json,md}.
"""

import sys
import time
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import torch
from omegaconf import MISSING

from antecedent_lab.opened import load_data, open_run
from benchmarks.measure import row_table, share_range, start_benchmark, write_page
from data.corpus import validation_documents
from data.links import LinkItem
from model.observe import ObservableModel, TransformerView
from probe.config import Holdouts, ProbeConfig
from probe.natural import SIGNS, PrefixItems, make_prefix_items, measure_contrasts, prefixes_in, strongest_of_each_sign
from probe.opened_model import OpenedRun
from probe.scores import text_batches
from probe.study import choose_and_test
from probe.verdict import MAX_P

N_UNTRAINED = 5
STRENGTHS = (0.25, 0.5, 1.0)  # pronoun contrast of the planted head in nats
CONFIG = ProbeConfig(
    seed=0, tokens_per_batch=8192, n_bootstrap=2000, n_untrained=N_UNTRAINED, n_controls=10, holdouts=Holdouts.verdict
)


@dataclass
class _NaturalOptions:
    """python -m benchmarks.natural run=DIR [n_null=200] [n_planted=18].

    run is a run on English (`experiment=english`), n_null the number of models of each kind without a head.
    """

    run: str = MISSING
    n_null: int = 200
    n_planted: int = 18


@dataclass(frozen=True)
class _PassRate:
    """How many models of one kind pass; of models with a planted head: in which it is found."""

    models: str
    n: int
    passed: int

    @property
    def interval(self) -> str:
        return share_range(self.passed, self.n)

    @property
    def found(self) -> str:
        return " found" if self.models.startswith("planted") else ""


@dataclass(frozen=True)
class NaturalErrors:
    """The table of the page."""

    rates: list[_PassRate]
    n_prefixes: int
    untrained_t: float  # the largest |t| of untrained models

    def lines(self) -> list[str]:
        rates = row_table("models | pass | 95 %", "{models} | {passed} of {n}{found} | {interval}", self.rates)
        largest = f"largest |t| of {N_UNTRAINED} untrained models: {self.untrained_t:.1f}."
        return [*rates, "", f"{self.n_prefixes:,} prefixes, half of them tested; {largest}"]


def _passes(contrast: np.ndarray, items: PrefixItems, untrained_t: float) -> dict[str, tuple[int, ...]]:
    """Return the (site, layer, head) of each chosen head that passes the first two criteria, by target."""
    # Chosen on one half, tested on the other.
    choosing, testing = (items.take(half).sample(contrast[half]) for half in items.halves(CONFIG.seed))
    choose = partial(strongest_of_each_sign, config=CONFIG)
    tests = choose_and_test(choosing, testing, choose, [], CONFIG, two_sided=True)
    places = {}
    for (target, sign), place in zip(SIGNS.items(), tests.chosen, strict=True):
        if sign * tests.tested.t[place] > untrained_t and tests.tested.p[place] < MAX_P:
            places[target] = place
    return places


def _permuted_pronouns(contrast: np.ndarray, items: PrefixItems, seed: int) -> np.ndarray:
    """Return the contrasts after a coin for each pair of entities has exchanged the readings of its prefixes."""
    # One coin for each pair of entities, -1: exchanged
    rng = np.random.default_rng(seed)
    pairs = sorted({prefix.entities for prefix in items.prefixes})
    coins = {pair: rng.choice((-1.0, 1.0)) for pair in pairs}
    signs = np.array([coins[prefix.entities] for prefix in items.prefixes])
    return contrast * signs[:, None, None, None]


def _token_contrasts(model: ObservableModel, cells: list[LinkItem]) -> list[np.ndarray]:
    """Return, for each prefix, the difference of both readings' scores at the pronoun, [L, H, tokens before it]."""
    scores: list[np.ndarray] = [np.empty(0)] * len(cells)
    for batch, rows, tokens, _ in text_batches([cell.tokens for cell in cells], CONFIG.tokens_per_batch):
        # Scores of the pronoun's query for all tokens before it
        query = torch.zeros(len(tokens), 1, dtype=torch.int64)
        query[rows, 0] = torch.tensor([cells[i].query for i in batch])
        recorded = model.attention_scores(tokens, query)[:, :, :, 0].numpy()  # [L, B, H, T]
        for i, row in zip(batch, rows, strict=True):
            scores[i] = recorded[:, row, :, : cells[i].query]
    return [(first - second) / 2 for first, second in zip(scores[::2], scores[1::2], strict=True)]


def _permuted_mentions(differences: list[np.ndarray], seed: int) -> np.ndarray:
    """Return the contrasts [N, 1, L, H] of two random tokens of each prefix, without the start token."""
    # Two different tokens behind the start token
    rng = np.random.default_rng(seed)
    pairs = [1 + rng.choice(values.shape[-1] - 1, 2, replace=False) for values in differences]
    values = [d[..., first] - d[..., second] for d, (first, second) in zip(differences, pairs, strict=True)]
    return np.stack(values)[:, None]


@torch.no_grad()
def _planted_view(
    opened: OpenedRun, items: PrefixItems, head: int, strength: float, *, with_noise: bool
) -> TransformerView:
    """Return the model with a head of layer 0 whose pronoun contrast grows by `strength` nats on the items' entities.

    One direction of the head's queries tells the pronouns of both classes apart, one direction of its keys the
    entities: the shortest vectors whose products with the normalised embeddings are 1/2 and -1/2. The direction in the
    head is the one that RoPE rotates least. The head's other directions are 0, or as learned `with_noise`.
    """
    # Normalised embeddings [V, D] that the first layer reads
    model = deepcopy(opened.transformer)
    attention = model.layers()[0].attention
    normed = model.layers()[0].norm_1(model.token_embedding.weight.detach())  # [V, D]
    pronouns: dict[int, float] = {}
    entities: dict[int, float] = {}
    for i, cell in enumerate(items.cells["pronoun"]):
        side = 0.5 - i % 2  # the first reading is that of the first class
        pronouns[cell.tokens[cell.query]] = side
        entities |= {cell.tokens[word[-1]]: side for word in cell.antecedents}
    # One row of the queries tells the pronouns apart, the same row of the keys the entities
    width = model.config.head_dim
    row = head * width + width // 2 - 1  # the first half of the pair of lowest frequency
    for weight, sides in ((attention.query.weight, pronouns), (attention.key.weight, entities)):
        if not with_noise:
            weight[head * width : (head + 1) * width] = 0
        weight[row] = torch.linalg.pinv(normed[list(sides)]) @ torch.tensor(list(sides.values()))
    # The log ratio of both classes differs by 1 between the pronouns, and the contrast is half of it.
    attention.query.weight[row] *= 2 * strength * width**0.5
    return TransformerView(model.eval())


def _nulls(opened: OpenedRun, items: PrefixItems, contrast: np.ndarray, n: int) -> dict[str, Iterator[np.ndarray]]:
    """Return the contrasts of every model without a head; each is computed when it is needed."""
    differences = _token_contrasts(opened.model, items.cells["pronoun"])
    return {
        "untrained": (_contrast(opened.untrained(N_UNTRAINED + i), items) for i in range(n)),
        "permuted pronouns": (_permuted_pronouns(contrast, items, i) for i in range(n)),
        "permuted mentions": (_permuted_mentions(differences, i) for i in range(n)),
    }


def _contrast(model: ObservableModel, items: PrefixItems) -> np.ndarray:
    return measure_contrasts(model, items, CONFIG.tokens_per_batch).contrast


def main(options: _NaturalOptions) -> None:
    """Test all models and write the page."""
    opened = open_run(Path(options.run), torch.device("cpu"))
    prefixes = prefixes_in(validation_documents(load_data(opened, ".cache")))["gender"]
    items = make_prefix_items(prefixes, opened.tokenizer, opened.bos_id, opened.model.context_length, CONFIG.seed)
    contrast = _contrast(opened.model, items)

    # What untrained models reach on the tested half
    _, testing = items.halves(CONFIG.seed)
    tested = items.take(testing)
    untrained_t = 0.0
    for i in range(N_UNTRAINED):
        sample = tested.sample(_contrast(opened.untrained(i), tested))
        untrained_t = max(untrained_t, sample.largest_t(CONFIG, two_sided=True))

    # Models without a head
    start = time.monotonic()
    rates = []
    for name, contrasts in _nulls(opened, items, contrast, options.n_null).items():
        passed = [bool(_passes(null, items, untrained_t)) for null in contrasts]
        rates.append(_PassRate(name, len(passed), sum(passed)))
        print(f"{name}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)

    # Models with a planted head
    for (target, sign), with_noise in product(SIGNS.items(), (False, True)):
        n_found = 0
        for i in range(options.n_planted):
            number, head = divmod(i, opened.model.n_head)
            strength = sign * STRENGTHS[number % len(STRENGTHS)]
            planted = _planted_view(opened, items, head, strength, with_noise=with_noise)
            places = _passes(_contrast(planted, items), items, untrained_t)
            n_found += places.get(target) == (0, 0, head)
        name = f"planted{' with noise' if with_noise else ''}, looks at the {target}"
        rates.append(_PassRate(name, options.n_planted, n_found))
    results = NaturalErrors(rates, len(items.prefixes), untrained_t)
    write_page("natural", "How often the probe is wrong on natural text", results, torch.get_num_threads())


if __name__ == "__main__":
    start_benchmark(main, _NaturalOptions)
