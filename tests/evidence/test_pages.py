"""README.md and the pages of results are what their records give: any number or label that is changed is found."""

import json
import re

import pytest

from convattn.fields import read
from convattn.lab.recipe import Recipe
from evidence import pages, values
from evidence.results import PAGES, ROOT


@pytest.fixture(scope="module")
def given():
    """Every page as it is committed, which is as the records give it: `scripts/check` says so."""
    return pages.committed()


def test_every_page_of_results_and_the_readme_have_a_template():
    made = map(pages.page_of, pages.TEMPLATES.rglob("*.md"))
    assert {*PAGES.glob("*.md"), ROOT / "README.md"} <= {*made}


def test_a_changed_number_fails_the_check(given, monkeypatch, capsys):
    file = ROOT / "README.md"
    changed = given[file].replace("73.10%", "73.11%", 1)
    monkeypatch.setattr(pages, "pages", lambda: given)
    monkeypatch.setattr("sys.argv", ["pages", "--check"])
    assert pages.main() == 0
    monkeypatch.setattr(pages, "committed", lambda: {**given, file: changed})
    capsys.readouterr()
    assert pages.main() == 1
    assert capsys.readouterr().out.startswith("README.md is not what its records give\n")


def test_two_rows_whose_names_are_swapped_are_found(given):
    file = PAGES / "encodings.md"
    swapped = given[file].replace("`sa-learned`", "X").replace("`sa-sinusoidal`", "`sa-learned`")
    swapped = swapped.replace("X", "`sa-sinusoidal`")
    assert pages.different({file: given[file]}, {file: swapped}) != []


def test_a_page_without_a_record_is_found(given):
    file = PAGES / "other.md"
    assert pages.different(given, {**given, file: "1"}) == [
        "docs/results/other.md comes from no record"
    ]


def test_a_changed_record_changes_its_pages(given, monkeypatch):
    """One run of a study is a tenth of a point better: the pages that give its accuracy differ, the others do not."""
    read = json.loads
    accuracy = values.record("encodings/table/convnet-1/record.json")["results"]["test_accuracy"]

    def better(text, **options):
        content = read(text, **options)
        run = isinstance(content, dict) and content.get("name") == "convnet"
        if run and content.get("results", {}).get("test_accuracy") == accuracy:
            content["results"]["test_accuracy"] += 0.001
        return content

    monkeypatch.setattr(json, "loads", better)
    templates = [pages.TEMPLATES / "README.md", pages.TEMPLATES / "docs/results/encodings.md"]
    shown = {pages.page_of(file): pages.rendered(file) for file in templates}
    assert all(text != given[file] for file, text in shown.items())
    other = pages.TEMPLATES / "docs/results/layers.md"
    assert pages.rendered(other) == given[pages.page_of(other)]


def test_no_template_has_a_number_or_a_word_of_a_result_from_no_record():
    assert pages.strange() == []


@pytest.mark.parametrize(
    ("template", "found"),
    [
        ("It takes {{ ms(case) }}, {{ 1.02 }} times as long.", []),
        ("It takes 135 ms, 1.02 times as long.", ["1: 135", "1: 1.02"]),
        ("3 seeds, 64 × 64 pixels, 12 epochs, torch 2.15.0, Python 3.11, 95 % t intervals", []),
        ("The table has 1,234 rows, 3 of 7 and 12 % of them.", ["1: 1,234", "1: 3 of 7", "1: 12"]),
        ("`--set a=0.5` and [12 %](x-0.5.md)", ["1: 12"]),
        ("{# set 0.5 #}\nfrom 0.5 to 0.7", ["2: 0.7"]),
        ("{# set 0.5 #}\nnext\n0.5", ["3: 0.5"]),
        ("{# pyproject.toml #}\nat most 987,654 of them", ["2: 987,654"]),
        ("{# evidence/encodings/search/README.md #}\n98 of the 60,000", []),
        ("It is {{ gap.word }}, `exact` or not.", []),
        ("Attention is ahead.", ["1: ahead"]),
        (
            "{% if long %}\n{{ 'x' }}\n{% endif %}\n| why | Yes, steadily |",
            ["4: steadily", "4: yes"],
        ),
        ('It is {{ "behind" if low < 0 else rows["ahead"] }}.', ["1: behind"]),
        ('{{ rows | selectattr("verdict", "equalto", "exact") | list | length }} rows', []),
        ("Not covered: n = 4, in float32", ["1: float32", "1: n = 4"]),
        ("{# set 0.5 #}\n{# words exact, float64 #}\nexact in float64 to 0.5", []),
        ("{# words exact #}\nahead", ["2: ahead", "2: exact"]),
    ],
)
def test_what_looks_measured_or_judged_needs_a_record(template, found):
    assert pages.untied(template) == [f"line {one}" for one in found]


def test_every_page_that_a_record_or_a_recipe_names_is_there():
    records = [*ROOT.glob("evidence/**/record.json"), *ROOT.glob("pretrained/*/card.json")]
    recipes = [*ROOT.glob("src/convattn/lab/recipes/*.toml"), *ROOT.glob("evidence/**/*.toml")]
    for file in records + recipes:
        for page in re.findall(r"docs/results/[\w-]+\.md", file.read_text(encoding="utf-8")):
            assert (ROOT / page).is_file(), f"{file} names {page}"


def typed_into(template, places, words):
    """A template with words in place of some of its parts, and what is to be found: the first word, by line."""
    text, last, found = "", 0, set()
    for place in places:
        text += template[last : place.start()]
        found.add(f"line {1 + text.count(chr(10))}: {words.split()[0]}")
        text, last = text + words, place.end()
    return text + template[last:], found


def test_every_number_and_verdict_typed_into_a_template_is_found():
    """Where a function gave one; and a word beside those that are named. README.md is among the templates."""
    computed = re.compile(
        r"\{\{ [^{]*?(?:\.word|\byes|chance|_in_words|precision|setting|gap\(|short\(|long\()[^{]*?\}\}"
    )
    numbers = words = 0
    for file in pages.TEMPLATES.rglob("*.md"):
        template = file.read_text(encoding="utf-8")
        addresses = [part.span() for part in pages.SHOWN_AS_TYPED.finditer(template)]
        holes = [
            hole
            for hole in re.finditer(r"\{\{.*?\}\}", template, re.DOTALL)
            if not any(first <= hole.start() < last for first, last in addresses)
        ]
        verdicts = [hole for hole in holes if computed.fullmatch(hole[0])]
        for places, typed in ((holes, "98.7654321 points"), (verdicts, "ahead")):
            changed, expected = typed_into(template, places, typed)
            assert expected <= {*pages.untied(changed)}, file
        changed, names = re.subn(r"(?m)^\{# words .* #\}$", "{# words renamed #}", template)
        found = [one for one in pages.untied(changed) if one.endswith(": renamed")]
        assert len(found) == names, file
        numbers += len(holes)
        words += len(verdicts) + names
    assert numbers > 400, numbers
    assert words > 100, words


def test_a_table_of_conversions_has_one_padding(given):
    content = values.record("pretrained/pretrained.json")
    paddings = {(row["run"], row["conversion"]): row["padding"] for row in content["rows"]}
    assert set(paddings.values()) == {"zeros", "replicate"}
    page = given[ROOT / "evidence/pretrained/tables.md"]
    for table in page.split("Padding of the convolutions: ")[1:]:
        name, _, rows = table.partition(".\n\n")
        cells = [line.split(" | ") for line in rows.split("\n\n")[0].splitlines()[2:]]
        assert cells
        assert {paddings[row[0].removeprefix("| "), row[1]] for row in cells} == {name}


def test_every_record_holds_a_recipe_as_it_is_read_today():
    records = [*(ROOT / "evidence").rglob("record.json")]
    assert len(records) > 200
    for file in records:
        recipe = json.loads(file.read_text())["recipe"]
        assert read(Recipe, recipe).to_dict() == recipe, file
