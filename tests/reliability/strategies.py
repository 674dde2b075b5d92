"""Random command lines: existing settings with any value, misspelled names, flags, and Hydra's grammar."""

import string
from dataclasses import fields

from hypothesis import strategies as st

from data.config import SCHEMAS
from model.config import ModelConfig
from training.settings import OptimSettings, RunSettings

SCHEMA_BY_PREFIX = [("", RunSettings), ("model.", ModelConfig), ("optim.", OptimSettings)]
SCHEMA_BY_PREFIX += [("data.", schema) for schema in SCHEMAS.values()]
NAMES = [prefix + field.name for prefix, schema in SCHEMA_BY_PREFIX for field in fields(schema)]
CHOICES = [
    "model=nano", "model=nowhere", "data=text", "optim=sgd", "data=null", "experiment=lab/heads", "variant=../x",
]  # fmt: skip
HYDRA = [
    "hydra.run.dir=x", "hydra/launcher=nowhere", "hydra.launcher._target_=os.system", "hydra.searchpath=[file:///]",
    "hydra=null", "hydra.sweeper.max_batch_size=0", "+hydra.launcher.other=x", "hydra.mode=MULTIRUN",
]  # fmt: skip
FLAGS = [
    "-m", "-h", "--help", "--hydra-help", "--cfg job", "-c hydra", "--resolve", "-p", "--config-name eval",
    "--config-dir=/", "--", "-", "-1", "--shell-completion", "-hm", "job",
]  # fmt: skip
VALUES = [
    "-1", "0", "1", "0.5", "1e308", "-0.0", "nan", "-inf", "1e999", str(2**63), str(10**400), "0x10", "٣", "true",
    "null", "None", "", "[]", "{}", "[1,2]", "{a:{b:[1]}}", "[" * 5, "(", "'", '"a\\', "\\", "a,b", "glob(*)",
    "f(x)", "${oc.env:HOME}", "${seed}", "${", "$", "???", "=", "a=b", "~", "@", "🙂", "\u202ecba", "\x1b[31mred", "\r",
    "a\nb", "\x7f", "\udcff", "x" * 300, "x/" * 300, "..", "%s", "{0}", "cpu", "auto",
]  # fmt: skip


def command_lines(max_size: int = 4) -> st.SearchStrategy[list[str]]:
    """Returns a strategy of command lines for train.py."""
    name = st.sampled_from(NAMES)
    text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
    value = st.one_of(st.sampled_from(VALUES), text, st.integers().map(str), st.floats().map(repr))
    setting = st.tuples(name, value).map("=".join)
    prefixed = st.tuples(st.sampled_from(["+", "++", "~", "-", " ", "'", "@"]), setting).map("".join)
    misspelled = st.tuples(name, st.integers(1, 9)).map(lambda pair: pair[0][: pair[1]] + pair[0][pair[1] + 1 :] + "=1")
    noise = st.text(st.sampled_from(string.printable + "=${}[]~+,'\"\\é\u202e"), max_size=20)
    choice = st.sampled_from(CHOICES + HYDRA)
    argument = st.one_of(setting, setting, setting, prefixed, misspelled, noise, choice).map(lambda text: [text])
    words = st.one_of(argument, argument, argument, st.sampled_from(FLAGS).map(str.split))
    return st.lists(words, min_size=1, max_size=max_size).map(lambda lists: [word for words in lists for word in words])
