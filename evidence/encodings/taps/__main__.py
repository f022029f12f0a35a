"""Keeps the records of finished runs of the plan, and where the tables of their heads peak.

    python -m evidence.encodings.taps RUNS

RUNS is the folder that the plan's command fills. Of each run `sa-learned-SEED` that has finished, its record comes to
this folder without weights, and beside it peaks.json: for each layer the displacements (row, col) of its heads' peaks.
"""

import json
import shutil
from pathlib import Path

from convattn import load_network
from convattn.files import write_atomically
from evidence.results import new_parser
from evidence.speedrun.centres import PEAKS, table_peaks

FOLDER = Path(__file__).parent


def main() -> None:
    """Keeps what has finished."""
    parser = new_parser(__doc__)
    parser.add_argument("runs", type=Path, metavar="RUNS", help="folder with the runs")
    for record in sorted(parser.parse_args().runs.glob("sa-learned-*/record.json")):
        kept = FOLDER / record.parent.name
        kept.mkdir(exist_ok=True)
        for name in ("record.json", "metrics.jsonl"):
            shutil.copyfile(record.parent / name, kept / name)
        peaks = [layer.astype(int).tolist() for layer in table_peaks(load_network(record.parent))]
        write_atomically(kept / PEAKS, json.dumps(peaks) + "\n")


if __name__ == "__main__":
    main()
