"""The scene of a written page."""

import base64
import json
import re
from pathlib import Path

from safetensors.torch import load

from convattn.viewer import Scene


def scene_of(page: Path) -> Scene:
    """Reads the scene that is inside a page."""
    inside = re.search(r'id="convattn-scene">([^<]*)<', page.read_text(encoding="utf-8"))
    content = base64.b64decode(inside[1])
    end = 8 + int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8:end])["__metadata__"]
    return Scene(json.loads(metadata["convattn.scene"]), load(content))
