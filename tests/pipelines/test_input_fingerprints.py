"""What a result depends on: which code is the user's own, which files and problems count, and what is only kept."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fakes import ALPHABET, DigitTask
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.collect import Collect
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.job.input_fingerprints import input_fingerprints
from ponder.pipelines.label import Label
from ponder.pipelines.make_problems import MakeProblems
from ponder.pipelines.reward_model import TrainRewardModel
from ponder.pipelines.rl import RL
from ponder.pipelines.sft import FineTune
from ponder.runs import file_fingerprints
from ponder.runs.code_fingerprints import code_fingerprints
from ponder.runs.file_fingerprints import file_fingerprint
from ponder.tasks import Addition
from ponder.tasks.mixture import TaskMixture
from ponder.train.critic import Critic
from ponder.train.ppo import PPO
from ponder.types import Problem, user_messages

MODEL = ScratchModel(ALPHABET, width=16, layers=1, heads=2, context=32)
FILES = {
    "mine.py": "import os, numpy\nfrom inner import far\nfrom space.deep import deeper\n\ndef f():\n    import late\n",
    "inner/__init__.py": "from . import near\nfrom .sub import low\n",
    "inner/near.py": "",
    "inner/far.py": "",
    "inner/unused.py": "",
    "inner/sub/__init__.py": "",
    "inner/sub/low.py": "from .. import near\nfrom ...nowhere import x\n",
    "space/deep/deeper.py": "",
    "late.py": "import mine\n",
    "other.py": "",
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    here = {name.partition("/")[0].removesuffix(".py") for name in FILES}
    for name in [name for name in sys.modules if name.partition(".")[0] in here]:  # another test's
        monkeypatch.delitem(sys.modules, name)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_own_code_is_followed_through_its_imports(home: Path) -> None:
    own = {"mine", "inner", "inner.near", "inner.far", "inner.sub", "inner.sub.low", "space.deep.deeper", "late"}
    result = code_fingerprints(["mine"])
    assert set(result) == {f"the code of {name}" for name in own}, (
        "not Python's, nor installed, nor what nobody imports"
    )
    assert "mine" not in sys.modules, "nothing was imported to look at it"
    for name in own:
        path = next(p for p in (home / f"{name.replace('.', '/')}.py", home / name.replace(".", "/") / "__init__.py")
                    if p.exists())  # fmt: skip
        was = path.read_text()
        path.write_text(f"# a remark\n{was}\n\n")
        assert code_fingerprints(["mine"]) == result
        path.write_text(f"{was}\nx = 1\n")
        changed = code_fingerprints(["mine"])
        assert {n for n in result if changed[n] != result[n]} == {f"the code of {name}"}
        path.write_text(was)
    assert code_fingerprints(["ponder.tasks", "json", "sys", "nowhere", "numpy.linalg.nope"]) == {}
    assert list(code_fingerprints(["numpy"])) == ["the code of numpy"], (
        "an installed one that the job names, and no further"
    )


def test_unused_recipe_function_does_not_count(home: Path) -> None:
    marks = []
    for more in ("", "\nf = 1\n", "\nf = recipe()\n"):
        for value in (1, 2):
            (home / "other.py").write_text(f"def recipe():\n    return {value}\n{more}")
            marks.append(code_fingerprints(["other"])["the code of other"])
    assert marks[0] == marks[1] and marks[2] == marks[3] and marks[4] != marks[5]


def test_files_named_by_code_count_unless_it_writes_files(home: Path) -> None:
    (home / "words.txt").write_text("a")
    for text, counts in (
        ("W = open('words.txt').read()", True),
        ("from pathlib import Path\nW = Path(__file__).with_name('words.txt').read_text()", True),
        ("LOG = open('words.txt', 'a')", False),
        ("LOG = open('words.txt', mode='w+')", False),
        ("import json\njson.dump({}, LOG)\nLOG = 'words.txt'", False),
    ):
        (home / "other.py").write_text(text)
        assert ("the file words.txt that other reads" in code_fingerprints(["other"])) == counts, text
    (home / "other.py").write_text("W = open('words.txt').read()")
    before = code_fingerprints(["other"])
    (home / "words.txt").write_text("b")
    assert code_fingerprints(["other"]) != before


@dataclass(frozen=True)
class Lazy(DigitTask):
    start: int = 0

    @property
    def train(self) -> Any:
        return _Counting()


class _Counting:
    first = 0

    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, at: slice) -> list[Problem]:
        return [Problem(str(i), user_messages(str(i + self.first))) for i in range(*at.indices(len(self)))]


def test_training_problems_count(monkeypatch: pytest.MonkeyPatch) -> None:
    learned = "the training problems of digits"
    assert learned in input_fingerprints(RL(DigitTask(), MODEL)) and learned in input_fingerprints(
        FineTune(DigitTask(), MODEL)
    )
    assert learned in input_fingerprints(RL(TaskMixture((DigitTask(), Addition())), MODEL))
    assert learned in input_fingerprints(MakeProblems("filter", task=DigitTask(), model="none"))
    for job in (Evaluate(DigitTask(), "none"), Collect(DigitTask(), "none"), Label(DigitTask(), "none")):
        assert not any("problems" in name for name in input_fingerprints(job)), "whose traces hold each problem whole"
    assert not any("problems" in name for name in input_fingerprints(RL(Addition(), MODEL))), (
        "they follow from settings"
    )
    before = input_fingerprints(RL(Lazy(), MODEL))
    monkeypatch.setattr(_Counting, "first", 1)
    assert input_fingerprints(RL(Lazy(), MODEL))[learned] != before[learned]
    assert "the code of fakes" in before and f"the code of {__name__}" in before


def test_models_count_in_any_field(home: Path) -> None:
    for name in ("teacher", "critic", "solver"):
        (home / name).mkdir()
        (home / name / "config.json").write_text("{}")
    job = RL(DigitTask(), MODEL, algorithm=PPO(critic=Critic(model="critic")), teacher="teacher")
    assert {"the weights of teacher (teacher)", "the weights of algorithm.critic.model (critic)"} <= set(
        input_fingerprints(job)
    )
    asked = input_fingerprints(MakeProblems("filter", task=DigitTask(), solvers=("solver", "teacher")))
    assert {"the weights of solvers (solver)", "the weights of solvers (teacher)"} <= set(asked)
    before = input_fingerprints(job)
    for file in ("tokenizer.json", "chat_template.jinja", "adapter_model.safetensors", "merges.txt"):
        (home / "teacher" / file).write_text("{}")
        assert (before := input_fingerprints(job)) == input_fingerprints(job)
        (home / "teacher" / file).write_text("{ }")
        assert input_fingerprints(job) != before, file


@pytest.mark.parametrize("text", ["", ".", "/", "..", "~", "x" * 5000, "a\nb", "a\0b", "~nobody/x", "://"])
def test_texts_that_are_no_paths_are_ignored(text: str, home: Path) -> None:
    for job in (Label(DigitTask(), "none", separator=text), RL(Placed(place=text), MODEL)):
        assert not any("folder" in n or "file" in n for n in input_fingerprints(job))


@dataclass(frozen=True)
class Placed(DigitTask):
    place: str = ""


def test_folder_of_a_user_object_counts(home: Path) -> None:
    job = RL(Placed(place="inner"), MODEL)
    before = input_fingerprints(job)
    name = "the folder inner (task.place)"
    (home / "inner" / "sub" / "rows").write_text("1")
    more = input_fingerprints(job)
    (home / "inner" / "sub" / "rows").write_text("2")
    assert len({before[name], more[name], input_fingerprints(job)[name]}) == 3


def test_two_files_of_one_name_both_count(home: Path) -> None:
    data = [home / place / "rows.jsonl" for place in ("inner", "space")]
    for path in data:
        path.write_text("1")
    job = TrainRewardModel(tuple(map(str, data)), MODEL)
    seen = [input_fingerprints(job)["the file rows.jsonl (data)"]]
    for path in data:
        path.write_text("2")
        seen.append(input_fingerprints(job)["the file rows.jsonl (data)"])
    assert len(set(seen)) == 3


def test_cached_fingerprint_is_of_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Same size and same time of change do not make it the same."""
    monkeypatch.setenv("PONDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(file_fingerprints, "MIN_CACHED_FILE_BYTES", 1)
    monkeypatch.setattr(file_fingerprints, "SETTLED_NANOSECONDS", 0)
    path, other = tmp_path / "a", tmp_path / "b"
    reads: list[Path] = []
    read: Callable[..., str] = file_fingerprints._hash_file

    def counted(path: Path, size: int) -> str:
        reads.append(path)
        return read(path, size)

    monkeypatch.setattr(file_fingerprints, "_hash_file", counted)
    path.write_bytes(b"one")
    time.sleep(0.02)
    was = path.stat()
    first = file_fingerprint(path)
    assert file_fingerprint(path) == first and len(reads) == 1, "it was not read again"
    path.write_bytes(b"two")
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert file_fingerprint(path) != first
    other.write_bytes(b"one")
    os.utime(other, ns=(was.st_atime_ns, was.st_mtime_ns))
    other.replace(path)
    assert file_fingerprint(path) == first, "by contents, not by when it was written"
    (next((tmp_path / "cache" / "fingerprints").iterdir())).write_text("broken")
    assert file_fingerprint(path) == first


def test_recently_changed_file_is_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PONDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(file_fingerprints, "MIN_CACHED_FILE_BYTES", 1)
    (tmp_path / "a").write_bytes(b"one")
    file_fingerprint(tmp_path / "a")
    assert not (tmp_path / "cache").exists()
