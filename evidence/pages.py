"""Writes README.md and the pages of results from templates and records, so that no number is typed.

    python -m evidence.pages            # writes the pages that differ
    python -m evidence.pages --check    # writes nothing; exit code 1 if a page is not what its records give

A template is a file of the folder templates: Markdown in which `{{ … }}` is worded from a record, by the modules of
`WORDS` or by that of the question. A template may have a number that looks measured only in a line after `{# FILE #}`,
which names a file of the repository that has this number, or after `{# set NUMBER … #}`, which says that it was chosen,
not measured. A word of a result, as "ahead" or "exact", comes from a function of records, too; a line may have it only
after `{# words WORD, WORD #}`, which names all such words of the line, each as often as it is there: for a definition
or a method.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks import report
from benchmarks.page import suite_page
from convattn.files import write_atomically
from convattn.heads import verdict
from convattn.lab import paper_table
from evidence import results, studies, values
from evidence.attention_adapters import __main__ as attention_adapters
from evidence.card import page as card
from evidence.certify import __main__ as certify
from evidence.encodings import __main__ as encodings
from evidence.real_weights import page as real_weights
from evidence.results import EVIDENCE, PAGES, ROOT, new_parser
from evidence.sharpness import __main__ as sharpness
from evidence.speedrun import __main__ as speedrun
from evidence.speedrun import centres, operations, plans, stem
from evidence.studies import Study
from evidence.sweep import page as sweep
from evidence.trained_heads import page as trained_heads
from evidence.trained_networks import page as trained_networks

TEMPLATES = EVIDENCE / "templates"

WORDS = (
    report,
    centres,
    operations,
    paper_table,
    plans,
    results,
    stem,
    studies,
    verdict,
    values,
)
"""Modules whose names templates use as they are, the last one of several."""

QUESTIONS = {
    "attention_adapters": attention_adapters,
    "card": card,
    "certify": certify,
    "encodings": encodings,
    "real_weights": real_weights,
    "sharpness": sharpness,
    "speedrun": speedrun,
    "sweep": sweep,
    "trained_heads": trained_heads,
    "trained_networks": trained_networks,
}
"""Modules whose names templates use after the name of their question."""

MEASURED = re.compile(
    r"\d+\.\d+|\d{1,3}(?:,\d{3})+|\d+ of \d+|\d+(?= ?(?:%|ms|s|points?|times|core hours|[GM]i?B)(?!\w))"
)
"""Numbers that look measured: decimals, thousands, shares, and what has the unit of a measurement."""

SET = re.compile(r"\d+\.\d+\.\d+|Python \d\.\d+|Apache-2\.0|(?<!\d)95 %")
"""Numbers that are set: versions, and the level of intervals."""

VERDICT = re.compile(
    r"\b(?:(?:un)?resolved|ahead|behind|better|worse|beats?|gains?|loses?|wins?|won|helps?|steadily|significant\w*"
    r"|twice|thirds?|faster|slower|as fast|no (?:difference|change)"
    r"|(?:more|fewer|than|by|above|below|within|beyond|be) chance|chance gives"
    r"|exact(?:ly)?|bit for bit|b?float(?:16|32|64)|half precision|held-out|n = \d+"
    r"|(?:grids?|kernels?) (?:do(?:es)? not )?forms?|forms? (?:\w+ )*(?:grids?|kernels?)"
    r"|(?:without|free of|has no) (?:an?y? )?convolutions?|wider|narrower|narrow(?=s? with)|lower than|higher than)\b"
    r"|(?:^|[|.:?*\"] *\**)(?:Yes|No|Not|None|Never|Some|Mostly|Parts)\b"
    r"(?! (?:called|covered|done|run|passed|yet|as|so|found|tuned)\b)",
    re.IGNORECASE,
)
"""Words of results: who is ahead and whether that is resolved, answers, chance, precision, what was held out, n."""

HOLE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.DOTALL)
_NAMES = re.compile(
    r"\[\"[^\"]*\"\]|(?:attr|groupby|study|record|found|startswith)\([^)]*\)|(?:attribute=|== )\"[^\"]*\""
)
"""What stands in quotes in a hole and is no text of the page."""

SHOWN_AS_TYPED = re.compile(
    r"^```.*?^```|^    .*?$|`[^`\n]*`|\]\([^)]*\)|<[^>\n]*>", re.DOTALL | re.MULTILINE
)
"""What is no prose of a template, beside holes: code and addresses."""


def pages() -> dict[Path, str]:
    """Returns every page: its file, and the text that the records give."""
    read = cache(studies.study)  # many pages are about the same runs
    return {page_of(file): rendered(file, read) for file in sorted(TEMPLATES.rglob("*.md"))}


def page_of(template: Path) -> Path:
    """Returns the page of a template: it has the same place in the repository."""
    return ROOT / template.relative_to(TEMPLATES)


def rendered(template: Path, study: Callable[[str], Study] = studies.study) -> str:
    """Fills a template with the numbers of the records; `study` reads the runs of a folder."""
    environment = Environment(  # Markdown is not HTML
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    for module in WORDS:
        environment.globals |= vars(module)
        for name, one in vars(module).items():
            if getattr(one, "__module__", None) == module.__name__:
                environment.filters[name] = one
    environment.filters["capitalize_first"] = trained_heads.capitalize_first
    environment.globals |= {**QUESTIONS, "suite_page": suite_page, "study": study}
    return environment.get_template(template.relative_to(TEMPLATES).as_posix()).render()


def untied(template: str) -> list[str]:
    """Lists what a template says and no record does.

    These are numbers that look measured and are in no file that is named, and words of results that are not named, or
    named and not there, each with its line.
    """
    found = []
    numbers_of, words_of = "", ""
    numbers = SHOWN_AS_TYPED.sub(_lines, HOLE.sub(_lines, template)).splitlines()
    words = SHOWN_AS_TYPED.sub(_lines, HOLE.sub(_texts, template)).splitlines()
    for place, (line, text) in enumerate(zip(numbers, words, strict=True), 1):
        comment = re.fullmatch(r"\{# (.*) #\}", line)
        if comment is not None:
            kind, _, rest = comment[1].partition(" ")
            if kind == "words":
                words_of = rest
            else:
                numbers_of += line if kind == "set" else _files(comment[1])
            continue
        for number in MEASURED.findall(SET.sub(" ", line)):
            there = re.search(rf"(?<![\d.,]){re.escape(number)}(?!\d)", numbers_of)
            if there is None:
                found.append(f"line {place}: {number}")
        typed = Counter(word.strip('|.:?*" ').lower() for word in VERDICT.findall(text))
        named = Counter(words_of.lower().split(", ") if words_of else [])
        found += [f"line {place}: {word}" for word in sorted((typed - named) + (named - typed))]
        numbers_of, words_of = "", ""
    return found


def _lines(part: re.Match[str]) -> str:
    """Keeps of a part of a template that it took lines."""
    return "\n" * part[0].count("\n") or " "


def _texts(hole: re.Match[str]) -> str:
    """Keeps the texts of a hole that may come on to the page."""
    texts = re.findall(r'"[^"]*"', _NAMES.sub("", hole[0]))
    return " ".join(texts).replace("\n", " ") + _lines(hole)


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
    """Lists the numbers that look measured, and the words of results, that templates have from no record."""
    lines = []
    for template in sorted(TEMPLATES.rglob("*.md")):
        name = template.relative_to(ROOT)
        typed = untied(template.read_text(encoding="utf-8"))
        lines += [f"{name}, {one} comes from no record" for one in typed]
    return lines


def main() -> int:
    """Writes the pages that differ, or lists them."""
    parser = new_parser(__doc__)
    parser.add_argument("--check", action="store_true", help="list what differs and write nothing")
    only_check = parser.parse_args().check
    given, shown = pages(), committed()
    for file, text in given.items():
        if not only_check and text != shown.get(file):
            write_atomically(file, text)
            print(f"wrote {file.relative_to(ROOT)}")
    lines = [*different(given, committed()), *strange()]
    print(*lines, f"{len(given)} pages, {len(lines)} wrong", sep="\n")
    return 1 if lines else 0


if __name__ == "__main__":
    raise SystemExit(main())
