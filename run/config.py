"""What can be set about a run and its optimiser; the values are in configs/train.yaml and configs/optim/."""

from dataclasses import dataclass
from enum import Enum


class Device(Enum):
    """Where to compute."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Precision(Enum):
    """In which numbers to multiply matrices; weights and losses are always float32."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"


class Compile(Enum):
    """What torch.compile does to the step."""

    none = "none"
    default = "default"  # fuses what lies between matrix products
    graphs = "graphs"  # and replays the launches as CUDA graphs: a CUDA device only


class Sharding(Enum):
    """How several processes share a model."""

    none = "none"  # each has all of it (DDP)
    fsdp = "fsdp"  # each has a share of every weight and of its optimizer's state (FSDP2); one process has all


class Optimizer(Enum):
    """What moves the matrices; embeddings and norms are always moved by AdamW."""

    muon = "muon"
    adamw = "adamw"


class Format(Enum):
    """What others open (docs/export.md)."""

    hf = "hf"  # a folder for transformers' from_pretrained
    gguf = "gguf"  # a file for llama.cpp and what builds on it


class Task(Enum):
    """A test that nobody here wrote (docs/outside.md)."""

    minimal_pairs = "minimal_pairs"
    links = "links"
    winobias = "winobias"
    text = "text"


_MOST_THREADS = 1024  # CPU_SETSIZE of glibc; OpenMP ends the process where the system gives it no more

_MOST_SAMPLED = 2**16  # tokens of one sample, which TensorBoard keeps as one text
_HIGHEST_RATE = 1e18  # far above what trains; what is above float32 when weights are multiplied by it ends the process


def check_threads(threads: int | None) -> None:
    """Raise ValueError for a number of threads that cannot be."""
    if threads is not None and not 1 <= threads <= _MOST_THREADS:
        raise ValueError(f"threads must be 1 to {_MOST_THREADS:,}, got {threads}")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """One run of train.py."""

    seed: int  # of initial weights, batch order and dropout, 0 or more
    out: str | None  # the new run's directory; None: runs/<time, unique>
    resume: bool  # go on with the run in `out`
    resume_with_changes: bool  # settings given anew, or edited in its config.json, take the place of the run's own
    device: Device
    precision: Precision
    threads: int | None  # for the CPU; None: what torch chooses
    compile: Compile  # of forward pass, loss and backward pass
    sharding: Sharding  # of several processes
    max_steps: int  # 1 or more
    tokens_per_batch: int  # of one forward pass of all processes together, 1 or more
    accumulate_steps: int  # forward passes to one optimizer step, 1 or more
    log_every_steps: int  # 1 or more
    eval_every_steps: int  # 1 or more; also how often a checkpoint is kept
    keep_checkpoints: int  # the newest ones, 1 or more; the best stays as well
    validation_tokens: int  # of each evaluation but the last, which reads the whole split
    probe_sequences: int  # of each probe during training, 0 for none
    sample_tokens: int  # written at each evaluation, 0 for none
    sample_prompt: str  # what they go on from
    cache_dir: str  # where tokenized corpora are kept

    def __post_init__(self) -> None:
        """Refuse counts that mean nothing."""
        positive = "max_steps tokens_per_batch accumulate_steps log_every_steps eval_every_steps validation_tokens"
        for name in f"{positive} keep_checkpoints".split():
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, got {getattr(self, name)}")
        for name in ("seed", "probe_sequences", "sample_tokens"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more, got {getattr(self, name)}")
        if self.sample_tokens > _MOST_SAMPLED:
            raise ValueError(f"sample_tokens must be {_MOST_SAMPLED:,} or less, got {self.sample_tokens}")
        if self.seed >= 2**32:
            raise ValueError(f"seed must be below 2**32, got {self.seed}")
        check_threads(self.threads)
        if self.resume and self.out is None:
            raise ValueError("resume=true needs out=DIR, the run to go on with")
        if self.resume_with_changes and not self.resume:
            raise ValueError("resume_with_changes=true goes with resume=true")


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalConfig:
    """One run of eval.py."""

    run: str | None  # the run's directory; None: the newest
    runs: str | None  # the directory of a sweep over seeds, to say what holds over them
    compare: str | None  # the directory of a sweep over variants and seeds, to say what a switch changes
    model: str | None  # a folder of transformers or a model on the hub, to probe in place of a run
    out: str | None  # where what is found of `model` is kept; None: probes/NAME
    text: str | None  # a sentence to look at instead of the whole probe
    task: Task | None  # a test of others to take instead of the probe
    path: str | None  # its files
    open: bool  # show the page in a browser
    figures: bool  # draw figures for a paper, which takes matplotlib
    device: Device
    threads: int | None  # for the CPU; None: what torch chooses
    cache_dir: str  # where tokenized corpora are kept

    def __post_init__(self) -> None:
        """Refuse a number of threads that cannot be, and several runs where one is meant."""
        for name, given in (("runs", self.runs), ("compare", self.compare)):
            if given is not None and (self.run is not None or self.text is not None):
                raise ValueError(f"{name}=DIR is about several runs: it goes with neither run= nor text=")
        if self.model is not None and (self.run, self.runs, self.compare) != (None, None, None):
            raise ValueError("model= is a model from elsewhere: it goes with none of run=, runs= and compare=")
        if self.out is not None and self.model is None:
            raise ValueError("out=DIR goes with model=: what is found of a run stands in the run")
        if "" in (self.model, self.out):
            raise ValueError("model= and out= are names: an empty one is none")
        if self.runs is not None and self.compare is not None:
            raise ValueError("runs= asks what holds over seeds, compare= what variants change: one at a time")
        if (self.task is None) != (self.path is None):
            raise ValueError(f"task= and path= go together: {'path' if self.path is None else 'task'}= is missing")
        if self.task is not None and (self.runs, self.compare, self.text) != (None, None, None):
            raise ValueError("task= is one test of one run: it goes with none of runs=, compare= and text=")
        if self.open and (self.runs, self.compare, self.task) != (None, None, None):
            raise ValueError("open=true shows the page of one run: it goes with none of runs=, compare= and task=")
        if self.figures and (self.compare, self.text, self.task) != (None, None, None):
            raise ValueError("figures=true draws a probe or runs=: it goes with none of compare=, text= and task=")
        check_threads(self.threads)


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateConfig:
    """Let a model go on from a prompt.

    python -m model.generate [NAME=VALUE ...]

    run          the run's directory; the newest where it is not given
    prompt       what to go on from; nothing: the beginning of a text
    n_tokens     how many to write at most, 1 or more (64)
    temperature  divides the logits; 0: always the likeliest token (1.0)
    seed         of the choices (0)
    """

    run: str | None = None
    prompt: str = ""
    n_tokens: int = 64
    temperature: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be written."""
        if self.n_tokens < 1 or not 0 <= self.seed < 2**32:
            raise ValueError("n_tokens must be 1 or more, and seed 0 or more and below 2**32")
        if self.temperature != 0 and not 0.01 <= self.temperature <= 100:
            raise ValueError(f"temperature must be 0 or lie between 0.01 and 100, got {self.temperature}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportConfig:
    """Write a trained model for other programs.

    python -m model.export to=hf [NAME=VALUE ...]

    to   hf: a folder for transformers, TransformerLens, lm-eval; gguf: a file for GGUF readers (docs/export.md)
    run  the run's directory; the newest where it is not given
    out  the new folder or file; hf/ or model.gguf in export/ of the run where it is not given
    """

    to: Format | None = None
    run: str | None = None
    out: str | None = None

    def __post_init__(self) -> None:
        """Refuse an export to nothing."""
        if self.to is None:
            raise ValueError(f"to= is missing: one of {', '.join(one.value for one in Format)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimConfig:
    """How the weights are moved."""

    name: Optimizer
    learning_rate: float  # peak, of the matrices inside the blocks
    learning_rate_other: float  # peak, of embedding and norms
    weight_decay: float  # decoupled, of the matrices inside the blocks
    weight_decay_other: float  # of the embedding; norms do not decay
    momentum: float  # of Muon
    beta_1: float  # of AdamW
    beta_2: float  # of AdamW
    warmup_steps: int  # linear from 0
    decay_power: float  # then (what is left of training) to this power, down to 0; above 0
    clip_norm: float  # of the whole gradient, above 0

    def __post_init__(self) -> None:
        """Refuse rates that cannot train."""
        for name in ("learning_rate", "learning_rate_other", "decay_power", "clip_norm"):
            if not getattr(self, name) > 0:
                raise ValueError(f"optim.{name} must be above 0, got {getattr(self, name)}")
        for name in ("learning_rate", "learning_rate_other", "weight_decay", "weight_decay_other"):
            if getattr(self, name) > _HIGHEST_RATE:
                raise ValueError(f"optim.{name} must be {_HIGHEST_RATE:g} or less, got {getattr(self, name)}")
        for name in ("momentum", "beta_1", "beta_2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"optim.{name} must lie in [0, 1), got {getattr(self, name)}")
        for name in ("weight_decay", "weight_decay_other", "warmup_steps"):
            if getattr(self, name) < 0:
                raise ValueError(f"optim.{name} must be 0 or more, got {getattr(self, name)}")
