"""What kind of thing each word of the stories stands for: the colours of a picture of their embeddings."""

from data.stories.lexicon import referents, word_classes

KINDS = ("animate", "object", "name", "pronoun", "other")
_OF_REFERENTS = {"animal": "animate", "thing": "object", "rest": "object", "name": "name"}


def kind_of(word: str) -> str:
    """Return which of KINDS a word of the stories is, case counting."""
    one = referents().get(word)
    if one is not None:
        return _OF_REFERENTS[one.kind]
    return "pronoun" if word_classes().get(word) == "pronoun" else "other"
