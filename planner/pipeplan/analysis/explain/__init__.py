"""Explanations of a plan: what binds, its critical path in words, what would change it; why nothing fits."""

from pipeplan.analysis.explain.explanation import Explanation
from pipeplan.analysis.explain.question import explain, explain_plan
from pipeplan.analysis.explain.remedies import Remedies, Remedy, remedies

__all__ = ["Explanation", "Remedies", "Remedy", "explain", "explain_plan", "remedies"]
