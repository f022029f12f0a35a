import pytest
import torch
from torch.nn import functional as F

from convattn.lab.augment import views


def drawn():
    return torch.randn(2, 3, 5, 7, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("kind", "count"), [("none", 1), ("mirror", 2), ("mirror_shift", 6)])
def test_shares_sum_to_one_and_the_first_view_is_the_image(kind, count):
    made = views(drawn(), kind)
    assert len(made) == count
    assert sum(share for share, _ in made) == 1
    assert torch.equal(made[0][1], drawn())


@pytest.mark.parametrize("kind", ["mirror", "mirror_shift"])
def test_every_view_comes_with_its_mirror_image(kind):
    made = views(drawn(), kind)
    for (share, view), (other_share, other) in zip(made[::2], made[1::2], strict=True):
        assert share == other_share
        assert torch.equal(other, view.flip(-1))


def test_images_are_moved_by_one_pixel():
    (_, image), _, (_, down_right), _, (_, up_left), _ = views(drawn(), "mirror_shift")
    assert torch.equal(down_right[..., 1:, 1:], image[..., :-1, :-1])
    assert torch.equal(up_left[..., :-1, :-1], image[..., 1:, 1:])
    assert torch.equal(down_right[..., 0, 1:], image[..., 1, :-1])
    framed = F.pad(image, (1, 1, 1, 1), mode="reflect")
    assert torch.equal(up_left, framed[..., 2:, 2:])
