"""The interactive page: a network and images as a scene, and the page that shows it."""

from convattn.viewer.build import build_scene
from convattn.viewer.exhibit import Exhibit
from convattn.viewer.notebook import view
from convattn.viewer.page import write_page
from convattn.viewer.scene import Scene, SceneSizeError

__all__ = ["Exhibit", "Scene", "SceneSizeError", "build_scene", "view", "write_page"]
