"""Transformers with hand-made weights in which one head has a given behaviour, to test the probe on.

Every embedding is a list of features (number of a noun, number that a pronoun agrees with, verbs of a noun), scaled to
one length, so that RMSNorm only scales it. The planted head compares features in RoPE planes that rotate by less than a
hundredth of a right angle over a story. All other heads have random queries and keys and a zero output. The planted
head copies the code of the attended noun, which raises the probability of its verbs. So its attention is causal.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from data.stories.lexicon import REFERENTS, Referent
from model.transformer import Transformer
from settings.model import ModelConfig

KINDS = ("coreference", "first", "lexical", "singular", "previous", "uniform", "coreference+first")
# Features of one dimension each; "fill" scales every embedding to the same length.
_NAMES = "constant mention number gender asks_number asks_gender word_bias fill".split()
_FEATURE = {name: i for i, name in enumerate(_NAMES)}
_NUMBER = {"It": 1.0, "They": -1.0}  # by pronoun
_GENDER = {"She": 1.0, "He": -1.0}
_LENGTH = 4.0  # norm of every embedding, above sqrt(10), the largest norm of features, code and noise
_NOISE = 0.1  # in dimensions without a feature, so that random heads differ from word to word
_OUTPUT_GAIN = 20.0  # gain of the head's output: a tenth of its weight changes a verb's logit by about 2 nats
_SHARPNESS = 12.0  # for the previous-token head: the weight of other tokens is e^6 times smaller


@torch.no_grad()
def plant(
    config: ModelConfig,
    vocabulary: dict[str, int],
    kind: str,
    *,
    layer: int = 0,
    head: int = 0,
    strength: float = 1.0,
    seed: int = 0,
) -> Transformer:
    """Return a model in eval mode whose head (layer, head) has the behaviour `kind`.

    - coreference: a table of words; a noun that agrees with the pronoun scores +strength, any other -strength. So it
      answers number and gender, not verb, where both nouns agree.
    - first: the score of a mention grows by strength with every token of distance.
    - lexical: the score of a mention is strength times a bias of its word, drawn from a normal distribution.
    - singular: singulars and girls +strength, plurals and boys -strength, for every pronoun.
    - previous: nearly all weight on the previous token. uniform: the same weight on all tokens.
    - coreference+first: 3/4 of the strength of coreference, plus first.

    `vocabulary` has the token id of each word, of a tokenizer of whole words. `seed` is that of word biases, codes and
    random heads. head_dim is 6 or more, d_model 30 or more.
    """
    # Random heads, hand-made embeddings
    model = Transformer(config, max(vocabulary.values()) + 1, seed)
    generator = torch.Generator().manual_seed(seed)
    n_code = min(config.head_dim, (config.d_model - len(_NAMES)) // 2)
    attention = list(model.layers())[layer].attention
    model.token_embedding.weight.copy_(_embeddings(vocabulary, config.d_model, n_code, generator))
    rows = slice(head * config.head_dim, (head + 1) * config.head_dim)
    attention.query.weight[rows], attention.key.weight[rows] = _query_key(config, kind, strength)
    # The head copies the code of the attended mention to the dimensions of the output.
    attention.value.weight[rows] = 0
    code = torch.arange(n_code)
    attention.value.weight[rows.start + code, len(_NAMES) + code] = 1
    attention.output.weight[len(_NAMES) + n_code + code, rows.start + code] = _OUTPUT_GAIN
    return model.eval()


def _embeddings(vocabulary: dict[str, int], d_model: int, n_code: int, generator: torch.Generator) -> Tensor:
    """Return embeddings [V, D]: features | code of a mention | code of the output | noise; row norms are _LENGTH."""
    # Places of the codes, and noise in the rest
    table = torch.zeros(max(vocabulary.values()) + 1, d_model)
    mention_code = slice(len(_NAMES), len(_NAMES) + n_code)
    output_code = slice(mention_code.stop, mention_code.stop + n_code)
    table[:, output_code.stop :].normal_(0, _NOISE, generator=generator)
    table[:, _FEATURE["constant"]] = 1
    # Verbs have their code at the place of the output
    known = {word: referent for word, referent in REFERENTS.items() if word in vocabulary}
    codes = _codes(known, n_code, generator)
    for word in codes.keys() & vocabulary.keys():
        table[vocabulary[word], output_code] = codes[word]
    # Mentions: code and features
    for word, referent in known.items():
        row = table[vocabulary[word]]
        row[mention_code] = codes[word]
        row[_FEATURE["mention"]] = 1
        row[_FEATURE["number"]] = _NUMBER.get(referent.pronoun, 0)
        row[_FEATURE["gender"]] = _GENDER.get(referent.pronoun, 0)
        row[_FEATURE["word_bias"]] = torch.randn((), generator=generator).clamp(-2, 2)
    # What pronouns ask for
    for name, values in {"asks_number": _NUMBER, "asks_gender": _GENDER}.items():
        for pronoun, value in values.items():
            for word in {pronoun, pronoun.lower()} & vocabulary.keys():
                table[vocabulary[word], _FEATURE[name]] = value
    table[:, _FEATURE["fill"]] = (_LENGTH**2 - table.square().sum(1)).sqrt()
    return table


def _codes(known: dict[str, Referent], n_code: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Return a unit vector for every verb and mention; that of a mention is the scaled sum of its verbs' vectors."""
    verbs = sorted({verb for referent in known.values() for verb in referent.verbs})
    code = {verb: F.normalize(torch.randn(n_code, generator=generator), dim=0) for verb in verbs}
    for word, referent in known.items():
        code[word] = F.normalize(torch.stack([code[verb] for verb in referent.verbs]).sum(0), dim=0)
    return code


def _query_key(config: ModelConfig, kind: str, strength: float) -> tuple[Tensor, Tensor]:
    """Return the query and key weights [K, D] of a behaviour.

    RoPE plane (i, i + K/2) rotates by theta^(-2i/K) per token. The slowest plane holds number, the next one gender. No
    query uses both halves of a plane.
    """
    # The slowest planes
    half = config.head_dim // 2
    query, key = torch.zeros(2, config.head_dim, config.d_model)
    order, gender, number = range(half - 3, half)
    # RMSNorm scales features by sqrt(D) / _LENGTH; scores are divided by sqrt(K).
    unit = math.sqrt(math.sqrt(config.head_dim)) * _LENGTH / math.sqrt(config.d_model)
    size = unit * math.sqrt(strength)

    def compare(row: int, query_feature: str, key_feature: str, gain: float = 1.0) -> None:
        query[row, _FEATURE[query_feature]] = gain * size
        key[row, _FEATURE[key_feature]] = size

    # Each behaviour compares a feature of the query with one of the key
    if kind.startswith("coreference"):
        gain = 0.75 if kind == "coreference+first" else 1.0
        compare(number, "asks_number", "number", gain)
        compare(gender, "asks_gender", "gender", gain)
    if kind.endswith("first"):  # query (1, 0) and key (0, 1) give the sine of the angle between them
        angle = config.rope_theta ** (-order / half)
        query[order, _FEATURE["constant"]] = size / angle
        key[order + half, _FEATURE["mention"]] = size
    if kind == "lexical":
        compare(number, "constant", "word_bias")
    if kind == "singular":
        compare(number, "constant", "number")
        compare(gender, "constant", "gender")
    if kind == "previous":  # the sum of the cosines of all planes' angles, largest at distance 1
        angles = config.rope_theta ** (-torch.arange(half) / half)
        query[:, _FEATURE["constant"]] = size * _SHARPNESS * torch.cat([angles.cos(), -angles.sin()])
        key[:half, _FEATURE["constant"]] = size
    return query, key
