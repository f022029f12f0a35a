"""Converted layers and networks under what trains them on many devices, and what reads all parameters as one vector."""

import copy
import importlib

import pytest
import torch
from timm.layers import StdConv2d
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel, replicate
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from convattn import conv_to_attention, network_to_attention
from convattn.layers import NormalisedConv, RelativeAttention2d


def images():
    return torch.randn(2, 3, 11, 7, generator=torch.Generator().manual_seed(1))


def network():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 6, 3, stride=2, groups=2), nn.ReLU()
    )


class Upward(nn.ConvTranspose2d):
    """Ends where it is told to."""

    def forward(self, x):
        return super().forward(x, output_size=[2 * size for size in x.shape[2:]])


def calling():
    """Modules that stay around their calls, and compute weights or hold them in another order."""
    network = nn.Sequential(StdConv2d(3, 4, 3), nn.ReLU(), Upward(4, 5, 3, stride=2, padding=1))
    return network_to_attention(network, sharpness=5.0, images=images())[0]


MADE = {
    "hard layer": lambda: conv_to_attention(nn.Conv2d(3, 5, 3, padding=1))[0],
    "soft layer": lambda: conv_to_attention(nn.Conv2d(3, 5, 3, padding=1), sharpness=5.0)[0],
    "network": lambda: network_to_attention(network(), images=images())[0],
    "modules that call": calling,
    "narrow heads": lambda: RelativeAttention2d(
        3, 5, num_heads=2, head_width=3, encoding="axial_distance"
    ),
    "content": lambda: RelativeAttention2d(3, 5, 3, content=True),
    "gate": lambda: RelativeAttention2d(3, 5, 3, gate="tanh"),
    "normalised": lambda: NormalisedConv(3, 5, 2, box=[(-1, 1), (-2, 0)]),
}


@pytest.fixture(params=MADE)
def made(request):
    torch.manual_seed(0)
    return MADE[request.param]()


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    """A process group of this process alone."""
    store = tmp_path_factory.mktemp("group") / "store"
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def step(module):
    """One step of gradient descent; returns the output before it and the parameters after it."""
    y = module(images())
    y.square().mean().backward()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.sub_(0.1 * parameter.grad)
    return y.detach(), [
        getattr(one, "full_tensor", lambda one=one: one)().detach() for one in module.parameters()
    ]


def assert_same_step(module, wrapped):
    for found, expected in zip(step(wrapped), step(module), strict=True):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)


def test_fully_sharded(made, one_process):
    plain = copy.deepcopy(made)
    assert_same_step(plain, fully_shard(made, mesh=one_process))


@pytest.mark.filterwarnings("ignore:FSDP is switching to use `NO_SHARD`")
def test_fully_sharded_in_flat_parameters(made, one_process):
    """The default of torch's first version: there the weights of layers are plain attributes."""
    plain, group = copy.deepcopy(made), one_process.get_group()
    wrapped = FullyShardedDataParallel(made, group, device_id=torch.device("cpu"))
    for own, other in zip(step(plain)[0], step(wrapped)[0], strict=True):
        assert torch.equal(own, other)
    with FullyShardedDataParallel.summon_full_params(wrapped):
        names = dict(wrapped.module.named_parameters())
        for name, parameter in plain.named_parameters():
            assert torch.equal(names[name], parameter), name


@pytest.mark.filterwarnings("ignore:nn.ParameterList is being used with DataParallel")
def test_replicas_of_data_parallel(made, monkeypatch):
    """Replicas have no parameters. Torch makes them on GPUs only, so that its copying is replaced here."""
    module = importlib.import_module("torch.nn.parallel.replicate")

    def copies(tensors, devices, detach=False):
        return [[tensor.clone() for tensor in tensors] for _ in devices]

    monkeypatch.setattr(module, "_broadcast_coalesced_reshape", copies)
    x, (_, replica) = images(), replicate(made, [0, 1])
    assert list(replica.parameters()) == []
    assert torch.equal(replica(x), made(x))
    expected = gradients(made, made(x))
    found = gradients(made, replica(x))
    assert list(found) == list(expected)
    for name, own in found.items():
        assert torch.equal(own, expected[name]), name


def gradients(module, y):
    module.zero_grad()
    y.square().mean().backward()
    return {name: one.grad for name, one in module.named_parameters() if one.grad is not None}


def test_data_parallel(made, one_process):
    """A parameter that nothing uses stops the second step."""
    for is_static in (False, True):
        plain, own = copy.deepcopy(made), copy.deepcopy(made)
        group = one_process.get_group()
        wrapped = DistributedDataParallel(own, process_group=group, static_graph=is_static)
        for _ in range(3):
            assert_same_step(plain, wrapped)


def test_parameters_as_one_vector(made):
    x, vector = images(), parameters_to_vector(made.parameters())
    before = made(x)
    vector_to_parameters(torch.zeros_like(vector), made.parameters())
    assert not torch.equal(made(x), before)
    vector_to_parameters(vector, made.parameters())
    assert torch.equal(made(x), before)


def test_every_parameter_is_contiguous(made):
    assert [name for name, one in made.named_parameters() if not one.is_contiguous()] == []


def test_torch_saves_and_loads(made, tmp_path):
    torch.save(made.state_dict(), tmp_path / "state.pt")
    torch.save(made, tmp_path / "whole.pt")
    whole = torch.load(tmp_path / "whole.pt", weights_only=False)
    before = made(images())
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.zero_()
    made.load_state_dict(torch.load(tmp_path / "state.pt"))
    for other in (whole, made):
        assert torch.equal(other(images()), before)
