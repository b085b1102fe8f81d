"""Stage 3: rewrites graphs, one pass per file."""

from __future__ import annotations

from staticrt.passes.base import GraphPass, PassResult, register_pass, registered_passes
from staticrt.passes.pipeline import PipelineOptions, PipelineReport, default_passes, run_pipeline

__all__ = [
    "GraphPass", "PassResult", "PipelineOptions", "PipelineReport", "default_passes", "register_pass",
    "registered_passes", "run_pipeline",
]  # fmt: skip
