"""What loss tolerance adds to fast repair: a small packet simulator, and its tables."""

from benchmarks.packets.tables import main as main
