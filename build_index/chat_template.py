"""Chat templates: how a conversation is written down for a model.

The environment is that of `transformers` (`chat_template_utils`): a sandbox, blocks trimmed, loop controls,
`{% generation %}` blocks, `tojson`, `raise_exception`, `strftime_now`. One thing differs on purpose: `strftime_now`
tells a fixed date, so that a datastore does not depend on the day it was built.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from build_index.packages import import_package
from rest_store.errors import CorpusError, TokenizerLoadError, describe

if TYPE_CHECKING:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    from build_index.documents import Message

TEMPLATE_DATE = datetime.datetime(2024, 7, 26)
"""The date that templates see; it is the one Llama 3's template falls back to."""


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: the Jinja text.
        special_tokens: what the template may name, for instance `{"bos_token": "<s>"}`.
        where: the tokenizer or file it comes from, for messages.

    Raises:
        TokenizerLoadError: the text is not a Jinja template, or jinja2 is not installed.

    Thread-safe.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], where: object) -> None:
        jinja2 = import_package("jinja2", where, TokenizerLoadError)
        self.source = source
        self._special_tokens = dict(special_tokens)
        self._template_error: type[Exception] = jinja2.TemplateError
        try:
            self._template = _environment(where).from_string(source)
        except jinja2.TemplateError as error:
            found = f"not a Jinja template (line {getattr(error, 'lineno', 1)}: {error.message})"
            raise TokenizerLoadError(describe(where, "chat template", found, "one that compiles")) from error

    def render(self, messages: Sequence[Message], origin: str) -> str:
        """Write a conversation down as the model will see it, without a prompt for a further turn.

        Args:
            messages: pairs of role and content, oldest first.
            origin: where the conversation comes from, for the message.

        Returns:
            The text, control tokens in it.

        Raises:
            CorpusError: the template refuses the conversation, for instance because turns do not alternate.
        """
        turns = [{"role": role, "content": content} for role, content in messages]
        variables: dict[str, Any] = {"tools": None, "documents": None, "add_generation_prompt": False}
        try:
            return self._template.render({**variables, **self._special_tokens, "messages": turns})
        except (self._template_error, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            roles = ", ".join(role for role, _ in messages[:4]) + (", ..." if len(messages) > 4 else "")
            found = f"refused by the chat template ({reason})"
            raise CorpusError(describe(origin, f"a conversation ({roles})", found, "turns that it accepts")) from error


def read_template(template: str) -> str:
    """Return the Jinja text of a `--chat-template` option.

    Args:
        template: a path to a file with the text, or the text itself (then a brace is in it).

    Returns:
        The Jinja text.

    Raises:
        TokenizerLoadError: neither, or the file cannot be read as UTF-8.
    """
    if "{" in template:
        return template
    try:
        return Path(template).expanduser().read_text(encoding="utf-8")
    except OSError as error:
        found, expected = f"not readable ({error.strerror})", "a file or a Jinja template"
        raise TokenizerLoadError(describe(template, "chat template", found, expected)) from error
    except UnicodeDecodeError as error:
        raise TokenizerLoadError(describe(template, "chat template", "not UTF-8", "a UTF-8 text file")) from error


def _environment(where: object) -> ImmutableSandboxedEnvironment:
    sandbox = import_package("jinja2.sandbox", where, TokenizerLoadError)
    from jinja2 import nodes
    from jinja2.exceptions import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser

    class GenerationBlocks(Extension):
        """`{% generation %}` marks what the assistant said, for training; here it is its content."""

        tags = {"generation"}  # noqa: RUF012 - declared so in the base class

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    environment: ImmutableSandboxedEnvironment = sandbox.ImmutableSandboxedEnvironment(
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
