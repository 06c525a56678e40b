"""The client in examples/node-client/, built with npm and run by Node against a real service."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from rest_store.bench.recordings import read_recordings
from rest_store.bench.replay import replay
from rest_store.datastore.datastore import Datastore
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from tests.shared.services import PATIENCE, Service, running
from tests.shared.strategies import write_datastore, zipf_corpus

pytestmark = pytest.mark.slow  # npm and Node
ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "node-client"
BUILD = ROOT / "build" / "node-client"  # as far below the root, where the client looks for proto/
OLDEST_NODE = 20
NO_NETWORK = (
    r"npm error code (EAI_AGAIN|ENOTFOUND|ECONN\w+|ENET\w+|EHOST\w+|ETIMEDOUT|ERR_SOCKET_TIMEOUT)"
)
CORPUS = zipf_corpus(seed=1, tokens=3_000, alphabet=40, vocabulary_size=49_152, shards=2)
NODES = 16  # of a tree, at most
RECYCLED = 4  # the origin of recycled logits
PATIENT = {"lateMs": PATIENCE * 1000}

# Takes steps of a session as lines of JSON, and answers each with its tree or its error.
DRIVER = """
import { createInterface } from "node:readline";
import { DraftSession } from "./dist/draft-session.js";
import { Service } from "./dist/service.js";
const service = await Service.connect(process.argv[1]);
let session;
for await (const line of createInterface({ input: process.stdin })) {
  const { prompt, options, accept, topK, nodeTopK, nodes, costs } = JSON.parse(line);
  if (prompt) session = new DraftSession(service, prompt, options);
  if (accept) session.accept(accept, topK, nodeTopK);
  const columns = (tree) => Object.fromEntries(Object.entries(tree).map(([name, column]) => [name, [...column]]));
  const failure = ({ reason, message }) => ({ reason, message });
  console.log(JSON.stringify(await session.draft(nodes, costs).then(columns, failure)));
}
"""


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)), cwd=BUILD, capture_output=True, text=True, check=False
    )


def page_module() -> str:
    """The TypeScript of docs/reference/protocol.md, with the names that it takes as given."""
    (snippet,) = re.findall(
        r"```typescript\n(.*?)```",
        (ROOT / "docs" / "reference" / "protocol.md").read_text("utf-8"),
        re.DOTALL,
    )
    names = {"draft-session": "DraftSession", "service": "Service", "tree": "type Tree"}
    imports = "".join(
        f'import {{ {name} }} from "./{module}.js";\n' for module, name in names.items()
    )
    arguments = (
        "declare const prompt: number[], output: number[], verify: (tree: Tree) =>"
        " Promise<number[]>;\n"
    )
    return imports + arguments + snippet


@pytest.fixture(scope="module")
def built() -> None:
    """The client in BUILD, and the snippet of the page compiled beside it."""
    version = (
        subprocess.run(["node", "--version"], capture_output=True, text=True, check=False)
        if _npm()
        else None
    )
    if version is None or int(version.stdout[1:].partition(".")[0]) < OLDEST_NODE:
        pytest.skip(f"needs node {OLDEST_NODE} or newer, and npm")
    shutil.rmtree(BUILD, ignore_errors=True)
    shutil.copytree(EXAMPLE, BUILD, ignore=shutil.ignore_patterns("node_modules", "dist"))
    (BUILD / "src" / "page.ts").write_text(page_module(), encoding="utf-8")
    installed = run("npm", "ci", "--ignore-scripts", "--fetch-retries=0", "--no-audit", "--no-fund")
    if re.search(NO_NETWORK, installed.stderr):
        pytest.skip("npm reaches no registry")
    assert installed.returncode == 0, installed.stderr
    compiled = run("npm", "run", "build")
    assert compiled.returncode == 0, compiled.stdout + compiled.stderr


def _npm() -> bool:
    return shutil.which("node") is not None and shutil.which("npm") is not None


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_datastore(tmp_path_factory.mktemp("served"), CORPUS)


@pytest.fixture(scope="module")
def service(directory: Path, built: None) -> Iterator[Service]:
    with running(directory, unix=True) as service:
        yield service


@contextlib.contextmanager
def session_in_process(directory: Path, prompt: list[int]) -> Iterator[DraftSession]:
    sources = [Datastore.open(directory), PromptLookup(), RecycledLogits()]
    with sources[0], DraftSession(sources, prompt) as session:
        yield session


def first_tree(directory: Path, text: list[int]) -> TokenTree:
    """The first tree of a session that begins with a text."""
    with session_in_process(directory, text) as session:
        return session.draft(NODES)


class Text(NamedTuple):
    """A prompt, and the draft and the accepted tokens of each step of a session in process."""

    prompt: list[int]
    trees: list[TokenTree]
    accepted: list[list[int]]


@pytest.fixture(scope="module")
def text(directory: Path) -> Text:
    documents = CORPUS.documents
    pieces = [documents[place % len(documents)][3:20] for place in range(0, 60, 3)]
    prompt = [token for piece in pieces[:4] for token in piece]
    rest = [token for piece in pieces[2:] for token in piece]
    text = Text(prompt, [], [])
    with session_in_process(directory, prompt) as session:
        while rest:
            tree = session.draft(NODES)
            count = len(tree.longest_path(rest)) + 1
            text.trees.append(tree)
            text.accepted.append(rest[:count])
            session.accept(rest[:count])
            rest = rest[count:]
    assert len(text.trees) > 10
    assert sum(map(len, text.accepted)) > 1.5 * len(text.trees), (
        "drafts were accepted, and others were not"
    )
    return text


class Client:
    """A process of Node with one session of the example."""

    def __init__(self, target: str) -> None:
        command = ["node", "--input-type=module", "--eval", DRIVER, target]
        self._process = subprocess.Popen(
            command, cwd=BUILD, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def step(self, **step: object) -> dict[str, Any]:
        """Begin with a `prompt`, or accept tokens with their top-k.

        Return the tree then drafted.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"nodes": NODES, "options": PATIENT, **step}) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def require_same(drafted: dict[str, Any], tree: TokenTree) -> None:
    assert tree.scores is not None
    assert tree.origins is not None
    for name in ("tokens", "parents", "origins"):
        assert drafted[name] == getattr(tree, name).tolist()
    assert np.array_equal(np.float32(drafted["scores"]), tree.scores)


def test_trees_are_those_of_a_session_in_process(service: Service, text: Text) -> None:
    with Client(service.unix) as client:
        drafted = [client.step(prompt=text.prompt)]
        drafted += [client.step(accept=accepted) for accepted in text.accepted[:-1]]
    for one, tree in zip(drafted, text.trees, strict=True):
        require_same(one, tree)


def test_a_replay_takes_the_steps_of_one_in_process(service: Service, directory: Path) -> None:
    path = EXAMPLE / "recordings.jsonl"
    done = run("node", "dist/replay.js", service.target, path, NODES)
    lines = []
    with Datastore.open(directory) as store:
        for recording in read_recordings(path):
            assert recording.top_k.size
            sources = [store, PromptLookup(), RecycledLogits()]
            outcome = replay(
                [recording], sources, Calibration.default(), max_nodes=NODES, learn=True
            )
            steps = f"{outcome.tokens} tokens in {outcome.steps} steps"
            lines.append(f"{steps}, M {outcome.mean_accepted:.2f}")
    assert done.stderr == ""
    assert done.stdout.splitlines() == lines


def test_top_k_and_costs_reach_the_session(service: Service, directory: Path, text: Text) -> None:
    first, second, *_ = text.accepted
    costs = [10.0 + nodes**2 for nodes in range(NODES + 1)]
    source = np.random.default_rng(1)
    written = [token for tokens in text.accepted for token in tokens]

    def likely(rows: int) -> list[list[int]]:
        return source.choice(written, (rows, 3)).tolist()  # type: ignore[no-any-return]

    top_k = likely(len(text.prompt) + len(first))
    with Client(service.target) as client, session_in_process(directory, text.prompt) as session:
        require_same(client.step(prompt=text.prompt), session.draft(NODES))
        session.accept(first, top_k)
        tree = session.draft(NODES)
        node_top_k = likely(1 + len(tree))
        require_same(client.step(accept=first, topK=top_k), tree)
        assert tree.origins is not None
        assert (tree.origins & RECYCLED).any()
        session.accept(second, node_top_k=node_top_k)
        tree = session.draft(NODES, costs)
        require_same(client.step(accept=second, nodeTopK=node_top_k, costs=costs), tree)
    assert 0 < len(tree) < NODES


def test_a_wrong_token_is_reported(
    built: None, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(directory, environment={"REST_STORE_TOKEN": "secret"}) as service:
        replay = ("node", "dist/replay.js", service.target, EXAMPLE / "recordings.jsonl")
        refused = run(*replay)
        assert refused.returncode == 1
        assert refused.stderr.startswith("Error: UNAUTHENTICATED: ")
        monkeypatch.setenv("REST_STORE_TOKEN", "secret")
        assert run(*replay).returncode == 0


def test_a_broken_stream_is_opened_again_from_the_text(
    built: None, directory: Path, text: Text
) -> None:
    first, second, third, *_ = text.accepted
    with running(directory) as service, Client(service.target) as client:
        require_same(client.step(prompt=text.prompt), text.trees[0])
        require_same(client.step(accept=first), text.trees[1])
        service.kill()
        service.restart()
        require_same(
            client.step(accept=second), first_tree(directory, text.prompt + first + second)
        )
        service.kill()
        assert client.step(accept=third)["tokens"] == []
        service.restart()
        end = time.monotonic() + PATIENCE
        while not (drafted := client.step())["tokens"] and time.monotonic() < end:
            pass
        require_same(drafted, first_tree(directory, text.prompt + first + second + third))


def test_a_late_tree_is_not_waited_for(service: Service, text: Text) -> None:
    with Client(service.target) as client:
        client.step(prompt=text.prompt, options={"lateMs": 100})
        service.pause()
        try:
            assert client.step(accept=text.accepted[0])["tokens"] == []
        finally:
            service.resume()
