"""`convattn view`: pages of networks, written and served."""

import re
import shutil
import webbrowser

import httpx
import numpy as np
import pytest
import torch
import uvicorn
from PIL import Image
from tests.viewer.hosts import complete

from convattn import save_network
from convattn.cli import main
from convattn.cli.view import ServedPage, WrittenPage, _address
from convattn.heads import analyze
from convattn.models import AttentionNet
from convattn.networks.pretrained import network_folder
from convattn.viewer import Scene
from convattn.viewer.server import listening

SMALL = "convattn:cifar10-small"


def _scene(folder) -> Scene:
    assert sorted(file.name for file in folder.iterdir()) == ["index.html", "scene.safetensors"]
    return Scene.load(folder / "scene.safetensors")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The page of the package's network, beside others."""
    folder = tmp_path_factory.mktemp("view") / "page"
    assert (
        main(["view", SMALL, "--compare", "untrained", "--compare", "converted", "-o", str(folder)])
        == 0
    )
    return folder


def test_the_packaged_network_is_shown_on_its_samples(small):
    header = _scene(small).header
    assert header["title"] == "cifar10-small"
    assert len(header["images"]) == 20
    assert header["images"][4]["label"] == "bird"
    assert [network["name"] for network in header["networks"]] == [
        "trained",
        "untrained",
        "converted",
    ]
    assert all(network["program"] and len(network["layers"]) == 6 for network in header["networks"])
    assert header["networks"][0]["classes"][9] == "truck"
    assert header["networks"][0]["timeline"]["layers"] == list(range(6))
    assert re.search(
        r"one tap\. \d+ of 20 images get the same class", header["networks"][2]["note"]
    )
    heads = [
        network["layers"][0]["attention"]["heads"]["encoding"] for network in header["networks"]
    ]
    assert heads == ["quadratic", "quadratic", "shift"]


def test_the_page_of_the_packaged_network_is_small(small):
    assert (small / "index.html").stat().st_size < 5e6


def test_where_the_page_is_as_json_and_in_the_browser(tmp_path, monkeypatch, capsys):
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    arguments = ["view", SMALL, "--layer", "stages.0.first", "-o", str(tmp_path / "page"), "--json"]
    assert main([*arguments, "--open"]) == 0
    assert opened == [(tmp_path / "page" / "index.html").as_uri()]
    written = WrittenPage.from_json(capsys.readouterr().out)
    assert written.page == str(tmp_path / "page" / "index.html")
    assert (written.images, written.networks) == (20, ("cifar10-small",))
    assert written.bytes == (tmp_path / "page" / "index.html").stat().st_size


def test_a_folder_with_a_report_and_images_of_ones_own(tmp_path, capsys):
    torch.manual_seed(0)
    network = AttentionNet("quadratic", content=True, width=8, depth=2, heads=4, ffn=8).eval()
    save_network(network, tmp_path / "network")
    images = torch.randn(3, 3, 32, 32)
    analyze(network, images, controls=(), progress=False).save(tmp_path / "report.json")
    np.save(tmp_path / "images.npy", images.numpy())
    arguments = [
        "view",
        str(tmp_path / "network"),
        "--images",
        str(tmp_path / "images.npy"),
        "--limit",
        "2",
    ]
    arguments += [
        "--report",
        str(tmp_path / "report.json"),
        "--layer",
        "blocks.1.mixer",
        "-o",
        str(tmp_path / "page"),
    ]
    assert main(arguments) == 0
    assert re.search(r"wrote .*page \(\d\.\d MB\); open .*index\.html", capsys.readouterr().out)
    header = _scene(tmp_path / "page").header
    assert len(header["images"]) == 2
    (layer,) = header["networks"][0]["layers"]
    assert layer["attention"]["parts"] == ["both", "position", "content"]
    assert layer["attention"]["images"] == [0, 1, "mean"]
    assert layer["sentence"]


def test_a_foreign_network_on_pictures(tmp_path):
    pytest.importorskip("timm")
    (tmp_path / "pictures").mkdir()
    for number in range(2):
        Image.new("RGB", (50, 40), (number * 200, 80, 10)).save(
            tmp_path / "pictures" / f"{number}.png"
        )
    arguments = [
        "view",
        "timm:vit_tiny_patch16_224",
        "--random-weights",
        "--set",
        "img_size=32",
        "--set",
        "depth=1",
    ]
    arguments += ["--images", str(tmp_path / "pictures"), "-o", str(tmp_path / "page")]
    assert main(arguments) == 0
    header = _scene(tmp_path / "page").header
    assert [image["name"] for image in header["images"]] == ["0.png", "1.png"]
    (layer,) = header["networks"][0]["layers"]
    assert (layer["grid"], layer["prefix"]) == ([2, 2], ["class"])
    assert header["networks"][0]["input"]["mean"] == [0.5, 0.5, 0.5]
    assert header["networks"][0]["note"] == "Its weights are random, drawn with seed 0."


def test_a_vision_transformer_beside_its_converted_copy(tmp_path):
    """Its patch embedding, a convolution, becomes 256 heads of one pixel each, which stand beside nothing."""
    pytest.importorskip("timm")
    np.save(
        tmp_path / "images.npy",
        np.random.default_rng(0).standard_normal((1, 3, 32, 32), np.float32),
    )
    arguments = ["view", "timm:vit_tiny_patch16_224", "--random-weights", "--set", "img_size=32"]
    arguments += [
        "--set",
        "depth=2",
        "--images",
        str(tmp_path / "images.npy"),
        "--compare",
        "converted",
    ]
    assert main([*arguments, "-o", str(tmp_path / "page")]) == 0
    scene = _scene(tmp_path / "page")
    first, converted = scene.header["networks"]
    assert [layer["name"] for layer in converted["layers"]] == ["blocks.0.attn", "blocks.1.attn"]
    for one, other in zip(first["layers"], converted["layers"], strict=True):
        assert {key: one[key] for key in ("grid", "place", "keys", "prefix")} == {
            key: other[key] for key in ("grid", "place", "keys", "prefix")
        }
    levels = [scene.tensors[f"maps/{network}/1/both/0/levels"].int() for network in (0, 1)]
    assert (levels[0] - levels[1]).abs().max() <= 1
    assert (
        "Left out are those that have no counterpart to compare: patch_embed.proj. 1 of 1 images"
        in converted["note"]
    )


def test_a_converted_copy_of_random_weights_says_so_too(tmp_path):
    np.save(tmp_path / "images.npy", np.zeros((1, 3, 32, 32), np.float32))
    arguments = [
        "view",
        "convattn:AttentionNet",
        "--random-weights",
        "--set",
        "width=18",
        "--set",
        "depth=1",
    ]
    arguments += [
        "--compare",
        "converted",
        "--images",
        str(tmp_path / "images.npy"),
        "-o",
        str(tmp_path / "page"),
    ]
    assert main(arguments) == 0
    note = _scene(tmp_path / "page").header["networks"][1]["note"]
    assert note.endswith("Its weights are random, drawn with seed 0.")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([SMALL, "--limit", "0", "-o", "page"], "--limit must be at least 1"),
        (
            [SMALL, "--images", "missing", "-o", "page"],
            "--images must be a folder or a file that exists",
        ),
        (
            [SMALL, "--host", "127.0.0.1", "-o", "page"],
            "--host and --port are of the server, which --output does without",
        ),
        (
            [SMALL, "--port", "0", "-o", "page"],
            "--host and --port are of the server, which --output does without",
        ),
        ([SMALL, "--kernel-size", "5", "-o", "page"], "--kernel-size needs --compare converted"),
        ([SMALL, "--layer", "stages.9", "-o", "page"], "unknown layer 'stages.9'"),
        (
            [SMALL, "--compare", "convattn:cifar10-smal", "-o", "page"],
            "did you mean 'cifar10-small'",
        ),
        (
            [SMALL, "--compare", "untrain", "-o", "page"],
            "--compare must be untrained, converted, or a network",
        ),
        (
            [SMALL, "--report", "missing.json", "-o", "page"],
            "head report (the folder that `convattn analyze -o` makes): cannot read a head report from missing.json",
        ),
        (
            [SMALL, "--report", "full/mine", "-o", "page"],
            "full/mine: not a head report: the text is not JSON",
        ),
        (
            ["convattn:AttentionNet", "--random-weights", "-o", "page"],
            "AttentionNet is not known to be trained on CIFAR-10 or digits",
        ),
        ([SMALL, "-o", "full"], "--output must be new or empty"),
    ],
)
def test_mistakes_are_told_and_nothing_is_written(
    arguments, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("precious")
    assert main(["view", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_the_run_of_a_network_of_heads_that_stay_is_shown(tmp_path):
    """A folder without heads.parquet has no timeline."""
    network = AttentionNet("learned_table", width=8, depth=1, heads=4, ffn=8, image_size=8)
    save_network(network, tmp_path / "network")
    np.save(tmp_path / "images.npy", np.zeros((1, 3, 8, 8), np.float32))
    images = str(tmp_path / "images.npy")
    assert (
        main(["view", str(tmp_path / "network"), "--images", images, "-o", str(tmp_path / "page")])
        == 0
    )
    assert _scene(tmp_path / "page").header["networks"][0]["timeline"] is None


def test_a_report_of_another_network_is_refused(tmp_path, capsys):
    network = AttentionNet(width=8, depth=4, heads=4, ffn=8).eval()
    analyze(network, torch.randn(2, 3, 8, 8), controls=(), progress=False).save(
        tmp_path / "report.json"
    )
    assert main(["view", SMALL, "--report", str(tmp_path), "-o", str(tmp_path / "page")]) == 2
    message = (
        "--report is of another network: cifar10-small has no layer "
        "blocks.0.mixer, blocks.1.mixer, blocks.2.mixer and"
    )
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_report_of_other_weights_is_refused(network, tmp_path, capsys):
    """As of another run of the same recipe, whose layers have the same names."""
    other = AttentionNet(width=8, depth=1, heads=4, ffn=8).eval()
    analyze(other, torch.randn(2, 3, 8, 8), controls=(), progress=False).save(
        tmp_path / "report.json"
    )
    assert (
        main(
            [
                "view",
                *network,
                "--report",
                str(tmp_path / "report.json"),
                "-o",
                str(tmp_path / "page"),
            ]
        )
        == 2
    )
    message = "--report was measured with other weights than network has, of blocks.0.mixer"
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_damaged_training_is_not_left_out(tmp_path, capsys):
    """A page without a timeline would say that there is none."""
    shutil.copytree(network_folder(SMALL), tmp_path / "run")
    (tmp_path / "run" / "heads.parquet").write_bytes(b"PAR1")
    assert main(["view", str(tmp_path / "run"), "-o", str(tmp_path / "page")]) == 2
    assert "cannot read heads from" in capsys.readouterr().err


@pytest.fixture
def network(tmp_path):
    """Arguments that name a small network and three images."""
    torch.manual_seed(0)
    save_network(AttentionNet(width=8, depth=1, heads=4, ffn=8), tmp_path / "network")
    np.save(tmp_path / "images.npy", np.zeros((3, 3, 8, 8), np.float32))
    return [str(tmp_path / "network"), "--images", str(tmp_path / "images.npy")]


class Served:
    """What happens in place of serving: notes what was printed by then, and asks the application once."""

    def __init__(self, capsys):
        self.capsys, self.ports, self.printed, self.opened, self.scene = capsys, [], "", [], b""

    def run(self, app, sockets):
        self.ports = [one.getsockname()[1] for one in sockets]
        self.printed = self.capsys.readouterr().out
        self.scene = complete(self.ask(app))
        raise KeyboardInterrupt

    async def ask(self, app):
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app), base_url="http://127.0.0.1"
        ) as client:
            return (await client.get("/scene")).content


@pytest.fixture
def served(capsys, monkeypatch):
    served = Served(capsys)

    def run(server, sockets):
        served.run(server.config.app, sockets)

    monkeypatch.setattr(uvicorn.Server, "run", run)
    monkeypatch.setattr(webbrowser, "open", served.opened.append)
    return served


def test_without_output_the_page_is_served_until_ctrl_c(network, served, tmp_path, capsys):
    before = sorted(tmp_path.iterdir())
    assert main(["view", *network, "--limit", "2", "--port", "0"]) == 0
    [port] = served.ports
    assert served.printed == f"network at http://127.0.0.1:{port}/ (Ctrl-C stops)\n"
    assert (capsys.readouterr().out, served.opened) == ("stopped\n", [])
    assert sorted(tmp_path.iterdir()) == before
    (tmp_path / "scene").write_bytes(served.scene)
    header = Scene.load(tmp_path / "scene").header
    assert (header["title"], len(header["images"])) == ("network", 2)


def test_the_address_as_json_and_in_the_browser(network, served, capsys):
    """The output stays one document: nothing says that it stopped."""
    assert main(["view", *network, "--host", "0.0.0.0", "--port", "0", "--open", "--json"]) == 0
    page = ServedPage("network", f"http://127.0.0.1:{served.ports[0]}/")
    assert ServedPage.from_json(served.printed) == page
    assert (capsys.readouterr().out, served.opened) == ("", [page.address])


@pytest.mark.parametrize("host", ["127.1", "0"])
def test_the_address_that_is_told_is_answered_whatever_the_host_is_called(network, served, host):
    assert main(["view", *network, "--host", host, "--port", "0"]) == 0
    assert served.printed == f"network at http://127.0.0.1:{served.ports[0]}/ (Ctrl-C stops)\n"


def test_a_port_that_is_taken_is_told_before_the_network_is_loaded(served, capsys):
    with listening("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert main(["view", "no network", "--port", str(port)]) == 2
    message = (
        f"cannot serve at 127.0.0.1, port {port} (Address already in use); give another port, or 0"
    )
    assert message in " ".join(capsys.readouterr().err.split())
    assert served.ports == []


def test_a_network_that_is_not_there_is_not_served(served, capsys):
    assert main(["view", "no network", "--port", "0", "--open"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "there is no folder 'no network'" in err
    assert (served.ports, served.opened) == ([], [])


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "http://127.0.0.1:8017/"),
        ("0.0.0.0", "http://127.0.0.1:8017/"),
        ("", "http://127.0.0.1:8017/"),
        ("::", "http://127.0.0.1:8017/"),
        ("::1", "http://[::1]:8017/"),
        ("localhost", "http://localhost:8017/"),
    ],
)
def test_the_address_is_one_that_a_browser_reaches(host, address):
    assert _address(host, 8017) == address
