"""The words of the stories: who acts, what they do, and what can be said of them.

A noun's payoff is its own four verbs: whoever knows the antecedent of "It" knows which four verbs can
come next, and whoever does not must spread the bet over the verbs of every candidate. That is what
makes resolving the pronoun pay at the pronoun itself.
"""

import hashlib
from dataclasses import dataclass, replace
from functools import cache

ANIMALS = """
cat cats: purred meowed pounced stretched
dog dogs: barked growled panted howled
cow cows: mooed grazed chewed dozed
horse horses: neighed galloped trotted snorted
pig pigs: oinked wallowed grunted snorted
goat goats: bleated chewed kicked leaped
duck ducks: quacked waddled paddled dived
goose geese: honked hissed waddled flapped
hen hens: clucked pecked scratched roosted
owl owls: hooted swooped blinked perched
crow crows: cawed pecked swooped perched
mouse mice: squeaked nibbled scampered trembled
rabbit rabbits: hopped nibbled burrowed twitched
fox foxes: yipped pounced prowled trotted
wolf wolves: howled snarled prowled growled
bear bears: growled lumbered roared grunted
lion lions: roared prowled yawned stalked
tiger tigers: snarled stalked leaped crouched
monkey monkeys: screeched climbed leaped chattered
frog frogs: croaked hopped leaped dived
snake snakes: hissed slithered curled basked
bee bees: buzzed hummed hovered stung
parrot parrots: squawked screeched chattered perched
pony ponies: neighed trotted galloped cantered
puppy puppies: yelped whimpered barked yipped
turtle turtles: crawled basked paddled blinked
squirrel squirrels: chattered scampered scurried climbed
seal seals: barked dived basked splashed
bat bats: squeaked swooped fluttered glided
ox oxen: grazed snorted lumbered bellowed
"""

THINGS = """
bus buses: honked braked rumbled stalled
train trains: whistled rattled chugged braked
truck trucks: rumbled honked skidded stalled
car cars: skidded honked swerved sped
boat boats: drifted rocked sailed sank
ship ships: sailed creaked drifted anchored
plane planes: roared landed glided soared
bell bells: rang chimed clanged swung
clock clocks: ticked chimed stopped whirred
drum drums: boomed thumped rolled echoed
kettle kettles: whistled boiled steamed hissed
pot pots: bubbled boiled steamed clattered
candle candles: flickered melted glowed smoked
lamp lamps: glowed flickered dimmed shone
stove stoves: crackled smoked hissed glowed
balloon balloons: floated popped burst drifted
ball balls: bounced rolled spun burst
kite kites: soared fluttered dipped floated
flag flags: fluttered flapped rippled billowed
door doors: creaked slammed rattled swung
gate gates: creaked clanged squeaked swung
wheel wheels: spun squeaked turned wobbled
robot robots: beeped whirred buzzed clanked
engine engines: roared hummed sputtered stalled
fountain fountains: splashed gurgled sparkled sprayed
radio radios: crackled hummed blared buzzed
phone phones: rang buzzed beeped vibrated
rocket rockets: zoomed soared exploded launched
leaf leaves: rustled fluttered curled dropped
swing swings: swayed creaked swung rocked
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
# The first half of each serves dev, the second test.
FEMININE_HELD_OUT = "Zor Mib Talu Pex Wenna Ludo Quim Sarn".split()
MASCULINE_HELD_OUT = "Vek Dorp Hask Rulo Binn Joxi Fenn Gam".split()

DEEDS = (
    "sang danced laughed smiled waved giggled jumped clapped painted cooked baked read wrote studied prayed "
    "shouted cheered sneezed coughed wept cried sighed bowed nodded winked frowned shrugged juggled skated swam "
    "jogged skipped hiked cycled rowed fished camped gardened knitted sewed drew argued joked daydreamed "
    "apologized blushed marched tiptoed"
).split()

RESTS = "mat rug sofa cushion pillow blanket bed couch carpet quilt hammock bench".split()
FEELINGS = "tired sleepy hungry thirsty scared sad happy bored lonely curious shy cold".split()  # of an animal
QUALITIES = "soft fluffy cosy padded comfortable spotless new wide cheap smooth woven handmade".split()  # of a rest


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


def hold_out(words: list[str], n: int) -> dict[str, str]:
    """Give the `n` words of lowest hash to dev and the next `n` to test: a choice nobody made.

    The words of the README's pictures are never among them.
    """
    ranked = sorted(set(words) - {"cat", "bus", "mat"}, key=lambda word: unit_hash("held out", word))
    return dict.fromkeys(ranked[:n], "dev") | dict.fromkeys(ranked[n : 2 * n], "test")


def _nouns(table: str, kind: str) -> list[tuple[Referent, Referent]]:
    rows = [line.split(": ") for line in table.strip().splitlines()]
    held_out = hold_out([forms.split()[0] for forms, _ in rows], 3)
    nouns = []
    for forms, verbs in rows:
        singular, plural = forms.split()
        own, place = tuple(verbs.split()), held_out.get(singular, "")
        one = Referent(singular, singular, kind, "It", own, place)
        nouns.append((one, replace(one, word=plural, pronoun="They")))
    return nouns


@cache
def nouns() -> tuple[tuple[Referent, Referent], ...]:
    """Return the 60 nouns as (singular, plural), a fifth of each kind held out."""
    return tuple(_nouns(ANIMALS, "animal") + _nouns(THINGS, "thing"))


@cache
def rests() -> tuple[Referent, ...]:
    """Return the 12 things an animal lies on; they have qualities but no verbs of their own."""
    held_out = hold_out(RESTS, 2)
    return tuple(Referent(word, word, "rest", "It", (), held_out.get(word, "")) for word in RESTS)


@cache
def names() -> tuple[tuple[Referent, ...], tuple[Referent, ...]]:
    """Return (feminine, masculine) names, each with four deeds of its own chosen by hash."""

    def some(trained: list[str], held_out: list[str], pronoun: str) -> tuple[Referent, ...]:
        places = [""] * len(trained) + ["dev"] * (len(held_out) // 2) + ["test"] * (len(held_out) // 2)
        return tuple(
            Referent(name, name, "name", pronoun, _deeds(name), place)
            for name, place in zip([*trained, *held_out], places, strict=True)
        )

    return some(FEMININE, FEMININE_HELD_OUT, "She"), some(MASCULINE, MASCULINE_HELD_OUT, "He")


def _deeds(name: str) -> tuple[str, ...]:
    return tuple(sorted(DEEDS, key=lambda deed: unit_hash("deeds", name, deed))[:4])


@cache
def referents() -> dict[str, Referent]:
    """Return every mention's word with its referent."""
    pairs = [form for noun in nouns() for form in noun]
    return {one.word: one for one in [*pairs, *rests(), *names()[0], *names()[1]]}


def word_classes() -> dict[str, str]:
    """Return the token class of every word that is not a function word: pronoun or content."""
    content = set(referents()) | set(FEELINGS) | set(QUALITIES) | {v for one in referents().values() for v in one.verbs}
    return dict.fromkeys(content, "content") | dict.fromkeys("It They She He it they she he".split(), "pronoun")
