"""Experiments and finished cells read back as they were written."""

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeplan.analysis.sweep.cell_file import read_cell, write_cell
from pipeplan.analysis.sweep.experiment import Experiment, Grid, NamedModel, Search, Series
from pipeplan.analysis.sweep.experiment_file import read_experiment, write_experiment
from pipeplan.analysis.sweep.record import Figures, Record
from pipeplan.baselines.partitioners import PARTITIONERS
from pipeplan.baselines.planners import PLANNERS
from pipeplan.core.job import Job
from pipeplan.core.machine import Machine

# words that YAML could take for something else are as good as any
word = st.sampled_from(["no", "null", "1", "1e3", "{i}", "a: b", "- x", "#", "~", "é", "'"]) | st.text(
    st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8
)
words = st.lists(word, max_size=3).map(tuple)
whole = st.integers(0, 2**62)
series = st.builds(Series, st.just("gnmt"), st.integers(1, 99), step=st.integers(1, 9), last=st.integers(1, 999)) | (
    st.builds(Series, st.just("gnmt"), st.integers(1, 99), factor=st.integers(2, 9), last=st.integers(1, 999))
)
models = st.builds(NamedModel, word, st.just("") | word, words, st.booleans(), st.booleans())
jobs = st.builds(
    Job,
    batch=st.just(48),
    micro_batches=st.lists(st.sampled_from([1, 2, 4, 48]), max_size=2).map(tuple),
    optimizer=st.sampled_from(["sgd", "adam"]),
    memory=st.none() | whole,
    extrapolate=st.booleans(),
)


def some(item: st.SearchStrategy) -> st.SearchStrategy:
    """One to three of them, as a tuple."""
    return st.lists(item, min_size=1, max_size=3).map(tuple)


searches = st.builds(
    Search,
    st.floats(0.1, 1e4),
    st.floats(0, 1),
    st.sampled_from(["cpsat", "cbc"]),  # "exact" refuses workers and seeds
    st.integers(1, 9),
    st.integers(0, 99),
)
experiments = st.builds(
    Experiment,
    word,
    some(st.builds(Grid, some(models | series), some(word), some(jobs), st.just("") | word)),
    some(searches),
    st.lists(st.sampled_from([*PARTITIONERS, *PLANNERS]), max_size=3).map(tuple),
    words,
)
figures = st.builds(Figures, st.none() | whole, st.lists(whole, max_size=3).map(tuple), word, word)
records = st.builds(
    Record,
    word,
    word,
    jobs,
    searches,
    word,
    st.sampled_from(["solved", "infeasible", "failed"]),
    figures,
    st.dictionaries(word, figures, max_size=3),
    st.none() | whole,
    word,
    word,
    st.none() | st.floats(0, 1e6),
    st.none() | st.floats(0, 1e6),
    word,
    word,
    st.none() | st.tuples(word, st.integers(1, 999)),
    st.builds(Machine, word, word, st.integers(0, 999), *[word] * 5),
    word,
)


@settings(max_examples=60, deadline=None)
@given(experiments)
def test_experiments(experiment: Experiment) -> None:
    """Reading what was written gives the same experiment."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "experiment.yaml"
        write_experiment(experiment, path)
        assert read_experiment(path) == experiment


@settings(max_examples=60, deadline=None)
@given(records)
def test_cells(record: Record) -> None:
    """Reading what was written gives the same record, and nothing less than a whole file is a record."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "cell.json"
        assert read_cell(path) is None
        write_cell(record, path)
        assert read_cell(path) == record
        path.write_text(path.read_text()[:-3])
        assert read_cell(path) is None
