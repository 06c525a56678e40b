"""`rest-store generate`."""

from __future__ import annotations

import json
import re
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from transformers import GenerationMixin

import rest_store
from rest_store.cli import main
from rest_store.errors import ModelLoadError
from rest_store.generation import comparison, progress, writer
from rest_store.generation.generator import Generator
from rest_store.generation.model import load_model
from rest_store.generation.options import WIDTHS, Options
from tests.shared.html import read
from tests.shared.strategies import refused
from tests.shared.tiny import text_tokenizer, write_model


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("options", [[], ["--temperature", "0.8", "--seed", "4"]])
def test_the_command_writes_text(model_directory: Path, tmp_path: Path, options: list[str]) -> None:
    written = tmp_path / "out.html"
    words = ["generate", "--model", str(model_directory), "--prompt", "for i in i in i in", "--max-new-tokens", "12"]
    done = CliRunner().invoke(main, [*words, *options, "--compare", "--html", str(written)])
    assert done.exit_code == 0, done.output
    last = done.output.strip().splitlines()[-1]
    assert re.search(r"^12 tokens in \d+ forward passes, M [\d.]+, .* plain decoding, which wrote the same text$", last)
    page = read(written.read_text(encoding="utf-8"))
    assert " ".join(page.text.split()).count(f"12 tokens in {len(page.data['passes'])} forward passes: M ") == 1
    assert "for i in i in i in" in page.text
    as_json = CliRunner().invoke(main, [*words, *options, "--json"])
    facts = json.loads(as_json.stdout)
    assert facts["tokens"] == 12
    assert facts["text"].strip() in done.output


@pytest.fixture
def options_used(monkeypatch: pytest.MonkeyPatch) -> list[Options]:
    """The options of each generation that begins."""
    used: list[Options] = []
    begin = Generator.begin

    def begin_and_note(generator: Generator, *prompt: Any, **options: Any) -> Any:
        used.append(generator._options)
        return begin(generator, *prompt, **options)

    monkeypatch.setattr(Generator, "begin", begin_and_note)
    return used


def test_the_command_drafts_whatever_steps_cost_when_asked_to(
    model_directory: Path, options_used: list[Options]
) -> None:
    for words in ([], ["--adaptive"], ["--no-adaptive"]):
        assert write(model_directory, "--prompt", "for i in", "--json", *words).exit_code == 0
    assert [options.adaptive for options in options_used] == [True, True, False]


def test_the_command_accepts_typical_drafts_when_asked_to(model_directory: Path, options_used: list[Options]) -> None:
    words = ["--prompt", "for i in i in i in", "--json"]
    done = write(model_directory, *words, "--acceptance", "typical")
    assert done.exit_code == 2
    assert "--acceptance typical is for sampling: give --temperature" in done.output
    words += ["--temperature", "0.5"]
    for more in ([], ["--acceptance", "typical"], ["--acceptance", "typical", "--typical-threshold", "0.2"]):
        assert write(model_directory, *words, *more, "--typical-alpha", "0.3").exit_code == 0
    assert [options.acceptance for options in options_used] == ["exact", "typical", "typical"]
    assert [options.typical_threshold for options in options_used] == [Options().typical_threshold] * 2 + [0.2]
    assert [options.typical_alpha for options in options_used] == [Options().typical_alpha] * 3


def test_the_command_refuses_what_is_not_there(tmp_path: Path, model_directory: Path) -> None:
    words = ["generate", "--prompt", "x", "--model"]
    done = CliRunner().invoke(main, [*words, str(tmp_path / "no.gguf")])
    assert done.exit_code == 1
    assert "expected a causal language model" in done.output
    refused(ModelLoadError, lambda: load_model(str(tmp_path)), str(tmp_path))
    done = CliRunner().invoke(main, [*words, str(model_directory), "--datastore", str(tmp_path / "none.ds")])
    assert done.exit_code == 1
    assert len(done.output.strip().splitlines()) == 1


def write(model: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["generate", "--model", str(model), "--max-new-tokens", "4", *words])


@pytest.mark.parametrize(
    "words",
    [
        ["--temperature", "0"],
        ["--temperature", "-1"],
        ["--temperature", "1e-300"],
        ["--temperature", "nan"],
        ["--top-p", "nan"],
        ["--seed", str(2**64)],
        ["--seed", "-1"],
        ["--max-new-tokens", "0"],
        ["--max-new-tokens", "-3"],
        ["--top-p", "0"],
        ["--top-p", "1.5"],
        ["--top-k", "0"],
        ["--html", f"{__file__}/page.html"],
        ["--logits", f"{__file__}/logits"],
    ],
)
def test_the_command_refuses_numbers_and_places_before_it_loads_anything(words: list[str], tmp_path: Path) -> None:
    done = write(tmp_path / "no model either", "--prompt", "x", *words)
    assert done.exit_code == 2
    assert re.fullmatch(r"Error: .+", done.stderr.strip().splitlines()[-1])
    assert words[0] in done.stderr.splitlines()[-1]
    assert "not loaded" not in done.output


@pytest.mark.parametrize("words", [["--top-p", "0.5"], ["--top-k", "3"], ["--temperature", "2", "--top-p", "0.9"]])
def test_the_command_samples_with_what_it_is_given(
    words: list[str], model_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []
    begin = Generator.begin

    def noted(self: Generator, prompt: Any, **options: Any) -> Any:
        given.append(options)
        return begin(self, prompt, **options)

    monkeypatch.setattr(Generator, "begin", noted)
    done = write(model_directory, "--prompt", "for i in", "--compare", *words)
    assert done.exit_code == 0, done.output
    assert "the same text" in done.output
    names = [name.removeprefix("--").replace("-", "_") for name in words[::2]]
    assert given == [{"max_new_tokens": 4, "do_sample": True, **dict(zip(names, map(float, words[1::2]), strict=True))}]


@pytest.mark.parametrize(("words", "widths"), [([], ()), (["--graphs"], WIDTHS)])
def test_the_command_turns_fixed_widths_on(
    words: list[str], widths: Any, model_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []
    begin = Generator.begin

    def noted(self: Generator, prompt: Any, **options: Any) -> Any:
        given.append(self._options.widths)
        return begin(self, prompt, **options)

    monkeypatch.setattr(Generator, "begin", noted)
    done = write(model_directory, "--prompt", "for i in i in i in", "--compare", *words)
    assert done.exit_code == 0, done.output
    assert "the same text" in done.output
    assert given == [widths]


def test_a_comparison_times_preparing_on_both_sides(model_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        """Stands still while text is written."""

        now = 0.0

        def perf_counter(self) -> float:
            return self.now

    clock, generate = Clock(), GenerationMixin.generate

    def slowly(*arguments: Any, **options: Any) -> Any:
        clock.now += 1.0
        return generate(*arguments, **options)

    monkeypatch.setattr(GenerationMixin, "generate", slowly)
    for module in (writer, comparison, progress):
        monkeypatch.setattr(module, "time", clock)
    done = write(model_directory, "--prompt", "for i in", "--compare", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["speedup"] == 1.0


def test_what_was_not_loaded_is_named(tmp_path: Path, model_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for path in (f"{tmp_path}/none", "./none", "one/two/three", "none.gguf"):
        refused(ModelLoadError, lambda path=path: load_model(path), f"{path}: model is absent (no such file or dir")
    refused(ModelLoadError, lambda: load_model("nobody/no-such-model"), "no such directory here, and from the Hugging")
    (tmp_path / "model").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "model" / name).write_bytes((model_directory / name).read_bytes())
    refused(ModelLoadError, lambda: load_model(str(tmp_path / "model")), "model: tokenizer is not loaded")


def test_a_chat_takes_a_template(model_directory: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(model_directory, tmp_path / "model")
    (copied / "chat_template.jinja").unlink()
    done = write(copied, "--prompt", "x", "--chat")
    assert (done.exit_code, "has no chat template: leave out --chat" in done.stderr) == (2, True)


@pytest.mark.filterwarnings("default::rest_store.errors.DraftingWarning")
def test_a_service_that_does_not_answer_is_left_out_and_reported(model_directory: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        target = f"127.0.0.1:{unused.getsockname()[1]}"
        done = write(model_directory, "--prompt", "for i in i in i in", "--datastore", target, "--compare")
    assert done.exit_code == 0, done.output
    warnings = [line for line in done.stderr.splitlines() if line.startswith("Warning: ")]
    assert len(warnings) == 2, "before the generation and after it"
    assert "source 0: " in warnings[1]
    assert "which wrote the same text" in done.output
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


def test_what_the_command_remembers_drafts_for_the_next_prompt(speaking_model: Path, tmp_path: Path) -> None:
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
    assert any(step["origins"][node] & 1 for step in shown.data["passes"] for node in step["accepted"])
    both = ["--datastore", f"{live}/", "--remember", str(live), "--html", str(page)]
    again = write(speaking_model, *prompt, *both)
    assert again.exit_code == 0, again.output
    labels = read(page.read_text(encoding="utf-8")).data["labels"]
    assert labels[:2] == [str(live), "prompt lookup"], "one source, though named twice"


def test_what_the_model_found_likely_is_kept_for_the_next_run(speaking_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "logits"
    words = ["--prompt", "for i in i in i in", "--max-new-tokens", "24", "--json", "--logits", str(path)]
    _, tokenizer = load_model(str(speaking_model))
    earlier = rest_store.RecycledLogits()
    rest_store.DraftSession([earlier], [1, 2, 3], prompt_top_k=[[4], [5], [6]]).close()
    earlier.save(path, tokenizer)
    assert write(speaking_model, *words).exit_code == 0
    later = rest_store.RecycledLogits.load(path, tokenizer)
    assert len(later) > len(earlier)
    with rest_store.DraftSession([later], [1, 2, 3]) as session:
        assert session.draft(1).tokens.tolist() == [6]
    path.write_bytes(b"something else")
    done = write(speaking_model, *words)
    assert done.exit_code == 1
    assert f"Error: {path}: content is something else, expected recycled logits" in done.output
    assert path.read_bytes() == b"something else"


def test_a_page_takes_one_prompt(model_directory: Path, tmp_path: Path) -> None:
    done = write(model_directory, "--prompt", "a", "--prompt", "b", "--html", str(tmp_path / "page.html"))
    assert (done.exit_code, "--html takes one --prompt" in done.stderr) == (2, True)


def test_the_command_does_not_wait_for_another_writer(model_directory: Path, tmp_path: Path) -> None:
    with rest_store.LiveDatastore.open(tmp_path / "live", tokenizer=text_tokenizer()):
        done = write(model_directory, "--prompt", "for i in", "--remember", str(tmp_path / "live"))
    assert (done.exit_code, "the writer's lock is taken" in done.stderr) == (1, True)


@pytest.mark.filterwarnings("default::rest_store.errors.DraftingWarning")
def test_what_was_not_remembered_is_said(model_directory: Path, tmp_path: Path) -> None:
    """The model writes ids that are none of its tokenizer."""
    done = write(
        model_directory, "--prompt", "for i in i in i in", "--max-new-tokens", "24", "--remember", str(tmp_path)
    )
    assert done.exit_code == 0, done.output
    assert "; not remembered (rest_store.errors.TokenRangeError: add: token id in document 0 is " in done.stdout
    assert "Warning: rest-store: an output was not remembered" in done.stderr
