"""What axe-core says about a page."""

from pathlib import Path

from tests.machine import do_without

AXE = Path(__file__).parents[3] / "node_modules/axe-core/axe.min.js"


def complaints(page):
    """Returns what axe-core finds serious or critical."""
    if not AXE.is_file():
        do_without("axe-core is not there: run scripts/node npm ci")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        (one["id"], one["impact"], [node["html"][:200] for node in one["nodes"][:3]])
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]
