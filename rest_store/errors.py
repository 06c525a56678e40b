"""The errors of rest-store.

    RestStoreError
    |-- DatastoreError                    a datastore on disk is unusable
    |   |-- DatastoreNotFoundError        no such directory, or no manifest (FileNotFoundError)
    |   |-- DatastoreFormatError          files are damaged or mixed up     (ValueError)
    |   |-- FetchError                    one elsewhere cannot be copied    (OSError)
    |   |-- DatastoreClosedError          the datastore is closed           (ValueError)
    |   |-- DocumentError                 a document, or its id, is invalid (ValueError)
    |   |-- WriterError                   read-only, or another process writes it(OSError)
    |   `-- StorageError                  documents cannot be written or read(OSError)
    |-- TokenizerLoadError                a tokenizer cannot be loaded      (OSError)
    |-- TokenizerMismatchError            the datastore has another tokenizer(ValueError)
    |-- QueryError                        an empty context, an unknown token(ValueError)
    |   `-- ContextTypeError              a context is not 1-D integers     (TypeError)
    |-- ArgumentError                     an argument or a setting is invalid(ValueError)
    |-- SourceError                       a source is invalid, or one too many(TypeError)
    |-- SessionClosedError                the session is closed             (ValueError)
    |-- DataFileError                     recordings or results are unreadable(ValueError)
    |-- ServiceError                      a service cannot start, or a call failed
    |   |-- ServeError                    the service cannot start          (OSError)
    |   |-- ServiceUnavailableError       unreachable, or shutting down     (ConnectionError)
    |   |   `-- DatastoreUnavailableError a page of a datastore can no longer be read
    |   |-- DeadlineError                 no answer before the deadline     (TimeoutError)
    |   |-- OverloadedError               the service has too much work
    |   |-- AuthenticationError           a token is missing or wrong       (PermissionError)
    |   |-- PermissionDeniedError         a token does not allow this       (PermissionError)
    |   |-- UnknownDatastoreError         no datastore of that name is served(LookupError)
    |   `-- ProtocolError                 a message is malformed or out of order(ValueError)
    |       `-- MessageSizeError          a message is too large
    |-- NotSupportedError                 model, cache or mode without drafts(ValueError)
    |-- ModelLoadError                    a model cannot be loaded          (OSError)
    |-- MissingExtraError                 a package is not installed        (ImportError)
    |-- NativeKernelError                 the compiled kernel is missing    (ImportError)
    `-- BuildError                        a datastore cannot be built
        |-- CorpusError                   a corpus cannot be read, or is empty(ValueError)
        |   |-- CorpusNotFoundError       no such file, directory or data set(FileNotFoundError)
        |   `-- CorpusFormatError         the content has another format
        |-- OutputError                   the datastore cannot be written   (OSError)
        |-- MemoryBudgetError             the memory budget is too small    (ValueError)
        |-- WorkerError                   a process or node has failed      (ChildProcessError)
        `-- ResumeError                   no build to resume, or another one(ValueError)

Each error also subclasses the builtin in brackets. Most validation errors read
``{where}: {name} is {actual}, expected {expected}`` (`describe`). A `DraftingWarning` reports a
fault that a generation survives. A `PromptWarning` reports a prompt that was probably meant
otherwise.
"""

from __future__ import annotations

from traceback import format_exception_only
from typing import ClassVar


class RestStoreError(Exception):
    """Base class of all errors that rest-store raises."""


class DatastoreError(RestStoreError):
    """A datastore on disk is unusable."""


class DatastoreNotFoundError(DatastoreError, FileNotFoundError):
    """The path is not a datastore: there is no directory, or it has no manifest."""


class DatastoreFormatError(DatastoreError, ValueError):
    """The files of a datastore are damaged, of another release, or do not belong together.

    Args:
        kind: the fault, one of `KINDS`.
        message: the whole message.

    Attributes:
        kind: as above.
    """

    KINDS: ClassVar[dict[str, str]] = {
        "manifest": (
            "`manifest.json` is not valid JSON, or a field is missing or has the wrong type"
        ),
        "missing file": "a file that the manifest names is missing or cannot be read",
        "magic": "a file does not start with the magic bytes of its kind",
        "byte order": "a file has the opposite byte order",
        "version": "this release cannot read the format version",
        "header": "the header of a shard file is damaged, or its fields contradict each other",
        "size": "a shard file is shorter or longer than its header says",
        "mixed builds": "files of different builds stand side by side",
        "partitions": (
            "there is no such partition, or services do not have the partitions of one datastore"
        ),
        "checksum": "the content of a file does not match its checksum",
        "suffix order": "a suffix array is not sorted, or does not hold every position once",
        "live": "the directory is not a live datastore, or one of another release",
    }

    def __init__(self, kind: str, message: str) -> None:
        assert kind in self.KINDS
        super().__init__(kind, message)
        self.kind = kind

    def __str__(self) -> str:
        return str(self.args[1])


class FetchError(DatastoreError, OSError):
    """A datastore elsewhere cannot be copied.

    It is unreachable or differs from its manifest, or there is no space here.
    """


class DatastoreClosedError(DatastoreError, ValueError):
    """The datastore is closed."""


class DocumentError(DatastoreError, ValueError):
    """A document is empty, too large, or neither text nor tokens; or its id is invalid."""


class WriterError(DatastoreError, OSError):
    """The live datastore was opened for reading, or another process writes it."""


class StorageError(DatastoreError, OSError):
    """The documents of a live datastore cannot be written or read.

    There is no space or no permission, the disk fails, or a file is damaged.
    """


class TokenizerLoadError(RestStoreError, OSError):
    """A tokenizer cannot be loaded from this name or path."""


class TokenizerMismatchError(RestStoreError, ValueError):
    """The tokenizer is not the one the datastore was built with."""


class QueryError(RestStoreError, ValueError):
    """A query is invalid: its context is empty, or holds a token outside the vocabulary."""


class ContextTypeError(QueryError, TypeError):
    """The context is not a one-dimensional sequence of integers."""


class ArgumentError(RestStoreError, ValueError):
    """An argument, an option, a setting or an address is out of range or malformed."""


class SourceError(RestStoreError, TypeError):
    """An object is not a source of drafts, is given twice, or there are too many.

    Or outputs cannot be added to it.
    """


class SessionClosedError(RestStoreError, ValueError):
    """The session is closed."""


class DataFileError(RestStoreError, ValueError):
    """Recordings, results or a calibration are unreadable, incomplete or of another release."""


class ServiceError(RestStoreError):
    """A service cannot start, or a call to one failed."""


class ServeError(ServiceError, OSError):
    """The service cannot start: its address, certificates, tokens or options are not usable."""


class ServiceUnavailableError(ServiceError, ConnectionError):
    """The service cannot be reached, disconnected during the call, or is shutting down."""


class DatastoreUnavailableError(ServiceUnavailableError):
    """The files of an open datastore can no longer be read, here or in the service."""


class DeadlineError(ServiceError, TimeoutError):
    """The service did not answer before the deadline of the call."""


class OverloadedError(ServiceError):
    """The service has too many requests or streams in progress."""


class AuthenticationError(ServiceError, PermissionError):
    """The token is missing, or the service does not accept it."""


class PermissionDeniedError(ServiceError, PermissionError):
    """The token does not allow this: it may only read, or is for other datastores."""


class UnknownDatastoreError(ServiceError, LookupError):
    """The service has no datastore of that name."""


class ProtocolError(ServiceError, ValueError):
    """A message is malformed, contradicts itself, or cannot come at this place of a stream."""


class MessageSizeError(ProtocolError):
    """A request or an answer is larger than the service or the client accepts."""


class NotSupportedError(RestStoreError, ValueError):
    """The model, its cache or the mode of generation cannot verify drafts.

    Examples are encoder-decoder models and beam search.
    """


class ModelLoadError(RestStoreError, OSError):
    """A model cannot be loaded from this name or path."""


class MissingExtraError(RestStoreError, ImportError):
    """A name of rest-store needs an optional package that is not installed.

    The message names the extra.
    """


class NativeKernelError(RestStoreError, ImportError):
    """The compiled kernel is missing; datastores and draft sessions need it."""


class BuildError(RestStoreError):
    """A datastore cannot be built."""


class CorpusError(BuildError, ValueError):
    """A corpus cannot be read, has no text, or has a document too large for the memory."""


class CorpusNotFoundError(CorpusError, FileNotFoundError):
    """The file, directory or data set does not exist."""


class CorpusFormatError(CorpusError):
    """The content of a corpus does not have the expected format."""


class OutputError(BuildError, OSError):
    """The datastore cannot be written.

    There is no space or no permission, or the directory holds something else.
    """


class MemoryBudgetError(BuildError, ValueError):
    """The memory budget is too small for the data that must be in memory at once."""


class WorkerError(BuildError, ChildProcessError):
    """A process of the build ended again and again, or the Ray cluster cannot build this."""


class ResumeError(BuildError, ValueError):
    """There is no unfinished build to resume, or it has other inputs or options, or is damaged."""


class DraftingWarning(RuntimeWarning):
    """A session or source stopped, nothing was drafted, or an output was not remembered.

    The text is unchanged.
    """


class PromptWarning(UserWarning):
    """A prompt was probably meant otherwise.

    An example is a question to a chat model that is continued as text.
    """


def describe(where: object, name: str, actual: object, expected: object) -> str:
    """Return the message ``{where}: {name} is {actual}, expected {expected}``."""
    return f"{where}: {name} is {actual}, expected {expected}"


def error_text(error: BaseException) -> str:
    """Return the type and the words of `error`, also where its `str()` fails."""
    return "".join(format_exception_only(error)).strip()


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class if it has none."""
    lines = [line.strip() for line in (str(error).strip() or type(error).__name__).splitlines()]
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])
