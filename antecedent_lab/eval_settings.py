"""The settings of eval.py and its modes: a module that imports nothing slow, because --help and a typo need no more."""

from dataclasses import asdict, dataclass
from pathlib import Path

from settings.errors import UserError
from settings.fields import check_limits, setting
from settings.files import found
from settings.train import MAX_THREADS, Device

STORIES = "stories"

# The modes of eval.py: the settings that each mode takes, besides the machine, verbose and the group probe. The first
# mode whose own setting is given is chosen; without any the heads are tested on what belongs to the model. `items` is
# two settings here: STORIES, and a file of the user's own.
_MODEL = {"run", "model", STORIES, "tokenizer", "out", "checkpoint"}
MODES = {
    "runs": {"runs"},  # a sweep: over seeds, or over variants and seeds
    "models": {"model", STORIES, "tokenizer", "out"},  # several models of one shape
    "check": {"check", "own_file", "run", "model", "tokenizer"},  # a file of items, without weights
    "before": {"before", "own_file", "live"} | _MODEL,  # two models on the same items
    "text": {"text", "live"} | _MODEL,  # one sentence
    "write": {"write", "n", "length", "temperature", "top_k", "seed"} | _MODEL,
    "path": {"path", "live", "figures"} | _MODEL,  # English text
    "probe": {"own_file", "live", "figures"} | _MODEL,
}
_ALWAYS = {"verbose", "device", "threads", "cache_dir"}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where to compute."""

    device: Device = setting("where to compute; auto: CUDA if there is a device, else the CPU")
    threads: int | None = setting("CPU threads; null: torch's default", low=1, high=MAX_THREADS)

    def __post_init__(self) -> None:
        check_limits(self)


@dataclass(frozen=True, kw_only=True)
class EvalSettings(Machine):
    """Settings of eval.py outside the group probe (values: configs/eval/eval.yaml)."""

    model: str | None = setting("a run, a folder of save_pretrained, a hub name; A,B,C: several; null: the newest run")
    run: str | None = setting("the same as model=, for a run")
    checkpoint: str = setting("of a run: best, last, or the step of one that was kept")
    runs: str | None = setting("directory of a sweep over seeds, or over variants and seeds")
    items: str | None = setting("stories: ask another program's model about them; FILE.jsonl: a question of your own")
    check: bool = setting(
        "with items=FILE.jsonl: print its blocks and smallest possible p; with model=: which words it lacks"
    )
    before: str | None = setting("a run or model to compare with, item by item: for example before fine-tuning")
    path: str | None = setting("English text to test on: a file, a folder or a glob; several separated by commas")
    text: str | None = setting("a sentence of your own, whose attention is printed instead of a test")
    write: str | None = setting("a text that the model writes on after")
    n: int | None = setting("with write=: how many texts; null: one", low=1)
    length: int | None = setting("with write=: the most tokens of each; null: 100", low=1)
    temperature: float | None = setting(
        "with write=: 0 takes the most probable token, above 1 surprises; null: 0.8", low=0
    )
    top_k: int | None = setting("with write=: draw only from the most probable tokens; null: from all", low=1)
    seed: int | None = setting("with write=: the same text for the same seed; null: 0", low=0)
    tokenizer: str | None = setting("of a model of another program: a folder, a hub name or tokenizer.json")
    out: str | None = setting("folder for the results about a model of another program; null: in probes/")
    live: bool | None = setting("put the model into the page, to type sentences into; null: if it is small")
    figures: bool = setting("also write figures/*.svg: a map of all heads, the best during training")
    verbose: bool = setting("print every table, and what could not be asked")
    cache_dir: str = setting("folder for tokenized corpora")

    @property
    def mode(self) -> str:
        for name in MODES:
            if getattr(self, name, None) not in (None, False, []):
                return name
        return "probe"

    @property
    def models(self) -> list[str]:
        """The models of model=A,B,C; empty if it names one, which may be a folder with a comma in its name."""
        is_one = self.model is None or "," not in self.model or Path(self.model).exists()
        return [] if is_one else [name.strip() for name in str(self.model).split(",")]

    @property
    def own_file(self) -> str | None:
        return self.items if self.items and self.items.lower().endswith(".jsonl") else None

    def __post_init__(self) -> None:
        check_limits(self)
        if self.items not in (None, STORIES, self.own_file):
            raise UserError(f"items={self.items}: not known; give {STORIES} or FILE.jsonl")
        for name, value in asdict(self).items():
            if value is None or value is False or (name, value) == ("checkpoint", "best"):  # not given
                continue
            if isinstance(value, str) and not value.strip():
                raise UserError(f"{name}={value}: is empty")
            kind = name
            if name == "items":
                kind = "own_file" if self.own_file else STORIES
            if kind not in MODES[self.mode] | _ALWAYS:
                if kind in MODES["write"] - _MODEL - {"write"}:
                    raise UserError(f"{name}={value}: only with write=TEXT")
                of_mode = "model=A,B" if self.mode == "models" else f"{self.mode}="
                raise UserError(f"{name}={value}: cannot be combined with {of_mode}")
        if self.run and self.model:
            raise UserError(f"run={self.run}: cannot be combined with model=, which means the same")
        if self.check and not self.own_file:
            raise UserError("check=true: give items=FILE.jsonl, the file to check")
        # A model may take minutes to open.
        if self.own_file and not found(self.own_file).is_file():
            raise UserError(f"items={self.items}: no such file")
