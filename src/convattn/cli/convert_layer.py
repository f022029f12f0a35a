"""`convattn convert` on the folder of a single layer."""

import json as json_format
from pathlib import Path
from typing import Any

from convattn.cli.output import print_record
from convattn.errors import UnsupportedModelError


def layer_in(source: str) -> bool:
    """Tells whether a folder, which need not exist, holds a single layer, as `save_layer` writes it."""
    from convattn.convert.saved import KINDS

    try:
        config = json_format.loads((Path(source) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("kind") in [*KINDS]


def convert_layer(source: Path, output: Path, to: str, options: dict[str, Any], *, verify: bool, json: bool) -> int:
    """Converts a layer, and writes it if its certificate passes; returns 0, or 1 where the check failed."""
    from convattn.convert import SUPPORTED_CONVOLUTIONS, attention_to_conv, conv_to_attention, load_layer, save_layer
    from convattn.files import require_new_folder

    require_new_folder(output, "--output")
    layer = load_layer(source, verify=verify)
    if to == "conv":
        made, certificate = attention_to_conv(layer, **options)
    elif type(layer) not in SUPPORTED_CONVOLUTIONS:
        raise UnsupportedModelError(f"{source} holds a {type(layer).__name__}, which is not a convolution of torch")
    else:
        made, certificate = conv_to_attention(layer, **options)  # type: ignore[arg-type]
    if certificate.passed:
        save_layer(made, output, certificate=certificate)
    outcome = f"wrote {output}" if certificate.passed else "wrote nothing"
    print_record(certificate, f"{certificate.summary()}\n{outcome}", json=json)
    return 0 if certificate.passed else 1
