"""The program with checkpoints of docs/migration.md: it is killed while it saves, and the same command goes on."""

import signal

import pytest

from tests.started import python
from tests.test_docs import read

(PROGRAM,) = (text for text in read("docs/migration.md").blocks("python") if "ocp.CheckpointManager(" in text)
KILLED_AS_IT_COMMITS_THE_THIRD = """
import os, pathlib, signal

def rename(source, *arguments, rename=os.rename):
    if pathlib.Path(source).name == "300.orbax-checkpoint-tmp":
        os.kill(os.getpid(), signal.SIGKILL)
    return rename(source, *arguments)

os.rename = rename
"""


@pytest.fixture
def run(tmp_path):
    def run(before=""):
        (tmp_path / "program.py").write_text(before + PROGRAM)
        return python("program.py", cwd=tmp_path)

    return run


def test_it_goes_on_after_a_half_written_checkpoint(run, tmp_path):
    killed = run(KILLED_AS_IT_COMMITS_THE_THIRD)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert killed.stdout.splitlines() == ["True", "from step 0"]
    saved = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert saved == {"100", "200", "300.orbax-checkpoint-tmp"}
    resumed = run()
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout.splitlines() == ["True", "from step 200", "True"]
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {str(100 * i) for i in range(1, 11)}
