"""How much memory a run needs at the very least, and a refusal before the machine is brought down by more.

What is counted is what no way of computing can do without, so that nothing is refused that would have gone; what goes
wrong for want of a little more, the device itself says.
"""

import os
import re
from pathlib import Path

from data.config import StoriesConfig
from model.config import ModelConfig
from training.settings import Compile, Optimizer, TrainSettings

_FLOAT, _INTEGER = 4, 8  # bytes


_STORY = 800  # bytes that a story takes while it is told, the least of several runs (908 to 1,968 measured)


def machine_memory() -> int:
    """Return the bytes of memory of this machine, or of the container that this process is in, where that has fewer."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    said = limit.read_text().strip() if limit.is_file() else "max"
    return min(found, int(said)) if said.isdecimal() else found


def check_model_memory(config: ModelConfig, vocab_size: int) -> None:
    """Raise ValueError where the weights alone do not fit this machine."""
    _check({"weights": _FLOAT * config.n_parameters(vocab_size)}, "the settings of model.*")


def check_data_memory(settings: TrainSettings) -> None:
    """Raise ValueError where telling the stories alone does not fit this machine."""
    data = settings.data
    if isinstance(data, StoriesConfig):
        drawn = data.n_train_stories + data.n_validation_stories
        _check({"stories": _STORY * max(drawn, 4 * data.n_test_pairs)}, "data.n_*_stories and data.n_test_pairs")


def check_training_memory(settings: TrainSettings, vocab_size: int, n_tokens: int, *, on_cpu: bool) -> None:
    """Raise ValueError where parameters, optimizer and one batch at the very least do not fit this machine.

    Args:
        settings: of the run.
        vocab_size: of its tokenizer; 1 where that is not known yet.
        n_tokens: of the training split: stories fill no batch beyond them.
        on_cpu: whether it is this machine's own memory that the training takes; a GPU's speaks for itself.

    """
    model, own = settings.model, settings.run
    n_parameters = model.n_parameters(vocab_size)
    needs = {"weights": _FLOAT * n_parameters}
    rows = max(1, own.tokens_per_batch // model.context_length)
    if isinstance(settings.data, StoriesConfig):
        rows = min(rows, max(1, n_tokens // model.context_length))
    read = rows * model.context_length
    needs["batches"] = own.gradient_accumulation_steps * read * 2 * _INTEGER  # what is read and what is to be predicted
    if on_cpu:
        kept = 1 if settings.optim.name is Optimizer.muon else 2  # of each weight, by its optimizer
        needs["gradients and optimizer"] = _FLOAT * n_parameters * (1 + kept)
        # What going back needs of each layer, in two bytes a number as in bfloat16: what the norms give, query, key,
        # value, what attention gives, and three of the MLP.
        needs["activations"] = 2 * read * model.n_layer * (6 * model.d_model + 3 * model.d_mlp)
        if own.compile is Compile.none:  # compiled, they need not be written out
            needs["logits"] = _FLOAT * read * vocab_size
    _check(needs, "the settings of model.*, tokens_per_batch and gradient_accumulation_steps")


def _check(needs: dict[str, int], what: str) -> None:
    total, here = sum(needs.values()), machine_memory()
    if total <= here:
        return
    parts = ", ".join(f"{_gigabytes(size)} for {name}" for name, size in needs.items() if size > total // 100)
    raise ValueError(
        f"this needs at least {_gigabytes(total)} of memory ({parts}) and this machine has {_gigabytes(here)}: "
        f"make {what} smaller"
    )


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB" if size < 10**24 else "more than 10**15 GB"


_WANTED = re.compile(r"tried to allocate (\d+) bytes|[Uu]nable to allocate ([\d.]+ \w+)")


def want_of_memory(error: BaseException) -> str | None:
    """Return in one line that memory ran out, where `error` says just that; None where it says anything else.

    numpy and Python raise MemoryError; torch raises a RuntimeError that can be told by its words alone.
    """
    said = str(error)
    if not isinstance(error, MemoryError) and not ("alloc" in said and "memory" in said):
        return None
    wanted = _WANTED.search(said)
    if isinstance(error, MemoryError) and said and not wanted:
        return said  # ours, and it says what to set
    size = "" if not wanted else _gigabytes(int(wanted[1])) if wanted[1] else wanted[2]
    return f"this machine has too little memory: {size or 'some'} more was asked for than is free"
