"""One line names each mistake in the settings of an engine, before anything is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rest_store.engines.engine_settings import EngineSettings
from rest_store.errors import ArgumentError, ServeError

WHERE = "additional_config.rest_store"


def test_defaults_draft_from_the_prompt_alone() -> None:
    assert EngineSettings.read({}, WHERE) == EngineSettings()


def test_settings_are_read_as_json_has_them() -> None:
    given: dict[str, Any] = {
        "datastores": ["a.ds", "h:1"],
        "remember": "m",
        "drafting": "remote",
        "source_timeout": 1,
    }
    assert EngineSettings.read(given, WHERE) == EngineSettings(**given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "the object of settings is absent, expected {'datastores': [...]}"),
        (["a.ds"], "the object of settings is a list, expected {'datastores': [...]}"),
        (
            {"datastore": []},
            "a key is 'datastore', expected one of datastores, remember, shared_after, namespace,",
        ),
        ({"datastores": "a.ds"}, "datastores is 'a.ds', expected a list of strings, or an object"),
        ({"datastores": {"a": 3}}, "datastores is {'a': 3}, expected a list of strings, or"),
        ({"namespaces": "a"}, "namespaces is 'a', expected a list of names without '/lora:'"),
        ({"namespaces": ["a", "a/lora:b"]}, "namespaces is ['a', 'a/lora:b'], expected a list of"),
        ({"namespaces": [""]}, "namespaces is [''], expected a list of names"),
        ({"namespace": "x" * 300}, "namespace is 'xxxxxxx"),
        ({"log_requests": "yes"}, "log_requests is 'yes', expected true or false"),
        ({"datastores": ["a.ds", 3]}, "datastores is ['a.ds', 3], expected a list of strings"),
        ({"remember": True}, "remember is True, expected a string"),
        ({"source_timeout": None}, "source_timeout is None, expected seconds from 0 on"),
        ({"source_timeout": -1}, "source_timeout is -1, expected seconds from 0 on"),
        ({"drafting": "near"}, "drafting is 'near', expected one of local, remote"),
        ({"shared_after": 0}, "shared_after is 0, expected a whole number of 1..64"),
        ({"shared_after": True}, "shared_after is True, expected a whole number of 1..64"),
        ({"tls": 1}, "tls is 1, expected true or false"),
        ({"remember": ["x\n" * 100]}, "remember is ['x\\nx"),
    ],
)
def test_what_is_wrong_is_named(given: Any, message: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        EngineSettings.read(given, WHERE)
    assert str(raised.value).startswith(f"{WHERE}: {message}")
    assert len(str(raised.value).splitlines()) == 1


def test_certificates_imply_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REST_STORE_TOKEN", "from the environment")
    access = EngineSettings(tls_ca="ca.pem", tls_server_name="name").access()
    assert access["token"] == "from the environment"
    assert (access["tls"].ca, access["tls"].server_name) == (Path("ca.pem"), "name")


def test_a_token_comes_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    assert EngineSettings(token_file=str(file)).access() == {"token": "secret", "tls": None}
    file.write_text("\n")
    with pytest.raises(ServeError):
        EngineSettings(token_file=str(file)).access()
