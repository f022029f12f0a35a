"""A page of hostile names and odd pictures in a browser: no script of theirs runs, and it says what is wrong."""

import io

import pytest
import torch
from PIL import Image
from playwright.sync_api import expect

from convattn.models import AttentionNet
from convattn.viewer import Exhibit, build_scene, write_page

SCRIPT = "</script><img src=x onerror='document.title=\"broken\"'><svg onload=document.title='broken'>\"'`{{title}}"


def png() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (40, 30), "red").save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def exhibit():
    torch.manual_seed(0)
    images = torch.rand(2, 3, 8, 8)
    images[0, 0, 0, 0] = 3
    classes = tuple(f"{number}{SCRIPT}" for number in range(10))
    texts = {
        "name": f"n{SCRIPT}",
        "title": f"t{SCRIPT}",
        "note": f"note{SCRIPT}",
        "classes": classes,
    }
    return Exhibit(
        AttentionNet(width=8, depth=1, heads=4, ffn=8).eval(),
        images,
        mean=(0,) * 3,
        std=(1,) * 3,
        **texts,
    )


NAMES, LABELS = [f"=1+1{SCRIPT}", "second"], [f"label{SCRIPT}", "other"]


@pytest.fixture
def address(exhibit, tmp_path):
    scene = build_scene(exhibit, names=NAMES, labels=LABELS)
    return write_page(scene, tmp_path / "page.html").as_uri()


def test_names_are_text(opened, address):
    page = opened(f"{address}#view=explore")
    expect(page.get_by_role("heading", level=1)).to_have_text(f"t{SCRIPT}")
    expect(page.locator(".image-note")).to_contain_text(
        "lie outside 0 to 1 before normalisation (from 0.00"
    )
    page.get_by_role("button", name="second").click()
    expect(page.locator(".image-note")).to_be_hidden()
    sources = page.locator("img").evaluate_all("images => images.map(({ src }) => src)")
    assert [source[:15] for source in sources] == ["data:image/png;"] * len(
        NAMES
    )  # the page's own: one of each image
    assert page.title() == f"t{SCRIPT}"


def test_a_picture_that_cannot_be_read_is_named_and_the_page_goes_on(opened, address):
    page = opened(f"{address}#view=explore")
    expect(page.locator("button.thumb")).to_have_count(2)
    status = page.locator(".images [role=status]")
    pictures = {"none": b"<svg onload=alert(1)>", "empty": b"", "cut": png()[:60], "good": png()}
    for name, content in pictures.items():
        page.locator("input[type=file]").set_input_files(
            [{"name": f"{name}.png", "mimeType": "image/png", "buffer": content}]
        )
        if name != "good":
            expect(status).to_contain_text(f"{name}.png")
            expect(status).not_to_contain_text("Reading")
    expect(page.locator("button.thumb")).to_have_count(3)
