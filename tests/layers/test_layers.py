import pytest
from tests.encodings.formula_cases import FORMULAS
from tests.layers.layer_cases import LAYERS

from convattn.testing.contracts import AttentionContract


class TestEveryLayer(AttentionContract):
    @pytest.fixture(autouse=True, params=LAYERS, ids=str)
    def _case(self, request):
        self.case = request.param
        self.formula, self.dims = FORMULAS[self.case.encoding], self.case.kind.dims

    def create(self, in_channels, out_channels, **options):
        return self.case.create(in_channels, out_channels, **options)
