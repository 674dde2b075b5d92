"""The settings of eval.py and its modes: a module that imports nothing slow, because --help and a typo need no more."""

from dataclasses import asdict, dataclass
from pathlib import Path

from settings.errors import UserError
from settings.fields import check_limits, setting
from settings.train import MAX_THREADS, Device

STORIES = "stories"

# The modes of eval.py: the settings that each mode takes, besides the model, the machine and the group probe. The first
# mode whose own setting is given is chosen; without any the heads are tested on what belongs to the model.
MODES = {
    "runs": {"verbose"},  # a sweep: over seeds, or over variants and seeds
    "models": {"model", "items", "tokenizer", "out", "verbose"},  # several models of one shape
    "check": {"items", "tokenizer", "verbose"},  # a file of items, without weights
    "before": {"items", "tokenizer", "out", "live", "verbose", "checkpoint"},  # two models on the same items
    "text": {"tokenizer", "out", "items", "live", "verbose", "checkpoint"},  # one sentence
    "path": {"tokenizer", "out", "live", "figures", "verbose", "checkpoint"},  # English text
    "probe": {"items", "tokenizer", "out", "live", "figures", "verbose", "checkpoint"},
}
_MODELS = {"run", "model"}
_MACHINE = {"device", "threads", "cache_dir"}


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalSettings:
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
    tokenizer: str | None = setting("of a model of another program: a folder, a hub name or tokenizer.json")
    out: str | None = setting("folder for the results about a model of another program; null: in probes/")
    live: bool | None = setting("put the model into the page, to type sentences into; null: if it is small")
    figures: bool = setting("also write figures/*.svg: a map of all heads, doses of the edit, heads during training")
    verbose: bool = setting("print every table, and what could not be asked")
    device: Device = setting("where to compute; auto: CUDA if there is a device, else the CPU")
    threads: int | None = setting("CPU threads; null: torch's default", low=1, high=MAX_THREADS)
    cache_dir: str = setting("folder for tokenized corpora")

    @property
    def mode(self) -> str:
        return next((name for name in MODES if getattr(self, name, None) not in (None, False, [])), "probe")

    @property
    def models(self) -> list[str]:
        """The models of model=A,B,C; empty if it names one, which may be a folder with a comma in its name."""
        is_one = self.model is None or "," not in self.model or Path(self.model).exists()
        return [] if is_one else [name.strip() for name in str(self.model).split(",")]

    @property
    def is_external(self) -> bool:
        """Whether a model is not a run of train.py, whose folder has everything."""
        names = self.models or ([] if self.model is None else [self.model])
        return any(not (Path(name) / "checkpoints").is_dir() for name in names)

    @property
    def own_file(self) -> str | None:
        return self.items if self.items and self.items.lower().endswith(".jsonl") else None

    def __post_init__(self) -> None:
        allowed = MODES[self.mode] | {self.mode} | _MACHINE
        if self.mode not in ("runs", "models"):
            allowed |= _MODELS
        for name, value in asdict(self).items():
            if value is None or value is False or (name, value) == ("checkpoint", "best"):  # not given
                continue
            problem = ""
            if isinstance(value, str) and not value.strip():
                problem = "the name is empty" if name != "text" else "the text is empty"
            elif name not in allowed:
                problem = f"cannot be combined with {'model=A,B' if self.mode == 'models' else f'{self.mode}='}"
            elif name == "run" and self.model is not None:
                problem = "cannot be combined with model=, which means the same"
            elif name == "model" and len(set(self.models)) < len(self.models):
                problem = "names a model twice"
            elif name == "items" and value != STORIES and self.own_file is None:
                problem = f"not known; give {STORIES} or FILE.jsonl"
            elif name == "check" and self.own_file is None:
                problem = "give items=FILE.jsonl, the file to check"
            elif name == "items" and self.own_file and self.mode == "text":
                problem = "shows no sentence; leave it out"
            elif name == "items" and self.own_file and self.mode == "models":
                problem = "is asked of one model; leave it out"
            elif name == "checkpoint" and value != "last" and not value.isdecimal():
                problem = "must be best, last or a step"
            elif name in ("out", "tokenizer") or (name == "items" and value == STORIES):
                is_possible = self.is_external or (name == "tokenizer" and self.before)
                problem = "" if is_possible else "only for a model of another program; a run has its own"
            if problem:
                raise UserError(f"{name}={value}: {problem}")
        if self.own_file and not Path(self.own_file).exists():
            raise UserError(f"items={self.items}: no such file")
        check_limits(self)
