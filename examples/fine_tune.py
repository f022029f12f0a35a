"""Fine-tune a CNN as attention on a folder of pictures, turn it back into convolutions, and export it.

python examples/fine_tune.py pictures runs/cnn
python examples/fine_tune.py pictures timm:resnet18 --size 128 --include 'layer4.*' --content
"""

import argparse

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from convattn import certify, load_network, network_to_attention, network_to_conv
from convattn.data import load_folder, normalise
from convattn.layers import RelativeAttention

parser = argparse.ArgumentParser()
parser.add_argument("pictures", help="a folder with a folder of pictures for each class")
parser.add_argument("network", help="a folder with a trained CNN, or timm:NAME")
parser.add_argument("--size", type=int, default=32, help="rows and columns of an image")
parser.add_argument("--include", nargs="*", help="convolutions to convert; all if not given")
parser.add_argument("--content", action="store_true", help="gated content, not soft heads")
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--rate", type=float, default=1e-3, help="learning rate of weights and gates")
parser.add_argument("--place-rate", type=float, default=1e-2, help="of centres and sharpness")
parser.add_argument("--average", type=float, default=0.99, help="share of it that a step keeps")
parser.add_argument("--device", default="cpu")
parser.add_argument("--compile", action="store_true", help="the first step waits for the compiler")
args = parser.parse_args()


def layers_of(network: nn.Module) -> list[RelativeAttention]:
    """Finds the layers of attention."""
    return [layer for layer in network.modules() if isinstance(layer, RelativeAttention)]


def parameter_groups(network: nn.Module) -> list[dict]:
    """Sorts parameters: weight decay would pull centres to the middle, and close gates."""
    places, gates = [], []
    for layer in layers_of(network):
        places += layer.encoding.parameters()
        gates += [layer.gate] if args.content else []
    apart = {*places, *gates}
    rest = [weight for weight in network.parameters() if weight not in apart]
    return [
        {"params": places, "lr": args.place_rate, "weight_decay": 0.0},
        {"params": gates, "lr": args.rate, "weight_decay": 0.0},
        {"params": rest, "lr": args.rate, "weight_decay": 0.05},
    ]


@torch.no_grad()
def report(what: str, network: nn.Module) -> None:
    """Prints how many test images are right."""
    scores = [network(images.to(args.device)) for images in test_images.split(100)]
    right = torch.cat(scores).argmax(1).cpu() == data.test.labels
    print(f"{what}: {right.sum()} of {len(right)} test images right")


# 1. Pictures, and a trained network
torch.manual_seed(0)
data = load_folder(args.pictures, size=args.size)
mean, std = data.mean, data.std
if args.network.startswith("timm:"):
    import timm

    name, channels = args.network.removeprefix("timm:"), len(mean)
    cnn = timm.create_model(name, True, in_chans=channels, num_classes=data.num_classes)
    mean, std = cnn.pretrained_cfg["mean"][:channels], cnn.pretrained_cfg["std"][:channels]
else:
    cnn = load_network(args.network)
cnn = cnn.to(args.device).eval()
train_images = normalise(data.train.images, mean, std)
test_images = normalise(data.test.images, mean, std)
few = test_images[:16].to(args.device)
report("CNN", cnn)

# 2. Hard heads compute the same. Soft heads can move, and gates can open
_, certificate = network_to_attention(cnn, few, include=args.include)
assert certificate.verdict == "exact"
learns = {"content": True} if args.content else {"sharpness": 5.0}
attention, certificate = network_to_attention(cnn, few, include=args.include, **learns)
report(f"attention before training, {certificate.verdict}", attention)

# 3. Training, with a moving average of the weights
step_of_average = get_ema_multi_avg_fn(args.average)
average = AveragedModel(attention, multi_avg_fn=step_of_average, use_buffers=True)
run = torch.compile(attention) if args.compile else attention
optimiser = torch.optim.AdamW(parameter_groups(attention))
for _ in range(args.epochs):
    attention.train()
    for rows in torch.randperm(len(train_images)).split(32):
        with torch.autocast(args.device, dtype=torch.bfloat16):
            scores = run(train_images[rows].to(args.device))
            loss = cross_entropy(scores, data.train.labels[rows].to(args.device))
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        average.update_parameters(attention)
tuned = average.module.eval()
report("attention after training", tuned)

# 4. Back to convolutions. A layer with an open gate stays attention
final, few = tuned.cpu(), few.cpu()
if args.content:
    shares = torch.cat([layer.gate.detach().tanh().abs() for layer in layers_of(tuned)])
    print(f"it stays attention: content has up to {shares.max():.1%} of a head")
else:
    final, certificate = network_to_conv(tuned, few, borders="exact")
    print(certificate.summary())
    assert certificate.verdict == "exact"

# 5. A file, held against the trained network in ONNX Runtime
sizes = ({0: torch.export.Dim("batch")},)  # any number of images
torch.onnx.export(final, (few,), "network.onnx", dynamic_shapes=sizes, verbose=False)
certificate = certify(tuned, "network.onnx", test_images)
print(certificate.summary())
assert certificate.passed
