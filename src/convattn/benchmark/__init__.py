"""Measuring the layers against their peers: correctness before time, and every raw number kept."""

from convattn.benchmark.build import DTYPES, Setting
from convattn.benchmark.cases import Case, choose, find_suite
from convattn.benchmark.record import BenchmarkRecord, CaseResult, ScalingCurve
from convattn.benchmark.report import COLUMNS, SCALING_COLUMNS, case_rows, scaling_rows
from convattn.benchmark.suite import run_layers, write_layers

__all__ = [
    "COLUMNS",
    "DTYPES",
    "SCALING_COLUMNS",
    "BenchmarkRecord",
    "Case",
    "CaseResult",
    "ScalingCurve",
    "Setting",
    "case_rows",
    "choose",
    "find_suite",
    "run_layers",
    "scaling_rows",
    "write_layers",
]
