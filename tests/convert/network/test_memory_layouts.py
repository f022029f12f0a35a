"""Networks that read memory as it lies: every converted layer leaves there what its convolution leaves."""

from functools import partial

import pytest
import torch
from tests.convert.network.network_cases import Called, convolutions
from torch import nn
from torch.nn import functional as F

from convattn import network_to_attention


class Calling(nn.Conv2d):
    """Pads, and calls its convolution with a computed weight."""

    def forward(self, x):
        return F.conv2d(F.pad(x, (1, 0, 0, 1)), self.weight.tanh(), self.bias)


def rows(y):
    return y.view(len(y), -1)


def strided(y):
    return torch.as_strided(y, (len(y), y[0].numel()), (y.stride(0), 1))


def shuffled(y):
    n, channels, *sizes = y.shape
    y = y.view(n, 2, channels // 2, *sizes).transpose(1, 2)
    return rows(y.reshape(n, channels, *sizes).relu_())


def in_place(y):
    y.mul_(2).add_(1)
    y[:, 0] = 0
    return y.view(-1)


def gated(y):
    one, other = y.chunk(2, 1)
    return rows(one * other.sigmoid())


def as_complex(y):
    return torch.view_as_complex(y.view(len(y), -1, 2)).abs()


def pixels(y):
    return y.permute(0, 2, 3, 1).view(len(y), -1, y.shape[1])


def as_written(work, *modules):
    def call(layer, x):
        return work(layer(x))

    *before, last = modules
    return nn.Sequential(*before, Called(last, call))


def told(layer, x):
    return rows(layer(x, output_size=(2 * x.shape[2], 2 * x.shape[3] - 1)))


ENDS = partial(as_written, rows)
NETWORKS = {
    "LeNet": lambda: ENDS(nn.Conv2d(3, 4, 3), nn.ReLU(True), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3)),
    "discriminator": lambda: ENDS(
        nn.Conv2d(3, 4, 4, 2, 1, bias=False),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(4, 6, 4, 2, 1, bias=False),
        nn.BatchNorm2d(6),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(6, 1, 2, bias=False),
    ),
    "reshape": lambda: as_written(lambda y: y.reshape(-1), nn.Conv2d(3, 4, 3)),
    "as_strided": lambda: as_written(strided, nn.Conv2d(3, 4, 3)),
    "in place": lambda: as_written(in_place, nn.Conv2d(3, 4, 3)),
    "shuffle": lambda: as_written(shuffled, nn.Conv2d(3, 4, 3)),
    "pixels": lambda: as_written(pixels, nn.Conv2d(3, 4, 3)),
    "complex": lambda: as_written(as_complex, nn.Conv2d(3, 4, 3)),
    "half of the channels": lambda: as_written(
        gated, as_written(lambda y: y[:, 1:], nn.Conv2d(3, 4, 3)), nn.Conv2d(3, 4, 1)
    ),
    "every second pixel": lambda: ENDS(
        as_written(lambda y: y[:, :, ::2, 1:], nn.Conv2d(3, 4, 3)), nn.Conv2d(4, 5, 3)
    ),
    "one pixel": lambda: ENDS(nn.AdaptiveAvgPool2d(1), nn.Conv2d(3, 4, 1), nn.Conv2d(4, 5, 1)),
    "one channel": lambda: ENDS(nn.Conv2d(3, 1, 3), nn.Conv2d(1, 5, 3)),
    "depthwise": lambda: ENDS(nn.Conv2d(3, 3, 3, groups=3)),
    "reflect": lambda: ENDS(nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect")),
    "one tap of two": lambda: ENDS(nn.Conv2d(3, 4, 1, stride=2)),
    "even": lambda: ENDS(nn.Conv2d(3, 4, (2, 4), padding=1, dilation=2)),
    "transposed": lambda: ENDS(nn.ConvTranspose2d(3, 4, 3, stride=2)),
    "output size": lambda: Called(nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1), told),
    "call": lambda: ENDS(Calling(3, 4, 2)),
    "sequence": lambda: ENDS(nn.Flatten(2), nn.Conv1d(3, 4, 3)),
    "transposed volume": lambda: ENDS(nn.Unflatten(2, (3, 3)), nn.ConvTranspose3d(3, 4, (2, 3, 1))),
    "volume": lambda: ENDS(nn.Unflatten(2, (3, 3)), nn.Conv3d(3, 4, (3, 1, 3))),
}
OPTIONS = {
    "hard": {},
    "soft": {"sharpness": 5.0},
    "separable": {"impl": "separable"},
    "content": {"content": True},
    "soft with content": {"content": True, "sharpness": 5.0},
}


def strides(network, x):
    """The output of a network, and of its modules by name the strides of outputs, and whether these are views."""
    found, hooks = {}, []

    def note(name, _module, _given, output):
        found[name] = output.stride(), output.requires_grad and output._is_view()

    for name, module in network.named_modules():
        if name.endswith(("layer", "0", "1", "2")) and ".layers" not in name:
            hooks.append(module.register_forward_hook(partial(note, name)))
    output = network(x)
    for hook in hooks:
        hook.remove()
    return output, found


@pytest.mark.parametrize("number", range(len(NETWORKS)), ids=NETWORKS)
def test_every_layer_leaves_the_strides_of_its_convolution(number):
    """Hard heads, and in turn one of the others, on images in the first order that torch's convolution takes."""
    torch.manual_seed(0)
    network, images = list(NETWORKS.values())[number](), torch.randn(2, 3, 9, 11)
    others = list(OPTIONS)[1:]
    ran = 0
    for x in (images, images.contiguous(memory_format=torch.channels_last)):
        try:
            strides(network, x)
        except RuntimeError:  # torch's own convolution leaves no such view
            continue
        for name in ("hard",) if ran else ("hard", others[number % len(others)]):
            made, certificate = network_to_attention(network, images=x, **OPTIONS[name])
            assert "soft" in name or certificate.verdict == "exact", name
            assert not convolutions(made)
            optimiser = torch.optim.SGD(made.parameters(), 1e-3)
            for learns in (True, True, False):
                with torch.set_grad_enabled(learns):
                    output, found = strides(made, x)
                    _, expected = strides(network, x)
                assert {key: found[key] for key in expected} == expected, (name, learns)
                if learns:
                    output.square().sum().backward()
                    optimiser.step()
        ran += 1
    assert ran
