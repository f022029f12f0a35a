"""Networks with encodings of a user's own: what these hold beside their parameters comes back with them."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from convattn import load_network, register_encoding, save_network
from convattn.encodings import Encoding
from convattn.errors import UnsupportedModelError
from convattn.layers import RelativeAttention2d

IMAGES = torch.randn(2, 3, 5, 7, generator=torch.Generator().manual_seed(0))


def waves():
    """Makes a class of encodings with numbers in no state dict, of which it reads one; each call defines it anew."""

    class Waves(Encoding):
        def __init__(self, num_heads, dims, count=3):
            super().__init__(num_heads, dims)
            self.count = count
            self.register_buffer("rates", torch.logspace(0, -2, count), persistent=False)
            self.highest = self.rates.max().item()
            self.scales = nn.Parameter(torch.randn(num_heads, count))

        def options(self):
            return {"count": self.count}

        def score(self, displacement):
            waves = torch.cos(displacement.sum(-1)[..., None] * self.rates / self.highest)
            return torch.einsum("hc,...c->h...", self.scales.to(waves), waves)

    return Waves


@pytest.mark.parametrize("count", [3, 8])
def test_numbers_that_no_file_holds_are_computed_again(count, tmp_path, encodings_forgotten):
    kind = waves()
    register_encoding("waves", kind)
    layer = RelativeAttention2d(3, 4, num_heads=2, encoding=kind(2, 2, count)).eval()
    network = nn.Sequential(layer)
    folder = save_network(network, tmp_path / "made")
    given = nn.Sequential(RelativeAttention2d(3, 4, num_heads=2, encoding=kind(2, 2, count)))
    assert torch.equal(load_network(folder, model=given.eval())(IMAGES), network(IMAGES))


def test_a_class_that_a_cell_defined_again_keeps_its_name(tmp_path, encodings_forgotten):
    first, again = waves(), waves()
    register_encoding("waves", first)
    layer = RelativeAttention2d(3, 4, num_heads=2, encoding=first(2, 2)).eval()
    register_encoding("waves", again)
    folder = save_network(layer, tmp_path / "made")
    assert torch.equal(load_network(folder)(IMAGES), layer(IMAGES))


def test_of_a_parametrised_encoding_the_line_that_undoes_it_is_named(tmp_path):
    layer = RelativeAttention2d(3, 4, num_heads=2)
    parametrizations.weight_norm(layer.encoding, "centres")
    with pytest.raises(UnsupportedModelError, match=r"remove_parametrizations\(.*\"centres\"\)"):
        save_network(layer, tmp_path / "made")


class Twice(nn.Module):
    """Holds one module of numbers, which no file holds, in two places."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.first.register_buffer("rates", torch.rand(5), persistent=False)
        self.second = nn.ModuleList([self.first])
        self.conv = RelativeAttention2d(2, 2, num_heads=1)

    def forward(self, x):
        return self.conv(x)


def test_buffers_of_a_shared_module_come_back_in_their_precision(tmp_path):
    torch.manual_seed(0)
    network = Twice().half()
    torch.manual_seed(0)
    loaded = load_network(save_network(network, tmp_path / "made"), model=Twice())
    assert loaded.second[0].rates.dtype == torch.float16
