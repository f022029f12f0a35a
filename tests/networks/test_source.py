"""Networks built by name, their weights and their images."""

import sys

import numpy as np
import pytest
import timm
import torch
import torchvision
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from convattn.data import CIFAR10_MEAN, CIFAR10_STD, normalise
from convattn.errors import (
    ArgumentError,
    CheckpointError,
    DataError,
    MissingDependencyError,
    UnknownNameError,
)
from convattn.models import AttentionNet, ConvNet
from convattn.networks import create_network
from convattn.networks.images import (
    normalisation,
    open_images,
    preparation,
    stack_images,
)
from convattn.networks.loading import LoadedNetwork, load_with_source
from convattn.networks.tensors import load_weights
from convattn.random_numbers import draw_image


def test_networks_are_built_by_name_without_a_trace_in_the_random_numbers():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    assert type(create_network("timm:resnet10t", {"num_classes": 3})) is timm.models.ResNet
    assert type(create_network("torchvision:squeezenet1_1")) is torchvision.models.SqueezeNet
    assert create_network("convattn:ConvNet", {"width": 8}).width == 8
    assert torch.equal(torch.get_rng_state(), before)


def test_a_backbone_is_not_fetched(monkeypatch):
    def fetch(*arguments, **options):
        raise AssertionError("fetched")

    monkeypatch.setattr("torchvision._internally_replaced_utils.load_state_dict_from_url", fetch)
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", fetch)
    assert (
        create_network("torchvision:lraspp_mobilenet_v3_large", {"num_classes": 2}).classifier
        is not None
    )
    with pytest.raises(
        CheckpointError, match=r"cannot fetch the weights of torchvision:squeezenet1_1: .*fetched"
    ):
        create_network("torchvision:squeezenet1_1", pretrained=True)


@pytest.mark.parametrize(
    ("source", "options", "error", "message"),
    [
        (
            "resnet18",
            {},
            ArgumentError,
            'source must be "timm:NAME", "torchvision:NAME", "hf:NAME" or "convattn:CLASS", but is',
        ),
        ("timm:", {}, ArgumentError, "source must be"),
        ("tim:resnet18", {}, UnknownNameError, "unknown source 'tim': did you mean 'timm'"),
        (
            "timm:resnt18",
            {},
            ArgumentError,
            "unknown timm model 'resnt18': did you mean 'resnet18'",
        ),
        (
            "timm:vit_tinny",
            {},
            ArgumentError,
            "unknown timm model 'vit_tinny': did you mean 'vit_tiny_",
        ),
        (
            "torchvision:resnt18",
            {},
            ArgumentError,
            "unknown torchvision model 'resnt18': did you mean 'resnet18'",
        ),
        (
            "convattn:ConvNets",
            {},
            UnknownNameError,
            "unknown network 'ConvNets': did you mean 'ConvNet'",
        ),
        ("timm:resnet10t", {"widht": 3}, ArgumentError, "options must fit timm:resnet10t, .*widht"),
        ("torchvision:resnet18", {"weights": 1}, ArgumentError, "but weights would bring weights"),
        (
            "timm:resnet10t",
            {"pretrained": True},
            ArgumentError,
            "but pretrained would bring weights",
        ),
    ],
)
def test_wrong_names_and_options_are_refused(source, options, error, message):
    with pytest.raises(error, match=message):
        create_network(source, options)


def test_own_networks_have_no_weights_to_fetch():
    with pytest.raises(ArgumentError, match="convattn:ConvNet has no pretrained weights"):
        create_network("convattn:ConvNet", pretrained=True)


@pytest.mark.parametrize("package", ["timm", "torchvision"])
def test_a_missing_package_is_named_with_its_extra(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.models", None)
    with pytest.raises(
        MissingDependencyError, match=rf'this needs {package}, .*pip install "convattn\[timm\]"'
    ):
        create_network(f"{package}:resnet18")


@pytest.fixture
def small():
    return nn.Sequential(nn.Conv1d(2, 3, 5), nn.BatchNorm1d(3))


@pytest.mark.parametrize("form", ["safetensors", "pth", "nested"])
def test_weights_are_read_from_every_form(form, small, tmp_path):
    other = nn.Sequential(nn.Conv1d(2, 3, 5), nn.BatchNorm1d(3))
    file = tmp_path / f"weights.{'safetensors' if form == 'safetensors' else 'pth'}"
    if form == "safetensors":
        save_file(other.state_dict(), file)
    else:
        torch.save(
            {"state_dict": other.state_dict(), "epoch": 3}
            if form == "nested"
            else other.state_dict(),
            file,
        )
    load_weights(small, file)
    assert all(torch.equal(t, small.state_dict()[name]) for name, t in other.state_dict().items())


def test_weights_that_do_not_fit_are_named(small, tmp_path):
    state = small.state_dict()
    state["more"] = state.pop("1.bias")
    state["0.weight"] = torch.zeros(3, 2, 7)
    torch.save(state, tmp_path / "w.pt")
    message = (
        r"w.pt do not fit Sequential: 1 missing: 1.bias; 1 unexpected: more; "
        r".*0.weight \(3, 2, 7\) for \(3, 2, 5\)"
    )
    with pytest.raises(CheckpointError, match=message):
        load_weights(small, tmp_path / "w.pt")


@pytest.mark.parametrize("dtype", [torch.int8, torch.complex64])
def test_weights_that_are_no_floating_point_numbers_are_refused(dtype, small, tmp_path):
    torch.save(
        {name: tensor.to(dtype) for name, tensor in small.state_dict().items()}, tmp_path / "w.pt"
    )
    message = rf"do not fit Sequential: 0\.weight must hold floating-point numbers, not {dtype}$"
    with pytest.raises(CheckpointError, match=message):
        load_weights(small, tmp_path / "w.pt")


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"not weights", None], ids=["empty", "word", "text", "absent"]
)
@pytest.mark.parametrize("ending", ["pth", "safetensors"])
def test_files_that_are_no_weights_are_refused(content, ending, small, tmp_path):
    if content is not None:
        (tmp_path / f"w.{ending}").write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"cannot read weights from .*w\.{ending}: \w+: \S"):
        load_weights(small, tmp_path / f"w.{ending}")


def test_code_in_a_file_of_weights_is_not_run(small, tmp_path):
    torch.save({"0.weight": Harmful(tmp_path / "trace")}, tmp_path / "w.pt")
    with pytest.raises(CheckpointError, match=r"cannot read weights from .*w.pt: UnpicklingError"):
        load_weights(small, tmp_path / "w.pt")
    assert not (tmp_path / "trace").exists()


def test_what_is_no_state_dict_is_refused(small, tmp_path):
    numbered = {0: torch.zeros(1), "a": torch.zeros(1)}
    for content in ([1, 2], {"a": 3}, numbered, {"state_dict": {0: torch.zeros(1)}}):
        torch.save(content, tmp_path / "w.pt")
        with pytest.raises(CheckpointError, match="it holds no state dict: tensors by their names"):
            load_weights(small, tmp_path / "w.pt")


class Harmful:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return self.path.write_text, ("run",)


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "pictures"
    (folder / "inside").mkdir(parents=True)
    for number, name in enumerate(["b.png", "a.jpg", "inside/c.png"]):
        Image.new("RGB", (40 + number, 50), (10 * number, 100, 200)).save(folder / name)
    (folder / "notes.txt").write_text("no picture")
    return folder


@pytest.mark.parametrize("source", ["timm:resnet10t", "torchvision:squeezenet1_1"])
def test_pictures_are_prepared_as_the_source_says(source, pictures):
    network = create_network(source)
    prepare = preparation(LoadedNetwork(network, source, {}, None))
    made = stack_images(open_images(pictures, lambda: prepare, limit=2), pictures)
    assert made.shape[0] == 2
    assert made.shape[1] == 3
    with Image.open(pictures / "a.jpg") as first:
        assert torch.equal(made[0], prepare(first.convert("RGB")))
    network.eval()(made)


def test_folders_without_pictures_are_refused(tmp_path):
    with pytest.raises(DataError, match="holds no images"):
        open_images(tmp_path, lambda: torch.zeros)


@pytest.mark.parametrize("size", [(32, 32), (50, 40)])
def test_pictures_for_a_network_of_the_package_are_prepared_as_in_its_training(size):
    noise = np.random.default_rng(0).integers(256, size=(*size[::-1], 3), dtype=np.uint8)
    picture, source = Image.fromarray(noise), "convattn:cifar10-small"
    made = preparation(load_with_source(source))(picture)
    square = (5, 0, 45, 40) if size == (50, 40) else (0, 0, 32, 32)
    small = picture.resize((32, 32), Image.Resampling.BICUBIC, box=square)
    scaled = torch.from_numpy(np.array(small))
    assert torch.equal(made, normalise(scaled.movedim(2, 0)[None], CIFAR10_MEAN, CIFAR10_STD)[0])


def test_a_network_that_does_not_say_how_is_refused():
    loaded = LoadedNetwork(ConvNet(width=8), "convattn:ConvNet", {}, None)
    message = (
        r"nothing says how pictures are prepared for this ConvNet: give --mean and --std .*"
        r"of float32, normalised, of shape \(images, 3, 32, 32\)$"
    )
    with pytest.raises(ArgumentError, match=message):
        preparation(loaded)
    colours = (0.5, 0.25, 0.125), (0.5, 0.25, 0.25)
    prepare = preparation(loaded._replace(colours=colours))
    image = prepare(Image.new("RGB", (40, 50), (0, 255, 51)))
    pixels = torch.tensor([0, 255, 51], dtype=torch.uint8)[:, None, None].expand(3, 32, 32)
    assert torch.equal(image, normalise(pixels[None], *colours)[0])
    assert normalisation(loaded._replace(colours=colours)) == colours


def test_an_image_is_drawn_in_the_size_that_the_network_says():
    assert draw_image(AttentionNet(width=8, image_size=20, in_channels=1)).shape == (1, 1, 20, 20)
    assert draw_image(create_network("timm:resnet10t")).shape[1:] == (3, 176, 176)
    assert draw_image(nn.Linear(2, 3)).shape == (1, 3, 224, 224)
    assert draw_image(nn.Linear(2, 3).double(), (5, 7)).dtype == torch.float64


def test_networks_that_draw_for_seconds_unless_told_not_to_warn_are_told():
    network = create_network("torchvision:googlenet", {"aux_logits": False, "num_classes": 3})
    assert network.fc.out_features == 3  # a warning would have been an error here


def test_networks_without_weights_do_not_say_how_pictures_are_prepared(monkeypatch):
    monkeypatch.setattr(torchvision.models, "get_model_weights", lambda _: ())
    loaded = LoadedNetwork(nn.Identity(), "torchvision:resnet18", {}, None)
    with pytest.raises(ArgumentError, match=r"shape \(images, 3, 224, 224\)$"):
        preparation(loaded)
    assert normalisation(loaded) is None


def test_normalisation_is_that_of_the_last_step_that_has_one(monkeypatch):
    first, last = (
        torchvision.transforms.Normalize([mean] * 3, [0.25] * 3) for mean in (0.5, 0.125)
    )
    chain = [first, last, torchvision.transforms.CenterCrop(5)]
    for steps, expected in ((chain, ((0.125,) * 3, (0.25,) * 3)), (chain[2:], None)):
        made = torchvision.transforms.Compose(steps)
        monkeypatch.setattr("convattn.networks.images.timm_preparation", lambda _, made=made: made)
        loaded = LoadedNetwork(nn.Identity(), "timm:resnet10t", {}, None)
        assert normalisation(loaded) == expected


def test_images_have_the_size_for_which_a_network_was_built():
    network = timm.create_model("vit_tiny_patch16_224", img_size=(32, 48), depth=1, embed_dim=48)
    assert draw_image(network).shape == (1, 3, 32, 48)
