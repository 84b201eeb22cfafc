"""Runs in a notebook: a real kernel executes cells, as Jupyter does."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import nbformat
import psutil
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from support.launch import PATIENCE, Launch

DOCS = Path(__file__).parents[2] / "docs"
FIELDS = "cluster={'worker': 2}, strategy='none', restart={'max': 0}"


@pytest.fixture(autouse=True)
def _surroundings(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFLAUNCH_HOME", str(launch.home))
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    (launch.directory / "ipython").mkdir()
    monkeypatch.setenv("IPYTHONDIR", str(launch.directory / "ipython"))


class Notebook(NotebookClient):
    """Executes cells; ``heard`` is called with the client at every output."""

    def __init__(self, launch: Launch, notebook: Any, heard: Callable[[Notebook], None] = lambda _: None) -> None:
        patience: dict[str, Any] = {"timeout": PATIENCE, "startup_timeout": PATIENCE, "iopub_timeout": PATIENCE}
        super().__init__(notebook, resources={"metadata": {"path": str(launch.directory)}}, **patience)
        self._heard = heard

    def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
        output = super().process_message(msg, cell, cell_index)
        self._heard(self)
        return output

    def text(self) -> str:
        """Return what the cells have printed, and their last values."""
        outputs = [output for cell in self.nb.cells for output in cell.get("outputs", [])]
        return "".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs)


def of_cells(*cells: str) -> Any:
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])


def test_a_cell_s_function_shows_its_output_and_returns(launch: Launch) -> None:
    """The state of the tasks, and lines as in a terminal; each while the tasks are running."""
    go, seen = launch.directory / "go", list[str]()

    def look(client: Notebook) -> None:
        """Let the tasks end once both have shown their line."""
        seen.append(client.text())
        if seen[-1].count("ready") == 2:
            go.touch()

    notebook = Notebook(
        launch,
        of_cells(
            "import tflaunch, os, time\n"
            "def train(go):\n"
            "    print('\\x1b[2Jready')\n"
            "    while not os.path.exists(go):\n"
            "        time.sleep(0.01)\n"
            "    return os.environ['TFLAUNCH_TASK']\n",
            f"result = tflaunch.run(train, args=({str(go)!r},), {FIELDS})",
            "dict(result.values)",
            f"quiet = tflaunch.run(train, args=({str(go)!r},), show=False, {FIELDS}).exit_code",
        ),
        look,
    )
    notebook.execute()
    lines = notebook.text().splitlines()
    assert sorted(line for line in lines if " | " in line) == ["worker:0 | ready", "worker:1 | ready"]
    assert lines[-1] == "{'worker:0': 'worker:0', 'worker:1': 'worker:1'}"
    assert len([line for line in lines if line.startswith("tflaunch: done: 2 tasks in ")]) == 1
    assert any("ready" in text and "done:" not in text for text in seen)
    outputs = [output for cell in notebook.nb.cells for output in cell.outputs if output.output_type == "display_data"]
    (view,) = [output.data["text/html"] for output in outputs]
    assert view.startswith("<pre>train-")
    assert view.count("succeeded") == 3


def test_interrupting_the_kernel_ends_the_run(launch: Launch) -> None:

    def interrupt(client: Notebook) -> None:
        if client.text().count("ready") == 2 and not interrupted:
            interrupted.append(asyncio.ensure_future(cast("Any", client.km.interrupt_kernel())))
            survivors.extend(launch.survivors())

    interrupted: list[Any] = []
    survivors: list[psutil.Process] = []
    cells = of_cells(
        "import tflaunch, time\ndef train():\n    print('ready')\n    time.sleep(600)\n",
        f"tflaunch.run(train, {FIELDS})",
    )
    with pytest.raises(CellExecutionError, match="KeyboardInterrupt"):
        Notebook(launch, cells, interrupt).execute()
    assert len(survivors) >= 4
    assert launch.survivors() == []


@pytest.mark.tensorflow
def test_the_notebook_of_the_docs(launch: Launch) -> None:
    """Two workers train together, their progress shows, and their metrics come back."""
    notebook = Notebook(launch, nbformat.read(DOCS / "notebook.ipynb", as_version=4))
    notebook.execute()
    lines = notebook.text().splitlines()
    for task in ("worker:0", "worker:1"):
        assert f"{task} | Epoch 3/3" in lines
    metrics = ast.literal_eval("\n".join(lines[lines.index(next(line for line in lines if line.startswith("{"))) :]))
    assert metrics["replicas"] == 2
    assert metrics["loss"][2] < metrics["loss"][0]
    assert launch.survivors() == []
