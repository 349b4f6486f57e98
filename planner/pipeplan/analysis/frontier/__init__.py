"""Step time against memory, devices or price: every plan that no other one beats in both, each with its bound."""

from pipeplan.analysis.frontier.curve import Floor, Frontier, Point
from pipeplan.analysis.frontier.fewest import Fewest, fewest_devices
from pipeplan.analysis.frontier.question import frontier

__all__ = ["Fewest", "Floor", "Frontier", "Point", "fewest_devices", "frontier"]
