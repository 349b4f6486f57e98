"""The sizes of teams that are searched where a job names none: 2, 4 and 8 devices of a node beside single ones."""

from .documents import Document, Question
from .teams import Teams


def with_usual_teams(document: Document) -> Document:
    """The question with the sizes of teams that its job stands for, which says so (``usual``)."""
    job = Question(document, 0).job
    kinds = document["cluster"]["devices"]
    alone = job["objective"] == "bottleneck" or job["intra_layer"] or job["order"] == "given"
    alone = alone or any(where not in kinds for _, where in job["pin"])
    if job["teams"] or alone or not document["model"].get("operators"):
        return document
    sizes = [size for size in (2, 4, 8) if _has_room(Teams(document, size), [where for _, where in job["pin"]])]
    return document | {"job": document["job"] | {"teams": [1, *sizes], "usual": True}} if sizes else document


def _has_room(teams: Teams, pinned: list[str]) -> bool:
    """Whether some node has room for a team, and each kind that layers are pinned to has teams."""
    inside = any(len(row) == 1 for rows in teams.homes.values() for row in rows)
    return inside and set(pinned) <= set(teams.homes)


def without_sizes(document: Document) -> None:
    """Leave the sizes of teams to the planner."""
    for name in ("teams", "unlike_teams", "strategy"):
        document["job"].pop(name, None)
