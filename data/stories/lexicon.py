"""The words of the stories: who acts, what they do, and what can be said of them.

A noun's payoff is the four verbs of its kind: whoever knows the antecedent of "It" knows which four verbs can come
next, and whoever does not must spread the bet over the verbs of every candidate. That is what makes resolving the
pronoun pay at the pronoun itself. Two mentions of one story are never of one kind.
"""

import hashlib
from dataclasses import dataclass, replace
from functools import cache

# Nouns of a kind, each as singular/plural, and the four verbs that they and no other kind have.
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
# Invented, so that nothing but the story says whether a girl or a boy is meant.
# The first four of each serve dev, the other twelve test, so that a test that flips whole words has its power.
FEMININE_HELD_OUT = "Zor Mib Talu Pex Ifa Neshi Orla Yumi Keva Shoni Delpa Rixa Jumi Bresa Falu Onda".split()
MASCULINE_HELD_OUT = "Vek Dorp Hask Rulo Tovi Brask Uzo Kerr Drav Olko Sterm Quade Yorn Zent Harv Pilko".split()

# What people do, by calling; a name has one calling, so twelve things to know of a name and not 48.
DEEDS = tuple(
    tuple(calling.split())
    for calling in (
        "painted drew sewed knitted", "sang danced clapped bowed", "read wrote studied prayed",
        "cooked baked gardened juggled", "swam skated jogged hiked", "rowed fished camped cycled",
        "cried wept sighed frowned", "laughed giggled smiled joked", "jumped skipped cheered shouted",
        "sneezed coughed shrugged daydreamed", "blushed nodded winked tiptoed", "waved marched argued apologized",
    )
)  # fmt: skip

RESTS = (
    "mat rug sofa cushion pillow blanket bed couch carpet quilt hammock bench mattress armchair towel shawl basket cot "
    "stool sheet cradle duvet recliner doormat futon crib bunk beanbag footstool divan lounger bathmat"
).split()
FEELINGS = "tired sleepy hungry thirsty scared sad happy bored lonely curious shy cold".split()  # of an animal
QUALITIES = "soft fluffy cosy padded comfortable spotless new wide cheap smooth woven handmade".split()  # of a rest
STATES = {
    one.split(": ")[0]: tuple(one.split(": ")[1].split())
    for one in (
        "hungry: ate feasted chomped gobbled", "thirsty: drank sipped gulped slurped",
        "sleepy: slept snored napped drowsed", "scared: fled cowered shrieked quivered",
        "happy: rejoiced played grinned beamed", "wet: dripped shivered sloshed squelched",
        "lost: wandered searched strayed roamed", "angry: fumed scowled glared stamped",
        "sad: sobbed moped sulked whined", "proud: boasted posed gloated swaggered",
    )
}  # fmt: skip
FOODS = (
    "apples pears plums grapes carrots beans nuts cherries cookies pancakes noodles dumplings muffins peas berries "
    "olives lemons peaches potatoes tomatoes onions figs turnips waffles"
).split()


@dataclass(frozen=True, slots=True)
class Referent:
    """Something a pronoun can stand for, in the form in which a story mentions it."""

    word: str  # the one token of its mention: "cat", "buses", "Lily"
    lemma: str  # the same for both numbers: "cat", "bus", "Lily"
    kind: str  # animal, thing, name or rest
    pronoun: str  # It, They, She or He
    verbs: tuple[str, ...]  # its four payoffs
    held_out: str  # "dev" or "test": never the antecedent of a pronoun in training; "": it may be

    @property
    def plural(self) -> bool:
        """Whether it takes "were" and "some"."""
        return self.pronoun == "They"

    @property
    def article(self) -> str:
        """The indefinite article of its mention."""
        if self.plural:
            return "some"
        return "an" if self.word[0] in "aeiou" else "a"


def unit_hash(*parts: str) -> float:
    """Map a name to a fixed number in [0, 1), the same on every machine: what holds the hold-outs still."""
    digest = hashlib.sha256("|".join(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def hold_out(words: list[str], n_dev: int, n_test: int) -> dict[str, str]:
    """Give the `n_dev` words of lowest hash to dev and the next `n_test` to test: a choice nobody made.

    The words of the README's pictures are never among them.
    """
    ranked = sorted(set(words) - {"cat", "bus", "mat"}, key=lambda word: unit_hash("held out", word))
    return dict.fromkeys(ranked[:n_dev], "dev") | dict.fromkeys(ranked[n_dev : n_dev + n_test], "test")


def _nouns(table: str, kind: str, n_test: int) -> list[tuple[Referent, Referent]]:
    rows = [line.split(": ") for line in table.strip().splitlines()]
    forms = [(one.split("/"), tuple(verbs.split())) for some, verbs in rows for one in some.split()]
    held_out = hold_out([singular for (singular, _), _ in forms], 6, n_test)
    nouns = []
    for (singular, plural), verbs in forms:
        one = Referent(singular, singular, kind, "It", verbs, held_out.get(singular, ""))
        nouns.append((one, replace(one, word=plural, pronoun="They")))
    return nouns


@cache
def nouns() -> tuple[tuple[Referent, Referent], ...]:
    """Return the 103 nouns as (singular, plural); dev holds out 6 animals and 6 things, test 12 and 8.

    Twelve animals because each question at S2 is between an animal and a rest: with eight of each, a head that always
    looks at the antecedent met the corrected p in half of the cases (docs/probe.md).
    """
    return tuple(_nouns(ANIMALS, "animal", 12) + _nouns(THINGS, "thing", 8))


@cache
def rests() -> tuple[Referent, ...]:
    """Return the 32 things an animal lies on; they have qualities but no verbs of their own."""
    held_out = hold_out(RESTS, 3, 12)
    return tuple(Referent(word, word, "rest", "It", (), held_out.get(word, "")) for word in RESTS)


@cache
def names() -> tuple[tuple[Referent, ...], tuple[Referent, ...]]:
    """Return (feminine, masculine) names, each with a calling given by hash, every calling to as many."""

    def some(trained: list[str], held_out: list[str], pronoun: str) -> tuple[Referent, ...]:
        places = [""] * len(trained) + ["dev"] * 4 + ["test"] * (len(held_out) - 4)
        callings: dict[str, tuple[str, ...]] = {}
        for kept in (trained, held_out):
            ranked = sorted(kept, key=lambda name: unit_hash("calling", name))
            callings |= {name: DEEDS[i % len(DEEDS)] for i, name in enumerate(ranked)}
        return tuple(
            Referent(name, name, "name", pronoun, callings[name], place)
            for name, place in zip([*trained, *held_out], places, strict=True)
        )

    return some(FEMININE, FEMININE_HELD_OUT, "She"), some(MASCULINE, MASCULINE_HELD_OUT, "He")


@cache
def referents() -> dict[str, Referent]:
    """Return every mention's word with its referent."""
    pairs = [form for noun in nouns() for form in noun]
    return {one.word: one for one in [*pairs, *rests(), *names()[0], *names()[1]]}


def word_classes() -> dict[str, str]:
    """Return the token class of every word that is not a function word: pronoun or content."""
    content = set(referents()) | {*FEELINGS, *QUALITIES, *STATES, *FOODS}
    content |= {verb for one in referents().values() for verb in one.verbs}
    content |= {verb for verbs in STATES.values() for verb in verbs}
    pronouns = "It They She He it they she he him her Its Their His Her".split()
    return dict.fromkeys(content, "content") | dict.fromkeys(pronouns, "pronoun")
