"""Results as frozen dataclasses: what the library returns, prints and saves as JSON.

Each record carries a schema version, units beside its fields, and what it does not cover. Nothing here needs torch.
"""

from convattn.records.certificate import Certificate, Verdict
from convattn.records.convolutional_init import ConvolutionalInit, InitialisedLayer
from convattn.records.forecast import ConversionForecast, LayerForecast
from convattn.records.head_comparison import HeadDifference, ReportComparison
from convattn.records.head_replacement import HeadReplacement, ReplacedHead, ReplacementTrial
from convattn.records.head_report import Control, Estimate, HeadReport, HeadStatistics, LayerReport, LayerStatistics
from convattn.records.network_certificate import LayerCertificate, LeftAlone, NetworkCertificate
from convattn.records.plan import Plan
from convattn.records.pretrained import PretrainedCard
from convattn.records.record import Record
from convattn.records.refinement import RefinedLayer, Refinement
from convattn.records.runs import DataRecord, RunRecord

__all__ = [
    "Certificate",
    "Control",
    "ConversionForecast",
    "ConvolutionalInit",
    "DataRecord",
    "Estimate",
    "HeadDifference",
    "HeadReplacement",
    "HeadReport",
    "HeadStatistics",
    "InitialisedLayer",
    "LayerCertificate",
    "LayerForecast",
    "LayerReport",
    "LayerStatistics",
    "LeftAlone",
    "NetworkCertificate",
    "Plan",
    "PretrainedCard",
    "Record",
    "RefinedLayer",
    "Refinement",
    "ReplacedHead",
    "ReplacementTrial",
    "ReportComparison",
    "RunRecord",
    "Verdict",
]
