"""From YAML to typed, frozen settings, and from a mistake to one line; the command line is command_line.py's."""

import difflib
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from enum import Enum
from inspect import cleandoc
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from data.config import SCHEMAS, DataConfig
from model.config import ModelConfig
from probe.config import ProbeConfig
from run.config import EvalConfig, ExportConfig, Format, GenerateConfig, OptimConfig, RunConfig

# What each door can be told: the schema of its own settings and those of its groups.
ENTRIES: dict[str, tuple[type, dict[str, list[type]]]] = {
    "train": (
        RunConfig,
        {"model": [ModelConfig], "data": [*SCHEMAS.values()], "optim": [OptimConfig], "experiment": [], "variant": []},
    ),
    "eval": (EvalConfig, {"probe": [ProbeConfig]}),
}

MODEL_NAME = "name"  # under which eval.py's model= is handed through Hydra, which would take it for a choice

# Settings that a resumed run need not share with its beginning.
_PLACES = ("out", "resume", "resume_with_changes", "cache_dir")
# And those that it need not share where they are given anew: a text is known by its content.
_MOVABLE = {"device", "sharding", "data.path", "data.validation_path", "data.tokenizer_path"}
# Where a run is and what is told of it: nothing that is learned depends on it.
_BESIDE = {*_PLACES, "threads", "sharding", "log_every_steps", "sample_tokens", "sample_prompt", "keep_checkpoints"}
# What a checkpoint's weights, its optimizers' state and its mark as the best hang on, whatever is asked for.
_OF_CHECKPOINT = re.compile(
    r"model\.(?!dropout$)|data\.|optim\.name$|(validation_tokens|vocab_size|data_fingerprint|tokenizer_sha256)$"
)
# Settings that make no variant, and settings by which runs of one seed would read other batches.
_SAME_VARIANT = {*_BESIDE, "seed", "probe_sequences"}
_SAME_ORDER = {"tokens_per_batch", "accumulate_steps", "model.context_length"}


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainSettings:
    """Everything train.py can be told."""

    run: RunConfig
    model: ModelConfig
    data: DataConfig
    optim: OptimConfig


def typed_train(config: DictConfig) -> TrainSettings:
    """Turn Hydra's config into settings; raise ValueError with one line for anything that does not fit."""
    source = config.data.get("source")
    if source not in SCHEMAS:
        raise ValueError(f"data.source={source} is not one of {', '.join(SCHEMAS)}")
    return TrainSettings(
        run=_typed(RunConfig, _own(config, "train")),
        model=_typed(ModelConfig, config.model, "model."),
        data=_typed(SCHEMAS[source], config.data, "data."),
        optim=_typed(OptimConfig, config.optim, "optim."),
    )


def typed_eval(config: DictConfig) -> tuple[EvalConfig, ProbeConfig]:
    """Turn Hydra's config into settings; raise ValueError with one line for anything that does not fit."""
    own = _own(config, "eval")
    if isinstance(own["model"], DictConfig):
        own["model"] = own["model"][MODEL_NAME]
    return _typed(EvalConfig, own), _typed(ProbeConfig, config.probe, "probe.")


def typed_generate(arguments: list[str]) -> GenerateConfig:
    """Read NAME=VALUE arguments; raise ValueError with one line for anything that does not fit."""
    return _typed_arguments(GenerateConfig, arguments, {"n_tokens": int, "seed": int, "temperature": float})


def typed_export(arguments: list[str]) -> ExportConfig:
    """Read NAME=VALUE arguments; raise ValueError with one line for anything that does not fit."""
    return _typed_arguments(ExportConfig, arguments, {"to": Format})


def _typed_arguments(schema: type, arguments: list[str], kinds: Mapping[str, Callable[[str], Any]]) -> Any:
    """Read NAME=VALUE arguments of a door that is not Hydra's; `kinds` makes values of those that are no text.

    Where help is asked for, `schema` says it and that is all.
    """
    if {"-h", "--help"} & set(arguments):
        print(cleandoc(schema.__doc__ or ""))
        sys.exit()
    names = [field.name for field in fields(schema)]
    given: dict[str, Any] = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        argument.encode()  # what is no text raises ValueError here
        if not equals or name not in names:
            raise ValueError(f"{argument} is not NAME=VALUE with NAME one of {', '.join(names)}{hint(name, names)}")
        try:
            given[name] = kinds.get(name, str)(value)
        except ValueError:
            choices = getattr(kinds[name], "__members__", ())  # of an Enum
            what = f"one of {', '.join(choices)}" if choices else "such a number"
            raise ValueError(f"{argument}: {value} is not {what}") from None
    return schema(**given)


def typed_saved(values: Any) -> TrainSettings:
    """Turn a run's config.json back into its settings; raise ValueError with one line where it is not one."""
    groups: dict[str, dict[str, Any]] = {}
    values = values if isinstance(values, dict) else {}
    for name in ("run", "model", "data", "optim"):
        if not isinstance(values.get(name), dict):
            raise ValueError(f"config.json is not a run's: it has no {name}")
        groups[name] = values[name]
    if groups["data"].get("source") not in SCHEMAS:
        raise ValueError(f"config.json is not a run's: its data.source is not one of {', '.join(SCHEMAS)}")
    source = SCHEMAS[groups["data"]["source"]]
    schemas = {"run": RunConfig, "model": ModelConfig, "data": source, "optim": OptimConfig}
    for name, schema in schemas.items():
        missing = [field.name for field in fields(schema) if field.name not in groups[name]]
        if missing:
            raise ValueError(f"config.json lacks {name}.{missing[0]}: the run was made before there was such a setting")
    try:
        return TrainSettings(
            run=_typed(RunConfig, groups["run"]),
            model=_typed(ModelConfig, groups["model"], "model."),
            data=_typed(source, groups["data"], "data."),
            optim=_typed(OptimConfig, groups["optim"], "optim."),
        )
    except ValueError as error:
        raise ValueError(f"config.json: {error}") from None


def resumed(asked: TrainSettings, config: Any, overrides: list[str]) -> TrainSettings:
    """Return the settings of a run that is gone on with; ValueError if one that was given anew is another.

    With resume_with_changes=true it is taken instead, unless the checkpoint would not fit it.

    Args:
        asked: what this call would have trained with.
        config: the run's config.json.
        overrides: of this call's command line.

    """
    saved = typed_saved(config)
    given = {override.lstrip("+").partition("=")[0] for override in overrides}
    wanted, anew = flat(asked), {*_PLACES, *(_MOVABLE & given)}
    taken = {where: wanted[where] for where in anew if where in wanted}
    for where, value in flat(saved).items():
        group = where.rpartition(".")[0]
        names = {where, group, "experiment", *(["variant"] if group == "model" else [])}  # variants are of the model
        other = wanted.get(where)
        if where == "data.revision" and not re.fullmatch("[0-9a-f]{40}", other or ""):  # what was a commit then
            continue
        if where not in anew and given & names and other != value:
            check_change(where, value, other, asked.run)
            taken[where] = other
    return _with(saved, taken)


def check_same(differences: dict[str, list[Any]], run: RunConfig) -> dict[str, list[Any]]:
    """Return the settings in which a run goes on otherwise than its checkpoint was made: [before, now] of each.

    Args:
        differences: of config.json then and now, by group and name; whether the command line or an edit of the file
            made them does not matter.
        run: of this call.

    Raises:
        ValueError: in one line, the first that is not allowed.

    """
    every = {name.removeprefix("run."): both for name, both in differences.items()}
    found = {name: both for name, both in every.items() if name not in {*_PLACES, *_MOVABLE}}
    for name, (before, now) in found.items():
        check_change(name, before, now, run)
    return found


def check_change(where: str, before: Any, now: Any, run: RunConfig) -> None:
    """Raise ValueError, with both values, where a run that is gone on with may not have another value of a setting."""
    before, now = (one.value if isinstance(one, Enum) else one for one in (before, now))
    if not run.resume_with_changes:
        raise ValueError(
            f"resume=true keeps the run's settings: {where} is {before}, not {now}; "
            "resume_with_changes=true takes the new"
        )
    if _OF_CHECKPOINT.match(where):
        raise ValueError(f"{where} is {before}, not {now}: what the run has learned would not fit that, in no way")


def _with(settings: TrainSettings, values: dict[str, Any]) -> TrainSettings:
    """Return `settings` with some of its values, named as on the command line, replaced."""
    groups = {}
    for group in fields(settings):
        part, prefix = getattr(settings, group.name), "" if group.name == "run" else f"{group.name}."
        own = {one.name: values[prefix + one.name] for one in fields(part) if prefix + one.name in values}
        groups[group.name] = replace(part, **own)
    return TrainSettings(**groups)


def check_seeds(configs: dict[str, Any]) -> dict[str, int]:
    """Return the seed of each run; ValueError where runs learned anything else or differ in nothing, or are of a text.

    Args:
        configs: each run's config.json by the run's name.

    """
    every = {
        name: flat(typed_saved(config)) | {"data_fingerprint": config.get("data_fingerprint")}
        for name, config in configs.items()
    }
    first = next(iter(every))
    seeds: dict[str, int] = {}
    for name, here in every.items():
        if here["data.source"] != "stories":
            raise ValueError(f"{name} was trained on a text, which has no gold links to compare heads by")
        for where in sorted((here.keys() | every[first].keys()) - {"seed", *_BESIDE}):
            ours, theirs = every[first].get(where), here.get(where)
            if ours != theirs:
                raise ValueError(
                    f"runs differ in more than their seed: {where} is {ours} in {first}, {theirs} in {name}"
                )
        if here["seed"] in seeds.values():
            raise ValueError(f"seed={here['seed']} is there twice, the second time in {name}")
        seeds[name] = here["seed"]
    return seeds


def check_variants(
    configs: dict[str, Any], defaults: TrainSettings
) -> tuple[dict[str, tuple[int, dict[str, Any]]], dict[str, Any]]:
    """Return of each run its seed and the settings in which it is not as the standard, and the standard's values there.

    The standard is the variant with the fewest departures from the defaults, of several the first.

    Args:
        configs: each run's config.json by the run's name.
        defaults: what train.py does without being told anything.

    Raises:
        ValueError: a run of a text, or runs that did not read the same stories in the same order.

    """
    every = {name: flat(typed_saved(config)) for name, config in configs.items()}
    for name, here in every.items():
        if here["data.source"] != "stories":
            raise ValueError(f"{name} was trained on a text, which has no gold links to compare heads by")
    expected = flat(defaults)
    departures = {
        name: sum(value != expected.get(where) for where, value in here.items() if where not in _SAME_VARIANT)
        for name, here in every.items()
    }
    first = min(every, key=lambda name: departures[name])
    for name, config in configs.items():
        others = {where for where in every[name] if every[name][where] != every[first].get(where)}
        other = sorted(where for where in others if where.startswith("data.") or where in _SAME_ORDER)
        if other or config.get("data_fingerprint") != configs[first].get("data_fingerprint"):
            what = other[0] if other else "the generator"
            raise ValueError(f"{first} and {name} did not read the same stories in the same order: {what} is another")
    found = {
        name: (
            here["seed"],
            {where: here[where] for where in sorted(here.keys() - _SAME_VARIANT) if here[where] != every[first][where]},
        )
        for name, here in every.items()
    }
    changed = sorted({where for _, some in found.values() for where in some})
    return found, {where: every[first][where] for where in changed}


def flat(settings: TrainSettings) -> dict[str, Any]:
    """Return every setting under the name by which the command line sets it."""
    values: dict[str, Any] = {}
    for group, some in asdict(settings).items():
        values |= {name if group == "run" else f"{group}.{name}": value for name, value in some.items()}
    return values


def of_result(settings: TrainSettings) -> dict[str, Any]:
    """Return the settings that a result depends on, as the command line has them: a choice by its value."""
    every = ((name, value) for name, value in flat(settings).items() if name not in _BESIDE)
    return {name: value.value if isinstance(value, Enum) else value for name, value in every}


def _own(config: DictConfig, entry: str) -> dict[str, Any]:
    return {str(name): config[name] for name in config if name not in ENTRIES[entry][1]}


def _typed(schema: type, node: Any, prefix: str = "") -> Any:
    try:
        values: Any = OmegaConf.to_container(node, resolve=True) if isinstance(node, DictConfig) else node
        literal = OmegaConf.create({name: _literal(value) for name, value in values.items()})
        typed = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), literal))
    except OmegaConfBaseException as error:
        first, *_ = str(error).splitlines()
        key = str(getattr(error, "full_key", "") or getattr(error, "key", "") or "")
        names = [field.name for field in fields(schema)]
        if "mandatory" in first:
            first = f"must be given, as in {prefix}{key}=VALUE"
        elif key not in names:
            first = f"is not a setting here{hint(key, names)}"
        raise ValueError(f"{prefix}{key}: {first}") from None
    for field in fields(schema):
        _check_number(prefix + field.name, getattr(typed, field.name))
    return typed


def _check_number(name: str, value: Any) -> None:
    """Raise ValueError for a number that is none, or that 64 bits cannot hold."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} must be a number that is finite, got {value}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"{name} must be below 2**63 in size")


def _literal(value: Any) -> Any:
    """Write a string so that OmegaConf takes it as it stands: what a user wrote is never interpolated."""
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


def hint(name: str, names: list[str]) -> str:
    """Return the question whether the nearest of `names` was meant; "" where none is near."""
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f": did you mean {near[0]}?" if near else ""


def printable(text: str) -> str:
    """Return `text` in which nothing steers a terminal, whatever it holds; line ends and tabs stay."""
    return "".join(one if one.isprintable() or one in "\n\t" else "\ufffd" for one in text)


@contextmanager
def one_line_errors(*kinds: type[Exception], label: str = "") -> Iterator[None]:
    """Turn errors of `kinds`, by default those that bad input raises, into one line on stderr and exit status 2.

    `label`: says which of several runs it is.
    """
    try:
        yield
    except Exception as error:
        from configs.memory import want_of_memory

        message = want_of_memory(error) or ""
        if not message and not isinstance(error, kinds or (ValueError, OSError, OmegaConfBaseException)):
            raise
        if isinstance(error, BrokenPipeError):  # nobody's bad input
            raise
        message = message or str(error)
        if isinstance(error, OSError) and error.strerror and error.filename:
            message = f"{error.strerror}: {error.filename}"
        print(f"error: {label}{printable(' '.join(message.split()))}", file=sys.stderr)
        sys.exit(2)


@contextmanager
def hung_up() -> Iterator[None]:
    """Let nobody's leaving be an error: neither Ctrl-C nor the end of whoever reads what is printed."""
    try:
        yield
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # whoever read what is printed has had enough; Python would complain once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
