"""The page in a notebook: in JupyterLab, and on the page that nbconvert makes of it, without any network."""

import os
import re
import socket
import subprocess
import sys
import time
from urllib.request import urlopen

import nbformat
import pytest
from playwright.sync_api import expect
from tests.viewer.browser.reading import PATIENCE, choose, query_of

CODE = """
import torch
from convattn import AttentionNet, view

torch.manual_seed(0)
network = AttentionNet(width=8, depth=2, heads=4, ffn=8).eval()
page = view(network, torch.rand(2, 3, 16, 16), mean=(0, 0, 0), std=(1, 1, 1), title="In a notebook")
page
"""
START = 120
"""Seconds in which a notebook server must be there, on a machine that does much else."""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder for a notebook, and with settings that nobody has changed."""
    return tmp_path_factory.mktemp("home")


def write_notebook(file, *outputs):
    """Writes a notebook of one cell, with what it has shown."""
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    cells = [nbformat.v4.new_code_cell(CODE, outputs=list(outputs))]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), file)


@pytest.fixture(scope="module")
def environment(home):
    own = {f"JUPYTER_{name}_DIR": str(home / name) for name in ("CONFIG", "DATA", "RUNTIME")}
    return {
        **os.environ,
        **own,
        "HOME": str(home),
        "IPYTHONDIR": str(home / "ipython"),
        "PYTHONWARNINGS": "ignore",
    }


@pytest.fixture(scope="module")
def lab(home, environment):
    """A JupyterLab that asks nobody for news; its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {
        "ServerApp.port": port,
        "ServerApp.port_retries": 0,
        "ServerApp.allow_root": True,
        "ServerApp.root_dir": home,
        "IdentityProvider.token": "",
        "LabApp.news_url": "None",
        "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
        "LabApp.extension_manager": "readonly",
        "LabApp.expose_app_in_browser": True,
    }
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--no-browser",
        *(f"--{key}={one}" for key, one in settings.items()),
    ]
    address, end = f"http://127.0.0.1:{port}", time.monotonic() + START
    with (
        (home / "lab.log").open("w") as log,
        subprocess.Popen(command, env=environment, stdout=log, stderr=log) as lab,
    ):
        try:
            while True:
                try:
                    with urlopen(f"{address}/api/status", timeout=5):
                        break
                except OSError:
                    assert lab.poll() is None, (home / "lab.log").read_text()
                    assert time.monotonic() < end, (home / "lab.log").read_text()
                    time.sleep(0.1)
            yield address
        finally:
            lab.terminate()
            lab.wait(60)


RUN = """async () => {
  const app = window.jupyterapp;
  await app.restored;
  let notebook = null;
  while (!(notebook = app.shell.currentWidget?.sessionContext && app.shell.currentWidget)) {
    await new Promise((done) => setTimeout(done, 100));
  }
  await notebook.context.ready;
  await notebook.sessionContext.ready;
  await notebook.sessionContext.session.kernel.info;
  await app.commands.execute("notebook:run-all-cells");
}"""
"""Runs all cells once the kernel answers; before, the page takes a command and loses it."""


def test_the_page_works_in_jupyterlab(opened, home, lab):
    write_notebook(home / "lab.ipynb")
    page = opened(f"{lab}/lab/tree/lab.ipynb", height=1000)
    page.set_default_timeout(1000 * START)
    page.wait_for_function("window.jupyterapp !== undefined")
    page.evaluate(RUN)
    frame = page.frame_locator('iframe[title^="Attention maps: "]')
    page.locator(".jp-OutputArea-output").first.wait_for()
    assert "Error" not in page.locator(".jp-OutputArea").first.inner_text()
    expect(frame.locator("button.map")).to_have_count(8, timeout=1000 * START)
    expect(frame.get_by_role("heading", name="In a notebook")).to_be_visible()
    first = query_of(frame)
    frame.get_by_test_id("picture").click(position={"x": 12, "y": 15})
    assert query_of(frame) != first
    choose(frame, 1, 3)
    assert "Head 4" in frame.locator("section.detail").inner_text()
    opened.watched.errors[:] = [one for one in opened.watched.errors if one.frame == "about:srcdoc"]


def test_the_page_is_there_after_nbconvert(opened, home, environment):
    run = {}
    exec(CODE, run)
    html = {"text/html": run["page"]._repr_html_()}
    write_notebook(home / "note.ipynb", nbformat.v4.new_output("execute_result", data=html))
    command = [sys.executable, "-m", "nbconvert", "--to", "html", "note.ipynb"]
    made = subprocess.run(
        command, cwd=home, env=environment, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    page = opened((home / "note.html").as_uri())
    frames = page.locator("iframe")
    expect(frames).to_have_count(1)
    frames.scroll_into_view_if_needed()
    frame = page.frame_locator("iframe")
    expect(frame.locator("button.map")).to_have_count(8, timeout=1000 * PATIENCE)
    first = query_of(frame)
    frame.get_by_test_id("picture").click(position={"x": 12, "y": 15})
    assert query_of(frame) != first
    assert not [one for one in opened.watched.outside if one.frame == "about:srcdoc"]
    assert not [one for one in opened.watched.errors if one.frame == "about:srcdoc"]
    for one in opened.watched.outside:
        assert re.match(r"https://(cdnjs|cdn\.jsdelivr|unpkg)", one.text)
    opened.watched.outside.clear()  # nbconvert's own: the page must do without them
    opened.watched.errors.clear()
