"""The vocabulary of the stories: nouns, names, their verbs, and adjectives.

Each kind of noun has four verbs that no other kind has. They are the payoff of a pronoun: after "It", a model that
has resolved the antecedent chooses among four verbs; a model that has not must also give probability to the other
candidate's verbs. So resolving the pronoun lowers the loss at the very next token. The two mentions of a story never
share a verb.
"""

import hashlib
from dataclasses import dataclass, replace

# Per line: the nouns of one kind as singular/plural, and the four verbs of that kind alone.
ANIMALS = """
cat/cats kitten/kittens lion/lions tiger/tigers panther/panthers: purred pounced prowled stretched
dog/dogs puppy/puppies wolf/wolves fox/foxes hound/hounds coyote/coyotes jackal/jackals: barked growled howled panted
cow/cows ox/oxen goat/goats lamb/lambs horse/horses pony/ponies donkey/donkeys camel/camels: grazed chewed ambled dozed
pig/pigs bear/bears elephant/elephants hedgehog/hedgehogs hippo/hippos rhino/rhinos badger/badgers: \
grunted snuffled lumbered wallowed
duck/ducks goose/geese swan/swans frog/frogs turtle/turtles seal/seals whale/whales dolphin/dolphins snake/snakes: \
dived splashed paddled surfaced
hen/hens rooster/roosters crow/crows owl/owls eagle/eagles parrot/parrots pigeon/pigeons sparrow/sparrows \
falcon/falcons: perched glided swooped preened
mouse/mice rabbit/rabbits squirrel/squirrels monkey/monkeys hamster/hamsters gerbil/gerbils \
chipmunk/chipmunks lizard/lizards: nibbled scampered climbed chattered
bee/bees wasp/wasps hornet/hornets bumblebee/bumblebees: buzzed hovered stung swarmed
"""

THINGS = """
bus/buses car/cars truck/trucks tractor/tractors train/trains van/vans: honked braked rumbled skidded
boat/boats ship/ships raft/rafts canoe/canoes: drifted rocked sailed sank
plane/planes rocket/rockets kite/kites balloon/balloons flag/flags leaf/leaves: soared floated dipped fluttered
bell/bells clock/clocks phone/phones radio/radios gong/gongs alarm/alarms doorbell/doorbells siren/sirens \
buzzer/buzzers: rang chimed blared jingled
kettle/kettles pot/pots fountain/fountains hose/hoses tap/taps teapot/teapots: gurgled leaked bubbled sprayed
candle/candles lamp/lamps lantern/lanterns stove/stoves torch/torches: flickered glowed dimmed shone
ball/balls wheel/wheels bottle/bottles marble/marbles hoop/hoops: rolled bounced spun wobbled
door/doors gate/gates swing/swings robot/robots windmill/windmills: creaked rattled squeaked clanked
"""

FEMININE = (
    "Lily Mia Anna Emma Sara Lucy Ella Nora Rosa Ruby Ivy Jane Kate Lena Maya Nina Olga Paula Rita Sofia "
    "Tina Vera Wendy Zoe Alice Bella Clara Daisy Elsa Fiona Grace Hanna Irene Julia Karen Laura Maria Nancy "
    "Olivia Polly Rachel Sally Tessa Ursula Violet Wilma Yvonne Amy"
).split()
MASCULINE = (
    "Tom Ben Sam Max Leo Jack Tim Dan Bob Adam Alex Bill Carl David Eric Frank George Henry Ian John Kevin "
    "Luke Mark Nick Oscar Paul Peter Ralph Simon Ted Victor Walter Arthur Bruno Chris Dennis Edward Felix "
    "Greg Hugo Ivan Jacob Karl Louis Martin Noah Owen Roger"
).split()
# Mostly invented, so that their gender can be learned from the stories only. Dev uses the first four of each, test the
# other twelve: the test flips the signs of whole words, and its power grows with their number.
FEMININE_HELD_OUT = "Zor Mib Talu Pex Ifa Neshi Orla Yumi Keva Shoni Delpa Rixa Jumi Bresa Falu Onda".split()
MASCULINE_HELD_OUT = "Vek Dorp Hask Rulo Tovi Brask Uzo Kerr Drav Olko Sterm Quade Yorn Zent Harv Pilko".split()

# The verbs of people, by calling. Each name has one calling: a model learns twelve sets of verbs, not one per name.
CALLINGS = tuple(
    tuple(verbs.split())
    for verbs in (
        "painted drew sewed knitted", "sang danced clapped bowed", "read wrote studied prayed",
        "cooked baked gardened juggled", "swam skated jogged hiked", "rowed fished camped cycled",
        "cried wept sighed frowned", "laughed giggled smiled joked", "jumped skipped cheered shouted",
        "sneezed coughed shrugged daydreamed", "blushed nodded winked tiptoed", "waved marched argued apologized",
    )
)  # fmt: skip

REST_WORDS = (  # things on which an animal lies
    "mat rug sofa cushion pillow blanket bed couch carpet quilt hammock bench mattress armchair towel shawl basket "
    "cot stool sheet cradle duvet recliner doormat futon crib bunk beanbag footstool divan lounger bathmat pouf "
    "settee chaise eiderdown duster hassock tarpaulin pallet litter rocker daybed throw bolster comforter afghan "
    "fleece haystack nest saddle tablecloth sack crate ottoman tatami"
).split()
# FEELINGS describe only animals, QUALITIES only rests.
FEELINGS = "tired sleepy hungry thirsty scared sad happy bored lonely curious shy cold".split()
QUALITIES = "soft fluffy cosy padded comfortable spotless new wide cheap smooth woven handmade".split()
# The pronoun of every form.
PRONOUN_OF_FORM = {"it": "It", "its": "It"} | dict.fromkeys(("they", "them", "their"), "They")
PRONOUN_OF_FORM |= {"she": "She", "her": "She"} | dict.fromkeys(("he", "him", "his"), "He")


@dataclass(frozen=True, slots=True)
class Referent:
    """A noun or name that a pronoun can refer to, in the form in which a story mentions it."""

    word: str  # the single token of the mention: "cat", "buses", "Lily"
    lemma: str  # the same for singular and plural: "cat", "bus", "Lily"
    kind: str  # animal, thing, name or rest
    pronoun: str  # It, They, She or He
    verbs: tuple[str, ...]  # its four payoff verbs
    held_out: str  # "dev" or "test": never an antecedent in training; "": may be an antecedent in training

    @property
    def plural(self) -> bool:
        """True if the mention takes "were" and "some"."""
        return self.pronoun == "They"


def unit_hash(*strings: str) -> float:
    """Return a number in [0, 1) that depends on the strings alone; all hold-outs are decided by it."""
    digest = hashlib.sha256("|".join(strings).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def _hold_out(words: list[str], n_dev: int, n_test: int) -> dict[str, str]:
    """Return {word: "dev" or "test"} for the held-out words: those with the lowest hashes.

    The words of the README's example sentences are never held out.
    """
    ranked = sorted(set(words) - {"cat", "bus", "mat"}, key=lambda word: unit_hash("held out", word))
    return dict.fromkeys(ranked[:n_dev], "dev") | dict.fromkeys(ranked[n_dev : n_dev + n_test], "test")


def _parse_nouns(table: str, kind: str, n_test: int) -> list[tuple[Referent, Referent]]:
    rows = [line.split(": ") for line in table.strip().splitlines()]
    forms = [(noun.split("/"), tuple(verbs.split())) for nouns, verbs in rows for noun in nouns.split()]
    held_out = _hold_out([singular for (singular, _), _ in forms], 6, n_test)
    referents = []
    for (singular, plural), verbs in forms:
        referent = Referent(singular, singular, kind, "It", verbs, held_out.get(singular, ""))
        referents.append((referent, replace(referent, word=plural, pronoun="They")))
    return referents


def _name_referents(trained: list[str], held_out: list[str], pronoun: str) -> tuple[Referent, ...]:
    splits = [""] * len(trained) + ["dev"] * 4 + ["test"] * (len(held_out) - 4)
    verbs: dict[str, tuple[str, ...]] = {}
    for group in (trained, held_out):
        ranked = sorted(group, key=lambda name: unit_hash("calling", name))
        verbs |= {name: CALLINGS[i % len(CALLINGS)] for i, name in enumerate(ranked)}
    return tuple(
        Referent(name, name, "name", pronoun, verbs[name], split)
        for name, split in zip([*trained, *held_out], splits, strict=True)
    )


# The 103 nouns as (singular, plural); dev holds out 6 animals and 6 things, test 12 and 8. Test has twelve animals
# because each later-cue question is between an animal and a rest: with eight of each, a head that always attends to the
# antecedent reached the corrected p in only half of the cases.
NOUNS = (*_parse_nouns(ANIMALS, "animal", 12), *_parse_nouns(THINGS, "thing", 8))
# The 56 things on which an animal lies; they have qualities but no verbs.
_HELD_OUT_RESTS = _hold_out(REST_WORDS, 6, 12)
RESTS = tuple(Referent(word, word, "rest", "It", (), _HELD_OUT_RESTS.get(word, "")) for word in REST_WORDS)
# Feminine and masculine names; each has the verbs of one calling.
NAMES = (
    _name_referents(FEMININE, FEMININE_HELD_OUT, "She"),
    _name_referents(MASCULINE, MASCULINE_HELD_OUT, "He"),
)
# Every word that a story can mention.
REFERENTS = {referent.word: referent for group in (*NOUNS, RESTS, *NAMES) for referent in group}


def word_classes() -> dict[str, str]:
    """Return {word: "pronoun" or "content"} for all words but function words."""
    # The two postures count as content since the first runs, whose losses per class stay comparable.
    content = {*REFERENTS, *FEELINGS, *QUALITIES, "slept", "napped"}
    content.update(verb for referent in REFERENTS.values() for verb in referent.verbs)
    pronouns = {*PRONOUN_OF_FORM, *PRONOUN_OF_FORM.values()}
    return dict.fromkeys(content, "content") | dict.fromkeys(pronouns, "pronoun")
