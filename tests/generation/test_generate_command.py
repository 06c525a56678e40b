"""`rest-store generate`."""

from __future__ import annotations

import json
import re
import shutil
import socket
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

import rest_store
from rest_store.cli import main
from rest_store.errors import ModelLoadError
from rest_store.generation import comparison
from rest_store.generation.model import load_model
from tests.shared.html import read
from tests.shared.live import until
from tests.shared.services import running
from tests.shared.strategies import refused
from tests.shared.tiny import text_tokenizer, write_model


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparisons have one round."""
    monkeypatch.setattr(comparison, "MAX_SECONDS", 0.0)


@pytest.mark.parametrize("options", [[], ["--temperature", "0.8", "--seed", "4"]])
def test_the_command_writes_text(model_directory: Path, tmp_path: Path, options: list[str]) -> None:
    written = tmp_path / "out.html"
    words = [
        "generate",
        "--model",
        str(model_directory),
        "--prompt",
        "for i in i in i in",
        "--max-new-tokens",
        "12",
    ]
    done = CliRunner().invoke(main, [*words, *options, "--compare", "--html", str(written)])
    assert done.exit_code == 0, done.output
    summary, compared = done.output.strip().splitlines()[-2:]
    assert re.search(
        r"^12 tokens in \d+ forward passes, M [\d.]+ tokens a pass \(1 without drafts\); ", summary
    )
    assert done.output.count("tokens a second") == 1, "one pair of speeds: those of the comparison"
    assert re.search(
        r"^plain decoding wrote the same text at [\d.]+ tokens a second, drafts at [\d.]+: ",
        compared,
    )
    page = read(written.read_text(encoding="utf-8"))
    assert (
        " ".join(page.text.split()).count(
            f"12 tokens in {len(page.data['passes'])} forward passes: M "
        )
        == 1
    )
    assert "for i in i in i in" in page.text
    as_json = CliRunner().invoke(main, [*words, *options, "--json"])
    facts = json.loads(as_json.stdout)
    assert facts["tokens"] == 12
    assert facts["text"].strip() in done.output


def test_a_terminal_shows_what_takes_long(
    model_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [
        "generate",
        "--model",
        str(model_directory),
        "--prompt",
        "for",
        "--max-new-tokens",
        "4",
        "--compare",
        "--no-chat",
    ]
    assert CliRunner().invoke(main, words).stderr == ""
    monkeypatch.setattr(
        "click.testing._NamedTextIOWrapper.isatty", lambda stream: True, raising=False
    )
    shown = CliRunner().invoke(main, words).stderr.splitlines()
    assert [re.sub(r"[\d.]+ s", "N s", line) for line in shown] == [
        f"loading tokenizer {model_directory} ... N s",
        f"loading model {model_directory} ... N s",
        "plain decoding and drafts take turns, about N s at most ...",
    ]


def test_the_command_refuses_what_is_not_there(tmp_path: Path, model_directory: Path) -> None:
    words = ["generate", "--prompt", "x", "--model"]
    done = CliRunner().invoke(main, [*words, str(tmp_path / "no.gguf")])
    assert done.exit_code == 1
    assert "expected a causal language model" in done.output
    folder = tmp_path / "empty"
    folder.mkdir()
    done = CliRunner().invoke(main, [*words, str(folder)])
    assert done.exit_code == 1
    assert (
        f"{folder}: model is absent (no config.json in {folder}), expected a causal language"
        in done.stderr
    )
    assert len(done.output.strip().splitlines()) == 1
    done = CliRunner().invoke(
        main, [*words, str(model_directory), "--datastore", str(tmp_path / "none.ds")]
    )
    assert done.exit_code == 1
    assert len(done.output.strip().splitlines()) == 1


def test_a_reason_is_cut_between_words(tmp_path: Path) -> None:
    """transformers lists all classes that there are."""
    config = {"model_type": "vit", "architectures": ["ViTModel"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    text_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ModelLoadError, match=r"\w+,? \.\.\.\), expected a causal language model"):
        load_model(str(tmp_path))


def write(model: Path, *words: str) -> Result:
    return CliRunner().invoke(
        main, ["generate", "--model", str(model), "--max-new-tokens", "4", *words]
    )


@pytest.mark.parametrize(
    "words",
    [
        ["--temperature", "0"],
        ["--temperature", "-1"],
        ["--temperature", "1e-300"],
        ["--temperature", "nan"],
        ["--seed", str(2**64)],
        ["--seed", "-1"],
        ["--max-new-tokens", "0"],
        ["--max-new-tokens", "-3"],
        ["--html", f"{__file__}/page.html"],
    ],
)
def test_the_command_refuses_numbers_and_places_before_it_loads_anything(
    words: list[str], tmp_path: Path
) -> None:
    done = write(tmp_path / "no model either", "--prompt", "x", *words)
    assert done.exit_code == 2
    assert re.fullmatch(r"Error: .+", done.stderr.strip().splitlines()[-1])
    assert words[0] in done.stderr.splitlines()[-1]
    assert "not loaded" not in done.output


def test_words_are_explained_where_they_first_stand() -> None:
    text = " ".join(CliRunner().invoke(main, ["generate", "--help"]).output.split())
    assert "M is the mean number of tokens that a pass writes; without drafts it is 1." in text
    assert "Most draft tokens (nodes of the draft tree) that one forward pass verifies." in text
    assert (
        "--prepacked-weights Copy float32 weights into the layout that this CPU is fastest with"
        in text
    )


def test_prepacked_weights_are_float32_unless_a_type_is_named(tmp_path: Path) -> None:
    model = write_model(tmp_path)
    load_model(str(model), dtype="bfloat16")[0].save_pretrained(model)
    assert load_model(str(model))[0].dtype == torch.bfloat16
    done = write(model, "--prompt", "for i", "--prepacked-weights")
    assert done.exit_code == 0, done.output
    done = write(model, "--prompt", "for i", "--prepacked-weights", "--dtype", "bfloat16")
    assert done.exit_code == 1
    assert "float32" in done.stderr.splitlines()[-1]


def test_what_was_not_loaded_is_named(
    tmp_path: Path, model_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for path in (f"{tmp_path}/none", "./none", "one/two/three", "none.gguf"):
        refused(
            ModelLoadError,
            lambda path=path: load_model(path),
            f"{path}: model is absent (no such file or dir",
        )
    refused(
        ModelLoadError,
        lambda: load_model("nobody/no-such-model"),
        "no such directory here, and from the Hugging",
    )
    (tmp_path / "model").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "model" / name).write_bytes((model_directory / name).read_bytes())
    refused(
        ModelLoadError,
        lambda: load_model(str(tmp_path / "model")),
        "model: tokenizer is not loaded",
    )


def test_a_chat_takes_a_template(model_directory: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(model_directory, tmp_path / "model")
    (copied / "chat_template.jinja").unlink()
    done = write(copied, "--prompt", "x", "--chat")
    assert (done.exit_code, "has no chat template: leave out --chat" in done.stderr) == (2, True)


@pytest.mark.parametrize("words", [[], ["--chat"], ["--no-chat"]], ids=str)
def test_a_prompt_without_the_models_template_says_so_once(
    model_directory: Path, words: list[str]
) -> None:
    done = write(model_directory, "--prompt", "x", "--prompt", "y", *words, "--json")
    assert done.exit_code == 0, done.output
    hints = [line for line in done.stderr.splitlines() if "continued as text; with --chat" in line]
    assert len(hints) == (not words)
    assert len(done.stdout.splitlines()) == 2


@pytest.mark.filterwarnings("default::rest_store.errors.DraftingWarning")
def test_a_service_that_does_not_answer_is_left_out_and_reported(model_directory: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        target = f"127.0.0.1:{unused.getsockname()[1]}"
        words = ["--prompt", "for i in i in i in", "--datastore", target]
        done = write(model_directory, *words, "--drafting", "remote", "--compare")
        assert write(model_directory, *words).exit_code == 1, "there is no copy yet"
    assert done.exit_code == 0, done.output
    warnings = [line for line in done.stderr.splitlines() if line.startswith("Warning: ")]
    assert len(warnings) == 2, (
        "before the generation and after it; none for those it is compared with"
    )
    assert f": {target}: " in warnings[1]
    assert "wrote the same text" in done.output
    assert re.search(rf"; \d+ steps? without {target} \((error|late)\)", done.output)


@pytest.fixture(scope="module")
def speaking_model(model_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that writes no tokens but those of its tokenizer."""
    model, tokenizer = load_model(str(model_directory))
    model.resize_token_embeddings(len(tokenizer))
    directory = tmp_path_factory.mktemp("speaking")
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def test_the_command_reaches_services_with_its_token(
    speaking_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "code.py").write_text("for i in range(10):\n    print(i)\n")
    rest_store.build(tmp_path / "code.py", speaking_model, tmp_path / "code").close()
    tokens = tmp_path / "tokens"
    tokens.write_text("secret\n")
    options = ["--token-file", str(tokens)]
    with running(f"code={tmp_path / 'code'}", options=options) as service:
        words = ["--prompt", "for i in", "--datastore", f"{service.target}/code"]
        for drafting in ("remote", "local"):
            done = write(speaking_model, *words, "--drafting", drafting, *options)
            assert done.exit_code == 0, done.output
            assert not re.search(r"\d steps? without ", done.stdout), done.stdout
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
        refused = write(speaking_model, *words, "--drafting", "local")
        assert refused.exit_code == 1
        assert "token" in refused.stderr


def test_what_the_command_remembers_drafts_for_the_next_prompt(
    speaking_model: Path, tmp_path: Path
) -> None:
    live, prompt = tmp_path / "live", ["--prompt", "for i in i in i in", "--max-new-tokens", "24"]
    done = write(speaking_model, *prompt, *prompt, "--remember", str(live), "--json", "--compare")
    assert done.exit_code == 0, done.output
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["text"], first["remembered"], first["identical"]) == (second["text"], 1, True)
    assert second["identical"]
    assert second["forward_passes"] < first["forward_passes"]
    with rest_store.LiveDatastore.open(live, read_only=True) as store:
        assert store.info().document_count == 1
    page = tmp_path / "page.html"
    again = write(speaking_model, *prompt, "--datastore", str(live), "--html", str(page))
    assert again.exit_code == 0, again.output
    assert re.search(r"24 tokens in \d+ forward passes, M ", again.stdout)
    shown = read(page.read_text(encoding="utf-8"))
    assert shown.data["labels"][:3] == [str(live), "prompt lookup", "recycled logits"]
    assert any(
        step["origins"][node] & 1 for step in shown.data["passes"] for node in step["accepted"]
    )
    both = ["--datastore", f"{live}/", "--remember", str(live), "--html", str(page)]
    again = write(speaking_model, *prompt, *both)
    assert again.exit_code == 0, again.output
    labels = read(page.read_text(encoding="utf-8")).data["labels"]
    assert labels[:2] == [str(live), "prompt lookup"], "one source, though named twice"


def test_datastores_of_a_service_are_copied_here(
    speaking_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    prompt, chat = (
        ["--prompt", "for i in i in i in", "--max-new-tokens", "24", "--json"],
        tmp_path / "chat",
    )
    first = json.loads(write(speaking_model, *prompt, "--remember", str(chat)).stdout)
    (tmp_path / "code.py").write_text("for i in range(10):\n    print(i)\n")
    rest_store.build(tmp_path / "code.py", speaking_model, tmp_path / "code").close()
    with running(f"code={tmp_path / 'code'}", options=["--live", str(chat)]) as service:
        places = [f"{service.target}/{name}" for name in ("code", "chat")]
        words = ["--datastore", places[0], "--remember", places[1]]
        for drafting in ("remote", "local"):
            facts = json.loads(
                write(speaking_model, *prompt, *words, "--drafting", drafting).stdout
            )
            assert (facts["text"], facts["duplicates"]) == (first["text"], 1), (
                "remembered there already"
            )
            assert (tmp_path / "cache").exists() == (drafting == "local")
        assert list(facts["sources"])[:2] == places
        # Without a name: code and chat, or the live one, which comes first.
        for drafting in ("remote", "local"):
            words = ["--datastore", service.target, "--drafting", drafting]
            sources = json.loads(write(speaking_model, *prompt, *words).stdout)["sources"]
            names = {"remote": "code, chat", "local": "chat"}[drafting]
            assert next(iter(sources)) == f"{names} at {service.target}"
        with rest_store.LiveDatastore.open(places[1]) as replica:
            until(lambda: replica.info().document_count == 1)
    again = write(speaking_model, *prompt, "--datastore", places[1])
    assert json.loads(again.stdout)["text"] == first["text"], "a replica opens without the service"


def test_an_agents_memory_drafts_from_each_kind_of_text(
    model_directory: Path, tmp_path: Path
) -> None:
    prompt = "for i in i in i in"
    words = ["generate", "--model", str(model_directory), "--prompt", prompt]
    words += ["--max-new-tokens", "12"]
    plain = CliRunner().invoke(main, [*words, "--json"])
    text = json.loads(plain.stdout)["text"]
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "notes.txt").write_text(prompt + text)
    memory = tmp_path / "memory"
    remember = ["remember", str(tmp_path / "tree"), "--into", str(memory)]
    done = CliRunner().invoke(main, [*remember, "--tokenizer", str(model_directory)])
    assert done.exit_code == 0, done.output
    drafted = CliRunner().invoke(main, [*words, "--datastore", str(memory), "--json"])
    assert drafted.exit_code == 0, drafted.output
    facts = json.loads(drafted.stdout)
    assert facts["text"] == text
    assert f"{memory}/files" in facts["sources"]
