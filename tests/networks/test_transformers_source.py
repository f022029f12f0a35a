"""Networks of transformers, built from a folder; nothing is fetched."""

import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from convattn import load_network, save_network
from convattn.cli import main
from convattn.errors import ArgumentError, CheckpointError, MissingDependencyError
from convattn.heads.head_report import HeadReport
from convattn.models import ConvNet
from convattn.networks import create_network
from convattn.networks.images import preparation
from convattn.networks.loading import LoadedNetwork
from convattn.networks.pictures import normalise

transformers = pytest.importorskip("transformers")

VISION = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "intermediate_size": 32,
    "image_size": 28,
    "patch_size": 4,
    "num_attention_heads": 3,
}
TEXT = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "vocab_size": 5,
}
TOKENS = {"max_position_embeddings": 7, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture
def vit(tmp_path):
    """A folder with a vision transformer, and how its pictures are prepared."""
    torch.manual_seed(1)
    network = transformers.ViTForImageClassification(transformers.ViTConfig(**VISION)).eval()
    network.save_pretrained(tmp_path / "vit")
    transformers.ViTImageProcessor(size={"height": 28, "width": 28}).save_pretrained(
        tmp_path / "vit"
    )
    return network, tmp_path / "vit"


def test_without_a_network_nothing_is_tried_for_half_a_minute(monkeypatch):
    """The Hub's client sleeps between its tries."""

    def refuse(*_, **__):
        raise OSError("no network")

    waits = []
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("socket.getaddrinfo", refuse)
    monkeypatch.setattr("time.sleep", waits.append)
    for source, message in {
        "hf:no-such/network": "cannot build hf:no-such/network: .* couldn't connect",
        "timm:vit_tiny_patch16_224": "does not answer, and timm/vit_tiny.* is not in its cache",
    }.items():
        with pytest.raises(CheckpointError, match=message):
            create_network(source, pretrained=True)
        assert not waits, source


def picture():
    return Image.fromarray(np.random.default_rng(0).integers(256, size=(31, 37, 3), dtype=np.uint8))


def test_weights_are_those_of_the_folder_or_drawn(vit):
    network, folder = vit
    verbosity = transformers.logging.get_verbosity()
    fetched, drawn = create_network(f"hf:{folder}", pretrained=True), create_network(f"hf:{folder}")
    assert type(fetched) is type(drawn) is type(network)
    assert all(
        torch.equal(fetched.state_dict()[name], tensor)
        for name, tensor in network.state_dict().items()
    )
    assert not torch.equal(drawn.classifier.weight, network.classifier.weight)
    assert create_network(f"hf:{folder}", {"num_labels": 5}).classifier.out_features == 5
    assert transformers.logging.get_verbosity() == verbosity


def test_of_a_network_for_pictures_and_text_the_part_for_pictures_is_taken(tmp_path):
    config = transformers.CLIPConfig(vision_config=VISION, text_config={**TEXT, **TOKENS})
    whole = transformers.CLIPModel(config)
    whole.save_pretrained(tmp_path)
    for pretrained in (True, False):
        tower = create_network(f"hf:{tmp_path}", pretrained=pretrained)
        assert type(tower) is transformers.CLIPVisionModel
    fetched, saved = (
        dict(one.named_modules())
        for one in (create_network(f"hf:{tmp_path}", pretrained=True), whole)
    )
    name = "encoder.layers.0.self_attn.q_proj"
    assert torch.equal(fetched[name].weight, saved[f"vision_model.{name}"].weight)


def test_half_precision_is_widened(vit):
    network, folder = vit
    network.half().save_pretrained(folder)
    assert create_network(f"hf:{folder}", pretrained=True).dtype == torch.float32


def test_pictures_are_prepared_as_the_folder_says(vit):
    network, folder = vit
    loaded = LoadedNetwork(network, f"hf:{folder}", {}, None)
    made = preparation(loaded)(picture())
    small = torch.from_numpy(
        np.array(picture().resize((28, 28), Image.Resampling.BILINEAR))
    ).movedim(2, 0)
    assert made.shape == (3, 28, 28)
    assert (made - (small / 127.5 - 1)).abs().max() < 0.02  # resizing may round each byte
    (folder / "preprocessor_config.json").unlink()
    message = r"prepared for this ViT\w+: give --mean .* of shape \(images, 3, 28, 28\)$"
    with pytest.raises(ArgumentError, match=message):
        preparation(loaded)
    half = (0.5, 0.5, 0.5)
    given = preparation(loaded._replace(colours=(half, half)))
    grey = Image.new("RGB", (31, 37), (255, 0, 127))
    pixels = torch.tensor([255, 0, 127], dtype=torch.uint8)[:, None, None].expand(3, 28, 28)
    assert torch.equal(given(grey), normalise(pixels[None], half, half)[0])


def test_what_cannot_be_built_is_named(vit, tmp_path, monkeypatch):
    _, folder = vit
    with pytest.raises(CheckpointError, match=r"cannot build hf:.*none: OSError: "):
        create_network(f"hf:{tmp_path}/none")
    with pytest.raises(
        ArgumentError,
        match=r"options must be in the configuration of hf:.*, which has no num_labls",
    ):
        create_network(f"hf:{folder}", {"num_labls": 3})
    tensors = load_file(folder / "model.safetensors")
    del tensors["classifier.bias"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"vit has no weights for classifier\.bias"):
        create_network(f"hf:{folder}", pretrained=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["logging"]}))
    with pytest.raises(ArgumentError, match=r"vit is no network of transformers \(logging\)"):
        create_network(f"hf:{folder}")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingDependencyError, match="this needs transformers"):
        create_network(f"hf:{folder}")


def test_code_of_a_network_is_not_run(vit, tmp_path):
    _, folder = vit
    config = json.loads((folder / "config.json").read_text())
    own = {"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}, "architectures": ["Own"]}
    (folder / "config.json").write_text(json.dumps({**config, **own}))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'trace')!r}, 'w')\n")
    with pytest.raises(CheckpointError, match="trust_remote_code"):
        create_network(f"hf:{folder}", pretrained=True)
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("weights", ["--pretrained", "--random-weights"])
def test_the_command_analyses_one(vit, tmp_path, weights, capsys):
    (tmp_path / "photos").mkdir()
    picture().save(tmp_path / "photos" / "a.png")
    command = ["analyze", f"hf:{vit[1]}", "--no-controls", "-o", str(tmp_path / "made")]
    assert main([*command, weights]) == 2
    assert "--images must be given for hf:" in capsys.readouterr().err
    assert main([*command, weights, "--images", str(tmp_path / "photos")]) == 0
    report = HeadReport.load(tmp_path / "made" / "report.json")
    assert [layer.name for layer in report.layers] == [
        "vit.layers.0.attention",
        "vit.layers.1.attention",
    ]


def test_a_folder_of_transformers_is_recognised(vit, tmp_path, capsys):
    assert (
        main(["analyze", str(vit[1]), "--images", str(tmp_path), "-o", str(tmp_path / "made")]) == 2
    )
    assert (
        f"of convattn: a command takes one of transformers as hf:{vit[1]}"
        in capsys.readouterr().err
    )


def test_one_is_not_converted_into_a_folder_that_could_not_be_loaded(vit, tmp_path, capsys):
    source = f"hf:{vit[1]}"
    assert main(["convert", source, "--pretrained", "-o", str(tmp_path / "made")]) == 2
    assert f"{source} is converted in Python" in capsys.readouterr().err
    with pytest.raises(
        ArgumentError, match='source must be "timm:NAME" or "torchvision:NAME", but is'
    ):
        save_network(vit[0], tmp_path / "made", source=source)


def test_a_saved_folder_fetches_none(tmp_path):
    folder = save_network(torch.nn.Sequential(ConvNet(width=8, depth=1)), tmp_path / "made")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "source": "hf:owner/model"}))
    with pytest.raises(
        CheckpointError, match="one of transformers is not fetched for a saved network"
    ):
        load_network(folder, verify=False)
