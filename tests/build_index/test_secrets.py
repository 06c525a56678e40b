"""Lines of transcripts that look like secrets are left out and counted."""

from __future__ import annotations

import json
import sys

import pytest

from build_index import secrets
from rest_store.errors import MissingExtraError
from tests.shared.corpora import read_corpus

pytest.importorskip(
    "detect_secrets", reason="the package detect-secrets of [build] is not installed"
)

# Made up, and put together here so that no scanner takes this file for a leak.
TOKENS = {
    "named key": "SERVICE_" + "API_KEY=3f9a8c7d6e5b4a3f" + "2e1d0c9b8a7f6e5d",
    "quoted password": 'password = "' + "q7Zt9Lm2" + 'Xc4Vb6Nn"',
    "JSON": '{"auth_token": "' + "q7Zt9Lm2Xc4Vb6Nn" + '"}',
    "GitHub": "ghp" + "_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8",
    "AWS": "AKIA" + "Q3EGQ5KPX7LM2NRT",
    "basic auth": "https://user" + ":hunter2@example.com/x",
    "Slack": "xoxb" + "-123456789012-abcDEF123456ghiJKL",
}
HARMLESS = (
    "password = input('password? ')",
    "token = tokenizer.encode(text)[position + 12345]",
    "secret_key: str = field(default='')",
    "layers.12.self_attn.q_proj.weight = torch.zeros(1024, 1024)",
    "commit 3f9a8c7d6e5b4a3f2e1d0c9b8a7f6e5d3f9a8c7d",
    "server 192.0.2.17:8080",
    "https://example.com/a/very/long/path/with/1234/in/it.html",
)


@pytest.mark.parametrize("kind", TOKENS)
def test_a_line_with_a_secret_goes_and_its_neighbours_stay(kind):
    text = f"before\n  {TOKENS[kind]}\nafter\n"
    assert secrets.text_without_secrets(text) == ("before\nafter\n", 1)


@pytest.mark.parametrize("line", HARMLESS)
def test_other_lines_stay(line):
    assert secrets.text_without_secrets(line) == (line, 0)


def test_a_private_key_goes_as_a_whole():
    body = "".join(f"{'Ab1' * 20}\n" for _ in range(5))
    key = f"-----BEGIN RSA {'PRIVATE'} KEY-----\n{body}-----END RSA {'PRIVATE'} KEY-----\n"
    assert secrets.text_without_secrets(f"a\n{key}b\n") == ("a\nb\n", 7)
    assert secrets.text_without_secrets(f"a\n{key[:70]}")[0] == "a\n"  # the end is elsewhere


def test_a_secret_far_inside_a_long_line_is_seen():
    line = "x = 1; " * 10_000 + TOKENS["GitHub"] + " y = 2;" * 10
    assert secrets.text_without_secrets(line) == ("", 1)


def test_calls_results_and_reasoning_are_cleaned_and_counted(tmp_path):
    secret = TOKENS["GitHub"]
    call = {
        "id": "t1",
        "function": {
            "name": "Bash",
            "arguments": json.dumps({"command": f"ls\nexport T={secret}"}),
        },
    }
    turns = [
        {"role": "user", "content": f"Use\n{secret}\nplease."},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": f"a\n{secret}",
            "tool_calls": [call],
        },
        {"role": "tool", "tool_call_id": "t1", "content": f"{secret}\nok"},
    ]
    log = {"messages": turns, "choices": [{"message": {"role": "assistant", "content": "Done."}}]}
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(log) + "\n")
    corpus, (document,) = read_corpus(path)
    assert secret not in repr(document)
    assert corpus.counts.left_out == {secrets.LEFT_OUT: 4}
    assert document.messages[0][1] == "Use\nplease."
    fields = json.loads(document.messages[1][2])
    arguments = json.loads(fields["tool_calls"][0]["function"]["arguments"])
    assert (arguments, fields["reasoning_content"]) == ({"command": "ls\n"}, "a\n")
    assert document.messages[2][1] == "ok"
    corpus, (document,) = read_corpus(path, keep_secrets=True)
    assert repr(document).count(secret) == 4
    assert not corpus.counts.left_out
    assert corpus.provenance()["keep_secrets"] is True


def test_texts_that_are_no_transcripts_are_kept_as_they_are(tmp_path):
    text = f"x\n{TOKENS['GitHub']}\n"
    (tmp_path / "a.py").write_text(text)
    assert read_corpus(tmp_path)[1][0].text == text


def test_the_extra_is_named_where_the_package_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "detect_secrets.core.plugins.util", None)
    secrets._detectors.cache_clear()
    with pytest.raises(MissingExtraError, match=r"'detect_secrets' .* 'rest-store\[build\]'"):
        secrets.text_without_secrets(TOKENS["GitHub"])
    secrets._detectors.cache_clear()
