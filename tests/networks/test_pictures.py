"""Picture files: what is read looks as a person sees it, what is not is refused in few words and little memory."""

import io
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from tests.networks.picture_files import READ, REFUSED, black_png, encoded

from convattn.errors import DataError
from convattn.networks.images import PictureError, _require_size, decode_picture, open_images


def _prepare(picture):
    return torch.from_numpy(np.array(picture)).movedim(2, 0) / 255


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused_with_the_reason(name, tmp_path):
    content, reason, message = REFUSED[name]
    with pytest.raises(PictureError, match=message) as caught:
        decode_picture(io.BytesIO(content))
    assert caught.value.reason == pickle.loads(pickle.dumps(caught.value)).reason == reason
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(DataError, match=f"cannot read the image {tmp_path}/a.png: .*{message}"):
        open_images(tmp_path, lambda: _prepare)[0]


@pytest.mark.parametrize("name", READ)
def test_what_is_read_looks_as_a_person_sees_it(name, tmp_path):
    content, size, corner = READ[name]
    picture = decode_picture(io.BytesIO(content))
    assert (picture.mode, picture.size) == ("RGB", size)
    # JPEG rounds colours by up to 2.
    assert np.abs(np.subtract(picture.getpixel((size[0] - 1, 0)), corner)).max() <= 2
    (tmp_path / "a.png").write_bytes(content)
    (image,) = open_images(tmp_path, lambda: _prepare)
    assert torch.equal(image, _prepare(picture))


def test_files_that_are_not_there_are_said_so(tmp_path):
    (tmp_path / "a.png").write_bytes(encoded(decode_picture(io.BytesIO(READ["apng"][0]))))
    images = open_images(tmp_path, lambda: _prepare)
    (tmp_path / "a.png").unlink()
    with pytest.raises(DataError, match=r"cannot read the image .*a\.png: .*No such file"):
        images[0]


def test_a_thousand_damaged_files_raise_nothing_else(tmp_path):
    draw = np.random.default_rng(0)
    whole = [content for content, _, _ in READ.values() if len(content) < 5000]
    for number in range(1000):
        content = bytearray(whole[number % len(whole)])
        content[draw.integers(len(content))] ^= 1 << draw.integers(8)
        try:
            picture = decode_picture(
                io.BytesIO(bytes(content[: draw.integers(1, 2 * len(content))]))
            )
        except PictureError:
            continue
        assert picture.mode == "RGB"


_PEAK = """
import resource, sys
from convattn.networks.images import decode_picture, PictureError
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for file in sys.argv[1:]:
    try:
        decode_picture(file)
    except PictureError:
        pass
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def _peak(*files) -> int:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", _PEAK, *map(str, files)]
    return int(
        subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout
    )


def test_memory_is_bounded(tmp_path):
    """A small file of a large picture takes what its pixels take, and one that is too large nothing."""
    for name, (content, _, _) in REFUSED.items():
        (tmp_path / name).write_bytes(content)
    assert _peak(*tmp_path.iterdir()) < 64 * 2**20
    large = tmp_path / "large.png"
    large.write_bytes(black_png(6000, 5000))
    assert len(large.read_bytes()) < 10_000
    assert _peak(large) < 16 * 6000 * 5000


@pytest.mark.parametrize(
    ("size", "pixels", "reason"),
    [
        ((0, 5), 100, "damaged"),
        ((5, 0), 100, "damaged"),
        ((11, 13), 142, "large"),
        ((11, 13), 143, None),
    ],
)
def test_sizes_without_pixels_or_with_too_many_are_refused(size, pixels, reason):
    if reason is None:
        _require_size(Image.new("RGB", size), pixels)
        return
    with pytest.raises(
        PictureError, match=f"the picture has {size[0]} × {size[1]} pixels"
    ) as caught:
        _require_size(Image.new("RGB", size), pixels)
    assert caught.value.reason == reason
