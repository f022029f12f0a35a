"""Networks and images of which it is known what an analysis finds."""

import torch

from convattn import RelativeAttention2d, Shift
from convattn.heads.analysis import analyze


def noise(images, *sizes, seed=1):
    return torch.randn(images, *sizes, generator=torch.Generator().manual_seed(seed))


def hooks(model):
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(module, kind)) for module in model.modules() for kind in kinds)


def gated(share, sharpness=6.0):
    """Three heads that look with a known share at a fixed displacement, and otherwise at what the pixels are."""
    torch.manual_seed(0)
    encoding = Shift(3, 2, displacements=[(0, 1), (-1, 0), (1, 1)])
    network = RelativeAttention2d(
        6, 5, num_heads=3, encoding=encoding, gate="sigmoid", kernel_size=3, padding=1
    )
    with torch.no_grad():
        network.gate.copy_(torch.logit(torch.tensor(share, dtype=torch.float64)))
        network.content.query.weight.mul_(sharpness)
    return network.eval()


def report_of(share, images, **options):
    """The report of such heads on noise."""
    return analyze(gated(share), noise(images, 6, 5, 6), progress=False, **options)
