import json
from dataclasses import replace
from operator import call

import pytest
import torch
from tests.cli.saved_layers import convolution

from convattn import convert
from convattn.budget import assert_within_budget, roundings
from convattn.cli import main
from convattn.convert import load_layer
from convattn.convert.certificate import Certificate


def test_converted_layer_computes_the_same(tmp_path, capsys):
    source, made = convolution(tmp_path), tmp_path / "there" / "attention"
    assert main(["convert", str(source), "-o", str(made)]) == 0
    assert sorted(path.name for path in made.iterdir()) == [
        "certificate.json",
        "config.json",
        "model.safetensors",
    ]
    conv, layer = load_layer(source), load_layer(made)
    x = torch.randn(2, 2, 11, 7)
    exact = torch.nn.functional.conv2d(
        x.double(), conv.weight.double(), conv.bias.double(), padding=1
    )
    assert_within_budget(layer(x), exact, roundings(call, conv, x))
    out = capsys.readouterr().out
    assert out == f"{Certificate.load(made / 'certificate.json').summary()}\nwrote {made}\n"


def test_json_is_the_certificate(tmp_path, capsys):
    arguments = ["--sharpness", "5", "--allow-difference", "--json"]
    assert (
        main(
            ["convert", str(convolution(tmp_path)), "--output", str(tmp_path / "made"), *arguments]
        )
        == 3
    )
    printed = Certificate.from_json(capsys.readouterr().out)
    assert printed == Certificate.load(tmp_path / "made" / "certificate.json")
    assert printed.sharpness == pytest.approx(5)
    assert printed.verdict == "different"


@pytest.mark.parametrize("as_json", [False, True])
def test_failed_certificate_is_told_and_writes_nothing(tmp_path, capsys, monkeypatch, as_json):
    honest = convert.conv_to_attention

    def failing(*args, **kwargs):
        layer, certificate = honest(*args, **kwargs)
        return layer, replace(certificate, verdict="failed")

    monkeypatch.setattr(convert, "conv_to_attention", failing)
    made = tmp_path / "made"
    assert (
        main(
            [
                "convert",
                str(convolution(tmp_path)),
                "-o",
                str(made),
                *(["--json"] if as_json else []),
            ]
        )
        == 1
    )
    out = capsys.readouterr().out
    if as_json:
        assert json.loads(out)["verdict"] == "failed"
    else:
        assert out.startswith("conv to attention: failed")
        assert out.endswith("wrote nothing\n")
    assert not made.exists()


ASKED = {
    "not asked for": ([], False),
    "a tolerance that it exceeds": (["--tolerance", "0.001"], False),
    "a tolerance": (["--tolerance", "0.2"], True),
    "by name": (["--allow-difference"], True),
}


@pytest.mark.parametrize(("asked", "written"), ASKED.values(), ids=ASKED)
def test_what_is_different_is_written_only_if_asked_for(asked, written, tmp_path, capsys):
    made = tmp_path / "made"
    assert (
        main(["convert", str(convolution(tmp_path)), "-o", str(made), "--sharpness", "5", *asked])
        == 3
    )
    out = capsys.readouterr().out
    assert out.startswith("conv to attention: different (by 0.0")
    assert "made smaller    by more sharpness, or none: hard heads are exact" in out
    assert made.exists() is written
    if written:
        assert out.endswith(f"wrote {made}\n")
        assert Certificate.load(made / "certificate.json").verdict == "different"
    else:
        assert "wrote nothing, because the result is different: make the difference smaller" in out


@pytest.mark.parametrize("share", ["0", "1", "-0.1", "nan", "inf"])
def test_a_tolerance_is_a_share(share, tmp_path, capsys):
    assert (
        main(
            [
                "convert",
                str(convolution(tmp_path)),
                "-o",
                str(tmp_path / "made"),
                "--tolerance",
                share,
            ]
        )
        == 2
    )
    assert "--tolerance must be a share in (0, 1), but is" in capsys.readouterr().err


def test_attention_is_not_converted_again(tmp_path, capsys):
    made = tmp_path / "made"
    assert main(["convert", str(convolution(tmp_path)), "-o", str(made)]) == 0
    capsys.readouterr()
    assert main(["convert", str(made), "-o", str(tmp_path / "again")]) == 2
    message = f"{made} holds a RelativeAttention2d, which is not a convolution of torch"
    assert capsys.readouterr().err == f"convattn: {message}\n"
    assert not (tmp_path / "again").exists()


def test_an_edited_layer_is_refused_unless_asked_for(tmp_path, capsys):
    source, made = convolution(tmp_path), tmp_path / "made"
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "convattn": "mine"}))
    assert main(["convert", str(source), "-o", str(made)]) == 2
    assert (
        "config.json is not what was saved; if it was edited on purpose" in capsys.readouterr().err
    )
    assert not made.exists()
    assert main(["convert", str(source), "-o", str(made), "--no-verify"]) == 0


@pytest.mark.filterwarnings("default::convattn.errors.CertificateWarning")
def test_a_conversion_that_failed_is_said_on_loading(tmp_path, capsys):
    layer, certificate = convert.conv_to_attention(torch.nn.Conv1d(2, 3, 5))
    convert.save_layer(
        layer, tmp_path / "layer", certificate=replace(certificate, verdict="failed")
    )
    assert (
        main(["convert", str(tmp_path / "layer"), "--to", "conv", "-o", str(tmp_path / "made")])
        == 0
    )
    err = capsys.readouterr().err
    assert err.startswith(
        f"convattn: the certificate in {tmp_path / 'layer'} says that the conversion failed"
    )
    assert err.count("\n") == 1
