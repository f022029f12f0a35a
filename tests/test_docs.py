"""The documents: README code runs, examples run, commands exist, and every relative link leads somewhere."""

import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from convattn import __version__

ROOT = Path(__file__).parents[1]
NOT_OURS = {"build", "dist", "runs", "demo", "node_modules"}
PAGES = sorted(
    page
    for page in ROOT.rglob("*.md")
    if not any(part.startswith(".") or part in NOT_OURS for part in page.relative_to(ROOT).parts)
)
RUNNABLE_FOLDERS = ("docs/how-to", "docs/explanation", "docs/reference")
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    return [
        code for found, code in FENCE.findall(page.read_text(encoding="utf-8")) if found == language
    ]


RUNNABLE = [
    page
    for page in PAGES
    if name(page) == "README.md"
    or (name(page).startswith(RUNNABLE_FOLDERS) and blocks(page, "python"))
]


def anchors(page: Path) -> set[str]:
    """Give the fragment of every heading, the way GitHub derives it."""
    headings = re.findall(
        r"^#+ +(.+?) *$", FENCE.sub("", page.read_text(encoding="utf-8")), flags=re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def relative_links(page: Path) -> list[str]:
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text(encoding="utf-8")))
    targets = re.findall(r"\]\(<?([^)\s>]+)>?(?: \"[^\"]*\")?\)", text)
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def broken_links(page: Path) -> list[str]:
    broken = []
    for link in relative_links(page):
        path, _, fragment = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        lost_anchor = (
            fragment
            and target.suffix == ".md"
            and target.exists()
            and fragment not in anchors(target)
        )
        if not target.exists() or lost_anchor:
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", RUNNABLE, ids=name)
def test_python_blocks_run(page, tmp_path, monkeypatch, encodings_forgotten):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "readme"}
    for number, code in enumerate(blocks(page, "python"), start=1):
        exec(compile(code, f"{name(page)}, python block {number}", "exec"), namespace)


@pytest.mark.slow
def test_the_commands_of_an_analysis_run_as_pasted(tmp_path):
    (block,) = blocks(ROOT / "docs" / "how-to" / "analyse.md", "sh")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-euc", block], cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "vit-report" / "index.html").exists()


@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_example_runs(example, tmp_path, monkeypatch, encodings_forgotten):
    assert "assert" in example.read_text(encoding="utf-8"), (
        "an example ends by asserting what it showed"
    )
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(example), run_name="__main__")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_relative_links_resolve(page):
    assert broken_links(page) == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_make_commands_exist(page):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, flags=re.MULTILINE))
    commands = "\n".join(
        blocks(page, "sh") + re.findall(r"`(make [^`\n]*)`", page.read_text(encoding="utf-8"))
    )
    assert set(re.findall(r"^make ([a-z]+)", commands, flags=re.MULTILINE)) <= targets


def test_docstrings_name_pages_by_their_path():
    for file in sorted((ROOT / "src").rglob("*.py")):
        named = set(re.findall(r"[\w/-]+\.md\b", file.read_text(encoding="utf-8"))) - {
            "README.md",
            "study.md",
        }
        assert all((ROOT / page).is_file() for page in named), f"{name(file)} names {named}"


def test_a_broken_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# One *two*\n[a](#one-two) [b](#three) [c](gone.md) [d](page.md#one-two) [e](https://example.org)\n"
    )
    assert broken_links(page) == ["#three", "gone.md"]


def test_a_packages_page_has_no_relative_pictures_and_links():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\((?!https:)", text)
    for change in settings["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"][
        "substitutions"
    ]:
        text = re.sub(change["pattern"], change["replacement"], text)
    assert not re.findall(r"!\[|\]\((?!https:)", text)
    assert "Tutorials · how-to guides · explanation" in text
    assert re.findall("pip install .*", text) == [
        "pip install convattn",
        'pip install "convattn[train,timm]"`; a missing one is named with the line that installs it.',
    ]


def test_a_source_archive_has_what_its_commands_need():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    kept = set(settings["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]) | {
        "/LICENSE",
        "/pyproject.toml",
    }
    text = "".join(
        (ROOT / name).read_text(encoding="utf-8")
        for name in ("Makefile", "README.md", "scripts/check")
    )
    named = {word for word in re.findall(r"[\w.-]+", text) if (ROOT / word).is_file()}
    assert {"package.json", ".npmrc", "CONTRIBUTING.md"} <= named
    assert {f"/{name}" for name in {*named, "README.md"}} <= kept


def test_the_citation_has_the_version_of_the_package():
    assert f"version: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"## {__version__}," in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
