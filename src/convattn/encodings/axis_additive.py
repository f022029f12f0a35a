"""Encodings whose score is a sum over the axes."""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from convattn.encodings.encoding import Encoding
from convattn.grid import Axis


class AxisAdditiveEncoding(Encoding):
    """An encoding whose score is a sum of one term per axis: s_h(δ) = Σ_a s_h,a(δ_a).

    Layers then take one softmax per axis. A subclass writes `axis_score`, and `feature_width` and
    `axis_feature_vectors` if scores are linear in features that the heads share.

    Example:
        >>> class Near(AxisAdditiveEncoding):
        ...     def axis_score(self, axis, displacement):
        ...         return -displacement.abs().expand(self.num_heads, *displacement.shape)
        >>> Near(num_heads=1, dims=2)(torch.tensor([[3.0, -1.0]]))
        tensor([[-4.]])
    """

    axis_additive = True

    def axis_tables(
        self, axes: Sequence[Axis], dtype: torch.dtype = torch.float32, device: torch.device | None = None
    ) -> list[Float[Tensor, "heads _"]]:
        """Scores, for each axis alone, all displacements of a grid along it.

        Args:
            axes: Queries and keys along each axis.
            dtype: Dtype in which to compute.
            device: Where to compute.

        Returns:
            One table per axis, from the lowest to the highest displacement.

        Raises:
            ShapeError: The grid has another number of axes than the encoding, or `axis_score` returned another shape.
            EncodingRangeError: The grid has displacements that the encoding does not hold.
            ArgumentError: The encoding has a hook that would be ignored.
        """
        displacements = enumerate(self._displacements(axes, dtype, device))
        return [self._fitting(self.axis_score(n, along), along.shape, along) for n, along in displacements]

    def axis_features(
        self, axes: Sequence[Axis], dtype: torch.dtype = torch.float32, device: torch.device | None = None
    ) -> list[Float[Tensor, "_ width"]]:
        """Returns, for each axis alone, the features of all displacements of a grid along it; r_δ = Σ_a r_a[δ_a].

        Args:
            axes: Queries and keys along each axis.
            dtype: Dtype in which to compute.
            device: Where to compute.

        Returns:
            One table per axis, from the lowest to the highest displacement, each of width `feature_width`.

        Raises:
            ArgumentError: The encoding has no features, or a hook that would be ignored.
            ShapeError: The grid has another number of axes than the encoding.
            EncodingRangeError: The grid has displacements that the encoding does not hold.
        """
        self._require_features()
        return [self.axis_feature_vectors(n, along) for n, along in enumerate(self._displacements(axes, dtype, device))]

    @abstractmethod
    def axis_score(self, axis: int, displacement: Float[Tensor, "*points"]) -> Float[Tensor, "heads *points"]:
        """Scores valid displacements along one axis; the one method that a subclass must write.

        Args:
            axis: Number of the axis.
            displacement: Displacements along it, in pixels.

        Returns:
            One term of the score per head and displacement.
        """

    def axis_feature_vectors(self, axis: int, displacement: Float[Tensor, "*points"]) -> Float[Tensor, "*points width"]:
        """Returns the features of valid displacements along one axis, which add up over the axes to r_δ.

        Args:
            axis: Number of the axis.
            displacement: Displacements along it, in pixels.

        Returns:
            The axis's part, of width `feature_width`.

        Raises:
            NotImplementedError: The subclass has not written it.
        """
        raise NotImplementedError(f"{type(self).__name__} has a feature_width, so it must have axis_feature_vectors")

    def score(self, displacement: Tensor) -> Tensor:
        """Adds up the scores of the axes."""
        terms = [self.axis_score(axis, displacement[..., axis]) for axis in range(self.dims)]
        return sum(terms[1:], terms[0])

    def feature_vectors(self, displacement: Tensor) -> Tensor:
        """Adds up the features of the axes."""
        terms = [self.axis_feature_vectors(axis, displacement[..., axis]) for axis in range(self.dims)]
        return sum(terms[1:], terms[0])
