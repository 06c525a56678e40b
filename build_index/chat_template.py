"""Chat templates: the text of turns as a model sees it.

The environment is that of `transformers` (`chat_template_utils`): a sandbox, trimmed blocks, loop
controls, `{% generation %}` blocks, `tojson`, `raise_exception`, `strftime_now`. One thing differs
on purpose: `strftime_now` returns a fixed date, so that a datastore does not depend on the day it
was built.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from rest_store.errors import TokenizerLoadError, describe, first_line
from rest_store.loading.local_path import local_path

if TYPE_CHECKING:
    import jinja2

TEMPLATE_DATE = datetime.datetime(2024, 7, 26)
"""The date that templates see: Llama 3's default."""
_VARIABLES = {"tools": None, "documents": None}
# A template raises these for turns that it cannot use.
_ERRORS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


class RefusalError(Exception):
    """A chat template refused a conversation; the message says why."""


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: the Jinja text.
        special_tokens: variables of the template, for instance `{"bos_token": "<s>"}`.
        where: the tokenizer or file that it comes from, for error messages.

    Raises:
        TokenizerLoadError: the text is not a Jinja template.

    Thread-safe. Can be pickled.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], where: object) -> None:
        import jinja2

        self.source = source
        self._special_tokens = dict(special_tokens)
        self._where = str(where)
        self._refusals = (jinja2.TemplateError, *_ERRORS)
        try:
            self._template = _compiled(source)
        except jinja2.TemplateError as error:
            problem = f"not valid (line {getattr(error, 'lineno', 1)}: {error.message})"
            raise TokenizerLoadError(
                describe(where, "chat template", problem, "a Jinja template")
            ) from error

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.source, self._special_tokens, self._where)

    def render(self, turns: Sequence[Mapping[str, Any]], *, prompt: bool = False) -> str:
        """Return the text of the turns of a conversation, control tokens included.

        Args:
            turns: oldest first, with the fields that templates read: role, content and others.
            prompt: whether the text ends as a prompt for a further turn does.

        Raises:
            RefusalError: the template refuses the turns, for instance because roles do not
                alternate.
        """
        variables = {
            **_VARIABLES,
            "add_generation_prompt": prompt,
            **self._special_tokens,
            "messages": turns,
        }
        try:
            return self._template.render(variables)
        except self._refusals as error:
            raise RefusalError(first_line(error)) from error


def read_template(template: str) -> str:
    """Return a Jinja text as it is (it holds a brace), or the text of the file with this name.

    Raises:
        TokenizerLoadError: the file cannot be read as UTF-8.
    """
    if "{" in template:
        return template
    path = local_path(template)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = "not UTF-8"
        if isinstance(error, OSError):
            problem = f"not readable ({error.strerror})"
        expected = "a UTF-8 file or a Jinja template"
        raise TokenizerLoadError(describe(path, "chat template", problem, expected)) from error


def _compiled(source: str) -> jinja2.Template:
    import jinja2.ext
    import jinja2.sandbox

    class GenerationBlocks(jinja2.ext.Extension):
        """`{% generation %}` marks the assistant's text for training.

        Here it is replaced by its content.
        """

        tags = {"generation"}  # noqa: RUF012 - declared so in the base class

        def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    def tojson(value: object, ensure_ascii: bool = False, **options: Any) -> str:
        # Jinja's own filter escapes HTML.
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlocks, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals.update(raise_exception=raise_exception, strftime_now=TEMPLATE_DATE.strftime)
    return environment.from_string(source)
