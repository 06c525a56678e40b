"""Tables of engine dependencies: differences are named, and nothing else is used."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType

import pytest
import torch

from rest_store.engines.vllm.seam import CREATE, DEPENDENCIES, SWITCH_PARTS
from rest_store.seam import Dependency, attributes_of, difference, differences
from tests.shared.engine import Scheduler, ScriptedHead, Vllm


@dataclass
class Fields:
    first: int
    second: str = ""


class Base:
    annotated: int

    def __init__(self) -> None:
        self.of_base = 1


class Runner(Base):
    constant = 2

    def __init__(self) -> None:
        super().__init__()
        self.assigned = self.later = 3

    @property
    def shown(self) -> int:
        return self.assigned

    def step(self, batch: object, *, wait: bool = False) -> None:
        """Have parameters."""


def called(first: int, second: int = 0) -> None:
    """Have parameters."""


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("an_engine")
    module = ModuleType("an_engine.parts")
    vars(module).update(Fields=Fields, Runner=Runner, called=called)
    monkeypatch.setattr(package, "parts", module, raising=False)
    monkeypatch.setitem(sys.modules, "an_engine", package)
    monkeypatch.setitem(sys.modules, "an_engine.parts", module)


def at(path: str) -> str:
    return f"an_engine.parts:{path}"


@pytest.mark.parametrize(
    "part",
    [
        Dependency(at("called")),
        Dependency(at("called"), ("first",)),
        Dependency(at("called"), (), others=("second",)),
        Dependency(at("called"), ("first", "second"), is_whole=True),
        Dependency(at("Fields.first")),
        Dependency(at("Fields.second")),
        *(
            Dependency(at(f"Runner.{name}"))
            for name in ("of_base", "annotated", "constant", "assigned", "later", "shown")
        ),
        Dependency(at("Runner.step"), ("self", "batch"), others=("wait",)),
    ],
)
def test_an_engine_is_like_its_table(part: Dependency) -> None:
    assert difference(part) is None


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (Dependency("an_engine.other:Thing.name"), "an_engine.other:Thing.name is absent"),
        (Dependency("no_engine:thing", ()), "no_engine:thing is absent"),
        (Dependency(at("Gone.name")), "an_engine.parts:Gone.name is absent"),
        (Dependency(at("gone"), ()), "an_engine.parts:gone is absent"),
        (Dependency(at("Fields.third")), "an_engine.parts:Fields.third is absent"),
        (Dependency(at("Runner.batch")), "an_engine.parts:Runner.batch is absent"),
        (Dependency(at("Runner.constant"), ()), "an_engine.parts:Runner.constant is no function"),
        (
            Dependency(at("called"), ("second",)),
            "an_engine.parts:called takes first, second, expected second",
        ),
        (
            Dependency(at("called"), ("first",), is_whole=True),
            "an_engine.parts:called takes first, second, expected first",
        ),
        (
            Dependency(at("called"), ("first",), others=("third",)),
            "an_engine.parts:called takes first, second, expected first, third",
        ),
        (
            Dependency(at("Runner.step"), (), is_whole=True),
            "an_engine.parts:Runner.step takes self, batch, wait, expected nothing",
        ),
    ],
)
def test_what_differs_is_named(part: Dependency, words: str) -> None:
    assert differences([part, Dependency(at("called"))]) == [words]


def test_what_is_called_elsewhere_is_compared_under_its_own_name() -> None:
    part = Dependency(at("called"), ("first",))
    assert difference(part, called) is None
    assert difference(part, Runner.step) == "Runner.step takes self, batch, wait, expected first"


def test_what_has_no_source_is_known_by_its_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine may be installed without sources."""

    @dataclass
    class Compiled:
        first: int

    Compiled.__module__ = "an_engine.compiled"
    monkeypatch.setattr(sys.modules["an_engine.parts"], "Compiled", Compiled, raising=False)
    assert differences([Dependency(at("Compiled.first")), Dependency(at("Compiled.second"))]) == [
        "an_engine.parts:Compiled.second is absent"
    ]


def listed(class_name: str) -> set[str]:
    """Return the attributes that vLLM's table has of a class, whatever module it is in."""
    paths = [part.place.partition(":")[2] for part in (CREATE, *DEPENDENCIES, *SWITCH_PARTS)]
    attributes = {path.partition(".")[2] for path in paths if path.partition(".")[0] == class_name}
    return attributes - {""}


def test_stand_ins_of_vllm_are_like_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in Vllm(None).modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    assert differences((CREATE, *DEPENDENCIES, *SWITCH_PARTS)) == []


def classes_of(vllm: Vllm) -> dict[str, type]:
    """Return the classes that stand in for vLLM's, by the names that vLLM has for them.

    Those of torch and the speculators are left out.
    """
    classes: dict[str, type] = {}
    for module in vllm.modules.values():
        for name, value in vars(module).items():
            if isinstance(value, type) and not issubclass(value, torch.nn.Module | ScriptedHead):
                # Each `Vllm` has a scheduler class of its own, since the plug-in wraps its method.
                classes[name] = Scheduler if issubclass(value, Scheduler) else value
    return classes


def test_stand_ins_of_vllm_have_nothing_that_its_table_lacks() -> None:
    """The table therefore has all that the plug-in uses in the other tests."""
    definitions = classes_of(Vllm(None))
    assert len(definitions) > 12
    for class_name, definition in definitions.items():
        own = set(vars(definition)) | attributes_of(definition)
        public = {name for name in own if not name.startswith("_")}
        assert public == listed(class_name), definition
