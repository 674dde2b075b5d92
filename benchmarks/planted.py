"""Transformers whose one head does what we say, built weight by weight: what a probe must find, or must not.

Every embedding is a list of features (which number a noun has, which one a pronoun asks for, which verbs a noun does),
all of one length, so that RMSNorm only scales them. The planted head compares features in planes of RoPE that turn by
less than a hundredth of a right angle over a story; every other head has random queries and keys and adds nothing.
Whatever the head looks at, it passes on: the verbs of what it attends to become likelier. So a planted habit is not
only seen in the attention, it also acts.
"""

import math

import torch
from torch import Tensor

from data.stories.lexicon import FEELINGS, QUALITIES, Referent, referents
from model.config import ModelConfig
from model.transformer import Attention, Transformer

KINDS = ("coreference", "first", "lexical", "singular", "previous", "uniform", "coreference+first")
# Features of one dimension each; "fill" brings every embedding to one length.
_NAMES = tuple("one mention number gender kind asks_number asks_gender asks_kind asks_nothing taste fill".split())
_FEATURE = {name: i for i, name in enumerate(_NAMES)}
_LENGTH = 4.0  # of every embedding: above sqrt(10), the longest that features, a code and noise can come to
_NOISE = 0.1  # in dimensions without a meaning, so that random heads have something to tell words apart by
_PASSED_ON = 20.0  # gain of what the head writes: a tenth of its weight then moves a verb by about 2 nats
_SHARPNESS = 12.0  # of the previous-token head: its neighbours' keys fall e^6 behind


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
    """Build a model, in eval mode, whose head (layer, head) has one habit.

    - coreference: the antecedent's score is +strength and the distractor's -strength, by number or gender at a
      pronoun that begins a sentence (number) and by kind at an adjective (later_cue). At any other pronoun every
      mention's score is -strength: it means nothing ("Outside, it was raining") or cannot be known yet.
    - first: a mention's score grows by strength with every token it lies farther back.
    - lexical: every mention's score is strength times a taste drawn from a normal distribution.
    - singular: singulars and girls +strength, plurals and boys -strength, whatever is asked.
    - previous: nearly all weight on the token before; uniform: the same weight on all.
    - coreference+first: 3/4 of the first habit's strength for the antecedent, with the whole second habit on top.

    Args:
        config: at least 6 numbers to a head and `d_model` 30; stories may be as long as context_length.
        vocabulary: word to id, of a tokenizer of whole words.
        kind: one of KINDS.
        layer: of the planted head.
        head: its place in the layer.
        strength: multiplies its scores.
        seed: of the tastes, codes and random heads.

    Raises:
        ValueError: an unknown kind, or a model too narrow.

    """
    if kind not in KINDS:
        raise ValueError(f"no planted head of kind {kind!r}; there are {', '.join(KINDS)}")
    if config.head_dim < 6 or config.d_model < 30:
        raise ValueError("a planted head needs head_dim 6 or more and d_model 30 or more")
    model = Transformer(config, max(vocabulary.values()) + 1, seed)
    generator = torch.Generator().manual_seed(seed)
    n_code = min(config.head_dim, (config.d_model - len(_NAMES)) // 2)
    attention = list(model.layers())[layer].attention
    at = slice(head * config.head_dim, (head + 1) * config.head_dim)
    with torch.no_grad():
        model.token_embedding.weight.copy_(
            _embeddings(vocabulary, len(model.token_embedding.weight), config, n_code, generator)
        )
        attention.query.weight[at], attention.key.weight[at] = _looks(config, kind, strength)
        attention.value.weight[at] = 0
        _pass_on(attention, at.start, n_code)
    return model.eval()


def _embeddings(
    vocabulary: dict[str, int], n_tokens: int, config: ModelConfig, n_code: int, generator: torch.Generator
) -> Tensor:
    """Return [V, D]: features | code of what is mentioned | code of what is said | noise, each row _LENGTH long."""
    table = torch.zeros(n_tokens, config.d_model)
    n_named = len(_NAMES)
    table[:, n_named + 2 * n_code :].normal_(0, _NOISE, generator=generator)
    table[:, _FEATURE["one"]] = 1
    known = {word: one for word, one in referents().items() if word in vocabulary}
    codes = _codes(known, n_code, generator)
    for word, code in codes.items():
        if word in vocabulary:
            table[vocabulary[word], n_named + n_code : n_named + 2 * n_code] = code
    for word, one in known.items():
        table[vocabulary[word], n_named : n_named + n_code] = codes[word]
        for name, value in _mention(one).items():
            table[vocabulary[word], _FEATURE[name]] = value
        table[vocabulary[word], _FEATURE["taste"]] = torch.randn((), generator=generator).clamp(-2, 2)
    for name, yes, no in (
        ("asks_number", ("It",), ("They",)),
        ("asks_gender", ("She",), ("He",)),
        ("asks_kind", FEELINGS, QUALITIES),
        ("asks_nothing", ("it", "they", "she", "he"), ()),
    ):
        for words, sign in ((yes, 1.0), (no, -1.0)):
            table[[vocabulary[word] for word in words if word in vocabulary], _FEATURE[name]] = sign
    table[:, _FEATURE["fill"]] = (_LENGTH**2 - table.square().sum(1)).sqrt()
    return table


def _mention(one: Referent) -> dict[str, float]:
    number = {"It": 1.0, "They": -1.0}.get(one.pronoun, 0.0)
    gender = {"She": 1.0, "He": -1.0}.get(one.pronoun, 0.0)
    kind = {"animal": 1.0, "rest": -1.0}.get(one.kind, 0.0) if one.pronoun == "It" else 0.0
    return {"mention": 1.0, "number": number, "gender": gender, "kind": kind}


def _codes(known: dict[str, Referent], n_code: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Return a code of length 1 for every verb and mention: a mention's is the sum of its verbs'."""
    verbs = sorted({verb for one in known.values() for verb in one.verbs})
    code = {verb: _unit(torch.randn(n_code, generator=generator)) for verb in verbs}
    for word, one in known.items():
        own = [code[verb] for verb in one.verbs] or [torch.randn(n_code, generator=generator)]
        code[word] = _unit(torch.stack(own).sum(0))
    return code


def _unit(vector: Tensor) -> Tensor:
    return vector / vector.norm()


def _looks(config: ModelConfig, kind: str, strength: float) -> tuple[Tensor, Tensor]:
    """Return the query and key weights [K, D] of a habit.

    A plane (i, i + K/2) of RoPE turns by theta^(-2i/K) a token. The slowest bears the number and, in its other half,
    that nothing is asked; the next one gender and the kind. No query asks for both halves of a plane.
    """
    half = config.head_dim // 2
    query, key = torch.zeros(2, config.head_dim, config.d_model)
    number, gender, nothing, other_kind, order = half - 1, half - 2, 2 * half - 1, 2 * half - 2, half - 3
    # Both sides are normed: features grow by sqrt(D) / _LENGTH; scores are divided by sqrt(K).
    unit = math.sqrt(math.sqrt(config.head_dim)) * _LENGTH / math.sqrt(config.d_model)
    size = unit * math.sqrt(strength)

    def compare(place: int, asked: str, held: str, gain: float = 1.0) -> None:
        query[place, _FEATURE[asked]], key[place, _FEATURE[held]] = gain * size, size

    if kind.startswith("coreference"):
        gain = 0.75 if kind == "coreference+first" else 1.0
        compare(number, "asks_number", "number", gain)
        compare(gender, "asks_gender", "gender", gain)
        compare(other_kind, "asks_kind", "kind", gain)
        compare(nothing, "asks_nothing", "mention", -gain)
    if kind.endswith("first"):  # a query (1, 0) scores a key (0, 1) by the sine of the angle between them
        angle = config.rope_theta ** (-order / half)
        query[order, _FEATURE["one"]], key[order + half, _FEATURE["mention"]] = size / angle, size
    if kind == "lexical":
        compare(number, "one", "taste")
    if kind == "singular":
        compare(number, "one", "number")
        compare(gender, "one", "gender")
    if kind == "previous":  # the sum of cosines of all planes' angles, greatest at the distance 1
        angles = config.rope_theta ** (-torch.arange(half) / half)
        query[:, _FEATURE["one"]] = size * _SHARPNESS * torch.cat([angles.cos(), -angles.sin()])
        key[:half, _FEATURE["one"]] = size
    return query, key


def _pass_on(attention: Attention, start: int, n_code: int) -> None:
    """Let the head that begins at row `start` write the code of what is mentioned where codes of what is said stand."""
    code = torch.arange(n_code)
    attention.value.weight[start + code, len(_NAMES) + code] = 1
    attention.output.weight[len(_NAMES) + n_code + code, start + code] = _PASSED_ON
