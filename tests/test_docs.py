"""The documents: code runs, commands exist, every relative link leads somewhere, and files agree on versions."""

import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import convattn
from convattn.models import ResNet

ROOT = Path(__file__).parents[1]
NO_PAGES = {"build", "dist", "runs", "demo", "node_modules", "templates"}
FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
RUNNABLE_FOLDERS = ("docs/how-to", "docs/explanation", "docs/reference")
FINE_TUNE = ROOT / "examples" / "fine_tune.py"  # needs arguments: see `tests/test_fine_tune.py`
EXAMPLES = sorted(set((ROOT / "examples").glob("*.py")) - {FINE_TUNE})


def read(path: Path | str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def is_ours(path: Path) -> bool:
    folders = path.relative_to(ROOT).parts
    return NO_PAGES.isdisjoint(folders) and not folders[0].startswith(".")


def blocks(page: Path, language: str) -> list[str]:
    fenced = FENCE.findall(read(page))
    return [code for tag, code in fenced if tag == language]


EXPLAINS = {
    "each number with its standard error",
    "nine convolutions by construction, and where",
    "which way of computing it takes, why, and what that costs",
}
"""Comments behind a print that say what it is, not what is printed."""


def printed_by(line: str) -> str | None:
    """Returns what a line of code says that it prints; … stands for anything."""
    said = re.fullmatch(r"print\(.*\)  # (.+)", line)
    return None if said is None or said[1] in EXPLAINS else said[1]


PAGES = sorted(filter(is_ours, ROOT.rglob("*.md")))
RUNNABLE = [page for page in PAGES if name(page).startswith(RUNNABLE_FOLDERS)]
RUNNABLE = [ROOT / "README.md", *(page for page in RUNNABLE if blocks(page, "python"))]


@pytest.mark.parametrize("page", RUNNABLE, ids=name)
def test_python_blocks_run_and_print_what_they_say(
    page, tmp_path, monkeypatch, capsys, encodings_forgotten
):
    """On a residual network of an eighth of the width, which runs every line as well."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(convattn, "resnet18", lambda **options: ResNet(2, width=8, **options))
    namespace = {"__name__": "readme"}
    for number, code in enumerate(blocks(page, "python"), start=1):
        exec(compile(code, f"{name(page)}, python block {number}", "exec"), namespace)
    printed = "".join(capsys.readouterr().out.split())  # lines are broken as they fit
    for said in filter(None, map(printed_by, read(page).splitlines())):
        parts = [re.escape("".join(part.split())) for part in said.split("…")]
        found = re.search(".*?".join(parts), printed)
        assert found, f"{said!r} was not printed, or not in this place"
        printed = printed[found.end() :]


@pytest.mark.slow
def test_the_commands_of_an_analysis_run_as_pasted(tmp_path):
    (block,) = blocks(ROOT / "docs" / "how-to" / "analyse.md", "sh")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-euc", block], cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "vit-report" / "index.html").exists()


@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_example_runs(example, tmp_path, monkeypatch, encodings_forgotten):
    assert "assert" in read(example), "an example ends by asserting what it showed"
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(example), run_name="__main__")


def anchors(text: str) -> set[str]:
    """Gives the fragment of every heading, the way GitHub derives it."""
    headings = re.findall(r"^#+ +(.+?) *$", FENCE.sub("", text), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def relative_links(text: str) -> list[str]:
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))
    targets = re.findall(r"\]\(<?([^)\s>]+)>?(?: \"[^\"]*\")?\)", text)
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def leads_somewhere(page: Path, link: str) -> bool:
    path, _, fragment = link.partition("#")
    target = page.parent / path if path else page
    if not target.exists():
        return False
    return not fragment or target.suffix != ".md" or fragment in anchors(read(target))


def broken_links(page: Path) -> list[str]:
    return [link for link in relative_links(read(page)) if not leads_somewhere(page, link)]


def test_relative_links_resolve():
    broken = {name(page): broken_links(page) for page in PAGES}
    assert {page: links for page, links in broken.items() if links} == {}


def test_a_broken_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# One *two*\n[a](#one-two) [b](#three) [c](gone.md) [d](page.md#one-two) [e](https://example.org)\n"
    )
    assert broken_links(page) == ["#three", "gone.md"]


def test_make_commands_exist():
    targets = re.findall(r"^([a-z-]+):", read("Makefile"), flags=re.MULTILINE)
    for page in PAGES:
        code = blocks(page, "sh") + re.findall(r"`(make [^`\n]*)`", read(page))
        commands = re.findall(r"^make ([a-z-]+)", "\n".join(code), flags=re.MULTILINE)
        assert set(commands) <= set(targets), name(page)


def test_files_of_code_that_are_named_exist():
    for page in ("Makefile", "CONTRIBUTING.md", "docs/architecture.md"):
        files = re.findall(r"\b(\w+/[a-z_/0-9]+\.py)\b", read(page))
        places = [ROOT, ROOT / "tests", ROOT / "src/convattn"]
        assert len(files) > 2
        for file in files:
            assert any((place / file).is_file() for place in places), f"{page} names {file}"


def test_every_decision_is_listed():
    decisions = ROOT / "docs/decisions"
    listed = re.findall(r"\]\((\d{4}-[^)]+)\)", read(decisions / "README.md"))
    assert listed == sorted(file.name for file in decisions.glob("0*.md"))


def test_docstrings_name_pages_by_their_path():
    written = {"README.md", "study.md"}
    for file in sorted((ROOT / "src").rglob("*.py")):
        for page in set(re.findall(r"[\w/-]+\.md\b", read(file))) - written:
            assert (ROOT / page).is_file(), f"{name(file)} names {page}"


def test_a_packages_page_has_no_relative_pictures_and_links():
    hooks = tomllib.loads(read("pyproject.toml"))["tool"]["hatch"]["metadata"]["hooks"]
    text = read("README.md")
    assert re.findall(r"\]\((?!https:)", text)
    for change in hooks["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(change["pattern"], change["replacement"], text)
    assert not re.findall(r"!\[|\]\((?!https:)", text)
    assert "Tutorials · how-to guides · explanation" in text
    assert re.findall("pip install .*", text) == [
        "pip install convattn",
        'pip install "convattn[train,timm]"`; a missing one is named with the line that installs it.',
    ]


def test_a_source_archive_has_what_its_commands_need():
    settings = tomllib.loads(read("pyproject.toml"))["tool"]["hatch"]["build"]["targets"]
    packed = {*settings["sdist"]["include"], "/LICENSE", "/pyproject.toml"}
    text = read("Makefile") + read("README.md") + read("scripts/check")
    words = set(re.findall(r"[\w.-]+", text)) - {".coverage"}  # which `make coverage` leaves
    needed = {word for word in words if (ROOT / word).is_file()}
    assert needed >= {"package.json", ".npmrc", "CONTRIBUTING.md"}
    assert packed >= {f"/{word}" for word in {*needed, "README.md"}}


def test_the_citation_and_the_changelog_have_the_version_of_the_package():
    assert f"version: {convattn.__version__}\n" in read("CITATION.cff")
    assert f"## {convattn.__version__}," in read("CHANGELOG.md")
