"""The outcome of each family of causal language models of transformers, each made tiny.

    python -m tests.generation.architectures [FAMILY ...] [--out FILE]

writes a line for each family. `make docs-tables` makes the tables of
docs/reference/architectures.md of its results, one for each of three releases of transformers: the
pinned one (`benchmarks/results/architectures.json`), the newest and the oldest
(`architectures_newest.json`, `architectures_oldest.json`). With families named, the other rows of
FILE stay.
"""

from __future__ import annotations

import functools
import itertools
import json
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import click
import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import rest_store
from rest_store.bench.measurement_options import Destination, result_options
from rest_store.bench.results import write_result
from rest_store.errors import NotSupportedError, first_line
from rest_store.generation.cache import has_states
from rest_store.generation.seam import CACHE
from tests.shared.families import family_model
from tests.shared.tiny import SCRIPTS, Drafted, Scripted, futures_of, prompts

TREES = "equal, trees"
CHAINS = "equal, chains"
REFUSED = "refused"
NOT_MADE = "not made"
WRONG = "wrong"
FAMILIES = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
ROWS = 3
REFUSALS = (NotSupportedError,)
FIXED = {"max_new_tokens": 40, "do_sample": False, "eos_token_id": None}
_LENGTH = 14  # of the prompts
_SPREADS = (
    1.0,
    3.0,
    0.3,
    7.0,
)  # that weights beside those of embeddings are multiplied by, until a text has several tokens
_MAX_NOTE_LENGTH = 160


class Outcome(NamedTuple):
    """What became of a family.

    Attributes:
        family: its `model_type`.
        model: its class.
        kind: "equal, trees" or "equal, chains" (the text of plain `generate`, with drafts of that
            shape), "refused", "not made" (there is no tiny model that generates) or "wrong"
            (another text, or an error that is none of ours).
        note: why, or what holds besides.
    """

    family: str
    model: str
    kind: str
    note: str = ""


def committed() -> dict[str, Outcome] | None:
    """Return the outcomes by family in the results for the installed transformers.

    None: none are for this release.
    """
    for path in sorted(RESULTS.glob("architectures*.json")):
        fields = json.loads(path.read_text(encoding="utf-8"))
        if fields["packages"]["transformers"] == transformers.__version__:
            return {row["family"]: Outcome(**row) for row in fields["results"]}
    return None


def outcome_of(family: str) -> Outcome:
    """Try a family: plain text of one row and of several, and right, wrong and mixed drafts."""
    try:
        return _outcome_of(family)
    except Exception as error:
        return Outcome(
            family,
            _model_of(family),
            WRONG,
            f"{type(error).__name__}: {first_line(error)}"[:_MAX_NOTE_LENGTH],
        )


def _model_of(family: str) -> str:
    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[family]
    return name if isinstance(name, str) else str(name[0])


def _outcome_of(family: str) -> Outcome:
    outcome = functools.partial(Outcome, family, _model_of(family))
    try:
        model, plain = _telling(family)
    except Exception as error:  # whatever a family raises because it is so small
        return outcome(NOT_MADE, f"{type(error).__name__}: {first_line(error)}"[:_MAX_NOTE_LENGTH])
    try:
        output, is_chain = _drafted(model, prompts(1), plain, "right")
    except REFUSALS as error:
        return outcome(REFUSED, _reason(error))
    if not _tells(plain):
        return outcome(NOT_MADE, "the tiny model repeats a few tokens")
    kind = CHAINS if is_chain else TREES
    note = "recurrent state" if has_states(getattr(output, CACHE)) else ""
    texts = {1: plain, ROWS: model.generate(**prompts(ROWS), **FIXED)}
    if _pads_otherwise(model, texts[ROWS]):
        del texts[ROWS]
        note = (
            "one row; plain generation writes something else of padded rows than of each row alone"
        )
    for (rows, text), script in itertools.product(texts.items(), SCRIPTS):
        try:
            output, _ = _drafted(model, prompts(rows), text, script)
        except REFUSALS as error:
            return outcome(kind, f"one row; several are refused: {_reason(error)}")
        if not torch.equal(output.sequences, text):
            return outcome(WRONG, f"{rows} rows, {script} drafts")
        if script == "right" and not output.statistics.drafts.accepted:
            return outcome(WRONG, f"{rows} rows: no right draft was accepted")
    return outcome(kind, note)


def _reason(error: BaseException) -> str:
    """Return a refusal without the model's name, and without what is expected."""
    return str(error).partition(": ")[2].partition(", expected ")[0]


def _telling(family: str) -> tuple[Any, torch.Tensor]:
    """Return a tiny model of the family and its text, if possible one that has several tokens.

    Raises:
        Exception: whatever the family raises with any weights.
    """
    first: tuple[Any, torch.Tensor] | None = None
    failure: Exception | None = None
    for untied, spread in itertools.product(({}, {"tie_word_embeddings": False}), _SPREADS):
        try:
            model = family_model(family, **untied)
            ends = (model.get_input_embeddings(), model.get_output_embeddings())
            embeddings = {id(getattr(module, "weight", None)) for module in ends}
            for parameter in model.parameters():
                if parameter.ndim > 1 and id(parameter) not in embeddings:
                    parameter.data *= spread
            plain = model.generate(**prompts(1), **FIXED)
        except Exception as error:
            failure = failure or error
            if first is None and spread == _SPREADS[0] and untied:
                break  # no weights help
            continue
        if _tells(plain):
            return model, plain
        first = first or (model, plain)
    if first is None:
        raise failure or AssertionError
    return first


def _tells(plain: torch.Tensor) -> bool:
    """Whether a text has tokens enough to differ from another one."""
    return len(set(plain[0, _LENGTH:].tolist())) > 3


def _drafted(
    model: Any, inputs: dict[str, torch.Tensor], plain: torch.Tensor, script: str
) -> tuple[Any, bool]:
    """Generate with drafts of a script of `tests.shared.tiny`; return whether they were chains."""
    session = functools.partial(Scripted, futures=futures_of(inputs, plain), script=SCRIPTS[script])
    source = Drafted(session)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the script ends where texts part
        output = model.generate(
            **inputs,
            **FIXED,
            custom_generate=rest_store.generate,
            sources=[source],
            adaptive=False,
            return_dict_in_generate=True,
        )
    return output, source.is_chain


def _pads_otherwise(model: Any, together: torch.Tensor) -> bool:
    """Whether plain generation of padded rows differs from that of each row alone."""
    inputs = prompts(ROWS)
    for ids, mask, text in zip(
        inputs["input_ids"], inputs["attention_mask"], together, strict=True
    ):
        if mask.all():
            continue
        row = ids[mask.bool()][None]
        alone = model.generate(row, attention_mask=torch.ones_like(row), **FIXED)
        if not torch.equal(alone[0, row.shape[1] :], text[_LENGTH:]):
            return True
    return False


def _kept(file: Path | None) -> list[Outcome]:
    """Return the outcomes in a file of results; none if it is absent."""
    if file is None or not file.exists():
        return []
    return [Outcome(**row) for row in json.loads(file.read_text(encoding="utf-8"))["results"]]


@click.command()
@click.argument("families", nargs=-1, type=click.Choice(FAMILIES))
@result_options
def main(families: tuple[str, ...], out: Destination) -> None:
    """Try all families, or those named; the exit status is 1 if one is wrong."""
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    outcomes = []
    for family in families or FAMILIES:
        outcomes.append(outcome_of(family))
        click.echo(": ".join(filter(None, (family, *outcomes[-1][2:]))))
    rows = {row.family: row for row in _kept(out.file)} if families else {}
    rows |= {outcome.family: outcome for outcome in outcomes}
    counts = Counter(outcome.kind for outcome in outcomes)
    click.echo(", ".join(f"{number} {kind}" for kind, number in counts.most_common()))
    write_result(
        out,
        "architectures",
        {},
        ("torch", "transformers"),
        [rows[family]._asdict() for family in sorted(rows)],
    )
    sys.exit(WRONG in counts)


if __name__ == "__main__":
    main()
