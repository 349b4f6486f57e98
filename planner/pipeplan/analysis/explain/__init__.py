"""Explanations of a plan: bottlenecks, critical path in words, effect of changes; remedies where nothing fits."""

from pipeplan.analysis.explain.explanation import Explanation
from pipeplan.analysis.explain.question import explain, explain_plan, require_step
from pipeplan.analysis.explain.remedies import Remedies, Remedy, remedies

__all__ = ["Explanation", "Remedies", "Remedy", "explain", "explain_plan", "remedies", "require_step"]
