"""Turn a convolution into self-attention, read its certificate, and look at where the heads attend."""

import torch

import convattn

torch.manual_seed(0)
conv = torch.nn.Conv2d(3, 8, kernel_size=3, padding=1)
attention, certificate = convattn.conv_to_attention(conv)
print(certificate.summary())

weights = attention.attention(
    (7, 5)
)  # (heads, rows, cols, key rows, key cols); the keys are the padded image
print(
    f"query (3, 2) attends, head by head, to {[tuple(key.tolist()) for key in weights[:, 3, 2].nonzero()[:, 1:]]}"
)

assert certificate.passed
assert weights.shape == (9, 7, 5, 9, 7)
assert torch.equal(weights.sum(dim=(-2, -1)), torch.ones(9, 7, 5))
