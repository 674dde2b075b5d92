"""Memory and speed from a file of text to tokens: python -m benchmarks.tokenizing [megabytes=200] [small=20].

Text of both sizes is made up (words of a Zipf law, sentences, documents) and read by `load_corpus` in a process of its
own, whose peak memory is the operating system's own figure. Arrays are written, not mapped, so the peak counts no pages
of them. The rate is held against that of `tokenizers` itself: encode_batch of the same documents, whole and already in
memory, by the same tokenizer on one thread as well; from a file to the cache ours must also read the text, part it into
documents and splits, check it and write it. [tokenizer=bpe] [vocab_size=8192] [folder=DIR]: where the text goes, by
default the place for temporary files. [out=FILE.json] [quick=true].
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.rows import Row, all_within, alone, number, repeats, timed, whole_numbers

KNOWN = ("megabytes", "small", "tokenizer", "vocab_size", "folder")
_WORDS = 20_000
_BLOCK = 200_000  # words made up at a time
_READ = """
import sys, time
from pathlib import Path
import numpy as np
from data.config import TextConfig, TokenizerKind
from data.corpus import load_corpus
path, cache, kind, size, tokenizer, ids = sys.argv[1:]
config = TextConfig(
    source="text", path=path, validation_path=None, validation_fraction=0.1, column="text", max_bytes=None,
    tokenizer=TokenizerKind(kind), vocab_size=int(size), tokenizer_path=tokenizer or None,
)
began = time.process_time()
corpus = load_corpus(config, Path(cache))
seconds = time.process_time() - began
if ids:
    np.save(ids, np.concatenate([corpus.train.tokens, corpus.validation.tokens]))
print(len(corpus.train.tokens) + len(corpus.validation.tokens), seconds)
"""
# The documents as the text itself parts them, with their line ends; END before each, as in the cache.
_PEER = """
import sys, time
import numpy as np
from tokenizers import Tokenizer
path, tokenizer, ids = sys.argv[1:]
tokenizer = Tokenizer.from_file(tokenizer)
documents = open(path).read().split("<|endoftext|>\\n")
began = time.process_time()
every = tokenizer.encode_batch(documents, add_special_tokens=False)
seconds = time.process_time() - began
end = tokenizer.token_to_id("<|endoftext|>")
np.save(ids, np.concatenate([[end, *one.ids] for one in every if one.ids]).astype(np.uint16))
print(seconds)
"""


def write_text(path: Path, n_bytes: int, seed: int) -> None:
    """Write about `n_bytes` of ASCII: words of 1 to 4 syllables by Zipf's law, sentences, documents parted by END."""
    rng = np.random.default_rng(seed)
    syllables = np.array([a + b for a in "b c d f g h k l m n p r s t v w st tr th".split() for b in "aeiou"])
    words = ["".join(rng.choice(syllables, size)) for size in rng.integers(1, 5, _WORDS)]
    weights = 1 / np.arange(1, _WORDS + 1)
    weights /= weights.sum()
    with path.open("w") as stream:
        while stream.tell() < n_bytes:
            drawn = [words[i] for i in rng.choice(_WORDS, _BLOCK, p=weights)]
            at, in_document = 0, 0
            for length in rng.integers(4, 20, _BLOCK // 20).tolist():
                sentence = " ".join(drawn[at : at + length])
                at, in_document = at + length, in_document + length
                stream.write(sentence.capitalize() + (".\n" if in_document % 3 else ". "))
                if in_document > 200:
                    stream.write("\n<|endoftext|>\n")
                    in_document = 0


def read(
    path: Path, cache: Path, kind: str, vocab_size: str, tokenizer: str = "", ids: str = ""
) -> tuple[int, float, float]:
    """Return (tokens, CPU-seconds, peak resident megabytes) of a process that makes a corpus of `path`."""
    child = timed(
        [sys.executable, "-c", _READ, str(path), str(cache), kind, vocab_size, tokenizer, ids], RAYON_NUM_THREADS="1"
    )
    n_tokens, seconds = child.said.split()
    return int(n_tokens), float(seconds), child.peak_bytes / 1e6


def rows(given: dict[str, str]) -> list[Row]:
    """Measure the rate beside the peer's, and the memory of a small and a large text."""
    quick = given.get("quick") == "true"
    kind, vocab_size = given.get("tokenizer", "bpe"), given.get("vocab_size", "8192")
    sizes = [
        whole_numbers(given, name, default)[0]
        for name, default in (("small", "2" if quick else "20"), ("megabytes", "5" if quick else "200"))
    ]
    with tempfile.TemporaryDirectory(dir=given.get("folder")) as name:
        folder = Path(name)
        for size in sizes:
            write_text(folder / f"{size}.txt", size * 10**6, seed=0)
        small = folder / f"{sizes[0]}.txt"
        learned = folder / "learned"
        read(small, learned, kind, vocab_size)  # makes the tokenizer, which both then use
        (tokenizer,) = learned.glob("*/tokenizer.json")
        ours, peer, n_tokens, same = [], [], 0, True
        for turn in range(repeats(given)):
            n_tokens, seconds, _ = read(
                small, folder / f"cache_{turn}", "file", vocab_size, str(tokenizer), str(folder / "ours.npy")
            )
            ours.append(seconds)
            command = [sys.executable, "-c", _PEER, str(small), str(tokenizer), str(folder / "peer.npy")]
            peer.append(float(timed(command, RAYON_NUM_THREADS="1").said))
            same &= np.array_equal(np.load(folder / "ours.npy"), np.load(folder / "peer.npy"))
        peaks = [
            read(folder / f"{size}.txt", folder / f"peak_{size}", "file", vocab_size, str(tokenizer))[2]
            for size in sizes
        ]
    return [_rate(ours, peer, n_tokens, same=same), _memory(peaks, sizes)]


def _rate(ours: list[float], peer: list[float], n_tokens: int, *, same: bool) -> Row:
    return Row(
        work="tokenize and pack, from a file to the cache",
        goal="0.9 of encode_batch's own rate or more, ids identical",
        aim="",
        unit="CPU-s",
        ours=ours,
        peer_name="tokenizers' encode_batch of the same documents in memory",
        peer=peer,
        met=same and all_within([one / other for one, other in zip(ours, peer, strict=True)], 1 / 0.9),
        aim_met=None,
        note=f"{n_tokens:,} tokens, ids {'identical' if same else 'NOT identical'}, one thread; at best "
        f"{number(n_tokens / min(ours) / 1e6)} and {number(n_tokens / min(peer) / 1e6)} M tokens a CPU-second.",
    )


def _memory(peaks: list[float], sizes: list[int]) -> Row:
    return Row(
        work=f"memory of tokenizing, {sizes[0]} to {sizes[1]} MB of text",
        goal="flat in the size of the input: a tenth more or less",
        aim="",
        unit="MB resident at most",
        ours=peaks,
        peer_name="",
        peer=[],
        met=max(peaks) <= 1.1 * min(peaks),
        aim_met=None,
        note="Ours are the two sizes of text, not repeats.",
    )


def main() -> None:
    """Measure, print the rows and write them."""
    alone(rows, KNOWN)


if __name__ == "__main__":
    main()
