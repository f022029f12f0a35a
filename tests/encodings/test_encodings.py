import pytest
import torch
from tests.encodings.formula_cases import FORMULAS, small_encoding
from tests.testing.encoding_contract import FullEncodingContract

from convattn.encodings import ENCODINGS, create_encoding
from convattn.errors import ArgumentError, UnknownNameError


class TestEveryEncoding(FullEncodingContract):
    @pytest.fixture(autouse=True, params=ENCODINGS)
    def _named(self, request):
        self.name = request.param
        self.formula = FORMULAS[self.name]

    def create(self, num_heads, dims):
        extent = (
            {"extent": self.reach + 1} if self.name in {"learned_axial", "learned_table"} else {}
        )
        return small_encoding(self.name, num_heads, dims, **extent)


def test_unknown_encoding_is_refused_with_the_nearest_name():
    with pytest.raises(
        UnknownNameError,
        match=r"unknown encoding 'quadratik': did you mean 'quadratic'\? Known: axial.*, sinusoidal\. "
        r"One of .* import the module .*, by convattn\.register_encoding\('quadratik', CLASS\)$",
    ):
        create_encoding("quadratik", 2, 2)


@pytest.mark.parametrize("name", ENCODINGS)
def test_unknown_option_is_refused_with_the_known_ones(name):
    with pytest.raises(
        ArgumentError, match=f"option of encoding '{name}' must be one of .*, but is 'sharpnes'"
    ):
        create_encoding(name, 2, 2, sharpnes=1.0)


@pytest.mark.parametrize("name", ENCODINGS)
def test_displacements_of_whole_numbers_are_refused_and_not_rounded_to(name, without_type_checks):
    with pytest.raises(ArgumentError, match="displacement must be of a floating-point dtype, but"):
        small_encoding(name, 1, 2)(torch.tensor([[0, 1]]))


@pytest.mark.parametrize("kind", ["quadratic", "generalized_quadratic", "linear_distance"])
def test_centres_beyond_their_dtype_are_refused(kind):
    with pytest.raises(ArgumentError, match=r"centres must be finite in torch\.float32, but"):
        create_encoding(kind, 1, 1, centres=[[1e300]])


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize(
    ("sizes", "argument"), [((0, 2), "num_heads"), ((2, 0), "dims"), ((True, 2), "num_heads")]
)
def test_sizes_out_of_range_are_refused(name, sizes, argument):
    with pytest.raises(
        ArgumentError, match=rf"{argument} must be an integer of at least 1, but is"
    ):
        create_encoding(name, *sizes)


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("learned_axial", "extent", 0),
        ("learned_axial", "extent", (3, 0)),
        ("learned_axial", "extent", (3, 3, 3)),
        ("learned_axial", "width", 0),
        ("learned_table", "extent", 0),
        ("sinusoidal", "frequencies", 0),
        ("distance", "hidden", 0),
    ],
)
def test_options_out_of_range_are_refused(name, option, value):
    with pytest.raises(ArgumentError, match=f"{option} must be an integer of at least 1"):
        create_encoding(name, 2, 2, **{option: value})


@pytest.mark.parametrize("value", [1.0, 0.0, -3.0, torch.inf, torch.nan])
def test_period_must_be_above_one(value):
    with pytest.raises(ArgumentError, match="max_period must be a finite number above 1, but is"):
        create_encoding("sinusoidal", 2, 2, max_period=value)
