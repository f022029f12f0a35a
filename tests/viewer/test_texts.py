"""Texts of a scene: those that no SVG could hold are made such that it can."""

from xml.etree import ElementTree as ET

import pytest
import torch

from convattn import AttentionNet
from convattn.viewer import Exhibit, build_scene
from convattn.viewer.scene import readable

ODD = "a\x01b\x0b\x1f\ufffe\udc80.png"
EVEN = "a\ufffdb\ufffd\ufffd\ufffd\ufffd.png"


@pytest.mark.parametrize("text", ["", "Größe 3 × 3", "a\tb\r\n", "\ud7ff\ue000\ufffd\U00010000\U0010ffff"])
def test_what_xml_allows_stays(text):
    assert readable(text) == text


def test_all_characters_can_stand_in_xml():
    everything = readable("".join(map(chr, range(0x3000))) + "".join(map(chr, range(0xD000, 0x10100))))
    markup = everything.replace("&", "").replace("<", "")
    ET.fromstring(f"<text>{markup}</text>".encode())


def test_every_text_of_a_scene_can_stand_in_a_saved_picture():
    network = AttentionNet(width=8, depth=1, heads=4, ffn=8)
    exhibit = Exhibit(network, torch.rand(1, 3, 8, 8), name=ODD, title=ODD, note=ODD, classes=(ODD,))
    header = build_scene(exhibit, names=[ODD], labels=[ODD]).header
    (image,), (shown,) = header["images"], header["networks"]
    told = [header["title"], image["name"], image["label"], *(shown[name] for name in ("name", "title", "note"))]
    assert [*told, *shown["classes"]] == [EVEN] * 7
