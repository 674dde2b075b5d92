"""The settings of eval.py: a module that imports nothing slow, because --help and a typo need no more."""

import sys
from dataclasses import dataclass
from enum import Enum
from importlib.util import find_spec

from data.errors import UserError
from data.setting_fields import check_limits, setting
from training.settings import MAX_THREADS, Device

STORIES = "stories"  # items= of an external model that is tested on the stories


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalSettings:
    """Settings of eval.py outside the group probe (values: configs/eval/eval.yaml)."""

    run: str | None = setting("directory of a run; null: the newest")
    runs: str | None = setting("directory of a sweep over seeds")
    compare: str | None = setting("directory of a sweep over variants and seeds")
    model: str | None = setting("an external model: a folder of save_pretrained or a hub name")
    items: str | None = setting("stories, for model=; FILE.jsonl: a question of your own; null: the next pronoun")
    before: str | None = setting("a run or model to compare with, item by item: for example before fine-tuning")
    tokenizer: str | None = setting("its tokenizer: a folder, a hub name or tokenizer.json")
    out: str | None = setting("folder for the results about model=; null: probes/NAME")
    text: str | None = setting("a sentence of your own, whose attention is printed instead of a test")
    path: str | None = setting("English text to test on: a file, a folder or a glob; several separated by commas")
    live: bool | None = setting("put the model into the page, to type sentences into; null: if it is small")
    open: bool = setting("show the page in a browser")
    verbose: bool = setting("print every hold-out and baseline")
    device: Device = setting("where to compute; auto: CUDA if there is a device, else the CPU")
    threads: int | None = setting("CPU threads; null: torch's default", low=1, high=MAX_THREADS)
    cache_dir: str = setting("folder for tokenized corpora")

    @property
    def has_own_items(self) -> bool:
        """Whether the heads are tested on a question of the user's own."""
        return self.items is not None and self.items.lower().endswith(".jsonl")

    def __post_init__(self) -> None:
        """Check that the settings select one mode."""
        install = f"{sys.executable} -m pip install"
        modes = [name for name in ("run", "runs", "compare", "model") if getattr(self, name) is not None]
        is_sweep = self.runs is not None or self.compare is not None
        has_path = self.path is not None
        problems = [
            *((name, True, f"cannot be combined with {modes[0]}=") for name in modes[1:]),
            ("model", self.model == "", "the name is empty"),
            ("model", find_spec("transformers") is None, f"needs transformers: {install} '.[export]'"),
            ("out", self.out == "", "the name is empty"),
            ("out", self.model is None, "only for model=; results of a run go into the run"),
            (
                "items",
                self.items not in (None, STORIES) and not self.has_own_items,
                f"not known; give {STORIES} or FILE.jsonl",
            ),
            ("items", self.model is None and not self.has_own_items, "only for model=; a run has its own sentences"),
            ("before", self.before == "", "the name is empty"),
            (
                "before",
                is_sweep or has_path or self.text is not None,
                "needs one model, without text= and path=",
            ),
            ("live", self.before is not None, "is for the page of one model"),
            ("open", self.before is not None, "is for the page of one model"),
            ("text", self.has_own_items, "shows a sentence; leave items= out"),
            ("tokenizer", self.model is None and self.before is None, "only for model= and before=; a run has its own"),
            ("path", is_sweep, "needs one model"),
            ("path", self.path == "", "the name is empty"),
            ("items", is_sweep or has_path, "needs one model, without path="),
            ("tokenizer", self.tokenizer == "", "the name is empty"),
            ("text", is_sweep or has_path, "needs one model, without path="),
            ("live", is_sweep or has_path, "is for the page of one model, without path="),
            ("open", is_sweep or has_path, "opens the page of one model, without path="),
        ]
        # None and False mean that a setting is not given.
        for name, is_wrong, problem in problems:
            value = getattr(self, name)
            if is_wrong and value is not None and value is not False:
                shown = value.value if isinstance(value, Enum) else value
                raise UserError(f"{name}={shown}: {problem}")
        check_limits(self)
