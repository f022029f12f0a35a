"""Convolutions in other people's code: what a module computes around a call stays, the call attends."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.convert.network.network_cases import Called, converted, filled, images
from timm.layers import Conv2dSame, StdConv2d
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune
from torch.utils.checkpoint import checkpoint
from torchvision.ops import DeformConv2d

from convattn import certify, load_network, network_to_attention, network_to_conv, save_network
from convattn.budget import assert_within_budget, roundings
from convattn.convert.calls import AttendedCalls
from convattn.convert.network_runs import copy_network
from convattn.errors import ConversionError
from convattn.layers import RelativeAttention2d


class StaticSame(nn.Conv2d):
    """Pads by a module that it makes for one size of images, as EfficientNets of PyTorch do."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.static_padding = nn.ZeroPad2d((0, 1, 0, 1))

    def forward(self, x):
        x = self.static_padding(x)
        return F.conv2d(
            x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )


class WithNorm(nn.Conv2d):
    """Normalises and activates, and looks at its images, as convolutions of detectors do."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.norm = nn.BatchNorm2d(self.out_channels)
        self.activation = F.relu

    def forward(self, x):
        if x.numel() == 0 and self.training:
            assert not isinstance(self.norm, nn.SyncBatchNorm)
        x = F.conv2d(
            x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )
        return self.activation(self.norm(x))


class Causal(nn.Conv1d):
    """Pads on the left."""

    def forward(self, x):
        return super().forward(F.pad(x, (self.kernel_size[0] - 1, 0)))


class Equalised(nn.Module):
    """Scales the weight by its size, and has no convolution among its modules."""

    def __init__(self, inputs, outputs, taps):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, taps, taps))
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, x):
        return F.conv2d(x, self.weight * self.weight[0].numel() ** -0.5, self.bias, padding=1)


class Blur(nn.Module):
    """Blurs each channel by a kernel that is a buffer."""

    def __init__(self, channels):
        super().__init__()
        self.register_buffer("kernel", torch.tensor([1.0, 2.0, 1.0]).outer(torch.ones(3))[None])
        self.channels = channels

    def forward(self, x):
        kernel = self.kernel[None].expand(self.channels, -1, -1, -1)
        return F.conv2d(x, kernel, stride=2, groups=self.channels)


class Twice(nn.Module):
    """Calls two convolutions with parameters of its own, and one of a module in between."""

    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.randn(4, 3, 3, 3))
        self.second = nn.Parameter(torch.randn(5, 4, 1, 1))
        self.inner = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x):
        y = self.inner(F.conv2d(x, self.first).relu())
        return F.conv2d(input=y, weight=self.second, bias=None)


class Upward(nn.ConvTranspose2d):
    """Calls a transposed convolution."""

    def forward(self, x):
        return F.conv_transpose2d(x, self.weight, self.bias, self.stride)


class Decoder(nn.Module):
    """Goes down and up again to the size of its images, and takes the first of two."""

    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(4, 5, 3, stride=2, padding=1)

    def forward(self, x):
        return self.up(self.down(x), output_size=x.shape[2:])


MODULES = {
    "static padding": (lambda: StaticSame(3, 4, 3, stride=2), (3, 9, 11)),
    "padding by size": (lambda: Conv2dSame(3, 4, 3, stride=2), (3, 9, 12)),
    "norm and activation": (lambda: WithNorm(3, 4, 3, padding=1, bias=False), (3, 7, 9)),
    "causal": (lambda: Causal(3, 4, 5, dilation=1), (3, 17)),
    "standardised": (lambda: StdConv2d(3, 4, 3), (3, 7, 9)),
    "equalised": (lambda: Equalised(3, 4, 3), (3, 7, 9)),
    "blur": (lambda: Blur(3), (3, 9, 11)),
    "two of its own": (Twice, (3, 7, 9)),
    "transposed": (lambda: Upward(3, 3, 3, stride=2), (3, 7, 9)),
    "output size": (Decoder, (3, 8, 11)),
    "spectral norm": (lambda: parametrizations.spectral_norm(nn.Conv2d(3, 4, 3)), (3, 7, 9)),
    "weight norm": (lambda: parametrizations.weight_norm(nn.Conv1d(3, 4, 3)), (3, 17)),
}


def built(name):
    torch.manual_seed(0)
    make, shape = MODULES[name]
    return filled(nn.Sequential(make())).eval(), images(2, *shape)


@pytest.mark.parametrize("impl", ["auto", "separable"])
@pytest.mark.parametrize("name", MODULES)
def test_a_call_becomes_attention(name, impl):
    network, x = built(name)
    made, certificate = converted(network, x, impl=impl)
    assert certificate.verdict == "exact"
    assert not certificate.left_alone
    assert any(isinstance(module, AttendedCalls) for module in made.modules())


@pytest.mark.parametrize("name", MODULES)
def test_saved_loaded_and_exported(name, tmp_path):
    network, x = built(name)
    made, certificate = network_to_attention(network, images=x)
    made.eval()
    folder = save_network(made, tmp_path / "made", certificate=certificate)
    loaded = load_network(folder, model=network)
    assert torch.equal(loaded(x), made(x))
    program = torch.export.export(made, (x,))
    assert torch.equal(program.module()(x), made(x))


@pytest.mark.parametrize("name", MODULES)
def test_there_and_back(name):
    network, x = built(name)
    made, _ = network_to_attention(network, images=x)
    back, certificate = network_to_conv(made, images=x)
    assert certificate.verdict == "exact"
    assert repr(back) == repr(network)
    for key, tensor in network.state_dict().items():
        assert torch.equal(back.state_dict()[key], tensor), key


def test_other_sizes_are_padded_as_before():
    for name in ("padding by size", "output size"):
        network, x = built(name)
        made, _ = network_to_attention(network, images=x)
        for size in [(7, 8), (10, 10), (13, 9)]:
            other = images(1, 3, *size)
            assert torch.equal(made(other), network(other))


COMPUTED = ["standardised", "equalised", "spectral norm", "weight norm"]


def gradients(network, x):
    """The gradients of all parameters of a copy in training, in one row, in the order of their shapes."""
    network = copy_network(network).train()
    network(x).square().sum().backward()
    every = sorted(network.parameters(), key=lambda parameter: parameter.shape)
    return torch.cat([parameter.grad.flatten() for parameter in every])


@pytest.mark.parametrize("name", MODULES)
def test_a_module_learns_as_before(name):
    """Its parameters are those of the network, and all have a gradient; soft heads have more."""
    network, x = built(name)
    made, certificate = network_to_attention(network, images=x)
    note = "its weight is computed in each call, as before"
    assert (note in certificate.layers[0].notes) == (name in COMPUTED or name == "blur")
    if name != "blur":
        exact = gradients(copy_network(network).double(), x.double())
        assert_within_budget(gradients(made, x), exact, roundings(gradients, network, x), name)
        soft, _ = network_to_attention(network, sharpness=5.0, images=x)
        assert len(gradients(soft, x)) > len(exact)


@pytest.mark.parametrize("name", MODULES)
def test_the_checkpoint_of_the_network_is_loaded(name):
    network, x = built(name)
    made, _ = network_to_attention(network, images=x)
    generator = torch.Generator().manual_seed(1)
    for tensor in network.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    made.load_state_dict(network.state_dict())
    back, certificate = network_to_conv(made, images=x)
    assert certificate.verdict == "exact"
    for key, tensor in network.state_dict().items():
        assert torch.equal(back.state_dict()[key], tensor), key


class Headless(nn.Sequential):
    """Never runs its last module, as encoders made from classifiers do."""

    def forward(self, x):
        return self[0](x)


def test_what_the_images_do_not_reach_is_left_alone():
    network = filled(Headless(StaticSame(3, 4, 3), StaticSame(4, 5, 1))).eval()
    x = images(2, 3, 9, 11)
    made, certificate = converted(network, x)
    assert certificate.verdict == "exact"
    assert [(left.name, left.kind) for left in certificate.left_alone] == [("1", "StaticSame")]
    assert "the images reach no convolution in it" in certificate.left_alone[0].reason
    assert made[1].weight is not network[1].weight


class Deformed(nn.Module):
    """Moves the taps of its second convolution, which cannot be converted."""

    def __init__(self):
        super().__init__()
        self.first = StaticSame(3, 4, 3)
        self.offsets = nn.Conv2d(4, 18, 3, padding=1)
        self.second = DeformConv2d(4, 5, 3, padding=1)

    def forward(self, x):
        y = self.first(x)
        return self.second(y, self.offsets(y))


@pytest.mark.parametrize("choice", [{"exclude": "second"}, {"include": ["first", "offsets"]}])
def test_calls_are_found_beside_a_module_that_is_left_out(choice):
    network, x = filled(Deformed()).eval(), images(2, 3, 9, 11)
    made, certificate = converted(network, x, **choice)
    assert [layer.name for layer in certificate.layers] == ["first", "offsets"]
    assert [left.name for left in certificate.left_alone] == ["second"]
    assert isinstance(made.first, AttendedCalls)


class Fickle(nn.Conv2d):
    """Calls a second convolution on large images, and steps further on larger ones."""

    def forward(self, x):
        if x.shape[-1] > 11:
            return F.conv2d(x, self.weight, self.bias, stride=2)
        y = super().forward(x)
        return super().forward(y) if x.shape[-1] > 9 else y


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (9, 11, "Fickle calls another convolution than when it was"),
        (9, 13, "Fickle calls another convolution than when it was"),
        (11, 9, "Fickle calls 1 convolutions, but 2 were converted"),
    ],
)
def test_other_calls_than_when_it_was_converted_are_an_error(before, after, message):
    network = nn.Sequential(Fickle(3, 3, 3)).eval()
    made, _ = network_to_attention(network, images=images(2, 3, 7, before))
    with pytest.raises(ConversionError, match=message):
        made(images(2, 3, 7, after))


@pytest.mark.usefixtures("without_type_checks")  # a symbol is no integer
def test_inputs_of_an_export_have_the_names_that_the_module_gives_them():
    network, x = filled(StaticSame(3, 4, 3)).eval(), images(2, 3, 7, 9)
    made, _ = network_to_attention(network, images=x)
    assert isinstance(made, AttendedCalls)
    batch, more = {0: torch.export.Dim("batch")}, images(5, 3, 7, 9)
    for shapes in ((batch,), {"x": batch}):
        graph = torch.export.export(made, (x,), dynamic_shapes=shapes).module()
        assert torch.equal(graph(more), made(more))


class Direct(nn.Conv2d):
    """Calls torch's operation itself, after its convolution."""

    def forward(self, x):
        y = super().forward(x)
        arguments = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
        return torch.ops.aten.convolution(y, self.weight, None, *arguments)


def test_an_operation_that_no_function_of_torch_calls_is_left_alone_and_named():
    network, x = nn.Sequential(Direct(3, 3, 3)).eval(), images(2, 3, 7, 9)
    _, certificate = converted(network, x)
    (left,) = certificate.left_alone
    assert left.reason == "it calls convolution as a function, which is not converted"


@pytest.mark.parametrize("of", [list, lambda y: y.movedim(0, 1)], ids=["a list", "second axis"])
def test_outputs_of_single_images_are_compared_over_batches_of_two_sizes(of):
    network = Called(nn.Conv2d(3, 4, 3), lambda conv, x: of(conv(x))).eval()
    made, certificate = network_to_attention(network, images=images(65, 3, 5, 5))
    assert certificate.verdict == "exact"
    with torch.no_grad():
        made.layer.values.weight[0, 0, 0] += 1
    assert not certify(network, made, images(65, 3, 5, 5)).passed


def test_attributes_are_those_of_the_module():
    network, x = built("norm and activation")
    made, _ = network_to_attention(network, images=x)
    assert made[0].out_channels == 4
    assert made[0].norm is made[0].module.norm
    assert isinstance(made[0].layers[0], RelativeAttention2d)
    with pytest.raises(AttributeError, match="nothing"):
        _ = made[0].nothing


def pruned(module):
    prune.l1_unstructured(module, "weight", 0.3)


def parametrised(module):
    parametrizations.weight_norm(module)
    with torch.no_grad():
        module.parametrizations.weight.original0.mul_(1.5)


def sharded(module):
    """Holds its weight as a plain attribute while it runs, as FSDP and replicas of DataParallel have it."""
    weight = 2 * module.weight.detach()
    del module.weight
    module.weight = weight


@pytest.mark.parametrize("change", [pruned, parametrised, sharded])
@pytest.mark.parametrize("name", ["static padding", "norm and activation", "causal", "transposed"])
def test_a_weight_that_is_computed_since_the_conversion_is_the_one_that_attends(name, change):
    network, x = built(name)
    if name == "transposed":  # sums of whole numbers, in whatever order
        network, x = network.requires_grad_(False), (4 * x).round()
        for parameter in network.parameters():
            parameter.copy_((8 * parameter).round())
    made, _ = network_to_attention(network, images=x)
    change(made[0].module)
    change(network[0])
    if name != "transposed" or change is not parametrised:
        assert torch.equal(made(x), network(x))


def test_no_parameter_is_left_that_nothing_trains_where_the_weight_is_computed_since():
    network, x = built("causal")
    made, _ = network_to_attention(network, images=x)
    parametrizations.weight_norm(made[0].module)
    made(x).square().sum().backward()
    assert [name for name, one in made.named_parameters() if one.grad is None] == []


class Sharing(nn.Module):
    """Registers the weight of its convolution a second time, and convolves with it again."""

    def __init__(self, again):
        super().__init__()
        self.conv, self.again = nn.Conv2d(3, 3, 3, bias=False), again
        self.weight = self.conv.weight

    def forward(self, x):
        y = self.conv(x)
        return F.conv2d(y, self.weight) if self.again else y


def test_a_weight_registered_twice_is_converted_or_refused_with_the_reason():
    x = images(2, 3, 7, 9)
    _, certificate = network_to_attention(filled(Sharing(again=False)), images=x)
    assert (certificate.verdict, certificate.left_alone) == ("exact", ())
    _, certificate = network_to_attention(filled(Sharing(again=True)), images=x)
    assert certificate.verdict == "exact"
    (left,) = certificate.left_alone
    assert left.reason.startswith("it calls a convolution with a weight that a module inside uses")


class Scaled(Equalised):
    """Does more around its call, by attributes that a training may set."""

    def __init__(self):
        super().__init__(3, 5, 3)
        self.scale, self.after = 1.0, nn.ReLU()

    def forward(self, x):
        return self.after(super().forward(x)) * self.scale


def test_attributes_are_set_and_deleted_where_the_module_looks_for_them():
    network, x = nn.Sequential(Scaled()).eval(), images(2, 3, 8, 8)
    made, _ = converted(network, x)
    for one in (network[0], made[0]):
        one.scale, one.after = 3.0, nn.Identity()
        one.register_buffer("offset", torch.ones(1))
        one.note = "mine"
    assert torch.equal(made[0].module.offset, torch.ones(1))
    assert_within_budget(made(x), network.double()(x.double()), roundings(made, x))
    del made[0].note
    assert not hasattr(made[0].module, "note")


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("options", [{"sharpness": 1.0}, {"content": True}, {}])
def test_a_checkpoint_inside_a_module_is_refused_unless_heads_stay(options, reentrant):
    class Checkpointed(Equalised):
        def forward(self, x):
            run = super().forward
            return checkpoint(run, x, use_reentrant=reentrant) if self.training else run(x)

    network = nn.Sequential(Checkpointed(3, 5, 3)).eval()
    x = images(2, 3, 8, 8).requires_grad_()
    made, _ = network_to_attention(network, images=x.detach(), **options)
    made.train()
    if not options:
        made(x).sum().backward()
        return
    with pytest.raises(ConversionError, match=r"in a gradient checkpoint.*around the module"):
        made(x)


def test_parameters_that_are_assigned_by_loading_stay_one():
    network, x = nn.Sequential(Blank(3, 5, 3)).eval(), images(2, 3, 8, 8)
    made, _ = converted(network, x)
    state = {name: value + 1 for name, value in made.state_dict().items()}
    made.load_state_dict(state, assign=True)
    (layer,) = made[0].layers
    assert layer.values.weight is made[0].module.weight
    assert [name for name, _ in made.named_parameters()] == ["0.module.weight"]
    back, _ = network_to_conv(made)
    assert torch.equal(back[0].weight, state["0.module.weight"])


class Blank(nn.Module):
    """A call, and nothing around it."""

    def __init__(self, inputs, outputs, taps):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, taps, taps))

    def forward(self, x):
        return F.conv2d(x, self.weight)


def test_threads_may_share_a_network():
    network, x = nn.Sequential(Equalised(3, 16, 3)).eval(), images(4, 3, 24, 24)
    made, _ = converted(network, x)
    names = list(made.state_dict())
    expected = made(x)
    with torch.no_grad(), ThreadPoolExecutor(4) as threads:
        for made_there in threads.map(lambda _: made(x), range(60)):
            assert torch.equal(made_there, expected)
    assert list(made.state_dict()) == names


class Bypassing(nn.Module):
    """Calls its layer by a plain list."""

    def __init__(self, first):
        super().__init__()
        self.first = first
        self.steps = [first]

    def forward(self, x):
        return self.steps[0](x).mean((2, 3))


def test_what_runs_in_place_of_a_layer_must_run():
    message = "what is put in the place of first does not run; the network may call it by another"
    x = images(8, 3, 8, 8)
    with pytest.raises(ConversionError, match=message):
        network_to_attention(Bypassing(nn.Conv2d(3, 5, 3)).eval(), images=x)
    with pytest.raises(ConversionError, match=message):
        network_to_attention(Bypassing(Equalised(3, 5, 3)).eval(), images=x)
    with pytest.raises(ConversionError, match=message):
        network_to_conv(Bypassing(RelativeAttention2d(3, 5, num_heads=4)).eval(), images=x)


def test_shared_weights_come_back_shared_without_a_note():
    network, x = nn.Sequential(nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3)).eval(), images(2, 4, 8, 8)
    network[1].weight = network[0].weight
    back, certificate = network_to_conv(converted(network, x)[0], images=x)
    assert back[0].weight is back[1].weight
    assert [layer.notes for layer in certificate.layers] == [(), ()]


class Measured(nn.Module):
    """Asks for the length of a part that calls a convolution."""

    class Part(nn.Sequential):
        def __init__(self):
            super().__init__(nn.BatchNorm2d(3), nn.ReLU())
            self.weight = nn.Parameter(torch.randn(3, 3, 3, 3))

        def forward(self, x):
            return F.conv2d(super().forward(x), self.weight)

    def __init__(self):
        super().__init__()
        self.part = self.Part()

    def forward(self, x):
        return self.part(x) * len(self.part)


def test_images_are_not_blamed_for_what_a_wrapper_lacks():
    with pytest.raises(
        ConversionError, match="the network does not run with layers in it: TypeErr"
    ):
        network_to_attention(Measured().eval(), images=images(2, 3, 8, 8))
