"""Pareto frontier of step time against memory, devices or price, each point with its bound."""

from pipeplan.analysis.frontier.curve import Floor, Frontier, Point
from pipeplan.analysis.frontier.fewest import Fewest, fewest_devices
from pipeplan.analysis.frontier.question import frontier

__all__ = ["Fewest", "Floor", "Frontier", "Point", "fewest_devices", "frontier"]
