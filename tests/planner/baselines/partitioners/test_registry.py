"""Registry of partitioners."""

from pathlib import Path

from pipeplan.baselines.partitioners import PARTITIONERS

PAGE = Path(__file__).resolve().parents[4] / "docs" / "balancers.md"


def test_every_balancer_is_listed_under_its_own_name() -> None:
    """Keys are the balancers' names, and each says in words what it does and where it is from."""
    assert len(PARTITIONERS) == 10
    for name, balancer in PARTITIONERS.items():
        assert balancer.name == name
        assert balancer.summary
        assert balancer.source


def test_every_balancer_is_documented() -> None:
    """docs/balancers.md has a section for each."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    headings = {line.removeprefix("## ").strip("`") for line in lines if line.startswith("## ")}
    assert set(PARTITIONERS) <= headings
