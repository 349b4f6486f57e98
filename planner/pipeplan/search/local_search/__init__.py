"""Local search: better plans near those that the branch-and-bound finds, while it works on the bound.

::

    branch-and-bound ──▶ every new incumbent ──▶ LocalSearch ──▶ better plans ──▶ incumbent

With two workers it runs in a process of its own beside the search; with one, in a share of the search's time.
"""

from pipeplan.search.local_search.beside import Hint, Message, Recall, Request, Sent, Workplace
from pipeplan.search.local_search.improver import Improver
from pipeplan.search.local_search.pool import LocalSearch, Start

__all__ = ["Hint", "Improver", "LocalSearch", "Message", "Recall", "Request", "Sent", "Start", "Workplace"]
