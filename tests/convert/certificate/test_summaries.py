"""What certificates say in words, and that they come back from JSON."""

from dataclasses import replace

import pytest

from convattn.convert.certificate import Certificate, LeftAlone, NetworkCertificate

CERTIFICATE = Certificate(
    direction="conv_to_attention",
    source="Conv2d(3, 5, kernel_size=(3, 3))",
    result="RelativeAttention2d(3, 5)",
    dtype="float32",
    heads=9,
    sharpness=5.0,
    exact=False,
    leak=0.03,
    bound_per_unit=0.7,
    rounding_per_unit=1e-4,
    rounding_at_zero=1e-5,
    check_shape=(2, 3, 7, 11),
    check_seed=0,
    bound=2.5,
    measured_error=0.125,
    rounding=1e-6,
    largest=2.0,
    verdict="different",
    kernel_size=(3, 3),
    weights="0f",
)
LAYER = replace(
    CERTIFICATE,
    direction="attention_to_conv",
    source="RelativeAttention2d(3, 5, num_heads=9)",
    result="Conv2d(3, 5, kernel_size=(3, 7))",
    kernel_size=(3, 7),
    any_size=False,
    name="blocks.0.mixer",
    aliases=("blocks.1.mixer",),
    path="convolution",
    notes=("it no longer shares weights with head.weight",),
)
BARE_NETWORK = NetworkCertificate(
    direction="network_to_conv",
    source="AttentionNet",
    result="ConvNet",
    dtype="float32",
    impl="auto",
    layers=(
        replace(
            LAYER, aliases=(), exact=True, path=None, verdict="failed", notes=(), any_size=True
        ),
    ),
    left_alone=(),
    tolerance=None,
    verdict="failed",
    weights="0f",
)
NETWORK = replace(
    BARE_NETWORK,
    impl=None,
    layers=(LAYER,),
    left_alone=(
        LeftAlone("blocks.2.mixer", "RelativeAttention2d", "its scores depend on content"),
    ),
    images="the images given",
    shapes=((2, 3, 8, 8),),
    reference="float64",
    measured_error=0.25,
    rounding=1e-5,
    largest=4.0,
    tolerance=0.01,
    top1_total=2,
    top1_changed=1,
    verdict="different",
    not_covered=("another thing",),
)


def test_certificates_come_back_from_text():
    for certificate in (CERTIFICATE, LAYER, NETWORK, BARE_NETWORK):
        assert type(certificate).from_json(certificate.to_json()) == certificate


def test_summary_says_what_is_promised_and_what_was_measured():
    lines = CERTIFICATE.summary().splitlines()
    assert (
        lines[0]
        == "conv to attention: different (by 0.062 of its channel's largest output, 9 heads, float32)"
    )
    assert lines[1].endswith("Conv2d(3, 5, kernel_size=(3, 3))")
    text = " ".join(CERTIFICATE.summary().split())
    for part in (
        "measured error 0.125 at the output nearest to its limit",
        "measured on standard normal numbers (2, 3, 7, 11)",
        "allowed there 2.5 = bound 2.5 + rounding 1e-06",
        "sharpness 5 per pixel²; mass off the tap at most 0.03",
        "not covered centres rounded when the layer is cast to a narrower dtype",
    ):
        assert part in text


def test_summary_of_the_way_back_speaks_of_the_window():
    text = replace(CERTIFICATE, direction="attention_to_conv").summary()
    assert text.startswith("attention to conv: different")
    assert "mass outside the window at most 0.03" in text
    assert "differs         by attention outside the window (the leak), and at borders" in text


@pytest.mark.parametrize(
    ("changes", "reason", "remedy"),
    [
        ({"leak": 1e-9}, "at borders, where attention keeps", "at borders by borders"),
        (
            {"normalised": True},
            "by attention outside the window (the leak)\n",
            "by a larger window",
        ),
    ],
    ids=["borders", "leak"],
)
def test_a_difference_has_the_reason_that_it_can_have(changes, reason, remedy):
    made = replace(CERTIFICATE, direction="attention_to_conv", **changes)
    for text in (made.summary(), replace(NETWORK, layers=(made,)).summary()):
        assert f"differs         {reason}" in text
        assert f"made smaller    {remedy}" in text


def test_summary_leaves_out_what_there_is_not():
    made = replace(CERTIFICATE, sharpness=None, verdict="exact", exact=True)
    text = made.summary()
    assert text.startswith("conv to attention: exact (9 heads, float32)")
    for word in ("sharpness", "differs", "made smaller", "not covered"):
        assert word not in text


def test_summary_of_a_network_says_each_layer_and_the_whole():
    first, *_ = NETWORK.summary().splitlines()
    outcome = "different (by 0.062 of its channel's largest output, 1 of 2 decisions changed"
    assert first == f"network to conv: {outcome}, 1 layer, 9 heads, float32)"
    text = " ".join(NETWORK.summary().split())
    for part in (
        "from AttentionNet to ConvNet",
        "paths 1 convolution",
        "measured error 0.25 of 4, nearest to its limit, on the images given",
        "rounding 1e-05, against float64",
        "limit 0.01 of its channel's largest output, for a result that is close",
        "top-1 changed 1 of 2",
        "differs by attention outside the window (the leak), and at borders, where attention keeps to pixels",
        'made smaller by a larger window, or none; at borders by borders="exact" (`--borders exact`)',
        "layer blocks.0.mixer: different, leak 0.03, 9 heads, kernel 3 x 7, convolution",
        "convolution, error 0.125 of 2 on normal numbers, bound 2.5",
        "note it no longer shares weights with head.weight (blocks.0.mixer)",
        "note not covered: images of other sizes than 7 x 11 (blocks.0.mixer)",
        "left alone blocks.2.mixer (RelativeAttention2d): its scores depend on content",
        "not covered another thing",
    ):
        assert part in text


def test_summary_of_a_network_leaves_out_what_there_is_not():
    text = BARE_NETWORK.summary()
    assert text.startswith("network to conv: failed (1 layer, 9 heads, float32)")
    assert (
        "layer           blocks.0.mixer: failed, 9 heads, kernel 3 x 7, not reached, error" in text
    )
    for word in (
        "measured error",
        "top-1",
        "differs",
        "left alone",
        "not covered",
        "note",
    ):
        assert word not in text


def test_a_large_network_is_printed_on_a_page_with_its_first_and_its_worst_layers():
    layers = []
    for number in range(70):
        error = 1.5 if number == 53 else 0.125
        notes = (f"note {number}",)
        layers.append(replace(LAYER, name=f"layer{number}", measured_error=error, notes=notes))
    left = [LeftAlone(f"other{number}", "Conv2d", f"reason {number}") for number in range(70)]
    not_covered = tuple(f"thing {number}" for number in range(70))
    large = replace(NETWORK, layers=tuple(layers), left_alone=tuple(left), not_covered=not_covered)
    text = str(large)
    assert text == large.summary()
    assert len(text.splitlines()) <= 40
    for part in ("layer           layer0: ", "and 65 more", "worst           layer53: "):
        assert part in text
    assert repr(large) == (
        "NetworkCertificate(verdict='different', precision='float32 in full, TF32 off',"
        " direction='network_to_conv', source='AttentionNet', result='ConvNet', …)"
    )
    assert len(large.layers) == len(large.left_alone) == 70
