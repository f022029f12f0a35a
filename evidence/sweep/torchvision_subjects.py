"""Every module of torchvision that holds a network: the smallest one of it, with random weights, at its own size.

Detectors drop boxes by comparing scores, so that the number of their results follows from their numbers. They are
compared on all that they compute before: features, and what every head gives for every anchor or for boxes that are
the same in each run.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torchvision.models import get_model
from torchvision.models.optical_flow import raft

from evidence.sweep.subjects import Built, Home, Subject


class Network(NamedTuple):
    """A network of torchvision and what it is run on.

    Attributes:
        builder: Its name in `torchvision.models`.
        shapes: Shapes of its arguments.
        options: What the builder takes beside no weights.
        wrap: What is made of it before conversion, or None.
    """

    builder: str
    shapes: tuple[tuple[int, ...], ...]
    options: Mapping[str, Any] = {}
    wrap: Callable[[nn.Module], nn.Module] | None = None


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


def _detector(builder: str, *size: int) -> Network:
    return Network(builder, ((1, 3, *size),), {"weights_backbone": None}, BeforeSuppression)


def _segmentation(builder: str) -> Network:
    return Network(builder, ((1, 3, 520, 520),), {"weights_backbone": None})


def _image(builder: str, size: int = 224, **options: Any) -> Network:
    return Network(builder, ((1, 3, size, size),), options)


def _video(builder: str, *size: int) -> Network:
    return Network(builder, ((1, 3, *size),))


NETWORKS: dict[str, Network] = {
    "alexnet": _image("alexnet"),
    "convnext": _image("convnext_tiny", 236),
    "densenet": _image("densenet121"),
    "detection.faster_rcnn": _detector("fasterrcnn_mobilenet_v3_large_320_fpn", 320, 426),
    "detection.fcos": _detector("fcos_resnet50_fpn", 800, 1066),
    "detection.keypoint_rcnn": _detector("keypointrcnn_resnet50_fpn", 800, 1066),
    "detection.mask_rcnn": _detector("maskrcnn_resnet50_fpn", 800, 1066),
    "detection.retinanet": _detector("retinanet_resnet50_fpn", 800, 1066),
    "detection.ssd": _detector("ssd300_vgg16", 300, 300),
    "detection.ssdlite": _detector("ssdlite320_mobilenet_v3_large", 320, 320),
    "efficientnet": _image("efficientnet_b0"),
    "googlenet": _image("googlenet", init_weights=False),
    "inception": _image("inception_v3", 342, init_weights=False),
    "maxvit": _image("maxvit_t"),
    "mnasnet": _image("mnasnet0_5"),
    "mobilenetv2": _image("mobilenet_v2"),
    "mobilenetv3": _image("mobilenet_v3_small"),
    "optical_flow.raft": Network(
        "raft_small", ((1, 3, 360, 496), (1, 3, 360, 496)), wrap=InOnePrecision
    ),
    "quantization.googlenet": _image("quantized_googlenet", init_weights=False),
    "quantization.inception": _image("quantized_inception_v3", 342, init_weights=False),
    "quantization.mobilenetv2": _image("quantized_mobilenet_v2"),
    "quantization.mobilenetv3": _image("quantized_mobilenet_v3_large"),
    "quantization.resnet": _image("quantized_resnet18"),
    "quantization.shufflenetv2": _image("quantized_shufflenet_v2_x0_5"),
    "regnet": _image("regnet_y_400mf"),
    "resnet": _image("resnet18"),
    "resnet (resnext)": _image("resnext50_32x4d"),
    "segmentation.deeplabv3": _segmentation("deeplabv3_mobilenet_v3_large"),
    "segmentation.fcn": _segmentation("fcn_resnet50"),
    "segmentation.lraspp": _segmentation("lraspp_mobilenet_v3_large"),
    "shufflenetv2": _image("shufflenet_v2_x0_5"),
    "squeezenet": _image("squeezenet1_1"),
    "swin_transformer": _image("swin_t"),
    "swin_transformer (v2)": _image("swin_v2_t", 256),
    "vgg": _image("vgg11"),
    "video.mvit": _video("mvit_v2_s", 16, 224, 224),
    "video.resnet": _video("mc3_18", 16, 112, 112),
    "video.resnet (r2plus1d)": _video("r2plus1d_18", 16, 112, 112),
    "video.resnet (r3d)": _video("r3d_18", 16, 112, 112),
    "video.s3d": _video("s3d", 16, 224, 224),
    "video.swin_transformer": _video("swin3d_t", 16, 224, 224),
    "vision_transformer": _image("vit_b_16"),
}
"""The networks by the module that defines them, seen from `torchvision.models`."""


def _build(network: Network) -> Built:
    """Builds a network, and draws what it is run on."""
    model = get_model(network.builder, weights=None, **network.options)
    generator = torch.Generator().manual_seed(0)
    arguments = tuple(torch.rand(shape, generator=generator) for shape in network.shapes)
    return Built(model if network.wrap is None else network.wrap(model), arguments)


def _subject(family: str) -> Subject:
    """Looks a family up."""
    network = NETWORKS[family]
    remark = "" if network.wrap is None else next(iter((network.wrap.__doc__ or "").splitlines()))
    return Subject(network.builder, partial(_build, network), remark)


HOME = Home("torchvision", ("torchvision",), partial(list, NETWORKS), _subject)
"""torchvision."""
