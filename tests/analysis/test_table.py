"""Reports as tables."""

import random

from tests.analysis.analyze_cases import gated, noise

from convattn.errors import CheckpointError
from convattn.heads import analyze, read_table, write_table


def test_a_changed_bit_is_found_or_changes_nothing(tmp_path):
    report = analyze(gated(0.3), noise(3, 6, 5, 6), progress=False, controls=(), radius=1)
    content, draw, found = (
        write_table(report, tmp_path / "a.parquet").read_bytes(),
        random.Random(0),
        0,
    )
    for _ in range(60):
        damaged = bytearray(content)
        damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        (tmp_path / "a.parquet").write_bytes(damaged)
        try:
            read = read_table(tmp_path / "a.parquet")
        except CheckpointError:
            found += 1
        else:
            assert repr(read) == repr(report)
    assert found > 20
