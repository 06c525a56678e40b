"""What generation does with each tiny architecture of the installed
transformers, as docs/reference/models.md says.

    python -m tests.shared.supported

tries them all and writes the table.
"""

from __future__ import annotations

import functools
import re
import textwrap
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import rest_store
from rest_store.errors import NotSupportedError
from rest_store.generation.cache import has_states
from tests.shared.families import family_model
from tests.shared.tiny import SCRIPTS, Drafted, Scripted, futures_of, prompts

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "models.md"
BEGIN, END = "<!-- architectures -->\n", "<!-- end of architectures -->"
FIXED = {"max_new_tokens": 40, "do_sample": False, "eos_token_id": None}

# GIT takes the mask of a left-padded text to begin with image tokens, also where there is no image:
# of several rows, plain generation itself writes something else than of each alone.
PADDED_OTHERWISE = {"git"}


def families() -> dict[str, str]:
    """The class of each causal language model, by `model_type`."""
    names = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()
    return {family: name if isinstance(name, str) else name[0] for family, name in sorted(names)}


def outcome_of(family: str) -> str:
    """Try a family; return "equal, trees", "equal, chains", "refused: ..." or "not tried: ...".

    Raises:
        AssertionError: another text than that of plain generation.
        Exception: whatever else generation raises with drafts, and without drafts does not.
    """
    try:
        model = family_model(family)
        model.generate(**prompts(1), **FIXED)
    except Exception as error:
        return f"not tried: no tiny model generates plainly ({type(error).__name__})"
    states = has_states(
        transformers.DynamicCache(config=model.config.get_text_config(decoder=True))
    )
    for rows in (1,) if family in PADDED_OTHERWISE else (1, 3):
        inputs = prompts(rows)
        plain = model.generate(**inputs, **FIXED)
        for name, script in SCRIPTS.items():
            source = Drafted(
                functools.partial(Scripted, futures=futures_of(inputs, plain), script=script)
            )
            ours: dict[str, Any] = {
                "custom_generate": rest_store.generate,
                "sources": [source],
                "adaptive": False,
            }
            try:
                drafted = model.generate(**inputs, **FIXED, **ours)
            except NotSupportedError as error:
                reason = str(error).split(", expected")[0]
                return f"refused: {reason.removeprefix(type(model).__name__ + ': ')}"
            assert torch.equal(drafted, plain), f"{rows} rows, {name}"
    return "equal, chains" if states else "equal, trees"


def documented() -> dict[str, str]:
    """The outcome of each family that the page has."""
    rows = re.findall(
        r"^\| `(\w[\w-]*)` \| .* \| (.*) \|$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    return dict(rows)


def release() -> str:
    """The release of transformers that the page was made with."""
    found = re.search(r"transformers (\d[\w.]*)", PAGE.read_text(encoding="utf-8"))
    return found.group(1) if found else ""


def main() -> None:
    """Write the table."""
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    rows = []
    for family, name in families().items():
        try:
            outcome = outcome_of(family)
        except Exception as error:
            outcome = f"**fails**: {textwrap.shorten(f'{type(error).__name__}: {error}', 100)}"
        print(family, outcome, flush=True)
        rows.append(f"| `{family}` | `{name}` | {outcome.replace('|', '/')} |\n")
    table = (
        f"With transformers {transformers.__version__}:\n\n| family | class | outcome |\n| --- |"
        " --- | --- |\n"
    )
    text = PAGE.read_text(encoding="utf-8")
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    PAGE.write_text(text[:begin] + table + "".join(rows) + text[end:], encoding="utf-8")


if __name__ == "__main__":
    main()
