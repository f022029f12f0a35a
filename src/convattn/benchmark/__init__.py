"""Measuring the layers against their peers: correctness before time, and every raw number kept."""

from convattn.benchmark.build import DTYPES, Setting
from convattn.benchmark.cases import Case, NetworkCase, choose, find_suite
from convattn.benchmark.network_page import NETWORK_COLUMNS, network_rows
from convattn.benchmark.network_record import NetworkResult, NetworksRecord
from convattn.benchmark.network_suite import run_networks, write_networks
from convattn.benchmark.record import BenchmarkRecord, CaseResult, ScalingCurve
from convattn.benchmark.report import COLUMNS, case_rows, scaling_columns, scaling_rows
from convattn.benchmark.suite import run_layers, write_layers

__all__ = [
    "COLUMNS",
    "DTYPES",
    "NETWORK_COLUMNS",
    "BenchmarkRecord",
    "Case",
    "CaseResult",
    "NetworkCase",
    "NetworkResult",
    "NetworksRecord",
    "ScalingCurve",
    "Setting",
    "case_rows",
    "choose",
    "find_suite",
    "network_rows",
    "run_layers",
    "run_networks",
    "scaling_columns",
    "scaling_rows",
    "write_layers",
    "write_networks",
]
