"""The scene of a written page."""

import base64
import re
from pathlib import Path

from convattn.viewer import Scene


def scene_of(page: Path) -> Scene:
    """Reads the scene that is inside a page."""
    inside = re.search(r'id="convattn-scene">([^<]*)<', page.read_text(encoding="utf-8"))
    return Scene.from_bytes(base64.b64decode(inside[1]))
