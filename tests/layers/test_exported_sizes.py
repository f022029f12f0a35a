"""What an export may leave open: the number of images, and sizes where a layer is a convolution."""

import pytest
import torch
from torch.export import Dim

from convattn import freeze
from convattn.budget import assert_within_budget, references
from convattn.encodings import Shift
from convattn.errors import ArgumentError
from convattn.layers import NormalisedConv, RelativeAttention1d, RelativeAttention2d

pytestmark = pytest.mark.usefixtures("without_type_checks")  # a symbol is no integer


def attention(**options):
    return RelativeAttention2d(4, 6, **{"num_heads": 2, **options})


MADE = {
    "one axis": lambda: RelativeAttention1d(4, 6, num_heads=2),
    "quadratic": attention,
    "narrow heads": lambda: attention(head_width=1),
    "reflected": lambda: attention(kernel_size=3, stride=2, padding=1, padding_mode="reflect"),
    "spread": lambda: attention(kernel_size=3, padding=1, input_dilation=2),
    "all pairs": lambda: attention(encoding="distance"),
    "transforms": lambda: attention(encoding="distance", impl="fourier"),
    "content": lambda: attention(content=True),
    "content of a table": lambda: attention(content=True, encoding="learned_axial"),
    "content in n + 1 channels": lambda: attention(content=True, impl="quadratic"),
    "gate": lambda: attention(gate="sigmoid"),
    "definition": lambda: attention(impl="reference"),
    "far taps": lambda: attention(encoding=Shift(2, 2, displacements=[[2, 1], [0, -3]])),
    "normalised": lambda: NormalisedConv(4, 6, 2, box=[(-1, 1), (-2, 0)]),
    "frozen": lambda: freeze(attention(), images(MADE["quadratic"]())),
}


def images(layer, batch=2, more=0):
    sizes = [size + more for size in (7, 11)[-len(layer.geometry.kernel_size) :]]
    return torch.randn(batch, 4, *sizes, generator=torch.Generator().manual_seed(batch))


def run(layer, x):
    return layer(x)


FEW = {"one axis", "reflected", "gate", "normalised", "frozen", "far taps"}
"""Those of each mechanism; the others are slow tests."""


@pytest.mark.parametrize(
    "name",
    [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in MADE],
)
def test_sizes_that_cannot_be_open_are_fixed_or_refused(name):
    torch.manual_seed(0)
    layer = MADE[name]().eval()
    torch.manual_seed(0)
    source = MADE["quadratic" if name == "frozen" else name]()  # of which there are references
    x, more = images(layer), images(layer, batch=5)
    spatial = range(2, x.ndim)
    automatic = (dict.fromkeys((0, *spatial), Dim.AUTO),)
    program = torch.export.export(layer, (x,), dynamic_shapes=automatic)
    graph = program.module()
    assert_within_budget(graph(more), *references(run, source, more))
    for other in (-2, 3):
        with pytest.raises(AssertionError, match="Guard failed"):
            graph(images(layer, more=other))
    # as the exporter to ONNX asks, which has no guards
    with pytest.raises(
        ArgumentError, match="dynamic_shapes must leave out spatial sizes, on which"
    ):
        torch.export.export(
            layer,
            (x,),
            dynamic_shapes=automatic,
            prefer_deferred_runtime_asserts_over_guards=True,
        )


def test_a_size_that_is_named_is_refused_by_torch():
    layer = RelativeAttention1d(4, 6, num_heads=2)
    named = ({2: Dim("size")},)
    with pytest.raises(torch._dynamo.exc.UserError, match="Constraints violated"):
        torch.export.export(layer, (images(layer),), dynamic_shapes=named)


def test_a_convolution_is_exported_for_any_size():
    torch.manual_seed(0)
    layer = RelativeAttention2d(4, 6, 3, padding=1, encoding="shift").eval()
    named = ({axis: Dim(f"size{axis}") for axis in (0, 2, 3)},)
    graph = torch.export.export(layer, (images(layer),), dynamic_shapes=named).module()
    for more in (-2, 3):
        x = images(layer, batch=5, more=more)
        assert torch.equal(graph(x), layer(x))
