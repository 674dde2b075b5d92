"""The commands that make the results of a report again."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from probe.config import ProbeConfig
from probe.opened_model import OpenedModel, OpenedRun
from probe.results import ProbeResults
from training.command_line import program_command
from training.settings import compose_settings, flatten

_NOT_GIVEN = ("out", "resume", "cache_dir", "data.source")  # the folder of a run and the like


def eval_command(opened: OpenedModel, *arguments: str) -> str:
    """Return the command that evaluates a model."""
    model = [f"run={opened.source}"]
    if opened.is_external:
        model = [f"model={opened.source}", f"out={opened.folder}"]
    if opened.is_external and opened.has_stories:
        model.append("items=stories")
    if tokenizer := opened.shape.get("tokenizer"):
        model.append(f"tokenizer={tokenizer}")
    return program_command("eval", *model, *arguments)


def reproducing_commands(opened: OpenedModel, results: ProbeResults | None, *given: str) -> list[str]:
    """Return the commands that train a run and, with the arguments `given`, test it; `results` None: not tested."""
    arguments = list(given)
    if results and results.findings and results.findings[0].file:
        arguments.append(f"items={results.findings[0].file}")
    if results:
        arguments += _changed(asdict(results.settings), asdict(ProbeConfig()), "probe.")
    commands = [eval_command(opened, *arguments)]
    if isinstance(opened, OpenedRun):
        used = {"data": opened.settings.data.source} | flatten(opened.settings)
        shown = {name: value for name, value in used.items() if name not in _NOT_GIVEN}
        defaults = {"data": "stories"} | flatten(compose_settings())
        commands.insert(0, program_command("train", *_changed(shown, defaults)))
    return commands


def _changed(used: Mapping[str, Any], defaults: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return NAME=VALUE, as Hydra reads them, of the settings that differ from the defaults."""
    changed = []
    for name, value in used.items():
        if name not in defaults or value != defaults[name]:
            text = value if isinstance(value, str) else json.dumps(value)
            changed.append(f"{prefix}{name}={text}")
    return changed
