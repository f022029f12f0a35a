"""A network is loaded into what was saved: another one is refused, with the module, what was expected and found."""

import json
import types
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial

import pytest
import timm
import torch
import torchvision
import transformers
from torch import nn
from torch.nn.utils import prune
from torch.utils._pytree import tree_leaves

from convattn import load_network, network_to_attention, save_network
from convattn.encodings import Encoding, registry
from convattn.errors import CheckpointError
from convattn.layers import RelativeAttention1d
from convattn.networks import create_network
from convattn.networks.differences import Difference, differences


class Mode(Enum):
    PLAIN = 1
    OTHER = 2


@dataclass(frozen=True, slots=True)
class Settings:
    slope: float = 0.25
    sizes: tuple[int, ...] = (2, 3)


class Callable:
    """Computes what its class says; what it holds is not described."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return x * self.factor


def doubled(x):
    return 2 * x


def scaled(x, factor):
    return factor * x


class Own(nn.Module):
    """Holds a value of each kind beside its tensors, and changes what it counts when it runs."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(2, 3, 5)
        self.norm = nn.BatchNorm1d(3)
        self.acts = nn.Sequential(nn.LeakyReLU(0.1), nn.GELU(), nn.Dropout(0.5))
        self.named = nn.ModuleDict({"first": nn.Identity(), "second": nn.Tanh()})
        self.register_buffer("scale", torch.tensor([0.5, 2.0, 3.0]), persistent=False)
        self.register_buffer("mask", torch.ones(7, 11), persistent=False)
        self.table = torch.arange(5.0)
        self.function, self.bound = torch.relu, partial(scaled, factor=3)
        self.mode, self.dtype, self.settings = Mode.PLAIN, torch.float32, Settings()
        self.options = {"depth": 2, "names": ["a", "b"]}
        self.log, self.found = [], {}
        self.circle = {}
        self.circle["again"] = self.circle
        self.space = types.SimpleNamespace(power=2)
        self._slope, self.calls, self._cache, self.object = 1.5, 0, None, Callable(2)
        self.device, self.loose = torch.device("cpu"), [nn.Linear(1, 1, bias=False)]
        nn.init.ones_(self.loose[0].weight)

    def forward(self, x):
        self.calls += 1
        self.log.append(x.shape)
        self.found["image"] = x
        self.remember(x)
        x = self.named["second"](self.acts(self.norm(self.conv(x))))
        return x * self.scale[:, None]

    def remember(self, x):
        self._cache = self.last = x


def other_scale(made):
    made.scale[1] = 7


def swapped(made):
    made.named = nn.ModuleDict({"second": nn.Tanh(), "first": nn.Identity()})


def hooked(made):
    made.acts.register_forward_hook(lambda *_: None)


MINE = r"tests\.networks\.test_differences\."
OTHERS = {
    "activation": (
        lambda m: m.acts.__setitem__(0, nn.ReLU()),
        r"acts\.0 is a torch\.\S*\.ReLU, not a torch\.\S*\.LeakyReLU",
    ),
    "slope": (
        lambda m: setattr(m.acts[0], "negative_slope", 0.2),
        r"acts\.0\.negative_slope is 0\.2, not 0\.1",
    ),
    "epsilon": (lambda m: setattr(m.norm, "eps", 0.5), r"norm\.eps is 0\.5, not 1e-05"),
    "momentum": (lambda m: setattr(m.norm, "momentum", None), r"norm\.momentum is None, not 0\.1"),
    "approximation": (
        lambda m: setattr(m.acts[1], "approximate", "tanh"),
        r"acts\.1\.approximate is 'tanh', not 'none'",
    ),
    "rate": (lambda m: setattr(m.acts[2], "p", 0.1), r"acts\.2\.p is 0\.1, not 0\.5"),
    "order": (
        lambda m: setattr(m, "acts", nn.Sequential(*[*m.acts][::-1])),
        r"acts\.0 is a \S*Dropout, not a \S*LeakyReLU; acts\.2 is",
    ),
    "order of names": (swapped, r"the next module in order is named\.second, not named\.first"),
    "more": (lambda m: m.acts.append(nn.ReLU()), r"acts\.3 \(a torch\.\S*ReLU\) is added"),
    "less": (lambda m: m.acts.__delitem__(2), r"acts\.2 \(a torch\.\S*Dropout\) is missing"),
    "small buffer": (
        other_scale,
        r"scale is float32 of shape \(3,\) \[0\.5, 7\.0, 3\.0\], not float32 of shape \(3,\) \[0\.5, 2",
    ),
    "large buffer": (
        lambda m: m.mask.__setitem__((3, 5), 0.0),
        r"mask is float32 of shape \(7, 11\) of digest \w{16}, not float32 of shape \(7, 11\) of",
    ),
    "tensor": (lambda m: m.table.add_(1), r"table is float32 of shape \(5,\) of digest \w+, not"),
    "loose": (
        lambda m: nn.init.zeros_(m.loose[0].weight),
        r"loose is \(torch.*\[0\.0\].*, not .*1",
    ),
    "function": (
        lambda m: setattr(m, "function", doubled),
        rf"function is {MINE}doubled, not \S*relu",
    ),
    "bound": (
        lambda m: setattr(m, "bound", partial(scaled, factor=5)),
        rf"bound is {MINE}scaled with \(\(\('factor', 5\)\)\), not",
    ),
    "enumeration": (
        lambda m: setattr(m, "mode", Mode.OTHER),
        rf"mode is {MINE}Mode\.OTHER, not {MINE}Mode\.PLAIN",
    ),
    "dtype": (
        lambda m: setattr(m, "dtype", torch.float64),
        r"dtype is torch\.float64, not torch\.float32",
    ),
    "dataclass": (
        lambda m: setattr(m, "settings", replace(m.settings, slope=0.5)),
        r"settings is \S*Settings\(\('slope', 0\.5\), \('sizes', \(2, 3\)\)\), not",
    ),
    "dict": (
        lambda m: m.options.update(depth=3),
        r"options is \(\('depth', 3\), \('names', \('a', 'b'\)\)\), not \(\('depth', 2\)",
    ),
    "namespace": (lambda m: setattr(m.space, "power", 3), r"space is .*\(\('power', 3\)\), not"),
    "private": (lambda m: setattr(m, "_slope", 1), r"_slope is 1, not 1\.5"),
    "object": (
        lambda m: setattr(m, "object", Mode),
        rf"object is {MINE}Mode, not a {MINE}Callable",
    ),
    "attribute": (lambda m: setattr(m, "extra", 3), r"extra \(3\) is added"),
    "no attribute": (lambda m: delattr(m, "function"), r"function \(torch\S*relu\) is missing"),
    "method": (
        lambda m: setattr(m.norm, "forward", doubled),
        rf"norm\.forward \({MINE}doubled\) is added",
    ),
    "hook": (hooked, r"acts\.forward hook \(.*hooked\.<locals>\.<lambda>\) is added"),
    "shape": (
        lambda m: setattr(m, "norm", nn.BatchNorm1d(5)),
        r"norm\.num_features is 5, not 3; norm\.weight is of shape \(5,\), not of shape \(3,\)",
    ),
}
"""What the model given has otherwise, and the words."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    torch.manual_seed(0)
    made, certificate = network_to_attention(Own().eval(), images=torch.randn(2, 2, 7))
    made(torch.randn(2, 2, 7))
    folder = tmp_path_factory.mktemp("saved") / "own"
    return save_network(made, folder, certificate=certificate)


@pytest.mark.parametrize(("change", "message"), OTHERS.values(), ids=OTHERS)
def test_another_network_is_refused_by_name(change, message, saved):
    model = Own()
    change(model)
    with pytest.raises(CheckpointError, match=f"do not fit with the model given: {message}"):
        load_network(saved, model=model)


def test_what_is_not_covered_is_on_record(saved):
    structure = json.loads((saved / "config.json").read_text())["structure"]
    kind = "tests.networks.test_differences.Own"
    assert structure["not_covered"] == [
        "circle: the contents of a cycle",
        *[f"{key}, which {kind} assigns when it runs" for key in ("calls", "_cache")],
        "object: the contents of a tests.networks.test_differences.Callable",
        f"last, which {kind} assigns when it runs",
    ]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("__main__.Net", "train.Net", True),
        ("train.Net", "__main__.Net", True),
        ("__main__.Net", "__main__.Net", True),
        ("__main__.Net", "train.SubNet", False),
        ("train.Net", "other.Net", False),
    ],
)
def test_a_class_of_a_script_is_the_one_that_is_imported_from_it(one, other, same):
    modules = [
        {"": {"class": kind, "attributes": {}, "contents": {}, "parts": {}}}
        for kind in (one, other)
    ]
    assert (list(differences(*modules)) == []) == same


def test_a_long_value_is_shown_where_it_differs():
    found, expected = (f"({'1, ' * 200}{end}, {'2, ' * 99})" for end in (3, 5))
    message = str(Difference("a", "sizes", found, expected))
    assert message.startswith("a.sizes is … 1, 1, ")
    assert "1, 3, 2" in message.partition(" not ")[0]
    assert "1, 5, 2" in message.partition(" not ")[2]
    assert len(message) < 200


def ran(model):
    model(torch.randn(1, 2, 9))
    model.log.clear()  # where both are filled, they are compared
    model.found.clear()
    return model


def rebuilt(model):
    model.conv = nn.Conv1d(2, 3, [5], bias=True)
    model.options = dict(reversed(model.options.items()))
    model._books = 3
    return model


def without_weights(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model


SAME = {
    "new": lambda m: m,
    "run": ran,
    "in another mode": lambda m: m.eval(),
    "with other weights": without_weights,
    "frozen parameters": lambda m: m.requires_grad_(False),
    "on another device": lambda m: setattr(m, "device", torch.device("meta")) or m,
    "given in other words": rebuilt,
    "compiled": lambda m: m.compile() or m,
}


@pytest.mark.parametrize("change", SAME.values(), ids=SAME)
def test_the_same_network_is_taken(change, saved):
    loaded = load_network(saved, model=change(Own()))
    assert isinstance(loaded.conv, RelativeAttention1d)
    assert torch.equal(
        loaded.conv.values.weight, load_network(saved, model=Own()).conv.values.weight
    )


class Wave(Encoding):
    """An encoding of one's own, with an option."""

    def __init__(self, num_heads, dims, *, period=4.0):
        super().__init__(num_heads, dims)
        self.period, self.weights = period, nn.Parameter(torch.ones(num_heads))

    def options(self):
        return {"period": self.period}

    def score(self, displacement):
        waves = torch.sin(displacement.to(self.weights.dtype) / self.period).sum(-1)
        return self.weights.view(-1, *(1,) * waves.ndim) * waves


def of_transformers(**options):
    config = transformers.ViTConfig(
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=5,
        image_size=14,
        patch_size=7,
        **options,
    )
    return transformers.ViTModel(config)


def waves():
    encoding = Wave(2, 1, period=3.0)
    return nn.Sequential(RelativeAttention1d(3, 3, num_heads=2, encoding=encoding), nn.ReLU())


def gated():
    layer = RelativeAttention1d(3, 3, num_heads=2, encoding="quadratic", gate="tanh")
    return nn.Sequential(layer, nn.LayerNorm(7))


def test_a_configuration_of_transformers_may_come_from_a_folder(tmp_path):
    network = of_transformers().eval()
    network.save_pretrained(tmp_path / "theirs")
    folder = save_network(network, tmp_path / "made")
    loaded = load_network(folder, model=transformers.ViTModel.from_pretrained(tmp_path / "theirs"))
    x = torch.randn(1, 3, 14, 14)
    assert torch.equal(loaded(x).pooler_output, network(x).pooler_output)
    structure = json.loads((folder / "config.json").read_text())["structure"]
    (config,) = structure["not_covered"]
    assert config == "config: the contents of a transformers.models.vit.configuration_vit.ViTConfig"
    other = of_transformers(layer_norm_eps=0.1)
    message = r"layers\.0\.layernorm_before\.eps is 0\.1, not 1e-12"
    with pytest.raises(CheckpointError, match=f"with the model given: {message}"):
        load_network(folder, model=other)


def resnet():
    blocks = torchvision.models.resnet.BasicBlock
    return torchvision.models.ResNet(blocks, [1, 1, 1, 1], num_classes=3)


def computed(compute):
    """Has a convolution whose weight torch computes before each call."""
    return lambda: nn.Sequential(compute(nn.Conv1d(3, 5, 3)), nn.ReLU())


PICTURES, SEQUENCES = (1, 3, 32, 32), (1, 3, 7)
BUILDERS = {
    "timm": (lambda: timm.create_model("test_resnet", num_classes=3), PICTURES),
    "timm, transformer": (lambda: timm.create_model("test_vit", img_size=32), PICTURES),
    "torchvision": (resnet, PICTURES),
    "transformers": (of_transformers, (1, 3, 14, 14)),
    "recurrent": (lambda: nn.LSTM(7, 5, bidirectional=True), SEQUENCES),
    "encoder": (lambda: nn.TransformerEncoderLayer(7, 7, 5, batch_first=True), SEQUENCES),
    "own encoding": (waves, SEQUENCES),
    "gated": (gated, SEQUENCES),
    "pruned": (computed(partial(prune.l1_unstructured, name="weight", amount=0.5)), SEQUENCES),
    "weight norm": (computed(nn.utils.weight_norm), SEQUENCES),
    "spectral norm": (computed(nn.utils.parametrizations.spectral_norm), SEQUENCES),
    "half": (lambda: nn.Sequential(nn.Conv1d(3, 5, 3), nn.BatchNorm1d(5)), SEQUENCES),
}
"""What builds a network, and the shape of its images."""


def outputs(network, x):
    """The tensors that a network returns."""
    with torch.no_grad():
        found = network(x)
    return [each for each in tree_leaves(found) if isinstance(each, torch.Tensor)]


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize("name", BUILDERS)
def test_networks_are_loaded_into_a_new_one(name, tmp_path, monkeypatch):
    monkeypatch.setitem(registry._known, "wave", Wave)
    build, shape = BUILDERS[name]
    torch.manual_seed(0)
    network, x = build().eval(), torch.randn(shape)
    if any(isinstance(module, nn.Conv2d) for module in network.modules()):
        network, _ = network_to_attention(network, images=x)
    if name == "half":
        network, x = network.half(), x.half()
    outputs(network, x)  # running changes nothing that is compared
    loaded = load_network(save_network(network, tmp_path / "made"), model=build())
    for found, expected in zip(outputs(loaded, x), outputs(network, x), strict=True):
        assert torch.equal(found, expected)


def test_a_builder_that_builds_something_else_now_is_refused(tmp_path, monkeypatch):
    source, options = "torchvision:resnet18", {"num_classes": 3}
    network = create_network(source, options)
    folder = save_network(network, tmp_path / "made", source=source, options=options)
    monkeypatch.setattr(nn.BatchNorm2d.__init__, "__defaults__", (0.5, 0.1, True, True, None, None))
    message = r"fit together: bn1\.eps is 0\.5, not 1e-05; .*; and more\. torchvision:resnet18 is not what it was"
    with pytest.raises(CheckpointError, match=message):
        load_network(folder)
