"""One way of asking: every function takes names, files and objects, and refuses alike, as the program does."""

from collections.abc import Callable
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

import pipeplan
from helpers.instances import equal_devices, fat_head
from pipeplan import Job, Robust
from pipeplan.cli.main import main
from pipeplan.core.errors import InfeasibleError, InputError
from pipeplan.core.job import Recompute
from pipeplan.frontend.workload import load_workload
from pipeplan.io.cluster_file import write_cluster
from pipeplan.io.job_file import job_data, job_from_data
from pipeplan.io.model_file import write_model
from pipeplan.solve.question import asked

PLACE = {"model": "gnmt-8", "cluster": "4-v100-nvlink"}
ASKING = {"model": "gnmt-8", "cluster": "4-v100-nvlink", "batch": 64}
ALL = ("solve", "compare", "frontier", "fewest_devices", "explain", "remedies", "shard")
"""The functions that take a question."""

WRONG: list[tuple[dict[str, Any], str]] = [
    # the model
    ({"model": None}, "a Model is needed, not None"),
    ({"model": 3}, "load_model"),
    ({"model": b"gnmt-8"}, "load_model"),
    ({"model": equal_devices(2)}, "a Model is needed"),
    ({"model": ""}, "no name or path of a model"),
    ({"model": "gnmt8"}, "did you mean 'gnmt-8'"),
    ({"model": "4-v100-nvlink.yaml"}, "there is no file"),
    ({"model": Path("missing/model.yaml")}, "there is no file"),
    ({"model": "x" * 5000}, "no path of a model: File name too long"),
    ({"model": object(), "example_inputs": 1}, "a Model is needed"),
    # the cluster
    ({"cluster": None}, "say where to train"),
    ({"cluster": 4}, "load_cluster"),
    ({"cluster": fat_head()}, "a Cluster is needed"),
    ({"cluster": ["4-v100-nvlink"]}, "load_cluster"),
    ({"cluster": ""}, "no name or path of a cluster"),
    ({"cluster": "4-v100-nvlin"}, "did you mean '4-v100-nvlink'"),
    ({"cluster": "gnmt-8"}, "no cluster is called 'gnmt-8'"),
    ({"cluster": Path("missing.yaml")}, "there is no file"),
    ({"devices": 2}, "--devices 2 would be ignored"),
    ({"bandwidth": "1GB/s"}, "--bandwidth 1GB/s would be ignored"),
    ({"cluster": None, "devices": 2}, "--devices uses the speed of a profile"),
    ({"cluster": None, "devices": 0}, "at least 1"),
    ({"cluster": None, "devices": "two"}, "whole number"),
    ({"cluster": None, "devices": 2, "model": fat_head(), "bandwidth": "1GB"}, "not a bandwidth"),
    ({"cluster": None, "devices": 2, "model": fat_head(), "latency": "5 parsecs"}, "not a time"),
    ({"cluster": None, "bandwidth": "1GB/s"}, "say where to train"),
    # batch and job
    ({"batch": None}, "say how many samples a step has"),
    ({"batch": 0}, "at least 1"),
    ({"batch": -8}, "at least 1"),
    ({"batch": 1.5}, "whole number"),
    ({"batch": nan}, "whole number"),
    ({"batch": "64"}, "whole number"),
    ({"batch": True}, "whole number"),
    ({"batch": 10**20}, "at most"),
    ({"job": Job(8)}, "job and batch are both given"),
    ({"batch": None, "job": Job(8), "memory": "1GiB"}, "job and memory are both given"),
    ({"batch": Job(8), "depths": 2}, "job and depths are both given"),
    ({"batch": Job(8), "job": Job(8)}, "job and batch are both given"),
    ({"batch": None, "job": 8}, "a Job is needed, not 8"),
    ({"batch": None, "job": {"batch": 8}}, "a Job is needed"),
    ({"batch": None, "job": "job.yaml"}, "a Job is needed"),
    # names of options
    ({"optimzer": "adam"}, "did you mean 'optimizer'"),
    ({"micro_batch": 4}, "did you mean 'micro_batches'"),
    ({"timelimit": 4}, "no option 'timelimit'"),
    ({"schedule": "gpipe"}, "did you mean 'schedules'"),
    ({"callback": print}, "no option 'callback'"),
    # values of options
    ({"optimizer": "adm"}, "did you mean 'adam'"),
    ({"optimizer": 3}, "not known"),
    ({"memory": "8GBi"}, "not a size"),
    ({"memory": "eight"}, "not a size"),
    ({"memory": ""}, "not a size"),
    ({"memory": -1}, "at least 0"),
    ({"memory": nan}, "whole number"),
    ({"memory": "1e400GiB"}, "1e400GiB"),
    ({"depths": "2,x"}, "write numbers with commas between"),
    ({"depths": 0}, "stages of a pipeline (depths) must be at least 1, not 0"),
    ({"depths": 2.0}, "whole number"),
    ({"depths": None}, "whole number"),
    ({"depths": (2, "3")}, "whole number"),
    ({"replicas": [0]}, "replicas of a stage must be at least 1, not 0"),
    ({"micro_batches": 7}, "do not divide the batch of 64"),
    ({"micro_batches": {}}, "whole number"),
    ({"zero": 4}, "at most 3"),
    ({"zero": "one"}, "write numbers with commas between"),
    ({"teams": -1}, "devices of a team (teams) must be at least 1, not -1"),
    ({"mesh_axes": 9}, "at most"),
    ({"strategy": "3D"}, "choose from 2d, 2.5d, 3d"),
    ({"objective": "stepp"}, "did you mean 'step'"),
    ({"objective": None}, "choose from step, period, bottleneck"),
    ({"recompute": "chose"}, "did you mean 'choose'"),
    ({"recompute": True}, "choose from none, choose, full"),
    ({"order": "search,given"}, "choose from search, given"),
    ({"extrapolate": "yes"}, "either True or False"),
    ({"equal_replicas": 1}, "either True or False"),
    ({"merge_misbooked": 1}, "either True or False"),
    ({"merge_misbooked": True}, "has no option merge_misbooked"),
    ({"model": fat_head(), "corrected": True}, "is read already"),
    ({"schedules": 3}, "one or several values"),
    ({"schedules": ("gpipe", None)}, "None is none"),
    ({"together": 3}, "one or several values"),
    ({"together": [()]}, "names no layer"),
    ({"no_cut_after": ""}, "'' is none"),
    ({"pin": "head"}, "write a layer and where it must lie"),
    ({"pin": {"head": 3}}, "write a layer and where it must lie"),
    ({"pin": ("l0=d0", "l0=d1")}, "has one place"),
    ({"teams": (1, 2), "intra_layer": True}, "drop one"),
    ({"unlike_teams": True}, "name several sizes"),
    ({"zero": 3, "objective": "bottleneck"}, "ask for level 1"),
]
"""Arguments that every function refuses, instead of or beside those of `ASKING`, and what the error says."""

LIMITS: list[tuple[dict[str, Any], str]] = [
    ({"time_limit": nan}, "finite"),
    ({"time_limit": inf}, "finite"),
    ({"time_limit": "10"}, "must be a number"),
    ({"time_limit": None}, "must be a number"),
    ({"time_limit": -1}, "at least 0"),
    ({"gap": 5}, "at most 1"),
    ({"gap": "1%"}, "must be a number"),
    ({"backend": "cbcc"}, "did you mean 'cbc'"),
    ({"backend": None}, "choose from cpsat, cbc, exact"),
    ({"workers": 0}, "at least 1"),
    ({"workers": 1.0}, "whole number"),
    ({"seed": -1}, "at least 0"),
    ({"backend": "exact", "workers": 4}, "--workers 4 would be ignored"),
    ({"backend": "exact", "seed": 4}, "--seed 4 would be ignored"),
    ({"on_progress": None}, "on_progress must be a function"),
    ({"on_progress": 3}, "on_progress must be a function"),
]
"""The same for limits and the callback, which `shard` and `remedies` do not have all."""

OWN: list[tuple[Callable[[], object], str]] = [
    (lambda: pipeplan.solve(**ASKING, robust="five"), "not a share"),
    (lambda: pipeplan.solve(**ASKING, robust=nan), "not a share"),
    (lambda: pipeplan.solve(**ASKING, robust=0.05, objective="period"), "'period'"),
    (lambda: pipeplan.solve(**ASKING, proposals=3), "a Proposals is needed"),
    (lambda: Robust(0.1, quantile=nan), "lies outside"),
    (lambda: pipeplan.solve(**ASKING, schedules="gpip"), "did you mean 'gpipe'"),
    (lambda: pipeplan.solve(**ASKING, pin={"nowhere": "d0"}), "nowhere"),
    (lambda: pipeplan.solve(**ASKING, together="nowhere,classifier"), "nowhere"),
    (lambda: pipeplan.frontier(**ASKING, over="memry"), "did you mean 'memory'"),
    (lambda: pipeplan.frontier(**ASKING, over=None), "choose from memory, devices, price"),
    (lambda: pipeplan.frontier(**ASKING, points=0), "at least 1"),
    (lambda: pipeplan.frontier(**ASKING, path=3), "path names a file"),
    (lambda: pipeplan.fewest_devices(**ASKING, path=""), "path names a file"),
    (lambda: pipeplan.explain(**ASKING, each="x"), "must be a number"),
    (lambda: pipeplan.explain(**PLACE, result=3), "a Result is needed"),
    (lambda: pipeplan.explain(**ASKING, objective="period"), "leave out --objective period"),
    (lambda: pipeplan.shard(**ASKING, meshes="2xx"), "write the devices along each axis"),
    (lambda: pipeplan.shard(**ASKING, meshes=4), "write the devices along each axis"),
    (lambda: pipeplan.shard(**ASKING, meshes=[("2", 2)]), "write the devices along each axis"),
    (lambda: pipeplan.shard(**ASKING, depths=2), "depths would be ignored"),
    (lambda: pipeplan.sweep("headlin", "out"), "did you mean 'headline'"),
    (lambda: pipeplan.sweep(3, "out"), "an Experiment is needed"),  # type: ignore[arg-type]
    (lambda: pipeplan.sweep("headline", None), "a folder is needed"),  # type: ignore[arg-type]
    (lambda: pipeplan.sweep("headline", "out", data=3), "a folder is needed"),  # type: ignore[arg-type]
    (lambda: pipeplan.sweep("headline", "out", workers=0), "at least 1"),
    (lambda: pipeplan.sweep("headline", "out", time_limit=nan), "finite"),
    (lambda: pipeplan.sweep("headline", "out", on_progress=3), "on_progress"),  # type: ignore[arg-type]
    (lambda: pipeplan.simulate(None, None), "a Schedule is needed"),  # type: ignore[arg-type]
    (lambda: pipeplan.load_model(None), "no name or path of a model"),  # type: ignore[arg-type]
    (lambda: pipeplan.load_cluster(4), "no name or path of a cluster"),  # type: ignore[arg-type]
]
"""Calls with arguments of one function alone."""


@pytest.mark.parametrize(("wrong", "said"), WRONG, ids=lambda value: str(value)[:40])
def test_every_function_refuses_alike(wrong: dict[str, Any], said: str) -> None:
    """What is wrong with a question is bad input to every function of the API, in the same words."""
    texts = set()
    for name in ALL:
        with pytest.raises(InputError) as error:
            getattr(pipeplan, name)(**{**ASKING, **wrong})
        texts.add(str(error.value).replace(f"{name} has no option", "FUNCTION has no option"))
    assert len(texts) == 1
    assert said in texts.pop()


@pytest.mark.parametrize(("wrong", "said"), LIMITS, ids=lambda value: str(value)[:40])
def test_limits_and_callbacks_are_refused_alike(wrong: dict[str, Any], said: str) -> None:
    """Limits, back ends, seeds and callbacks have one name and one check."""
    for name in ("solve", "compare", "frontier", "fewest_devices", "explain"):
        with pytest.raises(InputError, match=said):
            getattr(pipeplan, name)(**{**ASKING, **wrong})


@pytest.mark.parametrize(("call", "said"), OWN)
def test_arguments_of_one_function_are_refused(call: Callable[[], object], said: str) -> None:
    """Arguments that only one function has are bad input too, never an error of Python's."""
    with pytest.raises(InputError) as error:
        call()
    assert said in str(error.value)


def test_a_depth_beyond_all_layers_has_no_plan() -> None:
    """A question that makes sense and has no plan ends in the documented error."""
    for name in ("solve", "compare", "frontier", "fewest_devices", "explain"):
        with pytest.raises(InfeasibleError, match="layers"):
            getattr(pipeplan, name)(**ASKING, depths=400)


SAME: list[tuple[dict[str, Any], list[str]]] = [
    ({"batch": None}, []),
    ({"batch": 0}, ["--batch", "0"]),
    ({"batch": "x"}, ["--batch", "x"]),
    ({"model": "gnmt8"}, []),
    ({"cluster": "4-v100-nvlin"}, []),
    ({"cluster": None}, []),
    ({"devices": 2}, ["--devices", "2"]),
    ({"bandwidth": "1GB/s"}, ["--bandwidth", "1GB/s"]),
    ({"optimizer": "adm"}, ["--optimizer", "adm"]),
    ({"memory": "8GBi"}, ["--memory", "8GBi"]),
    ({"depths": "2,x"}, ["--depths", "2,x"]),
    ({"micro_batches": 7}, ["--micro-batches", "7"]),
    ({"zero": 4}, ["--zero", "4"]),
    ({"mesh_axes": 9}, ["--mesh-axes", "9"]),
    ({"strategy": "3D"}, ["--strategy", "3D"]),
    ({"objective": "stepp"}, ["--objective", "stepp"]),
    ({"recompute": "chose"}, ["--recompute", "chose"]),
    ({"schedules": "gpip"}, ["--schedules", "gpip"]),
    ({"pin": "head"}, ["--pin", "head"]),
    ({"pin": ["l0=d0", "l0=d1"]}, ["--pin", "l0=d0", "--pin", "l0=d1"]),
    ({"merge_misbooked": True}, ["--merge-misbooked"]),
    ({"time_limit": "x"}, ["--time", "x"]),
    ({"gap": 5}, ["--gap", "5"]),
    ({"backend": "cbcc"}, ["--backend", "cbcc"]),
    ({"workers": 0}, ["--workers", "0"]),
    ({"seed": -1}, ["--seed", "-1"]),
    ({"backend": "exact", "workers": 4}, ["--backend", "exact", "--workers", "4"]),
]
"""Arguments of the API, and the same on the command line."""


@pytest.mark.parametrize(("wrong", "options"), SAME, ids=lambda value: str(value)[:40])
def test_the_program_says_the_same(
    wrong: dict[str, Any], options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Program and API refuse in the same words."""
    asking = {**ASKING, **wrong}
    with pytest.raises(InputError) as error:
        pipeplan.solve(**asking)
    places = [text for name in PLACE if (text := asking[name]) is not None]
    batch = [] if "batch" in wrong else ["--batch", "64"]
    assert main(["solve", *places, *batch, *options]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"pipeplan: {error.value}"


def test_the_program_names_options_like_the_misspelt_one(capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown option is refused with those like it, a superfluous word with the list of what there is."""
    for words, said in (
        (["--optimzer", "adam"], "solve has no option 'optimzer'; did you mean 'optimizer'"),
        (["--sheduls=gpipe"], "did you mean 'schedules'"),
        (["third"], "solve has no place for 'third'"),
    ):
        assert main(["solve", *PLACE.values(), "--batch", "64", *words]) == 2
        assert said in capsys.readouterr().err


def test_names_files_and_objects_are_one_question(tmp_path: Path) -> None:
    """A model and a cluster are the same as objects, names, paths, and text of paths; options as text and as values."""
    write_model(fat_head(), tmp_path / "model.yaml")
    write_cluster(equal_devices(3), tmp_path / "cluster.yaml")
    fields: dict[str, Any] = {"memory": 2**33, "depths": (2,), "pin": (("l0", "d0"),)}
    expected = asked(fat_head(), equal_devices(3), Job(8, **fields), asker="solve")
    brief: dict[str, Any] = {"memory": "8GiB", "depths": 2, "pin": {"l0": "d0"}}
    for read in (Path, str):
        files = read(tmp_path / "model.yaml"), read(tmp_path / "cluster.yaml")
        assert asked(*files, 8, asker="solve", **brief) == expected
    shipped = asked("gnmt-8", "4-v100-nvlink", 64, asker="solve")
    assert shipped.model == pipeplan.load_model("gnmt-8")
    assert shipped.cluster == pipeplan.load_cluster("4-v100-nvlink")


def test_options_are_read_as_on_the_command_line() -> None:
    """Text with commas, single values, mappings and members of enumerations are the fields of the same job."""
    whole = Job(
        8,
        memory=2**33,
        depths=(2, 3),
        replicas=(1,),
        schedules=("gpipe", "1f1b"),
        recompute=Recompute.NONE,
        together=(("l0", "l1"),),
        pin=(("l0", "d0"), ("l5", "d1")),
    )
    brief: dict[str, Any] = {"memory": "8GiB", "depths": "2,3", "replicas": 1, "schedules": "gpipe,1f1b"}
    brief |= {"recompute": "none", "together": "l0,l1", "pin": {"l0": "d0", "l5": "d1"}}
    assert Job(8, **brief) == whole
    assert Job(8, **brief | {"pin": ["l0=d0", "l5=d1"], "depths": range(2, 4), "together": ["l0,l1"]}) == whole


def test_every_function_answers_to_names() -> None:
    """The call of the issue works, and its question is that of the others."""
    asking: dict[str, Any] = {"memory": "8GiB", "depths": 2, "schedules": "gpipe", "replicas": 1, "time_limit": 10}
    result = pipeplan.solve("gnmt-8", "4-v100-nvlink", batch=64, **asking)
    assert len(result.plan.stages) == 2
    assert pipeplan.compare("gnmt-8", "4-v100-nvlink", 64, **asking).best.value == result.value
    told = pipeplan.explain("gnmt-8", "4-v100-nvlink", result=result, each=0.0)
    assert told.step == result.value
    with pytest.raises(InputError, match="leave out batch and depths"):
        pipeplan.explain("gnmt-8", "4-v100-nvlink", 64, result=result, depths=2)
    for other in (("vgg-16", "4-v100-nvlink"), ("gnmt-8", "8-v100-nvlink")):
        with pytest.raises(InputError, match="the result is for gnmt-8 on 4-v100-nvlink, not for"):
            pipeplan.explain(*other, result=result)


def test_the_default_optimizer_follows_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    """Adam where there is attention, SGD elsewhere; the answer says what was assumed, and results hold it."""
    for name, optimizer in (("gpt2-small", "adam"), ("bert-large", "adam"), ("gnmt-8", "sgd"), ("vgg-16", "sgd")):
        question = asked(name, "4-v100-nvlink", 8, asker="solve")
        assert question.job.optimizer == optimizer
        assert question.assumed.startswith(f"optimizer {optimizer}, assumed since the model has")
    assert asked("gpt2-small", "4-v100-nvlink", Job(8, optimizer="sgd"), asker="solve").assumed == ""
    brief: dict[str, Any] = {"depths": 1, "replicas": 1, "teams": 1, "time_limit": 5}
    answer = pipeplan.solve("gpt2-small", "4-v100-nvlink", 8, **brief)
    line = "optimizer adam, assumed since the model has attention; name another with --optimizer"
    assert line in str(answer).splitlines()
    assert answer.as_json()["costs"]["assumed"] == line  # type: ignore[index, call-overload]
    assert answer.job.optimizer == answer.plan.optimizer == job_data(answer.job)["optimizer"] == "adam"
    options = ["--batch", "8", "--depths", "1", "--replicas", "1", "--teams", "1", "--time", "5"]
    assert main(["solve", "gpt2-small", "4-v100-nvlink", *options]) == 0
    assert line in capsys.readouterr().out.splitlines()
    assert main(["solve", "gpt2-small", "4-v100-nvlink", *options, "--optimizer", "sgd"]) == 0
    assert "assumed" not in capsys.readouterr().out


def test_a_job_without_an_optimizer_stays_open_in_files() -> None:
    """The default is written to no file, because it depends on the model."""
    assert "optimizer" not in job_data(Job(8))
    assert job_from_data(job_data(Job(8)), "here") == Job(8, optimizer="") == Job(8, optimizer=None)  # type: ignore[arg-type]


def test_a_workload_by_name_is_counted_and_keeps_its_name() -> None:
    """``module:function`` stands for a model wherever one is named; it has its class's name, or the function's."""
    pytest.importorskip("torch")
    found = asked("pipeplan_executor.zoo:mlp", "4-v100-nvlink", 8, asker="solve")
    assert found.model.name == "mlp"  # its class is torch's Sequential
    assert not found.model.profiles
    assert load_workload("helpers.captured_models:tiny_gnmt").name == "gnmt"
    with pytest.raises(InputError, match=r"cannot import 'no\.such:model'"):
        asked("no.such:model", "4-v100-nvlink", 8, asker="solve")
    with pytest.raises(InputError, match="measure the model first: pipeplan profile"):
        asked(found.model, None, 8, devices=2, asker="solve")
