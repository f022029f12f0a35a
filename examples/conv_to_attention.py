"""Turn a convolution into self-attention, read the certificate, and turn it back."""

import torch

import convattn

torch.manual_seed(0)
conv = torch.nn.Conv2d(3, 8, kernel_size=3, padding=1)

attention, certificate = convattn.conv_to_attention(conv)
print(certificate.summary())

back, _ = convattn.attention_to_conv(attention)
print(f"largest difference between the kernels: {(back.weight - conv.weight).abs().max():.3g}")

assert certificate.passed
assert back.weight.shape == conv.weight.shape
