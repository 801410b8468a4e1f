"""Users' editors: pyright finds nothing wrong with the snippets of the docs and a user's script.

pyright needs Node.js and is no part of the dev extra: `pip install pyright`, then this test runs.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_pyright_is_clean_on_the_main_path(tmp_path: Path) -> None:
    pytest.importorskip("pyright", reason="pyright is not installed")
    shutil.copytree(ROOT / "docs" / "snippets", tmp_path / "snippets")
    shutil.copy(Path(__file__).with_name("user_script.py"), tmp_path)
    broken = "from ponder import RL\nRL(task=3)\nRL(task='addition').task.nothing\n"
    (tmp_path / "broken.py").write_text(broken)
    config = {"extraPaths": [str(ROOT / "src")], "typeCheckingMode": "standard"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=280,
    )
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] > 10
    found = [
        (Path(d["file"]).name, d["range"]["start"]["line"] + 1, d["message"]) for d in report["generalDiagnostics"]
    ]
    assert [f for f in found if f[0] != "broken.py"] == []
    assert [line for name, line, _ in found if name == "broken.py"] == [2, 3], "what is wrong is found"
