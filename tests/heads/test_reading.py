"""What `watch` refuses, and that it leaves a model as it was, whatever happens."""

import re
from contextlib import suppress
from functools import partial

import pytest
import timm
import torch
from tests.convert.network.network_cases import assert_unchanged, fingerprint
from tests.heads.attention_cases import TIMM
from tests.heads.attention_other_cases import OWN
from tests.heads.watch_cases import Tokens, assert_no_hooks, drawn, grid, seen_by
from torch import nn

from convattn.errors import ArgumentError, UnsupportedModelError
from convattn.heads import catalogue as registered
from convattn.heads import products
from convattn.heads.catalogue import attention_layers, register_attention
from convattn.heads.families.window_attention import window_layout
from convattn.heads.layout import Layout, global_layout
from convattn.heads.products import weights_of
from convattn.heads.reading import watch
from convattn.layers import RelativeAttention1d, RelativeAttention2d


class Silent(Tokens):
    """A module that does not attend after all."""

    def forward(self, x):
        return x


class Wrong(Tokens):
    """A module that raises after its attention."""

    def forward(self, x):
        super().forward(x)
        raise KeyError("in the middle")


class Twice(Tokens):
    """A module that attends twice."""

    def forward(self, x):
        return super().forward(super().forward(x))


class Freed(Tokens):
    """A module that takes its weights for other numbers afterwards, to save memory."""

    def forward(self, x):
        q, k, v = self.maps(x).unflatten(-1, (3, 2, 3)).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.mT, -1)
        y = weights @ v
        weights.zero_()
        return y.transpose(1, 2).flatten(2)


class Half(nn.Module):
    """Attention as an einsum."""

    def forward(self, x):
        weights = torch.softmax(torch.einsum("bqc,bkc->bqk", x, x), -1)[:, None]
        return torch.einsum("bhqk,bhkc->bhqc", weights, x[:, None])[:, 0]


@pytest.mark.parametrize("fused", [True, False])
def test_a_registered_class(fused):
    register_attention(Tokens, grid)
    network = nn.Sequential(nn.Identity(), Tokens(fused))
    assert [(layer.name, layer.pattern) for layer in attention_layers(network)] == [
        ("1", "registered")
    ]
    (call,) = seen_by(network, drawn(13, 6))
    assert (call.layout.prefix, call.layout.grid, call.weights.shape) == (
        1,
        (3, 4),
        (2, 1, 2, 13, 13),
    )
    assert call.normalised
    assert call.kind.endswith("watch_cases.Tokens")


def test_weights_that_a_module_overwrites_afterwards_are_those_that_it_used():
    register_attention(Freed, grid)
    (call,) = seen_by(Freed(), drawn(13, 6))
    assert (call.weights.sum(-1) - 1).abs().max() < 1e-5
    assert call.normalised


def test_products_written_as_einsum():
    register_attention(Half, lambda seen: seen.global_layout((3, 4)))
    (call,) = seen_by(Half(), drawn(12, 6))
    expected = torch.softmax(drawn(12, 6) @ drawn(12, 6).mT, -1)
    assert call.weights.shape == (2, 1, 1, 12, 12)
    assert (call.weights[:, 0, 0] - expected).abs().max() < 1e-6


class ByPosition(nn.Module):
    """Four heads whose weights are the same for all images, on 13 tokens."""

    def __init__(self, *lead, fused):
        super().__init__()
        self.scores, self.fused = nn.Parameter(torch.randn(*lead, 4, 13, 13)), fused

    def forward(self, x):
        values = x.unflatten(-1, (4, 2)).transpose(1, 2)
        if not self.fused:
            return (self.scores.softmax(-1) @ values).transpose(1, 2).flatten(2)
        keys = torch.eye(13).expand(self.scores.shape)
        y = nn.functional.scaled_dot_product_attention(self.scores, keys, values, scale=1.0)
        return y.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("lead", [(), (1,)], ids=str)
def test_weights_that_all_images_share_are_those_of_each(lead, fused):
    register_attention(ByPosition, grid)
    network = ByPosition(*lead, fused=fused)
    (call,) = seen_by(network, drawn(13, 8))
    assert call.weights.shape == (2, 1, 4, 13, 13)
    assert (call.weights[:, 0] - network.scores.softmax(-1)).abs().max() < 1e-6


class Masked(nn.Module):
    """Two heads under a mask, by torch's function or by hand, whose axis of images and heads may be one."""

    def __init__(self, way, low=-torch.inf):
        super().__init__()
        self.maps, self.way, self.low = nn.Linear(6, 18), way, low

    def forward(self, x, left):
        q, k, v = self.maps(x).unflatten(-1, (3, 2, 3)).permute(2, 0, 3, 1, 4)
        added = torch.zeros(left.shape).masked_fill(~left, self.low)
        if self.way == "fused":
            mask = left if self.low == -torch.inf else added
            return (
                nn.functional.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)
            )
        scores = q @ k.mT * 3**-0.5 + added
        if self.way == "one axis":
            return (
                (scores.flatten(0, 1).softmax(-1).bmm(v.flatten(0, 1)))
                .view_as(v)
                .transpose(1, 2)
                .flatten(2)
            )
        return (
            (nn.functional.dropout(scores.softmax(-1), training=self.training) @ v)
            .transpose(1, 2)
            .flatten(2)
        )


@pytest.mark.parametrize("low", [-torch.inf, torch.finfo(torch.float32).min, -1e9, -1e4])
@pytest.mark.parametrize("way", ["fused", "plain", "one axis"])
def test_a_mask_is_known_however_attention_is_computed(way, low):
    register_attention(Masked, grid)
    causal = torch.ones(13, 13, dtype=torch.bool).tril()
    padded = torch.ones(2, 1, 1, 13, dtype=torch.bool)
    padded[1, ..., 9:] = False
    (call,) = seen_by(Masked(way, low), (drawn(13, 6), causal))
    assert torch.equal(call.layout.allowed, causal[None])
    (call,) = seen_by(Masked(way, low), (drawn(13, 6), padded))
    assert torch.equal(call.allowed, padded.expand(2, 1, 13, 13))
    assert seen_by(Masked(way, low), (drawn(13, 6), padded | True))[0].layout.allowed is None


class HeadsFirst(nn.Module):
    """Three heads in two windows of 2 × 2 pixels, each with a mask of its own; heads stand before windows."""

    def __init__(self):
        super().__init__()
        self.maps = nn.Linear(6, 18)
        self.left = torch.rand(2, 4, 4, generator=torch.Generator().manual_seed(0)) > 0.3
        self.left |= torch.eye(4, dtype=torch.bool)

    def forward(self, x):
        q, k, v = self.maps(x).unflatten(-1, (3, 3, 2)).permute(3, 0, 4, 1, 2, 5)
        return (
            nn.functional.scaled_dot_product_attention(q, k, v, self.left).movedim(1, 3).flatten(3)
        )


def test_a_mask_is_that_of_its_window_where_heads_stand_before_windows():
    register_attention(HeadsFirst, lambda _: window_layout((2, 4), (2, 2)), heads_first=True)
    network = HeadsFirst()
    (call,) = seen_by(network, drawn(2, 4, 6))
    assert call.weights.shape == (2, 2, 3, 4, 4)
    assert torch.equal(call.layout.allowed, network.left)
    assert (call.weights[:, ~network.left[:, None].expand(2, 3, 4, 4)] == 0).all()


def test_rows_that_do_not_sum_to_one_are_said_so():
    register_attention(Tokens, grid)
    assert seen_by(Tokens(fused=False), drawn(13, 6))[0].normalised
    assert not seen_by(Tokens(fused=False, leak=1e-4), drawn(13, 6))[0].normalised


class Within(nn.Sequential):
    """Runs its parts in a mode of its own."""

    def __init__(self, mode, *parts):
        super().__init__(*parts)
        self.mode = mode

    def forward(self, x):
        with self.mode():
            return super().forward(x)


MODES = {"autocast": partial(torch.autocast, "cpu", torch.bfloat16), "gradients": torch.enable_grad}


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_a_mode_of_the_model_does_not_reach_the_weights_and_the_callback(mode, fused):
    register_attention(Tokens, grid)
    attention, found = Tokens(fused), []

    def callback(call):
        found.append((call.weights.dtype, call.weights.requires_grad))
        assert not torch.is_autocast_enabled("cpu")
        assert not torch.is_grad_enabled()
        with MODES[mode]():
            q, k, _ = (
                attention.maps(drawn(13, 6))
                .detach()
                .unflatten(-1, (3, 2, 3))
                .permute(2, 0, 3, 1, 4)
            )
        scale = 3**-0.5 if fused else 1
        exact = (scale * q.double() @ k.double().mT).softmax(-1)
        off = (call.weights[:, 0] - exact).abs().max()
        # A plain softmax is of scores that autocast has rounded to half precision already.
        assert off < (2e-2 if mode == "autocast" and not fused else 1e-6)

    watch(Within(MODES[mode], attention), drawn(13, 6), callback)
    assert found == [(torch.float32, False)]


def test_weights_that_are_not_the_modules_own_are_refused(monkeypatch):
    """The negative control of the proof: weights with a leak of 1e-5."""
    monkeypatch.setattr(
        products,
        "weights_of",
        lambda *arguments, **options: weights_of(*arguments, **options) + 1e-5,
    )
    with pytest.raises(
        UnsupportedModelError,
        match=r"blocks\.0\.attn \(Attention\): weights × values is .* rounding",
    ):
        seen_by(TIMM["class token"].build(), drawn(3, 20, 28))


class First(Tokens):
    """A module that attends in the first of several images alone, as the tower of one image beside several texts."""

    def forward(self, x):
        return super().forward(x[:1])


class Frames(Tokens):
    """A module that is given several frames of each image, and attends to each of them apart."""

    def forward(self, x):
        return super().forward(torch.cat([x, x.flip(0)]))


class FramesOfOneHead(nn.Module):
    """A module of one head that is given several frames of each image, and attends to each of them apart."""

    def forward(self, x):
        x = torch.cat([x, x.flip(0)])[:, None]
        return (torch.softmax(x @ x.mT, -1) @ x)[:, 0]


class Bare(nn.Module):
    """A module that attends and holds no other."""

    def forward(self, x):
        return nn.functional.scaled_dot_product_attention(x, x, x)


REFUSED = {
    "more images than were given": (
        Frames,
        grid,
        r"\(Frames\): weights of 4 × 2 × 13 × 13 for 2 images are not those of 1 groups of 13 queries and 13 keys$",
    ),
    "more images than were given, of one head": (
        FramesOfOneHead,
        grid,
        r"\(FramesOfOneHead\): weights of 4 × 1 × 13 × 13 for 2 images are not those of 1 groups",
    ),
    "fewer images than were given": (
        First,
        grid,
        r"\(First\): weights of 1 × 2 × 13 × 13 for 2 images are not",
    ),
    "an unknown class": (
        lambda: nn.Sequential(
            Tokens(), RelativeAttention2d(3, 3, num_heads=2, encoding="quadratic")
        ),
        None,
        r"^0 \(.*\.Tokens\) attends with weights of 2 × 2 × 13 × 13, and its class is not known; say where its tokens",
    ),
    "an unknown class that holds no other module": (
        lambda: nn.Sequential(Bare(), RelativeAttention2d(3, 3, num_heads=2, encoding="quadratic")),
        None,
        r"^0 \(.*\.Bare\) attends with weights of 2 × 13 × 13, and its class is not known; say where its tokens",
    ),
    "a layout of another size": (
        Tokens,
        lambda _: global_layout((3, 5)),
        r"\(Tokens\): 13 queries and 13 keys are not the 15 and 15 of 3 × 5 positions and 0 prefix tokens$",
    ),
    "attention twice": (Twice, grid, r"\(Twice\): 2 products of weights and values was seen in it"),
    "no product": (
        Silent,
        grid,
        r"\(Silent\): no product of weights and values was seen in it, where there must be one$",
    ),
    "no attention": (
        lambda: nn.Linear(6, 6),
        grid,
        r"^no attention of Linear can be read: nothing in it attended$",
    ),
}


@pytest.mark.parametrize(("build", "read", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_understood_is_refused(build, read, message):
    network = build()
    if read is not None:
        register_attention(type(network), read)
    if isinstance(network, nn.Linear):
        registered._registered.clear()
    before = fingerprint(network)
    with pytest.raises(UnsupportedModelError, match=message):
        seen_by(network, drawn(13, 6))
    assert_unchanged(network, before)
    assert_no_hooks(network)


NAMES = {
    "xcit_nano_12_p16_224": ("blocks.0.attn", "it attends over channels, not over positions"),
    "davit_tiny": ("stages.0.blocks.0.1.attn", "it attends over channels, not over positions"),
}


@pytest.mark.parametrize(("name", "expected"), NAMES.items(), ids=NAMES)
def test_layers_that_are_no_attention_over_positions_have_a_reason(name, expected):
    with torch.device("meta"):
        network = timm.create_model(name)
    layer, reason = expected
    assert {item.name: item.refused for item in attention_layers(network)}[layer] == reason
    network.to_empty(device="cpu")
    for named in (layer, f"{layer[:-1]}?", [f"{layer[:-1]}?", "*"]):
        with pytest.raises(UnsupportedModelError, match=f"^{re.escape(layer)}: {reason}$"):
            seen_by(network, drawn(3, 64, 64), layers=named)


def stopping(_):
    raise ZeroDivisionError("in the callback")


def interrupting(_):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("callback", "raised"),
    [(lambda _: None, None), (stopping, ZeroDivisionError), (interrupting, KeyboardInterrupt)],
    ids=["all well", "callback raises", "interrupted"],
)
@pytest.mark.parametrize("name", ["class token", "shifted windows"])
def test_the_model_is_left_as_it_was(name, callback, raised):
    case = TIMM[name]
    network = case.build().train()
    network.get_submodule(case.layer).eval()
    flags = [module.training for module in network.modules()]
    before, state = fingerprint(network), torch.get_rng_state()
    if raised is None:
        watch(network, drawn(*case.size), callback)
    else:
        with pytest.raises(raised):
            watch(network, drawn(*case.size), callback)
    assert_unchanged(network, before)
    assert flags == [module.training for module in network.modules()]
    assert torch.equal(state, torch.get_rng_state())
    assert_no_hooks(network)
    assert torch.is_grad_enabled()


class Uncopied(nn.Sequential):
    """A network that cannot be copied."""

    def __deepcopy__(self, memo):
        raise TypeError("not to be copied")


def test_the_proof_of_a_layer_copies_that_layer_alone():
    proved = 0
    for seed in range(9):  # of which some need the longer proof
        torch.manual_seed(seed)
        layer = RelativeAttention2d(4, 5, num_heads=3, encoding="quadratic", content=True)
        for parameter in layer.parameters():
            nn.init.normal_(parameter)
        proved += len(seen_by(Uncopied(layer), drawn(4, 6, 9)))
    assert proved == 9


def test_a_module_that_raises_in_the_middle():
    register_attention(Wrong, grid)
    network = nn.Sequential(Wrong())
    with pytest.raises(
        ArgumentError,
        match=r"^images must fit the network, but on float32 of shape \(2, 13, 6\) it raised",
    ):
        seen_by(network, drawn(13, 6))
    assert_no_hooks(network)


def test_what_is_refused_is_refused_though_the_network_goes_on():
    class Patient(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Unread()

        def forward(self, x):
            with suppress(Exception):
                self.part(x)
            return x

    class Unread(nn.Module):
        def forward(self, x):
            return nn.functional.scaled_dot_product_attention(x, x, x)

    with pytest.raises(UnsupportedModelError, match=r"^part \(.*Unread\) attends with weights"):
        seen_by(Patient(), torch.randn(2, 3, 4, 5))


@pytest.mark.parametrize(
    "given", [drawn(3, 20, 27), drawn(1, 20, 28), drawn(20, 28), drawn(3, 20, 28, images=0)]
)
def test_images_of_wrong_sizes(given):
    network = TIMM["class token"].build()
    with pytest.raises(ArgumentError, match=r"^images must "):
        seen_by(network, given)
    assert_no_hooks(network)


def test_models_that_cannot_run_or_be_seen(without_type_checks):
    images = drawn(3, 20, 28)
    network = TIMM["class token"].build()
    with pytest.raises(
        UnsupportedModelError, match=r"^cls_token is on the meta device and has no values$"
    ):
        seen_by(network.to("meta"), images)
    with pytest.raises(ArgumentError, match=r"^model must be an nn\.Module, but is of type str$"):
        seen_by("vit", images)
    with pytest.raises(
        ArgumentError,
        match=r"^callback must be a function of an AttentionCall, but is of type int$",
    ):
        watch(TIMM["class token"].build(), images, 3)
    lazy = nn.Sequential(
        nn.LazyLinear(3), RelativeAttention2d(3, 3, num_heads=2, encoding="quadratic")
    )
    with pytest.raises(
        UnsupportedModelError, match=r"^0\.weight has no size yet: run the model once$"
    ):
        seen_by(lazy, images)
    compiled = RelativeAttention2d(3, 3, num_heads=2, encoding="quadratic")
    compiled._compiled_call_impl = (
        compiled._call_impl
    )  # as `compiled.compile()` does, without its imports
    with pytest.raises(UnsupportedModelError, match="is compiled; pass it as it was before"):
        seen_by(compiled, images)


OWN_SIZES = {
    "as many channels as rows and columns": (RelativeAttention2d, (6, 6, 6), {}, True),
    "a sequence": (RelativeAttention1d, (3, 6), {}, True),
    "a sequence of as many channels": (RelativeAttention1d, (6, 6), {}, True),
    "rows times channels are positions": (
        RelativeAttention2d,
        (3, 12, 12),
        {"kernel_size": 2, "stride": 2},
        False,
    ),
}


@pytest.mark.parametrize(("kind", "size", "options", "known"), OWN_SIZES.values(), ids=OWN_SIZES)
def test_inputs_of_own_layers_have_their_channels_first(kind, size, options, known):
    layer, x = kind(size[0], 5, num_heads=4, encoding="quadratic", **options), drawn(*size)
    (call,) = seen_by(layer, x)
    assert torch.equal(call.outputs, layer(x).detach().flatten(2).mT)
    assert (call.inputs is not None) == known
    if known:
        assert torch.equal(call.inputs, x.flatten(2).mT)


def test_layers_are_chosen_by_name():
    build, size = OWN["the paper's network"]
    network = build()
    every = [call.name for call in seen_by(network, drawn(*size))]
    assert [call.name for call in seen_by(network, drawn(*size), layers=every[1])] == every[1:]
    assert [call.name for call in seen_by(network, drawn(*size), layers=["*"])] == every
    assert [call.name for call in seen_by(network, drawn(*size), without=every[:1])] == every[1:]
    with pytest.raises(
        ArgumentError,
        match=r"^layers must be a pattern that matches attention layers in the network",
    ):
        seen_by(network, drawn(*size), layers="bloks")
    with pytest.raises(
        ArgumentError,
        match=r"^without must be a pattern that matches attention layers in the network",
    ):
        seen_by(network, drawn(*size), without=["bloks"])


def test_an_unknown_module_is_passed_over_if_others_are_named():
    network = nn.Sequential(
        Tokens(),
        nn.Unflatten(2, (2, 3)),
        RelativeAttention2d(13, 3, num_heads=2, encoding="quadratic"),
    )
    assert [call.name for call in seen_by(network, drawn(13, 6), layers="2")] == ["2"]


def test_what_cannot_be_registered(without_type_checks):
    with pytest.raises(ArgumentError, match=r"^cls must be a subclass of nn\.Module"):
        register_attention(Layout, grid)
    with pytest.raises(ArgumentError, match=r"^read must be a function from a call to a layout"):
        register_attention(Tokens, "global")


@pytest.mark.parametrize("returned", [None, "global", (3, 4)])
def test_what_a_registered_function_returns_must_be_a_layout(returned, without_type_checks):
    register_attention(Tokens, lambda _: returned)
    with pytest.raises(
        ArgumentError, match=r"^what `read` of Tokens returns must be a Layout, but is of type \w+$"
    ):
        seen_by(Tokens(), drawn(13, 6))
