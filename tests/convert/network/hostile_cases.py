"""Networks that change themselves or what they are given, or that look at their layers."""

import torch
from torch import nn
from torch.nn import functional as F

from convattn.budget import rounded_differently


class Whole(nn.Module):
    """A network around one layer."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)


class Counting(Whole):
    """Adds the number of its runs, which it keeps in a buffer."""

    def __init__(self, layer):
        super().__init__(layer)
        self.register_buffer("runs", torch.zeros(()))

    def forward(self, x):
        self.runs += 1
        return self.layer(x) + self.runs


class Remembering(Whole):
    """Multiplies by the number of its runs, which it keeps in a list."""

    def __init__(self, layer):
        super().__init__(layer)
        self.seen = []

    def forward(self, x):
        self.seen.append(1)
        return self.layer(x) * len(self.seen)


class Overwriting(Whole):
    """Changes its input."""

    def forward(self, x):
        return self.layer(x.add_(1))


class Drawing(Whole):
    """Adds a random number in evaluation too."""

    def forward(self, x):
        return self.layer(x) + torch.randn(1)


class Growing(Whole):
    """Changes the weight of its layer at each run."""

    def forward(self, x):
        self.layer.weight.data.mul_(4)
        return self.layer(x)


class Clamping(Whole):
    """Clamps the weight of its layer at each run, far below what it was made with."""

    def forward(self, x):
        with torch.no_grad():
            self.layer.weight.clamp_(-0.05, 0.05)
        return self.layer(x)


class Assigning(Whole):
    """Gives its layer another tensor as weight at each run, which a soft attention layer does not take."""

    def forward(self, x):
        self.layer.weight.data = self.layer.weight.data.clamp(-0.05, 0.05)
        return self.layer(x)


class Chaotic(Whole):
    """Makes of every last digit another number; `moved` moves the last digits once its layer is attention."""

    def __init__(self, layer, *, moved):
        super().__init__(layer)
        self.moved = moved

    def forward(self, x):
        y = self.layer(x)
        if self.moved and not isinstance(self.layer, nn.Conv2d):
            y = rounded_differently(y, seed=0)
        return torch.sin(1e8 * y)


class Looking(Whole):
    """Insists on the class of its layer."""

    def forward(self, x):
        assert isinstance(self.layer, nn.Conv2d)
        return self.layer(x)


class Listed(Whole):
    """Keeps a second layer in a plain list, where torch does not find it."""

    def __init__(self, layer, hidden):
        super().__init__(layer)
        self.hidden = [hidden]

    def forward(self, x):
        return self.layer(self.hidden[0](x))


class Masking(nn.Conv2d):
    """Masks its weight in every run, as causal convolutions of images do."""

    def forward(self, x):
        self.weight.data *= torch.arange(3) < 2
        return super().forward(x)


class Writing(Whole):
    """Writes the weight of a convolution in every run."""

    def __init__(self, layer):
        super().__init__(layer)
        self.kernel = nn.Parameter(torch.randn_like(layer.weight))

    def forward(self, x):
        self.layer.weight.data = 2 * self.kernel.data
        return self.layer(x)


class Borrowing(Whole):
    """Calls a convolution as a function with the weight of a module."""

    def forward(self, x):
        return F.conv2d(x, self.layer.weight, self.layer.bias)


class Unfolding(Whole):
    """Computes a second convolution by unfolding and a product of matrices."""

    def __init__(self, layer):
        super().__init__(layer)
        self.kernel = nn.Parameter(torch.ones(2, 27))

    def forward(self, x):
        return self.layer(x), self.kernel @ F.unfold(x, 3)


class Spectrum(Whole):
    """Returns complex numbers."""

    def forward(self, x):
        return torch.fft.rfft2(self.layer(x))
