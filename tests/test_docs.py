"""Documents say what is true: snippets run, links lead somewhere, numbers are those of kept results."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docs import cluster_page, environment_baselines

from fork_ranks import free_port
from forked_programs import ForkedPrograms, forked_programs

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]
SNIPPETS = sorted((DOCS / "snippets").glob("*.py"))
MAX_BLOCK_CHARS = 105
GENERATED = {"reference/cli.md", "reference/catalog.md", "reference/api.md", "benchmarks.md"}  # by docs/build_hooks.py
FIRST = {"rewards_table.py": "readme.py"}  # a snippet that reads what another one wrote
NIGHTLY = ("outside_agent.py", "grpo_own_reward.py")  # a server and two trainings; the job of readme.py once more


@pytest.fixture(scope="module")
def snippet_folders() -> dict[str, Path]:
    """The working directory of each snippet that has run."""
    return {}


@pytest.fixture(scope="module")
def programs() -> Iterator[ForkedPrograms]:
    readers = {name: value for name, value in os.environ.items() if name != "PONDER_CPU_KERNELS"}  # they are compiled
    with forked_programs({**readers, "PYTHONPATH": str(ROOT / "src")}) as running:
        yield running


@pytest.mark.parametrize(
    "path",
    [pytest.param(p, id=p.name, marks=[pytest.mark.nightly] if p.name in NIGHTLY else []) for p in SNIPPETS],
)
def test_snippet_runs(path: Path, tmp_path: Path, snippet_folders: dict[str, Path], programs: ForkedPrograms) -> None:
    skip_without_smollm2(path)
    folder = tmp_path
    if path.name in FIRST:
        first = DOCS / "snippets" / FIRST[path.name]
        if first.name not in snippet_folders:
            programs.run(first, tmp_path)
        folder = snippet_folders.get(first.name, tmp_path)
        (folder / "runs" / "sums").symlink_to("readme")  # the same job: see below
    if path.name == "serve_client.py":
        path = with_free_port(path, tmp_path)
    output = programs.run(path, folder)
    snippet_folders[path.name] = folder
    if path.name == "readme.py":
        rewards = list(map(float, re.findall(r"\d\.\d+", output)[:8]))
        assert sum(rewards[-3:]) / 3 > sum(rewards[:2]) / 2 + 0.15, output
    if path.name == "own_task.py":
        first, last = map(float, re.findall(r"\d\.\d\d", output)[:2])
        assert last > first + 0.3, output
    if path.name == "outside_agent.py":
        check_recorded_round(folder, output)


def with_free_port(path: Path, folder: Path) -> Path:
    """The program with a port that nobody listens on, and a quarter of the tokens."""
    program = path.read_text()
    assert program.count("8123") == 3 and program.count("max_completion_tokens=400") == 1
    program = program.replace("8123", str(free_port())).replace("tokens=400", "tokens=100")
    (folder / path.name).write_text(program)
    return folder / path.name


def test_own_reward_snippet_is_the_readme_job() -> None:
    """So its run is too, and rewards_table.py can read it."""
    own, readme = (
        re.search(r"^pairs = .*^job = RL\([^\n]+$", (DOCS / "snippets" / name).read_text(), re.S | re.M)
        for name in ("grpo_own_reward.py", "readme.py")
    )
    assert own and readme
    assert own[0] == re.sub("  # .*", "", readme[0])
    assert 'job("runs/sums")' in (DOCS / "snippets" / "grpo_own_reward.py").read_text()


def check_recorded_round(folder: Path, output: str) -> None:
    """The agent got better, and what was trained are the tokens that the server sampled for it, and no others."""
    from ponder import read_traces

    first, last = map(float, re.findall(r"\d\.\d\d", output)[:2])
    assert last > first + 0.1, output
    played = [trace for _, trace in read_traces(folder / "runs" / "played")]
    sampled = sorted(s.token_ids.tobytes() for trace in played for s in trace.steps if s.sampled)
    assert len(played) == 160 and len(sampled) == 320
    by_step: dict[int, list[bytes]] = {}
    for step, trace in read_traces(folder / "runs" / "agent"):
        by_step.setdefault(step, []).extend(s.token_ids.tobytes() for s in trace.steps if s.advantages is not None)
    assert sorted(by_step[0]) == sampled and len(by_step) == 100


def skip_without_smollm2(path: Path) -> None:
    if "smollm2" in path.read_text() or "ask(" in path.read_text() or path.name in FIRST:
        pytest.importorskip("gguf")
        from ponder.errors import ModelError
        from ponder.models import smollm2

        try:
            smollm2.packaged_gguf()
        except ModelError as absent:
            pytest.skip(str(absent))


def test_readme_shows_the_snippet_that_is_tested() -> None:
    assert (DOCS / "snippets" / "readme.py").read_text() in (ROOT / "README.md").read_text()


def test_newcomers_programs_are_short() -> None:
    for name in ("ask.py", "grpo_own_reward.py", "rewards_table.py", "readme.py"):
        lines = [line for line in (DOCS / "snippets" / name).read_text().splitlines() if line.strip()]
        assert len([line for line in lines if not line.startswith(('"""', "#"))]) <= 15, name
        assert sum(line.startswith(("import", "from")) for line in lines) == 1, name


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    for target in re.findall(r"\]\((?!https?:)([^)#:\s]+)", text):
        where = (page.parent / target).resolve()
        if where.is_relative_to(DOCS) and str(where.relative_to(DOCS)) in GENERATED:
            continue
        assert where.exists(), f"{page.name} links to {target}"
    for included in re.findall(r'--8<-- "([^"]+)"', page.read_text()):
        assert (DOCS / included).exists(), f"{page.name} includes {included}"


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as the site and GitHub make them; of two equal ones they differ."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    plain = (re.sub(r"[^\w\s-]", "", each).strip().lower() for each in re.findall(r"^#+ (.+)$", text, re.M))
    return {re.sub(r"[-\s]+", "-", each) for each in plain}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "bench" / "NOTES.md"], ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_to_headings(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    for target, heading in re.findall(r"\]\((?!https?:)([^)#:\s]*)#([^)\s]+)\)", text):
        where = (page.parent / target).resolve() if target else page
        if where.suffix == ".md" and where.exists():
            assert heading in headings(where), f"{page.name} links to {target}#{heading}"


def test_links_of_the_site_lead_to_its_pages() -> None:
    """A page of the repository that has another place on the site is linked there; a file that it lacks is named."""
    from docs.build_hooks import on_page_markdown

    class Files:
        def get_file_from_path(self, path: str) -> bool:
            return path in ("tried.md", "benchmarks.md", "how-to/several-gpus.md", "results.md")

    def linked(src_uri: str, link: str) -> str:
        page = SimpleNamespace(file=SimpleNamespace(src_uri=src_uri), meta={})
        return on_page_markdown(link, page, None, Files())

    assert linked("tried.md", "[a](../bench/NOTES.md#cpu)") == "[a](benchmarks.md#cpu)"
    assert linked("how-to/several-gpus.md", "[a](../../bench/README.md)") == "[a](../benchmarks.md)"
    assert linked("how-to/several-gpus.md", "[a](../tried.md#cpu)") == "[a](../tried.md#cpu)"
    assert linked("benchmarks.md", "[a](../docs/tried.md#cpu)") == "[a](tried.md#cpu)"
    assert linked("tried.md", "[a](results/kept.json)") == "a (`docs/results/kept.json`)"
    assert linked("tried.md", "[a](#cpu)") == "[a](#cpu)"


def test_site_has_every_page() -> None:
    menu = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    pages = {str(p.relative_to(DOCS)) for p in DOCS.rglob("*.md") if p.parent.name != "results"}
    assert menu - pages == GENERATED and pages <= menu


def test_readme_speeds_are_those_of_kept_runs() -> None:
    """Each row of the table: what is measured, ponder's figure, the peer's, and the peer's name with the kept run."""
    rows = re.findall(
        r"^\| [^|]+\| ([\d,.]+) \| ([\d,.]+) \| ([^|(]+?) \(\[kept run\]\(([^)]+)\)\) \|$",
        (ROOT / "README.md").read_text(),
        re.M,
    )
    assert len(rows) >= 5
    for ours, theirs, peer, path in rows:
        kept = json.loads((ROOT / path).read_text())
        figures = [v for name, v in kept["peers"].items() if name.split()[0].lower() == peer.split()[0].lower()]
        for text, measured in ((ours, [kept["ours"]]), (theirs, figures)):
            digits = len(text.partition(".")[2])
            assert float(text.replace(",", "")) in [round(value, digits) for value in measured], (path, peer, text)


def test_the_demos_accuracies_are_those_of_the_kept_runs() -> None:
    (path,) = (ROOT / "bench" / "results").glob("demo_training_accuracy-*.json")
    kept = json.loads(path.read_text())["details"]
    shown = [
        f"{100 * run['accuracy']:.1f} % [{100 * run['low']:.1f}, {100 * run['high']:.1f}]"
        f" ({round(run['accuracy'] * run['problems'])} of {run['problems']})"
        for run in (kept["start"][0], *kept["now"])
    ]
    for page in (ROOT / "README.md", DOCS / "demo.md"):
        block = page.read_text().partition("```text\nbefore  ")[2].partition("```")[0]
        assert re.findall(r"\d[\d.]* % \[[^]]+\] \([^)]+\)", block) == shown, page
    assert path.name in (DOCS / "demo.md").read_text()
    told = " ".join((ROOT / "recipes" / "addition.py").read_text().split())
    first, *after = (f"{100 * run['accuracy']:.1f}" for run in (kept["start"][0], *kept["now"]))
    assert f"{first} % before; {after[0]}, {after[1]} and {after[2]} % after" in told


def test_distinct_children_are_those_of_the_kept_run() -> None:
    kept = json.loads((ROOT / "bench" / "results" / "distinct_children-intel-xeon-2.json").read_text())["details"][
        "how"
    ]
    rows = re.findall(r"^\| .+ \| ([\d.]+) \| (\d+) of (\d+) \| ([\d.]+) \|$", (DOCS / "thinking.md").read_text(), re.M)
    measured = [
        (one["children"], one["with_one_child"], one["expansions"], one["tokens_per_child"]) for one in kept.values()
    ]
    assert len(rows) == len(measured)
    for row in rows:
        assert any(
            all(
                abs(float(said) - value) <= margin
                for said, value, margin in zip(row, one, (0.0051, 0, 0, 0.051), strict=True)
            )
            for one in measured
        ), row


def test_environment_baselines_are_those_of_the_kept_run() -> None:
    """The page has one row for each environment and level, with the kept numbers."""
    from ponder.tasks import TASKS

    kept = json.loads((DOCS / "results" / "environment_baselines.json").read_text())
    page = (DOCS / "environments.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \| (\d) \| .+? \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", page, re.M)
    assert rows == [
        (r["task"], str(r["level"]), f"{r['random']:.2f}", f"{r['gold']:.2f}", f"{r['gold_turns']:.1f}")
        for r in kept
        if "tool" not in r
    ]
    for lines in environment_baselines.table(kept).split("\n\n"):
        assert lines in page, "run python docs/environment_baselines.py"
    assert {(r["task"], r["tool"]) for r in kept if "tool" in r} == {
        (task, tool) for task in ("arithmetic", "gsm8k", "svamp") for tool in ("calculator", "python")
    }
    environments = [name for name, kind in TASKS.items() if hasattr(kind, "environment")]
    assert sorted({row[0] for row in rows}) == sorted(environments)
    assert all(
        dict(TASKS[r["task"]].LEVELS[r["level"] - 1]) == r["settings"]
        for r in kept
        if r["level"] and "task" not in r["settings"]
    )


def test_cluster_figures_are_those_of_the_kept_runs() -> None:
    page, kept = cluster_page.PAGE.read_text(), json.loads(cluster_page.KEPT.read_text())
    shown = page.split(cluster_page.BEGIN)[1].split(cluster_page.END)[0]
    assert shown == cluster_page.measured_text(kept), "run python docs/cluster_page.py --write"
    overlap = json.loads((ROOT / "bench/results/sampling_ahead_overlap-neoverse-n1-2.json").read_text())["details"]
    assert f"{overlap['share_of_the_longer']['1']:.2f} times the longer one" in " ".join(page.split())


def test_training_page_lists_every_algorithm() -> None:
    from ponder.train.algorithms import OFFLINE, ONLINE

    page = (DOCS / "training.md").read_text()
    assert [name for name in {**ONLINE, **OFFLINE} if f"`{name}`" not in page] == []


def test_training_page_lists_every_recipe() -> None:
    page = (DOCS / "training.md").read_text()
    recipes = {p.stem for p in (ROOT / "recipes").glob("[a-z]*.py")}
    assert sorted(name for name in recipes if f"`{name}`" not in page) == []


def test_getting_started_lists_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    table = re.findall(r"^\| `(\w+)` \| \D", (DOCS / "getting-started.md").read_text(encoding="utf-8"), re.M)
    assert set(table) == extras.keys() - {"dev", "serve-dev", "docs"}  # those are for contributors


def test_every_command_is_in_a_document() -> None:
    from ponder.cli import COMMANDS

    text = "\n".join(page.read_text() for page in PAGES)
    assert [name for name in COMMANDS if f"ponder {name}" not in text] == []


def test_glossary_has_thirty_words() -> None:
    section = (DOCS / "concepts.md").read_text().partition("## Glossary")[2]
    assert len(re.findall(r"^\| .+ \| .+ \|$", section, re.M)) - 1 >= 30


def shell_lines(page: Path) -> list[str]:
    """The `ponder` commands of a page's code blocks, in their order, without comments."""
    blocks = re.findall(r"^```(?:sh|text)?\n(.*?)^```", page.read_text(), re.M | re.S)
    lines = [
        line for block in blocks for line in block.replace("\\\n", " ").splitlines() if re.match("ponder [a-z]", line)
    ]
    return [re.sub(r" [<>] \S+", "", line.partition(" #")[0]).strip() for line in lines]  # without redirection


def inline_commands(page: Path) -> list[str]:
    """The commands that stand in a sentence or a table."""
    return re.findall(r"`(ponder [a-z][^`]+)`", page.read_text())


COMMAND_PAGES = [page for page in PAGES if page.name != "CHANGELOG.md" and page.parent.name != "results"]
EVERY_COMMAND = [
    (page.name, line) for page in COMMAND_PAGES for line in dict.fromkeys(shell_lines(page) + inline_commands(page))
]
WHOLE_COMMANDS = [(page, line) for page in COMMAND_PAGES for line in dict.fromkeys(shell_lines(page))]


@pytest.mark.parametrize(("page", "line"), EVERY_COMMAND, ids=lambda x: str(x)[:60])
def test_flags_of_documented_commands_exist(page: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    from ponder.cli import COMMANDS, main

    words = [word for word in shlex.split(line) if word != "..."]
    if words[1] not in COMMANDS:
        assert words[1] in ("COMMAND",), line
        return
    about = (
        [words[1], words[2]]
        if words[1] == "run" and len(words) > 2 and words[2].isidentifier() and words[2].islower()
        else [words[1]]
    )
    about = words[1:3] if words[1:3] == ["plan", "eval"] else about
    assert main([*about, "--help"]) == 0
    text = capsys.readouterr().out
    for flag in (word.partition("=")[0] for word in words if word.startswith("--") and len(word) > 2):
        known = re.search(rf"{re.escape(flag)}(?![\w-])", text)
        dotted = f"{flag.partition('.')[0]}.NAME" in text and "." in flag
        assert known or dotted or flag in ("--help", "--trust"), f"{page}: {line}: {flag}"


@pytest.mark.parametrize(("page", "line"), WHOLE_COMMANDS, ids=lambda x: str(getattr(x, "name", x))[:60])
def test_documented_command_parses(page: Path, line: str) -> None:
    """Every flag has a value of its type, and every choice and every name is one that exists."""
    from ponder.cli.command_help import read_signatures
    from ponder.cli.flags import Parser

    _, command, *words = shlex.split(line)
    if command == "plan" or "--config" in words:
        return  # it takes the arguments of another command, or of a file that the page makes
    words = [word for word in words if word != "--print-config"]  # which ends the parsing
    parser = Parser(line)
    for signature in read_signatures(command, words):
        parser.add_signature(signature)
    given = parser.parse_given(words[1:] if command == "run" else words)
    check_names(command, words, given)


def check_names(command: str, words: list[str], given: dict[str, Any]) -> None:
    """Tasks, strategies, algorithms, templates and recipes by name, with their dotted settings."""
    from ponder.models.chat_templates import CHAT_TEMPLATES
    from ponder.reason.presets import PRESETS
    from ponder.reason.strategies import STRATEGIES
    from ponder.tasks import TASKS, find
    from ponder.train.algorithms import OFFLINE, ON_POLICY

    if command == "run":
        assert (ROOT / "recipes" / f"{words[0]}.py").exists()
    if command in ("train", "eval", "label", "tasks") and words:
        kind = given.get("task_settings", {}) and find(words[0], {})[0] if "/" in words[0] else TASKS[words[0]]
        settings = {f.name for f in dataclasses.fields(kind)} if kind else set()
        assert given.get("task_settings", {}).keys() <= settings
    if strategy := given.get("strategy"):
        assert strategy in {**STRATEGIES, **PRESETS}
        named = STRATEGIES.get(strategy)
        settings = {f.name for f in dataclasses.fields(named)} if named else set()
        assert {name.partition(".")[0] for name in given.get("strategy_settings", {})} <= settings | {"cut", "reduce"}
    if command in ("train", "sft", "offline") and "algorithm" in given:
        assert given["algorithm"] in {**OFFLINE, **ON_POLICY}
    if template := given.get("template"):
        assert template in CHAT_TEMPLATES


# What a page's commands read and none of them makes; the page must say what it is.
FROM_THE_READER = {
    "pairs.jsonl": "`pairs.jsonl` holds",
    "rows.jsonl": "`rows.jsonl` ha",
    "rewards.py": "`rewards.py`",
    "templates.json": "in `templates.json`",
    "direct.json": "`direct.json` (",
    "cot.json": "`cot.json` (",
    "tree.json": "`tree.json` (",
    "runs/prm": "`runs/prm` is a process reward model",
}


@pytest.mark.parametrize("page", COMMAND_PAGES, ids=lambda p: p.name)
def test_documented_command_has_what_it_reads(page: Path) -> None:
    """A file or run directory is made by an earlier command of the page, or the page says what it is."""
    made: set[str] = set()
    for line in shell_lines(page):
        words = shlex.split(line)
        outputs = {value for flag, value in pairwise(words) if flag in ("--run", "--out", "--traces")}
        inputs = [word for word in words if re.search(r"^(reward:)?runs/|\.jsonl?$|^rewards:", word)]
        for word in inputs:
            name = "rewards.py" if word.startswith("rewards:") else word.removeprefix("reward:")
            if name in outputs or any(name == m or name.startswith(f"{m}/") for m in made):
                continue
            assert FROM_THE_READER.get(name, "nothing") in page.read_text(), f"{page.name}: {line}: {name}"
        made |= outputs | ({"runs/demo"} if words[1] == "demo" else set())


@pytest.mark.parametrize("page", [p for p in COMMAND_PAGES if p.name != "results.md"], ids=lambda p: p.name)
def test_code_block_fits_the_page(page: Path) -> None:
    blocks = re.findall(r"^```(?:sh|text)\n(.*?)^```", page.read_text(), re.M | re.S)
    assert [line for block in blocks for line in block.splitlines() if len(line) > MAX_BLOCK_CHARS] == []


def test_snippet_fits_the_page() -> None:
    long = [
        (path.name, line) for path in SNIPPETS for line in path.read_text().splitlines() if len(line) > MAX_BLOCK_CHARS
    ]
    assert long == []


def test_every_python_block_is_a_tested_snippet() -> None:
    for page in DOCS.rglob("*.md"):
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.S):
            assert re.fullmatch(r'--8<-- "snippets/\w+\.py"\n', block), f"{page.name}: {block[:60]}"
