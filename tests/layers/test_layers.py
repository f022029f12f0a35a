import pytest
import torch
from tests.encodings.formula_cases import FORMULAS
from tests.layers.layer_cases import LAYERS, LayerCase

from convattn.functional import mixing, product
from convattn.layers import RelativeAttention1d, RelativeAttention2d, RelativeAttention3d
from convattn.testing.contracts import AttentionContract


class TestEveryLayer(AttentionContract):
    @pytest.fixture(autouse=True, params=LAYERS, ids=str)
    def _case(self, request):
        self.case = request.param
        self.formula, self.dims = FORMULAS[self.case.encoding], self.case.kind.dims

    def create(self, in_channels, out_channels, **options):
        return self.case.create(in_channels, out_channels, **options)


PIECE = 260
"""Bytes of a piece: three rows of five in two dimensions, which are not a multiple of a block."""

PIECEWISE = [
    LayerCase("quadratic", RelativeAttention1d, {"impl": "separable"}),
    LayerCase("quadratic", RelativeAttention2d, {"impl": "separable"}),
    LayerCase("linear_distance", RelativeAttention3d, {"impl": "separable"}),
    LayerCase("generalized_quadratic", RelativeAttention2d, {"impl": "dense"}),
    LayerCase("quadratic", RelativeAttention2d, {"impl": "separable", "head_width": 2}),
]


class TestLargeImages(AttentionContract):
    """The contract where images are cut into pieces and bands of keys are left out, which small ones are not.

    In place of large images the pieces are made small: a few rows, and blocks of two queries.
    """

    @pytest.fixture(autouse=True, params=PIECEWISE, ids=str)
    def _case(self, request, monkeypatch):
        self.case = request.param
        self.formula, self.dims = FORMULAS[self.case.encoding], self.case.kind.dims
        monkeypatch.setattr(product, "_CACHE", PIECE)
        monkeypatch.setattr(mixing, "_SHORT", 2)

    def create(self, in_channels, out_channels, **options):
        layer = self.case.create(in_channels, out_channels, **options)
        with torch.no_grad():
            for name, parameter in layer.encoding.named_parameters():
                parameter.copy_(SHARP.get(name, parameter))
        return layer


SHARP = {
    "root_sharpness": torch.tensor([1.0, 3.0]),
    "log_slope": torch.tensor([0.0, 2.0]),
    "shape": torch.tensor([1.0, 3.0])[:, None, None] * torch.eye(2),
}
"""One soft head, and one with a band narrower than the image."""


def test_the_pieces_are_pieces(monkeypatch):
    """Negative control of the class above: what it makes small is cut, and what is left out matters."""
    weights = torch.softmax(-((torch.arange(7.0) - torch.arange(7.0)[:, None]) ** 2) * 9, dim=-1)[None]
    monkeypatch.setattr(mixing, "_SHORT", 2)
    tiles = mixing.axis_tiles(weights, torch.finfo(torch.float32).eps / 64, 7)
    assert [tile.queries for tile in tiles] == [slice(0, 2), slice(2, 4), slice(4, 6), slice(6, 7)]
    assert all(keys.stop - keys.start < 6 for tile in tiles for keys in tile.keys)
    monkeypatch.setattr(product, "_CACHE", PIECE)
    pieces = product._Pieces(torch.zeros(2, 5, 7, 3), [torch.full((1, 5, 5), 0.2), weights])
    assert len(list(pieces.over(2))) > 2
    contract = TestLargeImages()
    contract.case, contract.formula = PIECEWISE[1], FORMULAS["quadratic"]
    right = mixing.axis_tiles
    monkeypatch.setattr(
        mixing, "axis_tiles", lambda weights, _, *rest, **options: right(weights, 1e-3, *rest, **options)
    )
    with pytest.raises(AssertionError, match="result: error"):
        contract.test_output_is_attention_by_definition(torch.float32)
