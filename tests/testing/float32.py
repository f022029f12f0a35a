"""How CUDA computes with float32, for a while: in full, or from numbers rounded to TF32."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Kind = Literal["ieee", "tf32"]


@contextmanager
def float32_by(products: Kind, convolutions: Kind) -> Iterator[None]:
    """Sets what products and convolutions of float32 are made of; the CPU goes on as before."""
    places = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)
    before = [place.fp32_precision for place in places]
    try:
        for place, kind in zip(places, (products, convolutions), strict=True):
            place.fp32_precision = kind
        yield
    finally:
        for place, kind in zip(places, before, strict=True):
            place.fp32_precision = kind
