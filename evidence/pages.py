"""Writes README.md and the pages of results from templates and records, so that no number is typed.

    python -m evidence.pages            # writes the pages that differ
    python -m evidence.pages --check    # writes nothing; exit code 1 if a page is not what its records give

A template is a file of the folder templates: Markdown in which `{{ … }}` is worded by `evidence/values.py` from a
record. Pages of one record are worded by the script that measures it. A template may have a number that looks measured
only in a line after `{# FILE #}`, which names a file of the repository that has this number, or after
`{# set NUMBER … #}`, which says that it was chosen, not measured.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks.page import suite_page
from benchmarks.record import BenchmarkRecord
from convattn.files import write_atomically
from convattn.heads import verdict
from convattn.lab import paper_table
from evidence import results, studies, values
from evidence.attention_adapters import __main__ as attention_adapters
from evidence.certify import __main__ as certify
from evidence.encodings import __main__ as encodings
from evidence.pretrained import __main__ as pretrained
from evidence.results import PAGES, ROOT, new_parser
from evidence.sharpness import __main__ as sharpness
from evidence.speech_heads import page as speech_heads
from evidence.speedrun import __main__ as speedrun
from evidence.sweep import page as sweep
from evidence.sweep.record import read
from evidence.text_heads import page as text_heads
from evidence.trained_networks import page as trained_networks
from evidence.values import EVIDENCE
from evidence.vit_heads import page as vit_heads
from evidence.vit_replaced import page as vit_replaced

TEMPLATES = EVIDENCE / "templates"

SCRIPTS: dict[str, ModuleType] = {
    "attention-adapters-tables": attention_adapters,
    "certify": certify,
    "pretrained-tables": pretrained,
    "sharpness": sharpness,
    "speech-heads": speech_heads,
    "text-heads": text_heads,
    "trained-networks-tables": trained_networks,
    "vit-heads": vit_heads,
    "vit-replaced": vit_replaced,
}
"""Pages of one record, and the module whose `page` words it; the record lies beside the module."""

MEASURED = re.compile(
    r"\d+\.\d+|\d{1,3}(?:,\d{3})+|\d+ of \d+|\d+(?= ?(?:%|ms|s|points?|times|core hours|[GM]i?B)(?!\w))"
)
"""Numbers that look measured: decimals, thousands, shares, and what has the unit of a measurement."""

SET = re.compile(r"\d+\.\d+\.\d+|Python \d\.\d+|Apache-2\.0|(?<!\d)95 %")
"""Numbers that are set: versions, and the level of intervals."""

SHOWN_AS_TYPED = re.compile(
    r"\{\{.*?\}\}|\{%.*?%\}|^```.*?^```|^    .*?$|`[^`\n]*`|\]\([^)]*\)|<[^>\n]*>",
    re.DOTALL | re.MULTILINE,
)
"""What is no prose of a template: holes, loops, code, addresses."""


def pages() -> Iterator[tuple[Path, str]]:
    """Lists every page: its file, and the text that the records give."""
    for name, module in SCRIPTS.items():
        record = values.record(f"{Path(str(module.__file__)).parent.name}/{_record(name)}.json")
        yield PAGES / f"{name}.md", module.page(record)
    for name in ("layers", "networks-speed", "sequences"):
        suite = BenchmarkRecord.load(EVIDENCE / "speed" / f"{name}.json")
        yield PAGES / f"{name}-tables.md", suite_page(suite)
    yield PAGES / "networks-tables.md", sweep.page(read(EVIDENCE / "sweep" / "networks.jsonl"))
    yield PAGES / "speedrun-tables.md", speedrun.page(EVIDENCE / "speedrun")
    looks = values.record("encodings/encodings.json")
    yield PAGES / "encodings-tables.md", encodings.page(EVIDENCE / "encodings" / "table", looks)
    for file in sorted(TEMPLATES.rglob("*.md")):
        yield page_of(file), rendered(file)


def _record(page: str) -> str:
    return page.removesuffix("-tables")


def page_of(template: Path) -> Path:
    """Returns the page of a template: it has the same place in the repository."""
    return ROOT / template.relative_to(TEMPLATES)


def rendered(template: Path) -> str:
    """Fills a template with the numbers of the records."""
    environment = Environment(  # Markdown is not HTML
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    for module in (
        results,
        paper_table,
        sharpness,
        speedrun,
        studies,
        verdict,
        values,
    ):
        environment.globals |= vars(module)
        environment.filters |= {name: one for name, one in vars(module).items() if callable(one)}
    environment.globals["replaced_answer"] = vit_replaced.answer
    environment.globals["speech_replaced_answer"] = speech_heads.answer
    return environment.get_template(template.relative_to(TEMPLATES).as_posix()).render()


def untied(template: str) -> list[str]:
    """Lists the numbers of a template that look measured, come from no record, and are in no file that is named."""
    found = []
    named = ""
    for line in SHOWN_AS_TYPED.sub(" ", template).splitlines():
        comment = re.fullmatch(r"\{# (.*) #\}", line)
        if comment is not None:
            named = line if comment[1].startswith("set") else _files(comment[1])
            continue
        for number in MEASURED.findall(SET.sub(" ", line)):
            there = re.search(rf"(?<![\d.,]){re.escape(number)}(?!\d)", named)
            if there is None:
                found.append(number)
        named = ""
    return found


def _files(names: str) -> str:
    """Reads the files that a comment names."""
    return "".join((ROOT / name).read_text(encoding="utf-8") for name in names.split(", "))


def committed() -> dict[Path, str]:
    """Reads README.md, the pages of results, and the other pages of a template, as they are."""
    templates = map(page_of, TEMPLATES.rglob("*.md"))
    files = {*templates, *PAGES.glob("*.md")}
    return {file: file.read_text(encoding="utf-8") for file in files if file.is_file()}


def different(given: Mapping[Path, str], shown: Mapping[Path, str]) -> list[str]:
    """Lists the pages that are not what their records give, a line for each.

    Args:
        given: Text of each page as the records give it.
        shown: Text of each page as it is.
    """
    lines = []
    for file in sorted(given.keys() | shown.keys()):
        if file not in given:
            lines.append(f"{file.relative_to(ROOT)} comes from no record")
        elif given[file] != shown.get(file):
            lines.append(f"{file.relative_to(ROOT)} is not what its records give")
    return lines


def strange() -> list[str]:
    """Lists the numbers of templates that look measured and come from no record."""
    lines = []
    for template in sorted(TEMPLATES.rglob("*.md")):
        name = template.relative_to(ROOT)
        numbers = untied(template.read_text(encoding="utf-8"))
        lines += [f"{name}: {number} comes from no record" for number in numbers]
    return lines


def main() -> int:
    """Writes the pages that differ, or lists them."""
    parser = new_parser(__doc__)
    parser.add_argument("--check", action="store_true", help="list what differs and write nothing")
    only_check = parser.parse_args().check
    given, shown = dict(pages()), committed()
    for file, text in given.items():
        if not only_check and text != shown.get(file):
            write_atomically(file, text)
            print(f"wrote {file.relative_to(ROOT)}")
    lines = [*different(given, committed()), *strange()]
    print(*lines, f"{len(given)} pages, {len(lines)} wrong", sep="\n")
    return 1 if lines else 0


if __name__ == "__main__":
    raise SystemExit(main())
