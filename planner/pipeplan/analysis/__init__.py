"""Questions about answers, and many questions at once: explain, compare, frontier, sweep."""
