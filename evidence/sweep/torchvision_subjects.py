"""Every module of torchvision that holds a network: the smallest one of it, with random weights, at its own size.

Detectors drop boxes by comparing scores, so that the number of their results follows from their numbers. They are
compared on all that they compute before: features, and what every head gives for every anchor or for boxes that are
the same in each run.
"""

from pathlib import Path
from typing import Any
from unittest.mock import patch

from torch import Tensor, nn
from torchvision.models.optical_flow import raft

from evidence.sweep.listed import listed


class BeforeSuppression(nn.Module):
    """A detector of torchvision up to the point where boxes are dropped.

    Attributes:
        detector: The detector.
    """

    def __init__(self, detector: nn.Module) -> None:
        """Wraps a detector.

        Args:
            detector: One of `torchvision.models.detection`.
        """
        super().__init__()
        self.detector = detector

    def forward(self, images: Tensor) -> list[Any]:
        """Computes features and the outputs of all heads.

        Args:
            images: (batch, channels, height, width), values about [0, 1].

        Returns:
            The maps of features, the outputs of the dense heads, and those of the heads per box.
        """
        detector = self.detector
        batch, _ = detector.transform(list(images))
        features = detector.backbone(batch.tensors)
        levels = list(features.values())
        if hasattr(detector, "head"):
            return [levels, detector.head(levels)]
        return [levels, detector.rpn.head(levels), self._per_box(features, batch.image_sizes)]

    def _per_box(self, features: dict[str, Tensor], sizes: list[tuple[int, int]]) -> list[Any]:
        """Runs the heads that take boxes on the same few of each image, small and large."""
        heads, results = self.detector.roi_heads, []
        example = next(iter(features.values()))
        parts = example.new_tensor(
            [[0.1, 0.2, 0.2, 0.3], [0.3, 0.1, 0.6, 0.5], [0.0, 0.0, 1.0, 1.0]]
        )
        boxes = [
            parts * example.new_tensor([width, height, width, height]) for height, width in sizes
        ]
        for kind in ("box", "mask", "keypoint"):
            pool = getattr(heads, f"{kind}_roi_pool", None)
            if pool is not None:
                inside = getattr(heads, f"{kind}_head")(pool(features, boxes, sizes))
                results.append(getattr(heads, f"{kind}_predictor")(inside))
        return results


class InOnePrecision(nn.Module):
    """RAFT with its coordinates in the dtype of its images: torchvision makes them float32 and then refuses float64.

    Attributes:
        network: The network.
    """

    def __init__(self, network: nn.Module) -> None:
        """Wraps a network.

        Args:
            network: One of `torchvision.models.optical_flow`.
        """
        super().__init__()
        self.network = network

    def forward(self, first: Tensor, second: Tensor) -> list[Tensor]:
        """Computes the flow from one image to the other.

        Args:
            first: (batch, channels, height, width), values in [-1, 1].
            second: Images of the same shape.

        Returns:
            The flow after each step.
        """
        made = raft.make_coords_grid
        with patch.object(
            raft,
            "make_coords_grid",
            lambda *sizes, **options: made(*sizes, **options).to(first.dtype),
        ):
            return self.network(first, second)


HOME = listed(
    "torchvision", Path(__file__).with_name("torchvision_networks.json"), ways=("auto", "separable")
)
"""torchvision, by the module that defines each network, seen from `torchvision.models`."""
