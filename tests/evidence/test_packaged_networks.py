"""How weights, reports and transcripts of trained networks are read."""

import struct
from dataclasses import replace

import pytest
import torch
import transformers
from tests.heads.report_cases import measured

from convattn.errors import ArgumentError
from convattn.structure import network_digest
from evidence.packaged_weights import read_ctranslate2
from evidence.trained_heads.digits import heard_digits, mistakes, transcribe
from evidence.trained_heads.reports import by_score, kept_report


def test_heads_come_in_the_order_of_their_scores():
    _, _, report = measured("dinov2")
    order = by_score(report)
    scores = {}
    for layer in report.layers:
        scores |= {(layer.name, head.head): head.position_score.value for head in layer.heads}
    assert sorted(order) == sorted(scores)
    assert [scores[head] for head in order] == sorted(scores.values(), reverse=True)


def test_a_report_of_other_weights_is_refused_by_the_name_of_its_file(tmp_path):
    network, _, report = measured("dinov2")
    report = replace(report, weights={"": network_digest(network)})
    file = tmp_path / "vit-56-2.json"
    calls = []

    def measure(network):
        calls.append(network)
        return report

    for _ in range(2):
        assert kept_report(file, network, measure).to_json() == report.to_json()
    assert calls == [network]
    other, _, _ = measured("clip")
    with pytest.raises(ArgumentError, match=r"vit-56-2\.json must be of the weights .* Delete it"):
        kept_report(file, other, measure)


def test_variables_of_a_file_are_read(tmp_path):
    def text(words):
        return struct.pack("<H", len(words) + 1) + words.encode() + b"\0"

    values = torch.arange(6, dtype=torch.float16).view(2, 3)
    data = values.numpy().tobytes()
    content = struct.pack("<I", 6) + text("WhisperSpec") + struct.pack("<II", 3, 2)
    content += text("a/weight") + struct.pack("<BIIBI", 2, 2, 3, 4, len(data)) + data
    content += text("heads") + struct.pack("<BBI", 0, 1, 1) + b"\6"
    file = tmp_path / "model.bin"
    file.write_bytes(content)
    assert {name: value.tolist() for name, value in read_ctranslate2(file).items()} == {
        "a/weight": values.tolist()
    }
    file.write_bytes(struct.pack("<I", 5) + content[4:])
    with pytest.raises(ValueError, match="has version 5, and not 6"):
        read_ctranslate2(file)


def test_transcripts_take_the_likeliest_tokens_that_are_not_kept_out():
    """Each token is the likeliest one after those before it, unless that is no word."""
    torch.manual_seed(0)
    config = transformers.WhisperConfig(
        vocab_size=51864,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        init_std=1.0,
    )
    network = transformers.WhisperForConditionalGeneration(config).eval()
    states = torch.randn(1, 5, 16)
    settings = network.generation_config
    settings.suppress_tokens = []
    settings.begin_suppress_tokens = []
    tokens = transcribe(network, states)
    given = torch.tensor([[50257, 50362, *tokens[:-1]]])
    out = network.model.decoder(input_ids=given, encoder_hidden_states=states)
    likely = network.proj_out(out.last_hidden_state[0, 1:]).argmax(-1).tolist()
    words = [token < 50257 for token in likely]
    assert sum(words) > 10
    kept = [one == other for one, other in zip(likely, tokens, strict=True)]
    assert kept == words
    settings.begin_suppress_tokens = tokens[:1]
    assert transcribe(network, states)[0] != tokens[0]
    settings.suppress_tokens = tokens
    assert not {*transcribe(network, states)} & {*tokens}


@pytest.mark.parametrize(
    ("heard", "said", "count"),
    [
        ([1, 2, 3], [1, 2, 3], 0),
        ([1, 3], [1, 2, 3], 1),
        ([1, 2, 2, 3], [1, 2, 3], 1),
        ([], [4, 5], 2),
        ([9, 2], [1, 2], 1),
    ],
)
def test_mistakes_are_counted(heard, said, count):
    assert mistakes(heard, said) == count


def test_digits_are_read_from_words_and_numbers():
    assert heard_digits(" Zero, one 23. Nine; nothing") == [0, 1, 2, 3, 9]
