"""Chat templates: the text of a conversation as a model sees it.

The environment is that of `transformers` (`chat_template_utils`): a sandbox, trimmed blocks, loop controls,
`{% generation %}` blocks, `tojson`, `raise_exception`, `strftime_now`. One thing differs on purpose: `strftime_now`
returns a fixed date, so that a datastore does not depend on the day it was built.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from build_index.errors import build_packages, first_line
from build_index.path import local_path
from rest_store.errors import CorpusError, TokenizerLoadError, describe

if TYPE_CHECKING:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    from build_index.documents import Message

TEMPLATE_DATE = datetime.datetime(2024, 7, 26)
"""The date that templates see: Llama 3's default."""


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: the Jinja text.
        special_tokens: variables of the template, for instance `{"bos_token": "<s>"}`.
        where: the tokenizer or file that it comes from, for error messages.

    Raises:
        TokenizerLoadError: the text is not a Jinja template, or jinja2 is not installed.

    Thread-safe. Can be pickled.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], where: object) -> None:
        with build_packages(where, TokenizerLoadError):
            import jinja2
        self.source = source
        self._special_tokens = dict(special_tokens)
        self._where = str(where)
        self._template_error: type[Exception] = jinja2.TemplateError
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            problem = f"not valid (line {getattr(error, 'lineno', 1)}: {error.message})"
            raise TokenizerLoadError(describe(where, "chat template", problem, "a Jinja template")) from error

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.source, self._special_tokens, self._where)

    def render(self, messages: Sequence[Message], origin: str) -> str:
        """Return the text of a conversation, control tokens included, without a prompt for a further turn.

        Args:
            messages: pairs of role and content, oldest first.
            origin: source of the conversation, for error messages.

        Raises:
            CorpusError: the template refuses the conversation, for instance because turns do not alternate.
        """
        turns = [{"role": role, "content": content} for role, content in messages]
        variables: dict[str, Any] = {"tools": None, "documents": None, "add_generation_prompt": False}
        try:
            return self._template.render({**variables, **self._special_tokens, "messages": turns})
        except (self._template_error, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            roles = ", ".join(role for role, _ in messages[:4]) + (", ..." if len(messages) > 4 else "")
            problem = f"refused by the chat template ({first_line(error)})"
            raise CorpusError(describe(origin, f"a conversation ({roles})", problem, "valid turns")) from error


def read_template(template: str) -> str:
    """Return the Jinja text of a `--chat-template` option: the text itself (if it holds a brace), or of the file named.

    Raises:
        TokenizerLoadError: the file cannot be read as UTF-8.
    """
    return template if "{" in template else read_template_file(local_path(template))


def read_template_file(path: Path) -> str:
    """Return the Jinja text of a file; raises what `read_template` does."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        problem = f"not readable ({error.strerror})"
        raise TokenizerLoadError(describe(path, "chat template", problem, "a file or a Jinja template")) from error
    except UnicodeDecodeError as error:
        raise TokenizerLoadError(describe(path, "chat template", "not UTF-8", "a UTF-8 text file")) from error


def _environment() -> ImmutableSandboxedEnvironment:
    from jinja2 import nodes
    from jinja2.exceptions import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationBlocks(Extension):
        """`{% generation %}` marks the assistant's text for training; here it is replaced by its content."""

        tags = {"generation"}  # noqa: RUF012 - declared so in the base class

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlocks, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = raise_exception
    strftime_now: Callable[[str], str] = TEMPLATE_DATE.strftime
    environment.globals["strftime_now"] = strftime_now
    return environment


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON as `transformers` writes it: Jinja's own filter escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
