"""Checkpoints: an interrupted run that resumes under the same plan, another one, or none."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.distributed import checkpointing
from helpers.distributed.models import HAS_TRANSFORMERS
from helpers.distributed.together import Job, done

NO_TRANSFORMERS: dict[str, Any] = {"condition": not HAS_TRANSFORMERS, "reason": "transformers is not installed"}
ROUNDING = 1e-11
"""Accepted difference between runs that add the same numbers in another order, in float64."""
JOBS: dict[int, dict[str, tuple[object, ...]]] = {
    2: {"resumed": ("decoder", "adam"), "resumed dropping": ("dropping", "momentum"), "refused": ()},
    3: {
        "moved": ("tied", "adam", True),
        "alone": ("tied", "adam"),
        "resumed in shards": ("dropping", "adam", True),
        "moved in shards": ("decoder", "adam", True, True),
    },
}
"""Jobs by number of ranks; the first word is the function's name."""


def jobs(world: int, folder: Path) -> dict[str, Job]:
    """Jobs of these tests on this number of ranks."""
    return calls(JOBS.get(world, {}), folder)


def calls(named: dict[str, tuple[object, ...]], folder: Path) -> dict[str, Job]:
    """Jobs by name, each with a folder of its own."""
    return {
        name: (getattr(checkpointing, name.split()[0]), (str(folder / name), *arguments))
        for name, arguments in named.items()
    }


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, ranks: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
    """Results of one number of ranks."""
    return ranks(request.param)


def on(world: int) -> pytest.MarkDecorator:
    """Run a test with the results of this number of ranks."""
    return pytest.mark.parametrize("found", [world], indirect=True)


@on(2)
@pytest.mark.parametrize("name", ["resumed", "resumed dropping"])
def test_a_resumed_run_is_the_same_bit_by_bit(name: str, found: dict[str, dict]) -> None:
    """Under the plan that saved it weights, losses, dropout and every replica's statistics are the unbroken run's."""
    assert len(found[name]) == len(checkpointing.LAYOUTS[2])
    assert all(found[name].values()), found[name]


@on(3)
@pytest.mark.parametrize(("name", "count"), [("moved", 5), ("alone", 4)])
def test_a_run_goes_on_under_any_plan_or_none(name: str, count: int, found: dict[str, dict]) -> None:
    """It goes on under another depth, width, placement or sharding, as a plain torch module, and from that again."""
    _all_near(found[name], count)


@on(3)
def test_several_stages_in_shards_are_saved_and_loaded(found: dict[str, dict]) -> None:
    """They resume bit by bit, and go on whole, under other widths, or as one stage, and the other way round."""
    assert list(found["resumed in shards"].values()) == [True] * len(checkpointing.SHARDED_STAGES)
    _all_near(found["moved in shards"], len(checkpointing.SHARDED_STAGES))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["decoder", "tied"])
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize("world", [2, 3])
def test_a_run_goes_on_after_every_move(world: int, optimizer: str, model: str, tmp_path: Path) -> None:
    """So it does from each plan to each other one, with SGD's momentum as with Adam."""
    found = done(world, calls({"moved": (model, optimizer), "alone": (model, optimizer)}, tmp_path))
    layouts = len(checkpointing.LAYOUTS[world])
    _all_near(found["moved"], layouts * (layouts - 1))
    _all_near(found["alone"], 1 + (layouts + 1) // 2)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["unet", pytest.param("t5", marks=pytest.mark.skipif(**NO_TRANSFORMERS))])
@pytest.mark.timeout(1800)
def test_captured_models_go_on_too(model: str, tmp_path: Path) -> None:
    """So do models that are captured as graphs, under the names that they have without a pipeline."""
    found = done(3, calls({"resumed": (model, "adam"), "moved": (model, "adam")}, tmp_path))
    assert all(found["resumed"].values()), found["resumed"]
    _all_near(found["moved"], 20)


def _all_near(found: dict[str, float], count: int) -> None:
    assert len(found) == count
    assert not {case: apart for case, apart in found.items() if not apart < ROUNDING}


@on(2)
@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("no manifest", "not whole"),
        ("no tensors", "distcp"),
        ("cut short", "cannot read checkpoint"),
        ("no state", "state.pt"),
        ("no index", "metadata"),
        ("nothing", "there is no checkpoint"),
        ("model", "is of another model: it lacks stem"),
        ("optimizer", "saved with Adam, and stage 0 has SGD"),
        ("extra", "numbers, texts, tensors"),
        ("gradients", "save after a step that updates"),
    ],
)
def test_a_bad_checkpoint_is_refused(case: str, said: str, found: dict[str, dict]) -> None:
    """Broken and foreign checkpoints are refused, by an error that names the fault."""
    assert said in found["refused"][case]


@on(2)
@pytest.mark.parametrize("case", ["weights only", "latest after all that"])
def test_a_good_checkpoint_is_not(case: str, found: dict[str, dict]) -> None:
    """Weights alone fit any optimiser; a save that failed leaves the one before."""
    assert not found["refused"][case]
