"""How often is the probe wrong on natural text? python -m benchmarks.natural run=DIR [cache_dir=DIR].

The question "gender" is asked of the validation text of a run on English (`experiment=english`):

- untrained: models with initial weights.
- permuted pronouns: the trained model, but a coin for each pair of entities exchanges the two readings.
- permuted mentions: the trained model, but two random tokens of each prefix take the place of the two entities.
- planted: the trained model, in which one head of the first layer is made to turn with the pronoun, to the matching
  entity or to the other one. The head does nothing else, or ("with noise") keeps all that it has learned besides.

Counted are models in which a chosen head passes the first two criteria of a verdict: corrected p below 0.01 with the
sign for which it was chosen, and |t| above that of every untrained model. Further arguments: n_null=200 of each null,
n_planted=18, seed=0.

Writes docs/results/natural.{json,md}.
"""

import sys
import time
from collections.abc import Iterator
from copy import deepcopy
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from antecedent_lab.opened import load_data, open_run
from benchmarks.measure import arguments, write_results
from data.corpus import validation_documents
from data.links import LinkItem
from data.text_tables import markdown_table
from model.observe import ObservableModel, TransformerView
from model.transformer import Transformer
from probe.batches import text_batches
from probe.config import Holdouts, ProbeConfig
from probe.natural import SIGNS, Items, choose_and_test, largest_t, make_items, prefixes_in, read
from probe.opened_model import OpenedRun
from probe.statistics import share_interval
from probe.verdict import MAX_P

N_TWINS = 5
STRENGTHS = (0.25, 0.5, 1.0)  # pronoun contrast of the planted head in nats
CONFIG = ProbeConfig(
    seed=0, tokens_per_batch=8192, n_bootstrap=2000, n_untrained=N_TWINS, n_controls=10, holdouts=Holdouts.verdict
)


def passes(contrast: np.ndarray, items: Items, untrained_t: float) -> dict[str, tuple[int, ...]]:
    """Returns the (site, layer, head) of each chosen head that passes the first two criteria, by target."""
    chosen, test = choose_and_test(contrast, items, CONFIG)
    return {
        target: place
        for target, place in chosen.items()
        if SIGNS[target] * test.t[place] > untrained_t and test.p[place] < MAX_P
    }


def exchanged_readings(contrast: np.ndarray, items: Items, seed: int) -> np.ndarray:
    """Returns the contrasts after a coin for each pair of entities has exchanged the readings of its prefixes."""
    rng = np.random.default_rng(seed)
    coins = {pair: rng.choice((-1.0, 1.0)) for pair in sorted({prefix.entities for prefix in items.prefixes})}
    signs = np.array([coins[prefix.entities] for prefix in items.prefixes])
    return contrast * signs[:, None, None, None]


def token_contrasts(model: ObservableModel, cells: list[LinkItem]) -> list[np.ndarray]:
    """Returns, for each prefix, the difference of both readings' scores at the pronoun, [L, H, tokens before it]."""
    scores: list[np.ndarray] = [np.empty(0)] * len(cells)
    for batch, rows, tokens, _ in text_batches([cell.tokens for cell in cells], CONFIG.tokens_per_batch):
        query = torch.zeros(len(tokens), 1, dtype=torch.int64)
        query[rows, 0] = torch.tensor([cells[i].query for i in batch])
        recorded = model.attention_scores(tokens, query)[:, :, :, 0].numpy()  # [L, B, H, T]
        for i, row in zip(batch, rows, strict=True):
            scores[i] = recorded[:, row, :, : cells[i].query]
    return [(first - second) / 2 for first, second in zip(scores[::2], scores[1::2], strict=True)]


def random_mentions(differences: list[np.ndarray], seed: int) -> np.ndarray:
    """Returns the contrasts [N, 1, L, H] of two random tokens of each prefix, without the start token."""
    rng = np.random.default_rng(seed)
    pairs = [1 + rng.choice(values.shape[-1] - 1, 2, replace=False) for values in differences]
    values = [d[..., first] - d[..., second] for d, (first, second) in zip(differences, pairs, strict=True)]
    return np.stack(values)[:, None]


@torch.no_grad()
def plant(opened: OpenedRun, items: Items, head: int, strength: float, *, with_noise: bool) -> Transformer:
    """Returns the model with a head of layer 0 whose pronoun contrast grows by `strength` nats on the items' entities.

    One direction of the head's queries tells the pronouns of both classes apart, one direction of its keys the
    entities: the shortest vectors whose products with the normalised embeddings are 1/2 and -1/2. The direction in the
    head is the one that RoPE rotates least. The head's other directions are 0, or as learned `with_noise`.
    """
    model = deepcopy(opened.transformer)
    attention = model.layers()[0].attention
    normed = model.layers()[0].norm_1(model.token_embedding.weight.detach())  # [V, D]
    pronouns, entities = dict[int, float](), dict[int, float]()
    for i, cell in enumerate(items.cells["pronoun"]):
        side = 0.5 - i % 2  # the first reading is that of the first class
        pronouns[cell.tokens[cell.query]] = side
        entities |= {cell.tokens[word[-1]]: side for word in cell.antecedents}
    width = model.config.head_dim
    row = head * width + width // 2 - 1  # the first half of the pair of lowest frequency
    for weight, sides in ((attention.query.weight, pronouns), (attention.key.weight, entities)):
        if not with_noise:
            weight[head * width : (head + 1) * width] = 0
        weight[row] = torch.linalg.pinv(normed[list(sides)]) @ torch.tensor(list(sides.values()))
    # The log ratio of both classes differs by 1 between the pronouns, and the contrast is half of it.
    attention.query.weight[row] *= 2 * strength * width**0.5
    return model.eval()


def nulls(opened: OpenedRun, items: Items, contrast: np.ndarray, n: int, seed: int) -> dict[str, Iterator[np.ndarray]]:
    """Returns the contrasts of every null model; each is computed when it is needed."""
    differences = token_contrasts(opened.model, items.cells["pronoun"])
    seeds = range(seed * 10**6, seed * 10**6 + n)
    return {
        "untrained": (read(opened.untrained(N_TWINS + i), items, CONFIG.tokens_per_batch).contrast for i in seeds),
        "permuted pronouns": (exchanged_readings(contrast, items, i) for i in seeds),
        "permuted mentions": (random_mentions(differences, i) for i in seeds),
    }


def main() -> None:
    """Measures, writes, prints."""
    options = arguments({"n_null": "200", "n_planted": "18", "seed": "0", "cache_dir": ".cache"}, ["run"])
    opened = open_run(Path(options["run"]), torch.device("cpu"))
    prefixes = prefixes_in(validation_documents(load_data(opened, options["cache_dir"])))["gender"]
    items = make_items(prefixes, opened.tokenizer, opened.bos_id, opened.model.context_length, CONFIG.seed)
    _, testing = items.halves(CONFIG.seed)
    contrast, tested = read(opened.model, items, CONFIG.tokens_per_batch).contrast, items.take(testing)
    twins = (read(opened.untrained(i), tested, CONFIG.tokens_per_batch) for i in range(N_TWINS))
    untrained_t = max(largest_t(twin, tested, CONFIG) for twin in twins)
    start, rows, results = time.monotonic(), [], dict[str, Any]()
    for name, contrasts in nulls(opened, items, contrast, int(options["n_null"]), int(options["seed"])).items():
        passed = [bool(passes(null, items, untrained_t)) for null in contrasts]
        low, high = share_interval(sum(passed), len(passed))
        results[name] = {"n": len(passed), "passed": sum(passed), "interval": [low, high]}
        rows.append([name, f"{sum(passed)} of {len(passed)}", f"[{low:.1%}, {high:.1%}]"])
        print(f"{name}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    n_planted = int(options["n_planted"])
    for (target, sign), with_noise in product(SIGNS.items(), (False, True)):
        name, found = f"planted{' with noise' if with_noise else ''}, looks at the {target}", list[bool]()
        for i in range(n_planted):
            number, head = divmod(i, opened.model.n_head)
            strength = STRENGTHS[number % len(STRENGTHS)]
            planted = TransformerView(plant(opened, items, head, sign * strength, with_noise=with_noise))
            places = passes(read(planted, items, CONFIG.tokens_per_batch).contrast, items, untrained_t)
            found.append(places.get(target) == (0, 0, head))
        low, high = share_interval(sum(found), n_planted)
        results[name] = {"n": n_planted, "found": found, "interval": [low, high]}
        rows.append([name, f"{sum(found)} of {n_planted} found", f"[{low:.1%}, {high:.1%}]"])
    largest = f"largest |t| of {N_TWINS} untrained models: {untrained_t:.1f}."
    sizes = f"{len(items.prefixes):,} prefixes, half of them tested; {largest}"
    lines = [*markdown_table(["models", "pass", "95 %"], rows), "", sizes]
    results |= {"n_prefixes": len(items.prefixes), "untrained_t": untrained_t}
    write_results("natural", "How often the probe is wrong on natural text", results, lines, torch.get_num_threads())


if __name__ == "__main__":
    main()
