"""A network of blocks that mix with convolutions, as a ConvNet."""

import pytest
import torch
from tests.models.network_cases import run, small_images
from torch import nn
from torch.nn.utils import prune

from convattn import load_network, save_network
from convattn.errors import ConversionError, UnknownNameError
from convattn.models import AttentionNet, ConvNet
from convattn.testing.budget import assert_within_budget, references


def mixed(*kernel_sizes, **options):
    """An attention network whose mixers are convolutions."""
    torch.manual_seed(0)
    network = AttentionNet(width=8, depth=len(kernel_sizes), heads=4, ffn=8, **options).eval()
    for block, size in zip(network.blocks, kernel_sizes, strict=True):
        sizes = (size, size) if isinstance(size, int) else size
        block.mixer = nn.Conv2d(8, 8, sizes, padding=tuple(k // 2 for k in sizes))
    return network


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("mode", ["zeros", "replicate"])
@pytest.mark.parametrize("kernel_sizes", [(3, 3), (1, (3, 5))])
def test_it_computes_the_same_and_is_saved_and_loaded(tmp_path, kernel_sizes, mode, dense):
    network = mixed(*kernel_sizes, dense=dense)
    for block in network.blocks:
        block.mixer = rebuilt(block.mixer, mode)
    made, x = ConvNet.of(network), small_images()
    assert not made.training
    assert made.kernel_size == max(max(block.mixer.kernel_size) for block in network.blocks)
    before = network(x)
    assert_within_budget(made(x), *references(run, network, x))
    save_network(made, tmp_path)
    assert torch.equal(load_network(tmp_path)(x), made(x))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.zero_()
    assert torch.equal(network(x), before), "the network given is not changed"


def rebuilt(conv, mode):
    made = nn.Conv2d(8, 8, conv.kernel_size, padding=conv.padding, padding_mode=mode)
    made.load_state_dict(conv.state_dict())
    return made


def test_no_random_number_is_drawn():
    network = mixed(3)
    torch.manual_seed(3)
    ConvNet.of(network)
    drawn = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(1))


def changed(change):
    network = mixed(3, 3)
    change(network.blocks[1])
    return network


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda block: setattr(block, "mixer", nn.Identity()),
            "block 1 mixes with Identity, not Conv2d",
        ),
        (
            lambda block: setattr(block, "mixer", nn.Conv2d(8, 8, 2, padding=1)),
            "must keep the size",
        ),
        (
            lambda block: setattr(block, "mixer", nn.Conv2d(8, 8, 3, padding=1, groups=2)),
            "must keep the size",
        ),
        (
            lambda block: setattr(block, "mixer", nn.Conv2d(8, 8, 3, padding=1, bias=False)),
            "have a bias and an odd",
        ),
        (
            lambda block: block.mixer.register_forward_hook(lambda *_: None),
            "which has hooks; remove them first",
        ),
        (
            lambda block: prune.l1_unstructured(block.mixer, "weight", 0.5),
            "which has hooks; .* make pruning permanent",
        ),
        (lambda block: setattr(block, "dense", nn.Identity()), "linear maps in some blocks only"),
        (
            lambda block: setattr(block.mixer, "padding_mode", "circular"),
            "padding modes circular and zeros",
        ),
    ],
)
def test_what_is_no_conv_net_is_refused(change, message):
    with pytest.raises(ConversionError, match=f"cannot make a ConvNet: .*{message}"):
        ConvNet.of(changed(change))


def test_an_unknown_padding_mode_is_refused():
    with pytest.raises(UnknownNameError, match="unknown padding_mode 'mirror'"):
        ConvNet(padding_mode="mirror")
