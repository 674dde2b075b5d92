"""Memory and speed from a file of text to tokens: python -m benchmarks.tokenizing [megabytes=2000] [small=20].

Text of both sizes is made up (words of a Zipf law, sentences, documents) and read by `load_corpus` in a process of its
own, whose peak memory is the operating system's own figure. Arrays are written, not mapped, so the peak counts no pages
of them. [tokenizer=bpe] [vocab_size=8192] [folder=DIR]: where the text goes, by default the place for temporary files.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
_WORDS = 20_000
_BLOCK = 200_000  # words made up at a time
_READ = """
import sys, time
from pathlib import Path
from data.config import TextConfig, TokenizerKind
from data.corpus import load_corpus
path, cache, kind, size = sys.argv[1:]
config = TextConfig(
    source="text", path=path, validation_path=None, validation_fraction=0.1, column="text", max_bytes=None,
    tokenizer=TokenizerKind(kind), vocab_size=int(size), tokenizer_path=None,
)
began = time.monotonic()
corpus = load_corpus(config, Path(cache))
print(len(corpus.train.tokens) + len(corpus.validation.tokens), time.monotonic() - began)
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


def read(path: Path, cache: Path, kind: str, vocab_size: str) -> tuple[int, float, float]:
    """Return (tokens, seconds, peak resident megabytes) of a process that makes a corpus of `path`."""
    process = subprocess.Popen(
        [sys.executable, "-c", _READ, str(path), str(cache), kind, vocab_size], cwd=ROOT, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    with process.stdout:
        said = process.stdout.read().split()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"reading failed with exit status {process.returncode}")
    return int(said[0]), float(said[1]), used.ru_maxrss / 1024  # kilobytes on Linux


def main() -> None:
    """Print one row for the small text and one for the large."""
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    print("| MB of text | tokens | s | MB/s | Mtok/s | peak RSS, MB |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=given.get("folder")) as folder:
        for megabytes in (int(given.get("small", 20)), int(given.get("megabytes", 2000))):
            path = Path(folder) / f"{megabytes}.txt"
            write_text(path, megabytes * 10**6, seed=0)
            size = path.stat().st_size / 1e6
            tokens, seconds, peak = read(
                path, Path(folder) / "cache", given.get("tokenizer", "bpe"), given.get("vocab_size", "8192")
            )
            path.unlink()
            print(
                f"| {size:.0f} | {tokens:,} | {seconds:.1f} | {size / seconds:.2f} | {tokens / seconds / 1e6:.2f} "
                f"| {peak:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
