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
    "model=nano", "model=nowhere", "data=stories", "data=text", "data=hub", "optim=adamw", "optim=sgd", "data=null",
    "experiment=skewed", "experiment=lab/heads", "experiment=lab/_base", "variant=one_head", "variant=../x",
]  # fmt: skip
HYDRA = [
    "hydra.run.dir=x", "hydra.output_subdir=.hydra", "hydra/launcher=nowhere", "hydra.launcher._target_=os.system",
    "hydra.searchpath=[file:///]", "hydra/job_logging=default", "hydra=null", "hydra.sweeper.max_batch_size=0",
    "+hydra.launcher.other=x", "hydra.callbacks.x._target_=os.getcwd", "hydra.job.env_set.A=b", "hydra.mode=MULTIRUN",
]  # fmt: skip
FLAGS = [
    "-m", "-h", "--help", "--hydra-help", "--version", "--cfg", "--cfg job", "--cfg nothing", "-c hydra", "--resolve",
    "--info", "-i", "--run", "--package model", "-p", "--config-name eval", "--config-dir=/", "-cn x", "--", "-", "-1",
    "--shell-completion", "-hm", "--cfg=job", "--cfg job --resolve", "job", "--experimental-rerun x",
]  # fmt: skip
VALUES = [
    "-1", "0", "1", "2", "64", "0.5", "1e308", "-0.0", "nan", "inf", "-inf", ".inf", "1e999", str(10**18), str(2**63),
    str(10**400), "1_000", "0x10", "+5", " 5", "٣", "true", "null", "None", "", "[]", "{}", "[1,2]", "{a:1}", "[[[1]]]",
    "{a:{b:[1]}}", "[" * 5, "(", ")", "'", '"', "''", "'a", '"a\\', "\\", "a,b", ",", "1,", "choice(1,2)", "glob(*)",
    "int(a)", "glob(", "f(x)", "${oc.env:HOME}", "${oc.env:NOT_THERE}", "${now:%Y}", "${seed}", "${out}", "${nowhere}",
    "${", "${}", "${oc.create:{a:1}}", "$", "???", "=", "a=b", "a b", "~", "@", "é", "🙂", "\u202ecba", "\u2028",
    "\x1b[31mred", "\r", "\n", "a\nb", "\t", "\x7f", "\udcff", "x" * 300, "x/" * 300, "..", "%s", "{0}", "cpu", "auto",
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
