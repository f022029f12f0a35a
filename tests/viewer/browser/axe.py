"""What axe-core says about a page."""

from pathlib import Path

from tests.machine import do_without

SCHEMES = "dark", "light"
AXE = Path(__file__).parents[3] / "node_modules/axe-core/axe.min.js"

WITHOUT_TRANSITIONS = """() => {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync("*, ::before, ::after { transition: none !important }");
  document.adoptedStyleSheets = [sheet];
}"""


def complaints(page):
    """Returns what axe-core finds serious or critical."""
    if not AXE.is_file():
        do_without("axe-core is not there: run scripts/node npm ci")
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        (one["id"], one["impact"], [node["html"][:200] for node in one["nodes"][:3]])
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]


def complaints_by_day_and_night(page):
    """Returns what axe-core finds serious or critical in dark and in light, whose colours change at once."""
    page.evaluate(WITHOUT_TRANSITIONS)
    found = []
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        found += [(scheme, *one) for one in complaints(page)]
    return found
