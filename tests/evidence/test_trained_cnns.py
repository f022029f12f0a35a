"""Weights of a Keras file come to the layers of torch in torch's order."""

import torch
from torch import nn

from evidence.trained_cnns.networks import fill


def test_each_weight_lies_where_torch_has_it():
    dense, plain, depthwise = torch.rand(5, 7), torch.rand(2, 3, 5, 7), torch.rand(2, 3, 5, 1)
    cases = (
        (nn.Linear(5, 7), dense, lambda i, o: dense[i, o], (5, 7)),
        (nn.Conv2d(5, 7, (2, 3)), plain, lambda i, o: plain[:, :, i, o], (5, 7)),
        (nn.Conv2d(5, 5, (2, 3), groups=5), depthwise, lambda i, o: depthwise[:, :, o, i], (1, 5)),
    )
    for layer, kernel, expected, (inputs, outputs) in cases:
        bias = torch.rand(outputs)
        fill(layer, {"kernel": kernel.numpy(), "bias": bias.numpy()})
        assert torch.equal(layer.bias, bias)
        for i in range(inputs):
            for o in range(outputs):
                assert torch.equal(layer.weight[o, i], expected(i, o)), (layer, i, o)
