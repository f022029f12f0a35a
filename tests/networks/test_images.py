"""Files of images: pictures look as a person sees them, and what cannot be read is refused by name."""

import numpy as np
import pytest
import torch
from PIL import Image

from convattn.errors import ArgumentError, DataError
from convattn.networks.images import Pictures, open_images, stack_images
from convattn.networks.pictures import Preparation, read_picture

RED, BLUE = (255, 0, 0), (0, 0, 255)
ORIENTATION = 0x0112  # of EXIF; 6: turned by a quarter


def unused():
    raise AssertionError("no pictures")


def as_tensor(picture):
    assert picture.mode == "RGB"
    return torch.from_numpy(np.array(picture)).movedim(2, 0) / 255


def picture(mode="RGB"):
    """A red picture of 2 x 3 pixels, whose first pixel is blue."""
    image = Image.new("RGB", (3, 2), RED)
    image.putpixel((0, 0), BLUE)
    return image.convert(mode)


def save_turned(path):
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    picture().save(path, exif=exif)


PICTURES = {
    "colours.png": (picture().save, (3, 2, 3)),
    "palette.gif": (picture("P").save, (3, 2, 3)),
    "opaque.webp": (lambda path: picture("RGBA").save(path, lossless=True), (3, 2, 3)),
    "grey.tiff": (picture("L").save, (3, 2, 3)),
    "turned.png": (save_turned, (3, 3, 2)),
}


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_upright_and_in_colours(name, tmp_path):
    save, shape = PICTURES[name]
    save(tmp_path / name)
    images = open_images(tmp_path, lambda: as_tensor)
    assert images.names == (name,)
    assert images[0].shape == shape
    if name != "grey.tiff":
        blue = images[0][:, 0, -1 if name == "turned.png" else 0]
        assert blue.tolist() == [0, 0, 1]


@pytest.mark.parametrize(("mode", "hidden"), [("RGBA", (0, 0, 0, 0)), ("LA", (0, 0))])
def test_what_is_transparent_is_white(mode, hidden, tmp_path):
    """A browser shows it so; the colour that a file hides is often black."""
    Image.new(mode, (4, 4), hidden).save(tmp_path / "clear.png")
    assert open_images(tmp_path, lambda: as_tensor)[0].unique().tolist() == [1]
    clear = Image.new(mode, (4, 4), hidden)
    prepared = Preparation(2, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))(clear)
    assert prepared.unique().tolist() == [1]


LEVELS = np.arange(35, dtype=np.uint16).reshape(5, 7) * 1927  # 0 to 65518 of 65535
DEEP = {
    "whole.png": LEVELS,
    "whole.tiff": LEVELS,
    "other-order.tiff": LEVELS.astype(">u2"),
    "wide.ppm": LEVELS.astype(np.int32),  # pillow's portable grey map of 16 bits
    "wide.tiff": LEVELS.astype(np.int32),
    "float.tiff": LEVELS.astype(np.float32) / 65535,
}
UNCLEAR = {
    "bytes.tiff": LEVELS.astype(np.float32) / 257,
    "negative.tiff": LEVELS.astype(np.float32) / 65535 - 0.5,
    "nan.tiff": np.full((5, 7), np.nan, np.float32),
    "small.tiff": LEVELS.astype(np.int32) // 257,
    "large.tiff": LEVELS.astype(np.int32) * 257,
}


def test_pictures_of_more_than_8_bits_are_scaled_by_their_range(tmp_path):
    expected = torch.from_numpy(np.round(LEVELS / 257).astype(np.uint8))
    for name, levels in DEEP.items():
        Image.fromarray(levels).save(tmp_path / name)
        image = torch.from_numpy(np.array(read_picture(tmp_path / name)))
        assert torch.equal(image, expected[..., None].expand(5, 7, 3)), name


def test_pictures_whose_levels_say_nothing_are_refused_by_name(tmp_path):
    for name, levels in UNCLEAR.items():
        Image.fromarray(levels).save(tmp_path / name)
        message = f"cannot read the image .*{name}: its levels of grey must be .*: save it with 8"
        with pytest.raises(DataError, match=message):
            read_picture(tmp_path / name)


def test_pictures_are_taken_in_the_order_of_their_names(tmp_path):
    for name in ("b.png", "a.PNG", "c.png"):
        picture().save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no picture")
    (tmp_path / "aa.png").mkdir()
    images = open_images(tmp_path, lambda: as_tensor, limit=2)
    assert (images.names, len(images)) == (("a.PNG", "b.png"), 2)
    assert stack_images(images, tmp_path).shape == (2, 3, 2, 3)
    assert open_images(tmp_path / "a.PNG", lambda: as_tensor).names == ("a.PNG",)
    with pytest.raises(ArgumentError, match=r"a folder of pictures, a picture or a \.npy"):
        open_images(tmp_path / "notes.txt", lambda: as_tensor)
    picture().resize((5, 5)).save(tmp_path / "b.png")
    with pytest.raises(ArgumentError, match="have different sizes when prepared"):
        stack_images(images, tmp_path)


@pytest.mark.parametrize("content", [b"", b"no picture", None], ids=["empty", "text", "cut off"])
def test_what_is_no_picture_is_refused_by_name(content, tmp_path):
    file = tmp_path / "a.png"
    picture().resize((50, 50)).save(file)
    file.write_bytes(file.read_bytes()[:60] if content is None else content)
    with pytest.raises(DataError, match=r"cannot read the image .*a\.png: "):
        open_images(tmp_path, lambda: as_tensor)[0]
    with pytest.raises(DataError, match=r"cannot read the image .*b\.png: FileNotFoundError"):
        Pictures(["b.png"], [tmp_path / "b.png"], as_tensor)[0]


@pytest.mark.parametrize(
    ("kind", "dtype"), [(">f4", torch.float32), (">i2", torch.int64), ("<f8", torch.float32)]
)
def test_arrays_are_read_in_any_order_of_bytes(kind, dtype, tmp_path):
    np.save(tmp_path / "a.npy", np.arange(210).reshape(6, 35).astype(kind))
    images = open_images(tmp_path / "a.npy", unused)
    assert images.dtype == dtype
    assert torch.equal(images, torch.arange(210).view(6, 35).to(dtype))


def test_arrays_of_bytes_are_pictures(tmp_path):
    pixels = np.arange(90, dtype=np.uint8).reshape(2, 3, 5, 3)
    np.save(tmp_path / "a.npy", pixels)
    images = open_images(tmp_path / "a.npy", lambda: as_tensor)
    assert isinstance(images, Pictures)
    assert images.names == ("a.npy, image 0", "a.npy, image 1")
    expected = torch.from_numpy(pixels[1]).movedim(2, 0) / 255
    assert torch.equal(images[1], expected)
    np.save(tmp_path / "first.npy", np.moveaxis(pixels, 3, 1))
    assert torch.equal(open_images(tmp_path / "first.npy", lambda: as_tensor)[1], expected)
    grey = expected[:1].expand(3, 3, 5)
    for levels in (pixels[..., 0], pixels[..., :1], pixels[:, None, :, :, 0]):
        np.save(tmp_path / "grey.npy", levels)
        assert torch.equal(open_images(tmp_path / "grey.npy", lambda: as_tensor)[1], grey)


def test_arrays_that_a_network_would_take_for_something_else_are_refused(tmp_path):
    wrong = {
        "uint16 of shape .*: pictures in an array are bytes": np.zeros((2, 5, 7, 3), np.uint16),
        "uint8 of shape .*: pictures in an array are bytes": np.zeros((2, 5, 7, 4), np.uint8),
        r"\(5, 7, 3\) may be one picture or several": np.zeros((5, 7, 3), np.uint8),
        "must hold finite numbers of float32": np.full((2, 3, 5, 7), 1e39),
        r"float32 of shape .*channels last.*transpose\(0, 3, 1, 2\)": np.zeros((2, 5, 7, 3), "f4"),
    }
    for message, array in wrong.items():
        np.save(tmp_path / "a.npy", array)
        with pytest.raises(DataError, match=message):
            open_images(
                tmp_path / "a.npy", unused, limit=2
            )  # the shape that is named is the file's


@pytest.mark.parametrize("shape", [(6, 0, 32, 3), (0, 32, 32, 3)])
def test_arrays_without_pixels_are_refused(shape, tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(shape, dtype=np.uint8))
    message = r"must hold numbers of at least one image, but is uint8 of shape"
    with pytest.raises(DataError, match=message):
        open_images(tmp_path / "a.npy", unused)


@pytest.mark.parametrize("sizes", ["-1", str(10**12), str(10**23), "True"])
def test_arrays_of_impossible_sizes_are_refused(sizes, tmp_path):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({sizes}, 3, 5, 5), }}"
    text = header.ljust(117) + "\n"
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00\x76\x00" + text.encode() + bytes(1200))
    with pytest.raises(DataError, match=r"a\.npy: not a readable array of numpy"):
        open_images(tmp_path / "a.npy", unused)
