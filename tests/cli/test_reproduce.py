import html
import re
import shutil
from importlib import resources

import pytest
import torch
from tests.analysis.run_cases import make_run

from convattn import save_network
from convattn.cli import main
from convattn.data import CIFAR10_MEAN, CIFAR10_STD, load_samples
from convattn.lab.network_pages import figure_links, write_views
from convattn.lab.reproduction import TARGETS, Reproduction, TargetResult
from convattn.models import AttentionNet, ConvNet
from convattn.provenance import DataRecord, RunRecord
from convattn.viewer import Scene


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with one run."""
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "here", "sa-quadratic", scale="small")
    return folder


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_figure_is_made_where_it_is_told(runs, tmp_path, capsys):
    assert (
        main(["reproduce", "fig4", "--runs", str(runs), "--scale", "small", "-o", "there/figure"])
        == 0
    )
    out, err = capsys.readouterr()
    assert err == ""
    assert "fig4: made\n" in out
    files = ["fig4.parquet", "fig4.png", "fig4.svg"]
    assert out.endswith("".join(f"wrote there/figure/{file}\n" for file in [*files, "index.html"]))
    made = sorted(item.name for item in (tmp_path / "there" / "figure").iterdir())
    assert made == [*files, "index.html", "reproduction.json", "view"]


def test_figures_link_to_what_they_show_on_the_page(runs, tmp_path):
    """The links below the figures open the page at the layer and the epoch."""
    assert main(["reproduce", "all", "--runs", str(runs), "--scale", "small", "-o", "made"]) == 1
    made = tmp_path / "made"
    scene = Scene.load(made / "view" / "sa-quadratic" / "scene.safetensors")
    (network,) = scene.header["networks"]
    assert (network["name"], network["title"]) == (
        "sa-quadratic",
        "sa-quadratic, scale small, seed 0",
    )
    assert len(network["layers"]) == 2
    epochs = network["timeline"]["epochs"]
    page = "view/sa-quadratic/index.html"
    index = (made / "index.html").read_text()
    assert _links(index, "fig4") == [f"{page}#layer=0", f"{page}#layer=1"]
    moments = [link.partition("epoch=")[2] for link in _links(index, "fig3")]
    assert moments[:2] == ["0", "0"]
    assert moments[-1] == str(len(epochs) - 1)
    assert all((made / name).exists() for name in re.findall(r'(?:href|src)="([^"#:]+)', index))
    assert f"{(made / page).stat().st_size / 1e6:.1f} MB" in index


def _links(index, target):
    """The links of an index to a page, in the caption of a figure."""
    caption = index.partition(f'<a href="{target}.svg">')[2].partition("</figcaption>")[0]
    return [html.unescape(link) for link in re.findall('href="(view/[^"]+)"', caption)]


def test_pages_can_be_left_out(runs, tmp_path):
    assert (
        main(
            [
                "reproduce",
                "fig4",
                "--runs",
                str(runs),
                "--scale",
                "small",
                "-o",
                "made",
                "--no-view",
            ]
        )
        == 0
    )
    assert not {"index.html", "view"}.intersection(
        item.name for item in (tmp_path / "made").iterdir()
    )


def test_a_page_that_is_too_large_is_left_out_and_said(runs, tmp_path, monkeypatch):
    monkeypatch.setattr("convattn.lab.network_pages.LARGEST", 1000)
    assert main(["reproduce", "fig4", "--runs", str(runs), "--scale", "small", "-o", "made"]) == 0
    index = (tmp_path / "made" / "index.html").read_text()
    assert "no page: the scene would be" in index
    assert f"convattn view\n{runs}/here</code> shows it" in index
    assert not (tmp_path / "made" / "view").exists()


@pytest.fixture
def cifar10_run(tmp_path):
    """A folder that says that its network was trained on CIFAR-10, whose files are not there."""
    torch.manual_seed(0)
    run = tmp_path / "run"
    save_network(
        AttentionNet("learned_table", width=8, depth=1, heads=4, ffn=8, image_size=32), run
    )
    RunRecord(
        name="tiny",
        claim="none",
        command="none",
        recipe={"data": {"name": "cifar10"}},
        seed=3,
        data=DataRecord("cifar10", "nowhere", {}, {}, "as published"),
        parameters=1,
        results={},
        seconds=1.0,
        peak_memory=1,
        resumed=0,
        hardware={},
        versions={},
        started="2026-01-01T00:00:00+00:00",
        revision=None,
        not_covered=(),
    ).save(run / "record.json")
    return run


def _reproduction(run, *targets):
    made = tuple(
        TargetResult(target, (f"{target}.parquet",), (str(run),), ()) for target in targets
    )
    return Reproduction(str(run.parent), "paper", (str(run),), (), (), made, (), ())


def test_a_network_of_cifar10_is_shown_on_the_samples_of_the_package(cifar10_run, tmp_path):
    """Its training data are not read for a page of tables and curves."""
    index = write_views(_reproduction(cifar10_run, "table1"), tmp_path)
    assert index == tmp_path / "index.html"
    header = Scene.load(tmp_path / "view" / "tiny" / "scene.safetensors").header
    samples = load_samples()
    assert [image["name"] for image in header["images"]] == [
        f"test image {row}" for row in samples.rows
    ]
    assert [image["label"] for image in header["images"]] == [
        samples.classes[n] for n in samples.split.labels.tolist()
    ]
    (network,) = header["networks"]
    assert (network["title"], network["classes"]) == (
        "tiny, scale paper, seed 3",
        list(samples.classes),
    )
    assert network["input"] == {
        "rows": 32,
        "cols": 32,
        "mean": list(CIFAR10_MEAN),
        "std": list(CIFAR10_STD),
    }
    assert network["timeline"] is None


def test_where_nothing_was_made_there_is_no_index(cifar10_run, tmp_path):
    nothing = Reproduction(
        "runs", "paper", (), (), (), (TargetResult("fig3", (), (), ("tiny",)),), (), ()
    )
    assert write_views(nothing, tmp_path) is None
    assert not (tmp_path / "index.html").exists()


def test_a_network_without_attention_has_no_page(cifar10_run, tmp_path):
    save_network(ConvNet(width=8, depth=1, ffn=8), tmp_path / "other")
    shutil.copy(cifar10_run / "record.json", tmp_path / "other")
    index = write_views(_reproduction(tmp_path / "other", "table1"), tmp_path)
    assert "view/" not in index.read_text()
    assert not (tmp_path / "view").exists()


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("table1", []),
        ("fig5", ["layer=0&query=4,4", "layer=1&query=4,4"]),
        ("fig6", ["layer=0&query=4,4&average=true", "layer=1&query=4,4&average=true"]),
        ("fig9", ["layer=0&query=4,4", "layer=1&query=4,4"]),
        ("fig14", ["layer=0", "layer=1"]),
    ],
)
def test_links_are_those_of_the_figure(target, expected):
    assert [link.hash for link in figure_links(target, [], [3, 3], 8)] == expected


def test_links_say_which_query():
    links = figure_links("fig7", [], [3], 32)
    assert [link.hash for link in links] == [
        "layer=0&query=8,8&average=true",
        "layer=0&query=24,24&average=true",
    ]
    assert links[1].text == "layer 1, query at row 25, column 25"


def test_the_page_reads_every_name_of_a_link():
    """The names are those of the page's state."""
    state = (resources.files("convattn.viewer") / "static/js/state.js").read_text()
    known = re.search(r"DEFAULT_STATE = Object\.freeze\(\{(.*?)\n\}\)", state, re.DOTALL)[1]
    links = [link for target in TARGETS for link in figure_links(target, [], [3], 32)]
    names = {part.partition("=")[0] for link in links for part in link.hash.split("&")} | {"epoch"}
    assert names == {"layer", "query", "average", "epoch"}
    assert all(f"\n  {name}:" in known for name in names)


def test_incomplete_is_exit_code_1_and_earlier_output_is_kept(runs, tmp_path, capsys):
    (tmp_path / "reproduce-all").mkdir()
    (tmp_path / "reproduce-all" / "reproduction.json").write_text("precious")
    assert main(["reproduce", "all", "--runs", str(runs), "--scale", "small", "--json"]) == 1
    result = Reproduction.from_json(capsys.readouterr().out)
    assert result == Reproduction.load(tmp_path / "reproduce-all-2" / "reproduction.json")
    assert [item.target for item in result.targets if item.complete] == ["fig3", "fig4"]
    assert [item.target for item in result.targets] == list(TARGETS)
    assert [item.name for item in (tmp_path / "reproduce-all").iterdir()] == ["reproduction.json"]
    assert (tmp_path / "reproduce-all" / "reproduction.json").read_text() == "precious"


def test_a_table_with_missing_rows_says_how_many_and_what_makes_each(runs, tmp_path, capsys):
    assert main(["reproduce", "table1", "--runs", str(runs), "--scale", "small", "--no-view"]) == 1
    printed = capsys.readouterr().out
    assert re.search(
        r"^table1: made without 1\d of 14 recipes; missing resnet18, ", printed, flags=re.MULTILINE
    )
    listed = printed.partition("missing runs; each of these makes a row:\n")[2].splitlines()
    assert listed[0].startswith("  convattn train resnet18 --scale small -o ")


def test_nothing_made_is_exit_code_1_with_the_command(runs, tmp_path, capsys):
    assert main(["reproduce", "fig5", "--runs", str(runs), "--scale", "small"]) == 1
    out = capsys.readouterr().out
    assert f"convattn train sa-learned --scale small -o {runs}/sa-learned-0\n" in out
    assert out.endswith("nothing was made\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fig1", "--runs", "."], "unknown target 'fig1'"),
        (["fig3", "--runs", ".", "--scale", "huge"], "unknown scale 'huge'"),
        (["fig3", "--runs", "nowhere"], "runs must be a folder that exists, but is 'nowhere'"),
        (["fig3"], "--runs"),
    ],
)
def test_mistakes_are_exit_code_2(arguments, message, capsys):
    assert main(["reproduce", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_missing_matplotlib_is_told_before_anything_is_made(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("convattn.errors.find_spec", lambda _: None)
    assert main(["reproduce", "all", "--runs", str(runs), "-o", "made"]) == 2
    assert re.search(
        r'this needs matplotlib, .*pip install "convattn\[train\]"',
        capsys.readouterr().err,
    )
    assert not (tmp_path / "made").exists()
