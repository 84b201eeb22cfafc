# ruff: noqa: INP001 (a script, run on purpose)
"""Pictures of the page: runs two jobs, opens them in a browser, and saves what it shows as docs/pictures/web-*.png.

    python docs/web_pictures.py

Needs tflaunch with its `dev` and `tensorflow` requirements, and chromium.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pictures import Directories, directories
from playwright.sync_api import Page, sync_playwright

REPOSITORY = Path(__file__).resolve().parent.parent
PICTURES = REPOSITORY / "docs" / "pictures"
TFLAUNCH = str(Path(sys.executable).with_name("tflaunch"))
EPOCHS = 30
PATIENCE = 180_000  # milliseconds
RECORDED = 15_000  # milliseconds of training in the charts
BROKEN = """
import json, os, time

def load(shard):
    images = ["image"] * shard
    return images[1]

task = json.loads(os.environ["TF_CONFIG"])["task"]
print(f"loading shard {task['index']}", flush=True)
time.sleep(2)
load(3 - task["index"])
time.sleep(60)
"""


@contextmanager
def served(env: dict[str, str]) -> Iterator[str]:
    """Serve the page, and yield its link."""
    command = [TFLAUNCH, "web"]
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stderr is not None
        found = re.search(r"http://\S+", process.stderr.readline())
        assert found is not None
        try:
            yield found[0]
        finally:
            process.terminate()


def tflaunch(env: dict[str, str], place: Path, *arguments: str) -> str:
    """Run a command and return what it printed."""
    done = subprocess.run([TFLAUNCH, *arguments], env=env, cwd=place, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def take(page: Page, name: str, where: Directories) -> None:
    """Save what the page shows, with the paths that all pictures show."""
    for element in page.query_selector_all("pre, code"):
        element.evaluate("(shown, text) => { shown.textContent = text }", where.hidden(element.text_content() or ""))
    PICTURES.mkdir(exist_ok=True)
    page.screenshot(path=PICTURES / f"web-{name}.png")


def main() -> None:
    """Take all pictures."""
    with directories() as where, sync_playwright() as playwright:
        place = where.place
        env = {**os.environ, "TFLAUNCH_HOME": str(where.home), "TF_CPP_MIN_LOG_LEVEL": "3"}
        (place / "train.py").write_text(BROKEN)
        spec = {"cluster": {"worker": 4}, "command": ["python", "train.py"], "restart": {"max": 0}, "name": "flowers"}
        (place / "broken.json").write_text(json.dumps(spec))
        tflaunch(env, place, "up", "broken.json")
        example = ["python", "-m", "tflaunch_worker.examples.mnist_multi_worker", "--epochs", str(EPOCHS)]
        training = str(REPOSITORY / "cluster_specs" / "mnist_multi_worker.json")
        run = tflaunch(env, place, "up", "-d", training, "--", *example)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        try:
            with served(env) as link:
                page = browser.new_page(viewport={"width": 1200, "height": 700})
                page.set_default_timeout(PATIENCE)
                page.goto(link)
                page.click(f"text={run}")
                page.wait_for_selector(".chart:visible >> text=Steps per second")
                page.wait_for_timeout(RECORDED)
                take(page, "run", where)
                page.click(".mark")
                page.click("text=flowers-")
                page.wait_for_selector(".panel.bad")
                page.emulate_media(color_scheme="dark")
                take(page, "failure", where)
        finally:
            browser.close()
            tflaunch(env, place, "down", "--all", "-t", "0")


if __name__ == "__main__":
    main()
