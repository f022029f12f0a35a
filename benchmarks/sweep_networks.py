"""Converts one network of every module of timm that holds a convolution, on both paths, and notes what came of it.

    python benchmarks/sweep_networks.py OUT.jsonl [--timeout 600] [--modules resnet convnext]

Of each module the architecture with the fewest parameters is taken, with random weights and batch-norm statistics that
are not those of a new network, at its own size. Each network has a process of its own, so that one that fails or takes
too long costs no other. One line of JSON per network and path; modules that have a line already are passed over.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

PATHS = ("auto", "separable")


def smallest(module: str) -> str | None:
    """Returns the architecture of a timm module with the fewest parameters; None where none holds a convolution."""
    import timm
    import torch
    from torch import nn

    found = []
    for name in timm.list_models(module=module):
        with torch.device("meta"):
            try:
                network = timm.create_model(name)
            except Exception:  # noqa: BLE001 - some cannot be built without values; others of the module can
                continue
        if any(isinstance(part, nn.modules.conv._ConvNd) for part in network.modules()):
            found.append((sum(p.numel() for p in network.parameters()), name))
    return min(found)[1] if found else None


def convert(module: str, impl: str) -> dict[str, object]:
    """Converts one network and returns its line."""
    import timm
    import torch
    from torch import nn

    from convattn import ConvAttnError, network_to_attention

    torch.manual_seed(0)
    name = smallest(module)
    line: dict[str, object] = {"module": module, "impl": impl, "model": name}
    if name is None:
        return {**line, "outcome": "no convolution"}
    network = timm.create_model(name).eval()
    for part in network.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is not None:
            part.running_mean.normal_(0, 0.25)
            part.running_var.uniform_(0.5, 1.5)
    start = time.perf_counter()
    try:
        _, certificate = network_to_attention(network, impl=impl)
    except ConvAttnError as error:
        return {**line, "outcome": "refused", "reason": str(error)}
    return {
        **line,
        "outcome": "passed" if certificate.passed else "failed",
        "seconds": round(time.perf_counter() - start, 1),
        "layers": len(certificate.layers),
        "heads": sum(layer.heads for layer in certificate.layers),
        "measured_error": certificate.measured_error,
        "rounding": certificate.rounding,
        "largest": certificate.largest,
        "reference": certificate.reference,
        "top1_changed": certificate.top1_changed,
        "left": [f"{item.name} ({item.kind}): {item.reason}" for item in certificate.left_alone],
        "notes": sorted({note for layer in certificate.layers for note in layer.notes}),
        "not_covered": list(certificate.not_covered),
        "shapes": certificate.shapes,
    }


def in_its_own_process(module: str, impl: str, seconds: float) -> dict[str, object]:
    """Converts one network in a child process; a line in any case."""
    command = [sys.executable, __file__, "--one", module, impl]
    line: dict[str, object] = {"module": module, "impl": impl}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return {**line, "outcome": "too slow", "reason": f"over {seconds:g} seconds"}
    if done.returncode:
        return {**line, "outcome": "crashed", "reason": done.stderr.strip().splitlines()[-1:]}
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Runs what is missing of the sweep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path)
    parser.add_argument("--timeout", type=float, default=600.0)
    parser.add_argument("--modules", nargs="*")
    parser.add_argument("--one", nargs=2, metavar=("MODULE", "IMPL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        sys.stdout.write(json.dumps(convert(*options.one)) + "\n")
        return
    if options.out is None:
        parser.error("say where to write")
    import timm

    lines = options.out.read_text(encoding="utf-8").splitlines() if options.out.exists() else []
    done = {(line["module"], line["impl"]) for line in map(json.loads, lines)}
    for module in options.modules or timm.list_modules():
        for impl in PATHS:
            if (module, impl) in done:
                continue
            line = in_its_own_process(module, impl, options.timeout)
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            sys.stderr.write(f"{module} {impl}: {line['outcome']} {line.get('model')}\n")


if __name__ == "__main__":
    main()
