"""The documents: commands are those that CI runs, settings exist, code prints the shown output, links have targets."""

import contextlib
import html
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import defaultdict
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import yaml
from hydra import compose, initialize_config_dir
from markdown_it import MarkdownIt
from PIL import Image

import antecedent_lab
import eval
import train
from extras.others.export import ExportSettings
from probe.questions import QUESTIONS
from probe.results import MEASURES, SUPPORTED, Finding, ProbeResults
from probe.statistics import share_interval
from settings.command_line import FLAGS, check_arguments, hydra_arguments, setting_names
from settings.train import CONFIGS, compose_settings, flatten, settings_from_arguments, train_settings
from tests.program import ROOT, SMALL

README, ATTENTION, PROBE, USAGE, DATA, WORKSHEET, TEACH, ENGLISH, REGISTERED = (
    (ROOT / f"{name}.md").read_text()
    for name in (
        "README docs/attention docs/probe docs/usage docs/data docs/worksheet docs/teach docs/english "
        "research/preregistration"
    ).split()
)
WRITTEN = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("**/*.md"))]
GUIDES = [page for page in WRITTEN if page.name not in ("CHANGELOG.md", "log.md")]
PAGES = [*WRITTEN, *sorted((ROOT / "research").glob("**/*.md"))]
RESULTS = ROOT / "research" / "results"
PROGRAMS: dict[str, Any] = {
    "train.py": (train.GROUPS, CONFIGS, train_settings),
    "eval.py": (eval.GROUPS, CONFIGS / "eval", eval.eval_settings),
}
_NUMBER = re.compile(r"-?\d+\.?\d*(?:e-?\d+)?")


def result(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


def test_two_commands_do_all_the_set_up_and_the_workflow_publishes_the_pages_it_makes():
    test = "-r requirements-dev.txt && .venv/bin/python -m pytest -n 2 --dist loadfile"
    for name, end in (("train", "-r requirements.txt && .venv/bin/python train.py"), ("test", test)):
        assert re.search(rf"<!-- {name} command -->\n```\n.*pip install.*{re.escape(end)}\n```\n<!-- end -->", README)
    steps = yaml.safe_load((ROOT / ".github/workflows/pages.yml").read_text())["jobs"]["publish"]["steps"]
    stamp = ".venv/bin/python -m research.documents stamp"
    done = [step.get("run") or step.get("with") for step in steps]
    published = [done.index(step) for step in ("make install pages", stamp, {"path": "docs"})]
    assert published == sorted(published)


def share(value):
    """Return a number below 1 as the documents write it: .07."""
    return f"{value:.2f}".removeprefix("0")


def check_says(text, *sentences):
    """Check that a document has these words, however its lines are broken."""
    joined = " ".join(text.split())
    assert [sentence for sentence in sentences if sentence not in joined] == []


def test_the_tables_of_results_are_the_measured_ones():
    for mean in result("link_head")["means"]:
        name = mean["question"]
        values = [mean["values"]["accuracy"], max(mean["rules"].values()), mean["untrained"]["accuracy"]]
        numbers = " | ".join(f"{value:.3f}" for value in values)
        supported = f"{mean['supported']} of {mean['n_seeds']}"
        check_says(README, f"| {name} | {QUESTIONS[name].description} | {supported} | {numbers} |")


def test_the_sentences_about_induction_are_the_measured_ones():
    found = result("induction")
    supported = {row["name"]: row["verdicts"].count("supported") for row in found["rows"]}
    n_runs = {row["name"]: len(row["verdicts"]) for row in found["rows"]}
    recipe, one_layer, *others, default = supported
    assert default == "the default run, on the stories" and one_layer == "with one layer" and len(others) == 3
    of_all = (
        f"{supported[recipe]} of {n_runs[recipe]} runs, with one layer in {supported[one_layer]} of {n_runs[one_layer]}"
    )
    assert sum(supported[name] for name in others) == 0
    assert all(head.startswith("L1") for heads in found["rows"][0]["heads"] for head in heads.split(" + "))
    check_says(README, f"supported in {of_all}, in three other kinds of text in none")
    check_says(DATA, f"heads are supported in {of_all}")
    model = {each["name"]: each for each in found["models"]}["SmolLM2-135M"]
    assert model["verdict"] == "supported" and model["head"].count("+") == 4
    assert all(min(each["same_words"], each["random_tokens"]) > 0.9 for each in found["models"])
    seconds = {row["name"]: np.median(row["cpu_seconds"]) for row in found["rows"]}
    assert seconds[recipe] < seconds[default]


def test_the_sentence_about_elsewhere_is_that_of_the_page():
    content = re.search(r'id="content">(.*?)</script>', (ROOT / "docs/report.html").read_text(), re.DOTALL)[1]
    finding = json.loads(content)["findings"][0]
    (table,) = (table for table in finding["tables"] if table["title"].startswith("Elsewhere"))
    n_link, n_strong, n_queries = re.fullmatch(
        r"(\S+) of the (\S+) weights .* which (\S+) of .*", table["note"]
    ).groups()
    assert (finding["question"], len(table["rows"])) == ("verb", 10)
    stories = f"{finding['heads']} looks at the antecedent in {n_link} of {n_queries} stories of `verb`"
    check_says(PROBE, f"{stories}, which are {n_link} of its {n_strong} strong weights")


def test_the_sentence_about_the_lab_is_the_measured_one():
    supported = {
        variant["name"]: (variant["n_supported"], variant["n_tested"]) for variant in result("lab")["variants"]
    }
    assert supported["n_layer=1"] == supported["n_head=1"] == (0, 5)
    shares = "{} of {}".format(*supported["tie_query_key=true"])
    check_says(ATTENTION, f"One layer or one head never makes the link, a query that equals the key in {shares}.")


def test_the_correction_about_nouns_in_both_places_is_the_measured_one():
    shared = [row["shares"] for row in result("places")["rows"] if row["effect"] == "the same"]
    ranges = {}
    for clusters in ("two", "one"):
        for column, name in ((0, "wrong"), (2, "covered")):
            values = [shares[clusters][column] for shares in shared]
            ranges[name, clusters] = " to ".join(dict.fromkeys([share(min(values)), share(max(values))]))
    wrong, covered, wrong_now, covered_now = ranges.values()
    check_says(
        REGISTERED,
        f"p was below .05 in {wrong} of the draws, and the intervals covered {covered}.",
        f"Now a noun is one cluster: {wrong_now} and {covered_now}.",
    )


def test_the_sentences_about_whose_gender_are_the_measured_ones():
    counts, intervals, means = [], [], []
    for name in ("whose_short", "whose_long"):
        page = result(name)
        whose = page["means"][1]
        supported = [row for row in page["heads"] if row["verdict"] == SUPPORTED]
        by_words = sum(row["values"].get("p_words", {"value": 1})["value"] < 0.01 for row in supported)
        counts.append((whose["supported"], whose["n_seeds"], by_words))
        low, high = map(share, share_interval(whose["supported"], whose["n_seeds"]))
        intervals.append(f"[{low}, {high}]".replace("1.00", "1"))
        means.append({name: share(value) for name, value in (whose["values"] | whose["rules"]).items()})
    (n_short, of, words), (n_long, of_long, words_long) = counts
    check_says(
        README, f"In {n_short} of {of} runs yes, and in {n_long} of {of_long}", f"intervals {', '.join(intervals)}"
    )
    copies = result("whose_short")["means"][0]["supported"]
    worlds = {row["world"]: (row["counts"]["passed"], row["n"]) for row in result("whose")["rows"]}
    short, long = means
    check_says(
        ENGLISH,
        f"In {copies} of {of} registered runs a head copies, in {n_short} that predicts whose gender "
        f"({intervals[0]}; words in {words}); with the longer recipe in {n_long} of {of_long} "
        f"({intervals[1]}; words in {words_long}); all in bfloat16",
        "alone pass in {} of {} draws".format(*worlds["authors by place and form"]),
        "with noise of .5, in {} of {}.".format(*worlds["copier by words of form, noise 0.5"]),
        f"{short['author']} (short) and {long['author']} (long), the place rule in {long['place rule']}",
        f"the author's person in {short['looks']} of the passages",
        f"and {long['looks']} ([5 long ones]",
        f"that person is the nearest in {long['nearest']}.",
        f"place rule is unsure: {short['looks_where_unsure']} and {long['looks_where_unsure']}.",
    )


def test_the_bits_of_the_decision_are_the_measured_ones():
    rows = [row for row in result("meaning")["rows"] if row["score"] == "decision"]
    ends = [row for row in rows if row["step"] == 1600]
    of_long = [row for row in ends if row["model"].startswith("long")]
    assert len(of_long) == 5
    parts = {}
    for name in ("subject", "place", "form", "words"):
        parts[name] = share(np.mean([row["parts"][name]["value"] for row in of_long]))
    [large] = [row for row in rows if "SmolLM2" in row["model"]]
    check_says(
        ENGLISH,
        f"carries {share(np.mean([row['whole']['value'] for row in of_long]))} bits per passage",
        ", ".join(f"{name} {value}" for name, value in parts.items()) + ".",
        f"In SmolLM2-135M words have {share(large['parts']['words']['value'])} of {share(large['whole']['value'])}.",
    )
    for row in ends:
        assert row["n_layer"] > 1 or row["parts"]["words"]["low"] <= 0


def test_the_three_stages_of_the_question_verb_are_the_measured_ones():
    points = {(row["n_layer"], row["step"]): (row["active"], row["passive"]) for row in result("stages")["points"]}
    text = ATTENTION.partition("**Three stages.**")[2].partition("![")[0]
    stages = re.findall(r"step (\d+) [^.]*?in ([.\d]+\d)[^.]*? and\s+([.\d]+\d)", text)
    assert [step for step, *_ in stages] == ["175", "225", "350"]
    for step, *shares in stages:
        assert list(map(share, points[2, int(step)])) == shares
    for (n_layer, _), point in points.items():
        assert n_layer > 1 or max(point) < 0.5


def test_the_sentences_about_heads_of_known_strength_are_the_measured_ones():
    by_question = defaultdict(list)  # with all frames and nouns, and fewer
    for row in result("power")["rows"]:
        by_question[row["question"]].append(row)
    weaker, near = 1, 3  # the columns .4 to .5, and .55 to .6

    def counts(rows, column):
        passed, asked = (sum(row[name][column] for row in rows) for name in ("passed", "asked"))
        return f"{passed} of {asked}"

    whole, few = ([rows[place] for rows in by_question.values()] for place in (0, -1))
    frames = [row["n_frames"] for row in few]
    check_says(
        PROBE,
        f"lets {counts(whole, near)} pass that carry .55 to .6",
        f"With {min(frames)} to {max(frames)} frames it lets {counts(few, near)} pass of these",
        f"and {counts(few, weaker)} that carry .4 to .5",
    )


def test_the_sentence_about_the_thickest_line_is_the_measured_one():
    rows = [row for row in result("deciding")["rows"] if row["models"] == "10 runs"]
    shares = {row["question"]: share(row["values"]["thickest"]["value"]) for row in rows}
    said = "takes most in {verb} of the texts of `verb`, {number} of `number`, {gender} of `gender`"
    check_says(ATTENTION, said.format(**shares))


def test_the_sentences_about_a_third_animal_are_the_measured_ones():
    runs = result("third_noun")["runs"]
    n_cells = sum(run["lowest_cell"] >= 0.9 for run in runs)
    n_voice = sum(run["voice"]["value"] >= 0.9 for run in runs)
    n_unseen = sum(run["lowest_unseen"] >= 0.9 for run in runs)
    carries = [run["carries"]["value"] for run in runs]
    same = max(abs(run["same_answer"]["value"]) for run in runs)
    feeds = []
    for run in runs:
        shares = [float(feed.split()[-1]) for feed in run["feeds"] if re.match("L0H. at the second mention", feed)]
        feeds += [max(shares)] if shares else []
    of_heads = [
        head["values"]["carries"]["value"] for head in result("link_head")["heads"] if head["question"] == "verb"
    ]
    mean, worst = share(np.mean([run["unseen"] for run in runs])), share(min(run["lowest_unseen"] for run in runs))
    found = f"{len(feeds)} of {len(runs)}"
    of_layers = {mean["question"]: mean["supported"] for mean in result("one_layer")["means"]}
    check_says(
        README,
        f"in {n_cells} of {len(runs)} runs the answer is right in .9 or more",
        f"never has in {mean} on average, in the worst of one run in {worst}",
    )
    check_says(
        ATTENTION,
        f"In {found} runs a head of layer 0",
        f"lose {share(min(feeds))} to {share(max(feeds))} of the answer",
    )
    check_says(ATTENTION, f"learns `verb` in {of_layers['verb']} of 5 runs")
    check_says(
        REGISTERED,
        f".9 or more in {n_cells} of {len(runs)}; seed 435",
        f"mean {mean}; the lowest of a run is .9 or more in {n_unseen} runs, {worst}",
        f".9 or more in {n_voice} of {len(runs)}; seed 427",
        f".8 or more in {sum(value >= 0.8 for value in carries)} of {len(runs)}",
        f"same answer {share(same)} at most",
        f"Of the heads of the verdict alone: {sum(value >= 0.8 for value in of_heads)} of 20",
        f"of 20, lowest {share(min(of_heads))} | came true",
        f"in {found}, {share(min(feeds))} to {share(max(feeds))}. As registered",
        f"verb {of_layers['verb']} of 5, number {of_layers['number']}, gender {of_layers['gender']}",
        "verb, number and gender in {}, {} and {} of 20".format(
            *(mean["supported"] for mean in result("link_head")["means"])
        ),
    )


def test_the_number_of_types_that_open_is_the_measured_one():
    differences = {row["name"]: row["difference"] for row in result("decoders")["decoders"]}
    opened = [difference for difference in differences.values() if difference is not None]
    exact = opened.count(0)
    check_says(
        USAGE,
        f"[Of {len(differences)}](../research/results/decoders.md) made with random weights {len(opened)} open",
        f"; {exact} have exactly the logits of their own eager attention, two differ by {max(opened):.0e}.",
    )
    assert len(opened) - exact == 2 and differences["mamba"] is differences["bloom"] is None


def test_the_bias_of_a_public_model_and_the_choices_of_an_untrained_one_are_the_measured_ones():
    [row] = [row for row in result("because")["rows"] if "SmolLM2" in row["model"]]
    of_second = sum(bias < 0 for bias in row["bias"].values())
    order = f"orders {len(row['bias'])} verbs as people do (AUC {share(row['auc'])})"
    shares = {}
    for reviewed in result("review")["rows"]:
        if reviewed["model"] == "untrained":
            shares[reviewed["question"]] = share(reviewed["values"]["chosen_again"]["value"])
    check_says(
        PROBE,
        f"{order}, but prefers the second person after {of_second}; no head is",
        f"{shares['number']} and {shares['gender']} in [an untrained model]",
    )
    assert row["verdict"] == "not established"


def test_the_readme_begins_for_a_person_without_codes_and_with_few_numbers():
    assert "[Start here](docs/attention.md)" in "\n".join(README.splitlines()[:15])
    story = re.sub(r"\]\([^)]*\)|<!--.*?-->", "", README.split("## How it works")[0])
    assert len(re.findall(r"(?<![\w.])\d[\d.,]*", story)) <= 40
    assert not re.search(r"\b(E[0-4]|block accuracy|swap|p|float32|bfloat16|seed \d+)\b", story)


FOUNDING = {  # the ideas of five texts with which the project began, by the section of attention.md that has them
    "1-row-of-numbers": ["0.75", "Evan's dog Riley is so hyper, she never stops moving", "one-hot"],
    "3-query--key": ["relevance · Riley + (1 − relevance) · dog", "any word may matter", "it", "cat", "xᵀWx"],
    "4-softmax": [
        "keepdims",
        "Division by √d",
        "100 times as large",
        "The hiking trail led us through bear country",
        "a dense layer's weight is fixed",
        "time flies like an arrow",
        "fruit flies like a banana",
    ],
    "2-three-matrices": [
        "self-attention",
        "i love pasta",
        "i love bears",
        "she bears the pain",
        "bears won the game",
        "bear country",
    ],
    "5-mix-the-values": ["i love sushi", "softmax(QKᵀ / √d) V", "random.seed(42)"],
    "8-watch-it-learn": ["back-propagation"],
    "6-to-the-next-word": ["AttentionLayer", "batch", "dim=1", "torch.sqrt"],
}


@pytest.mark.parametrize("place", FOUNDING)
def test_every_idea_of_the_founding_texts_has_its_section(place):
    sections = {anchor(part.partition("\n")[0]): part for part in re.split(r"^#+ ", ATTENTION, flags=re.MULTILINE)}
    text = " ".join(sections[place].split())
    assert [idea for idea in FOUNDING[place] if idea not in text] == []


def test_the_page_about_attention_and_the_worksheet_follow_the_cards():
    cards = json.loads((ROOT / "extras/page/cards.json").read_text())
    sections = re.split(r"^## ", ATTENTION, flags=re.MULTILINE)[1:]
    steps = re.findall(r"^\| (\d) ([^:]*):", WORKSHEET, re.MULTILINE)
    assert steps == [(str(number), card["name"]) for number, card in enumerate(cards, 1)]
    for number, card in enumerate(cards, 1):
        if "trains" in card:  # a page of English has no such card
            continue
        heading, _, text = sections[number - 1].partition("\n")
        assert heading == f"{number}. {card['name'][0].upper()}{card['name'][1:]}"
        assert " ".join(text.partition("\n\n")[0].split()) == card["says"]


@pytest.mark.parametrize("name", ["attention", "index", "teach", "worksheet"])
def test_a_page_for_a_browser_has_the_words_of_its_markdown_and_no_dead_link(name, pages):
    text = (pages / f"{name}.html").read_text()
    links = re.findall(r'(?:href|src)="(?!http)([^"]+)"', text)
    if name == "index":
        assert {"report.html", "report_english.html", "attention.html", "worksheet.html", "teach.html"} <= set(links)
    else:
        written = MarkdownIt("commonmark").enable("table").render((ROOT / f"docs/{name}.md").read_text())
        assert re.sub("<[^>]*>", "", written).split() == re.sub("<[^>]*>", "", text.partition("</style>")[2]).split()
    for file, _, anchor in (link.partition("#") for link in links):
        target = pages / (file or f"{name}.html")
        assert target.exists(), file
        assert not anchor or "=" in anchor or f'id="{anchor}"' in target.read_text(), f"{file}#{anchor}"


ADDRESS = {"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "someone/some-lab"}


@pytest.mark.parametrize("known", [ADDRESS, {}], ids=["known", "unknown"])
def test_published_pages_have_what_a_shared_link_shows_if_their_address_is_known(pages, tmp_path, known):
    folder = shutil.copytree(pages, tmp_path / "docs")
    environment = dict.fromkeys(ADDRESS, "") | known
    command = [sys.executable, "-m", "research.documents", "stamp", folder]
    subprocess.run(command, cwd=ROOT, env=os.environ | environment, check=True)
    site = "https://someone.github.io/some-lab/"
    for page in folder.glob("*.html"):
        head = page.read_text().partition("<style>")[0]
        name = page.name.replace("index.html", "")
        metas = dict(re.findall(r'<meta (?:name|property)="([\w:]+)" content="([^"]+)">', head))
        assert 50 < len(metas.pop("description")) < 160
        canonical = re.findall(r'<link rel="canonical" href="(.*)">', head)
        if not known:
            assert canonical == [] and metas.keys() == {"viewport"}
            continue
        assert canonical == [metas["og:url"]] == [f"{site}{name}"] and metas["og:description"]
        assert metas["og:title"] == re.search("<title>(.*)</title>", head)[1]
        picture = folder / metas["og:image"].removeprefix(site)
        with Image.open(picture) as opened:
            assert opened.size == (1200, 630) and picture.stat().st_size < 150_000
    assert len(list(folder.glob("*.html"))) == 6
    written = (folder / "llms.txt").read_text().removeprefix((ROOT / "docs/llms.txt").read_text())
    assert len(re.findall(r"https://(?:github.com/someone/|someone.github.io/)some-lab", written)) == 5 * bool(known)


def test_the_worksheet_names_what_the_page_shows_and_the_teachers_page_its_size():
    report = (ROOT / "docs" / "report.html").read_text()
    named = re.findall(r"(?<!\*)\*([A-Z][^*]+|remove|play training)\*(?!\*)", WORKSHEET)
    assert len(named) == 9 and [name for name in named if name not in report] == []
    answers = re.findall(r"^\| `.*` \| (\w+) 0\.\d\d \|$", TEACH, re.MULTILINE)
    assert len(answers) >= 10 and [word for word in answers if word in WORKSHEET] == []
    shown = re.findall(r"\((report\w*\.html)\)\D*([\d.]+) MB", TEACH)
    assert [name for name, _ in shown] == ["report.html", "report_english.html"]
    for name, size in shown:
        assert float(size) == pytest.approx((ROOT / "docs" / name).stat().st_size / 1e6, rel=0.1)


def anchor(heading):
    """Return the anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-")


def test_every_file_folder_and_heading_that_a_page_names_exists():
    for page in PAGES:
        for name, fragment in re.findall(r"\]\(([\w./-]*)(?:#([\w-]+))?\)", page.read_text()):
            target = page.parent / name if name else page
            assert target.exists(), f"{page}: {name}"
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE) if fragment else []
            assert not fragment or fragment in map(anchor, headings), f"{page}: {name}#{fragment}"
    tree = README[README.index("train.py  eval.py     entry points") :].split("```")[0]
    for folder, content in re.findall(r"^(\w+/) +(.*)$", tree, re.MULTILINE):
        assert (ROOT / folder).is_dir()
        for name in re.findall(r"\w+\.py", content):
            assert (ROOT / folder / name).exists() or (ROOT / name).exists(), name


def test_the_seven_files_to_read_are_about_as_long_as_said():
    section = README.partition("## Read the code\n")[2].partition("\n## ")[0]
    named = re.findall(r"\]\((\w+/\w+\.py)\), about (\d+) lines", section)
    assert len(re.findall(r"^\d\. ", section, re.MULTILINE)) == 7 and len(named) == 8  # the step has a file of its own
    for name, n_lines in named:
        assert int(n_lines) == pytest.approx(len((ROOT / name).read_text().splitlines()), rel=0.15), name


def test_the_readme_is_one_screen_and_no_document_has_a_path_of_a_machine():
    assert len(README.splitlines()) <= 120 and len(GUIDES) <= 11
    for path in [*PAGES, *RESULTS.glob("*.json"), *ROOT.glob("configs/**/*.yaml")]:
        assert not re.search(r"/(work|root|home|tmp)/", path.read_text()), path


def code_of(page):
    """Return the spans of code in a document, and the lines that call python or torchrun."""
    text = page.read_text().replace("\\\n", " ")
    return re.findall(r"`([^`\n]+)`", text) + re.findall(r"^ {0,4}([^\s`]*(?:python|torchrun).*)$", text, re.MULTILINE)


def commands():
    """Return the program and the arguments of every command in the documents, in --help, and on the published pages."""
    lines = [line for page in [*GUIDES, ROOT / "docs/llms.txt"] for line in code_of(page)]
    for page in ROOT.glob("docs/report*.html"):
        lines += map(html.unescape, re.findall(r"<code><bdi>(.*?)</bdi></code>", page.read_text()))
    for help_text in (CONFIGS / "train.yaml", CONFIGS / "eval/eval.yaml"):
        lines += re.findall(r"^ +(?:python|torchrun.*) (\w+\.py.*?)(?:  |$)", help_text.read_text(), re.MULTILINE)
    found = set()
    for line in lines:
        for command in re.findall(r"(?:^|[ /])((?:train\.py|eval\.py|antecedent_lab export)\b.*?)(?:$|&&)", line):
            found.add(shlex.join(shlex.split(command, comments=True)))
    return sorted(found)


@pytest.mark.parametrize("command", commands())
def test_the_arguments_of_a_command_in_the_documents_give_settings(command):
    program, *arguments = shlex.split(command)
    if program == "antecedent_lab":
        assert settings_from_arguments(ExportSettings, arguments[1:])
        return
    groups, folder, settings = PROGRAMS[program]
    check_arguments(arguments, groups)
    single = [re.sub(r"(=[^,]*),.*", r"\1", argument) for argument in arguments if argument[0] != "-"]  # of one run
    own = [re.sub(r"^items=\w+\.jsonl", f"items={ROOT}/docs/questions/it_cat.jsonl", argument) for argument in single]
    with initialize_config_dir(str(folder), version_base="1.3"):
        assert settings(compose(program.removesuffix(".py"), hydra_arguments(own, groups)))


def test_each_line_for_users_of_another_program_has_a_command_or_a_call_that_runs():
    lines = re.findall(r"^- \*\*.*", README.partition("## If you come from\n")[2].partition("\n## ")[0], re.MULTILINE)
    answers = np.random.default_rng(0).random((8, 2, 4)) < 0.5
    given = {"layer": 1, "head": 0, "scores": answers, "frames": list("aabbccdd"), "nouns": list("xyxyxyxy")}
    calls = []
    for line in lines:
        spans = re.findall(r"`([^`]+)`", line)
        calls_here = [span for span in spans if span.endswith(")")]
        assert calls_here or shlex.join(shlex.split(spans[0])) in commands(), line
        calls += calls_here
    for call in [*calls, *re.findall(r"^test = (head_test\(.*?\))", USAGE, re.MULTILINE)]:
        name = call.partition("(")[0]
        exec(call, {name: getattr(antecedent_lab, name), **given})
    assert len(lines) == 6 and len(calls) == 2


def test_a_setting_a_flag_and_a_target_that_a_document_names_exist():
    names = {name.rpartition(".")[2] for groups, *_ in PROGRAMS.values() for name in [*setting_names(groups), *groups]}
    names |= {*ExportSettings.__dataclass_fields__}
    names |= {"at", "axis", "dim", "low", "own", "weights_only", "head", "query", "remove", "cut", "exchange", "step"}
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for page in GUIDES:
        for code in code_of(page):
            for name in re.findall(r"(?<![\w.#&/-])([a-z]\w*(?:\.\w+)*)=(?!value)", code):
                assert name.startswith("hydra.") or name.rpartition(".")[2] in names, f"{page}: {code}"
            flag = code.split()[0].partition("=")[0] if code.startswith("-") else "-m"
            assert flag in (*FLAGS, "--cfg", "-e", "--extra-index-url", "--torch-backend"), f"{page}: {code}"
            assert not code.startswith("make ") or {*code.split()[1:]} <= {*targets}, f"{page}: {code}"


def test_the_defaults_in_the_guide_are_those_of_the_program():
    defaults = flatten(compose_settings())
    rows = re.findall(r"^\| (`\w+`[^|]*) \| (\w+) \|", USAGE, re.MULTILINE)
    shown = [(name, default) for named, default in rows for name in re.findall(r"`(\w+)`", named)]
    assert len(shown) >= 8 and [(name, str(defaults[name])) for name, _ in shown] == shown


def test_every_question_measure_field_and_bar_of_the_verdict_is_documented():
    names = {*MEASURES, *(field.name for kind in (ProbeResults, Finding) for field in fields(kind)), *QUESTIONS}
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\b", PROBE)] == []
    for question in QUESTIONS.values():
        for bar in question.bars:
            [row] = re.findall(rf"^\| {question.outcome} \| {bar.criterion} \|.*", PROBE, re.MULTILINE)
            assert f"| {bar.level} |".replace("|  |", "| |") in row, bar.criterion
            if bar.limit:
                assert re.search(rf"(?<!\d)0?{re.escape(f'{bar.limit:g}'.removeprefix('0'))}0?(?!\d)", row), bar


def test_the_page_about_attention_shows_the_output_of_its_code():
    blocks = re.findall(r"```python\n(.*?)```\n```text\n(.*?)```", ATTENTION, re.DOTALL)
    assert len(blocks) == ATTENTION.count("```python") >= 12
    namespace: dict = {}
    for code, shown in blocks:
        with contextlib.redirect_stdout(io.StringIO()) as stream:
            exec(code, namespace)
        printed = stream.getvalue()
        assert _NUMBER.sub("#", printed).split() == _NUMBER.sub("#", shown).split(), code
        numbers, expected = (list(map(float, _NUMBER.findall(text))) for text in (printed, shown))
        assert numbers == pytest.approx(expected, rel=0.02, abs=0.002), code  # CPUs round sums differently


def cells_of(notebook):
    cells = json.loads((ROOT / f"docs/{notebook}.ipynb").read_text())["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


CELLS = cells_of("tour")


def test_the_notebook_shows_what_its_cells_print_and_draw():
    for cell in CELLS:
        source, outputs = "".join(cell["source"]), json.dumps(cell["outputs"])
        assert ("print(" in source) == ('"stream"' in outputs), source
        assert ("plt.subplots" in source) == ("image/png" in outputs), source
    assert "supported (E3)" in json.dumps([cell["outputs"] for cell in CELLS])


def tour(cache, folder):
    """Return the cells of the tour as a script that trains a small model and writes in `folder`."""
    settings = [setting.replace("probe_sequences=0", "probe_sequences=40") for setting in [*SMALL, cache]]
    small = f"cache_dir={cache.removeprefix('cache_dir=')!r}, n_bootstrap=100, n_untrained=2, n_controls=10)"
    changes = {
        "settings = []": f"settings = {settings}", '"runs/': f'"{folder}/', '"probes/': f'"{folder}/probes/',
        "probe_model(opened)": f"probe_model(opened, {small}", 'stories=True))': f'stories=True), {small}',
    }  # fmt: skip
    script = "\n".join("".join(cell["source"]) for cell in CELLS)
    for old, new in changes.items():
        assert old in script
        script = script.replace(old, new)
    return script
