"""Weights that are a product over axes: means along one axis after the other, O(N · (H + W)) instead of O(N²).

With s_h(δ) = Σ_a s_h,a(δ_a), exp s_h is a product over axes and so is its sum over the keys, hence exactly
A_h = A_h,rows ⊗ A_h,cols (`docs/theory.md` §4), and y = Σ_h W_h A_h,rows A_h,cols x. Head by head::

    a tile of the pixels      along the rows        along the columns      times W_h, added
    (rows, cols, channels) →  (rows_out, cols, …) → (rows_out, cols_out, …) →  (pixels_out, outputs)

Intermediate results are computed for images and tiles that fit the cache, over the keys that matter to the tile's
queries, and computed again for gradients. In bfloat16 on a CPU all heads are computed together (`bfloat16.py`). One
axis that holds all pixels is the general case of weights that are not a product.
"""

from convattn.functional.separable.values_first import values_first_attention
from convattn.functional.separable.weights_first import separable_attention

__all__ = ["separable_attention", "values_first_attention"]
