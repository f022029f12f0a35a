"""Faces on a photograph: the three networks of MTCNN, as facenet-pytorch ships them."""

from collections.abc import Mapping
from importlib import import_module

import numpy as np
import torch
from torch import Tensor

from convattn.wording import counted
from evidence.real_weights.task import Found, Network, Package, Subject, Task

FACENET = Package("facenet-pytorch", "facenet_pytorch", "MIT")
PHOTOGRAPHS = Package(
    "scikit-image", "skimage", "BSD-3-Clause; the astronaut is in the public domain"
)

_SMALLEST, _THRESHOLDS, _FACTOR = 20, [0.6, 0.7, 0.7], 0.709
"""The settings of `facenet_pytorch.MTCNN`."""


def _build() -> Task:
    from PIL import Image

    detect = import_module("facenet_pytorch.models.utils.detect_face").detect_face
    models = import_module("facenet_pytorch.models.mtcnn")
    pixels = np.asarray(Image.open(PHOTOGRAPHS.folder() / "data" / "astronaut.png").convert("RGB"))

    def find(networks: Mapping[str, Network], given: Tensor) -> Found:
        three = (networks[name] for name in ("P-Net", "R-Net", "O-Net"))
        boxes, points = detect(given, _SMALLEST, *three, _THRESHOLDS, _FACTOR, given.device)
        faces, landmarks = (
            torch.tensor(one[0].astype(np.float64)).to(given.dtype) for one in (boxes, points)
        )
        corners = faces[:, :4].round().int().tolist()
        told = [
            f"a box from {tuple(box[:2])} to {tuple(box[2:])}, score {s:.4f}"
            for box, s in zip(corners, faces[:, 4].tolist(), strict=True)
        ]
        numbers = {
            "boxes (pixels)": faces[:, :4],
            "landmarks (pixels)": landmarks,
            "scores": faces[:, 4],
        }
        return Found(
            numbers,
            {"faces, their boxes in whole pixels": corners},
            f"{counted(len(told), 'face')}: {'; '.join(told)}",
        )

    networks = {"P-Net": models.PNet(), "R-Net": models.RNet(), "O-Net": models.ONet()}
    return Task(
        {name: network.eval() for name, network in networks.items()},
        torch.tensor(pixels).float(),
        find,
    )


_ABOUT = """\
MTCNN finds faces with three networks: P-Net scans the photograph at several sizes, R-Net and O-Net look at what it
proposes. The program around them (pyramid, thresholds, non-maximum suppression) is the package's own. The
photograph is that of the astronaut Eileen Collins, 512 × 512 pixels, which scikit-image ships: it is in the public
domain and shows a face. In float32 a coordinate near 200 has steps of 1.5e-5 pixels."""

FACES = Subject(
    "faces",
    "Faces on a photograph",
    _ABOUT,
    (FACENET, PHOTOGRAPHS),
    _build,
)
