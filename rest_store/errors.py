"""The errors of rest-store.

    RestStoreError
    |-- DatastoreError                  a datastore on disk is unusable
    |   |-- DatastoreNotFoundError      no such directory, or no manifest in it          (FileNotFoundError)
    |   |-- ManifestError               manifest.json is malformed                       (ValueError)
    |   |-- MissingShardError           a file of the manifest is missing or unreadable  (FileNotFoundError)
    |   |-- NotAShardError              the file does not start with the magic bytes     (ValueError)
    |   |-- ByteOrderError              the file has the opposite byte order             (ValueError)
    |   |-- FormatVersionError          this release cannot read the format version      (ValueError)
    |   |-- ShardHeaderError            a header is damaged or contradicts itself        (ValueError)
    |   |-- ShardSizeError              a file is shorter or longer than its header says (ValueError)
    |   |-- MixedBuildError             files of different builds side by side           (ValueError)
    |   |-- PartError                   no such part, or parts that are not one datastore (ValueError)
    |   |-- ChecksumError               content differs from its checksum        (ValueError)
    |   |-- SuffixOrderError            suffix array unsorted or not one entry per token (ValueError)
    |   |-- FetchError                  one that lies elsewhere cannot be copied         (OSError)
    |   |-- DatastoreClosedError        the datastore is closed                          (ValueError)
    |   `-- LiveDatastoreError          a live datastore cannot do this
    |       |-- LiveFormatError         the directory holds something else               (ValueError)
    |       |-- DocumentError           a document, or its id, is invalid                (ValueError)
    |       |-- WriterError             opened for reading, or another process writes it (OSError)
    |       `-- StorageError            documents cannot be written or read              (OSError)
    |-- TokenizerError
    |   |-- TokenizerLoadError          a tokenizer cannot be loaded                     (OSError)
    |   `-- TokenizerMismatchError      the datastore has another tokenizer              (ValueError)
    |-- QueryError                      a query is invalid
    |   |-- ContextTypeError            a context is not 1-D integers                    (TypeError)
    |   |-- EmptyContextError           a context has no tokens                          (ValueError)
    |   |-- TokenRangeError             a token id is outside the vocabulary             (ValueError)
    |   `-- LimitError                  a limit such as max_nodes is out of range        (ValueError)
    |-- TreeError                       arrays are not a valid draft tree                (ValueError)
    |-- NativeKernelError               the compiled kernel is missing                   (ImportError)
    |-- SessionError                    a draft session cannot do this
    |   |-- SourceError                 a source is invalid, or there are too many       (TypeError)
    |   |-- SessionClosedError          the session is closed                            (ValueError)
    |   |-- BatchError                  sessions cannot be asked together                (ValueError)
    |-- CalibrationError                a calibration is unreadable or of another release (ValueError)
    |-- RecordingError                  recordings are unreadable or insufficient        (ValueError)
    |-- ResultsError                    benchmark results are unreadable or incomplete   (ValueError)
    |-- ServiceError                    a service cannot start, or a call failed
    |   |-- ServeError                  the service cannot start                         (OSError)
    |   |-- TargetError                 a client's address, token or certificate is invalid (ValueError)
    |   |-- ServiceUnavailableError     unreachable, or shutting down                    (ConnectionError)
    |   |   `-- DatastoreUnavailableError a page of a datastore can no longer be read
    |   |-- DeadlineError               no answer before the deadline                    (TimeoutError)
    |   |-- OverloadedError             the service has too much work
    |   |-- AuthenticationError         a token is missing or wrong                      (PermissionError)
    |   |-- PermissionDeniedError       a token does not allow this                      (PermissionError)
    |   |-- UnknownDatastoreError       no datastore of that name is served              (LookupError)
    |   |-- MessageSizeError            a message is too large                           (ValueError)
    |   |-- MessageOrderError           a message of a stream cannot come here           (ValueError)
    |   |-- ProtocolError               an answer is malformed                           (ValueError)
    |   `-- ServiceInternalError        the service failed internally                    (RuntimeError)
    |-- GenerationError                 text cannot be generated with drafts
    |   |-- ModelNotSupportedError      the model cannot verify draft trees              (ValueError)
    |   |-- ModeNotSupportedError       neither greedy search nor sampling               (ValueError)
    |   |-- CacheNotSupportedError      the key-value cache cannot hold trees            (ValueError)
    |   |-- NoTokenizerError            text, but no tokenizer to read or write it with  (TypeError)
    |   |-- RememberError               outputs cannot be added to this object           (TypeError)
    |   |-- PromptError                 a prompt is neither text nor token ids           (ValueError)
    |   `-- ModelLoadError              a model cannot be loaded                         (OSError)
    |-- MissingExtraError               a package that a name needs is not installed   (ImportError)
    |-- EngineSettingsError             a drafter's setting in a serving engine is wrong (ValueError)
    `-- BuildError                      a datastore cannot be built
        |-- CorpusError                 a corpus cannot be read                          (ValueError)
        |   |-- CorpusNotFoundError     no such file, directory or data set              (FileNotFoundError)
        |   |-- CorpusFormatError       the content has another format
        |   |-- DocumentSizeError       a document is too large to be held in memory
        |   `-- EmptyCorpusError        there are no documents, or only empty ones
        |-- OutputError                 the datastore cannot be written                  (OSError)
        |-- MemoryBudgetError           the memory budget is too small                   (ValueError)
        |-- WorkerError                 a process that works for the build ended         (ChildProcessError)
        |-- ClusterError                a Ray cluster cannot build this                  (ConnectionError)
        `-- ResumeError                 there is no build to resume, or it differs       (ValueError)

Each error also subclasses the builtin in brackets. Validation errors read
``{where}: {what} is {found}, expected {expected}``, see `describe`. Other messages say what failed. What is survived is
said by a `DraftingWarning`; a prompt that was probably meant otherwise by a `PromptWarning`.
"""

from __future__ import annotations

from traceback import format_exception_only


class RestStoreError(Exception):
    """Base class of all errors that rest-store raises."""


class DatastoreError(RestStoreError):
    """A datastore on disk is unusable."""


class DatastoreNotFoundError(DatastoreError, FileNotFoundError):
    """The path is not a datastore: there is no directory, or it has no manifest."""


class ManifestError(DatastoreError, ValueError):
    """`manifest.json` is not valid JSON, or a field is missing or has the wrong type."""


class MissingShardError(DatastoreError, FileNotFoundError):
    """A file that the manifest names is missing or cannot be read."""


class NotAShardError(DatastoreError, ValueError):
    """The file does not start with the magic bytes of its kind."""


class ByteOrderError(DatastoreError, ValueError):
    """The file was written with the opposite byte order."""


class FormatVersionError(DatastoreError, ValueError):
    """This release cannot read the format version of the file or manifest."""


class ShardHeaderError(DatastoreError, ValueError):
    """The header of a shard file is damaged, or its fields contradict each other."""


class ShardSizeError(DatastoreError, ValueError):
    """A shard file is shorter or longer than its header says."""


class MixedBuildError(DatastoreError, ValueError):
    """Files of different builds are mixed: each is intact, but they do not belong together."""


class PartError(DatastoreError, ValueError):
    """There is no such part of a datastore, or services do not have the parts of one: one twice, of another build."""


class ChecksumError(DatastoreError, ValueError):
    """The content of a shard file does not match its recorded checksum."""


class SuffixOrderError(DatastoreError, ValueError):
    """A suffix array is not sorted, or does not hold the position of every token exactly once."""


class FetchError(DatastoreError, OSError):
    """A datastore that lies elsewhere cannot be copied: unreachable, not what its manifest says, or no space here."""


class DatastoreClosedError(DatastoreError, ValueError):
    """The datastore is closed."""


class LiveDatastoreError(DatastoreError):
    """A live datastore cannot do this."""


class LiveFormatError(LiveDatastoreError, ValueError):
    """The directory is not a live datastore, or one of another release."""


class DocumentError(LiveDatastoreError, ValueError):
    """A document to be added is empty, too large or neither text nor tokens, or its id is invalid."""


class WriterError(LiveDatastoreError, OSError):
    """The live datastore was opened for reading, or another process writes it."""


class StorageError(LiveDatastoreError, OSError):
    """The documents of a live datastore cannot be written or read: no space, no permission, a failing disk, damage."""


class TokenizerError(RestStoreError):
    """A tokenizer is unusable."""


class TokenizerLoadError(TokenizerError, OSError):
    """A tokenizer cannot be loaded from this name or path."""


class TokenizerMismatchError(TokenizerError, ValueError):
    """The tokenizer is not the one the datastore was built with."""


class QueryError(RestStoreError):
    """A query is invalid."""


class ContextTypeError(QueryError, TypeError):
    """The context is not a one-dimensional sequence of integers."""


class EmptyContextError(QueryError, ValueError):
    """The context has no tokens."""


class TokenRangeError(QueryError, ValueError):
    """A token id is outside the vocabulary of the datastore."""


class LimitError(QueryError, ValueError):
    """A limit (`max_nodes`, `max_suffix`, `max_depth`) is out of range."""


class TreeError(RestStoreError, ValueError):
    """The arrays are not a valid draft tree."""


class ServiceError(RestStoreError):
    """A service cannot start, or a call to one failed."""


class ServeError(ServiceError, OSError):
    """The service cannot start: its address, certificates, tokens or options are not usable."""


class TargetError(ServiceError, ValueError):
    """A client's address, token, certificate or list of datastores is not valid."""


class ServiceUnavailableError(ServiceError, ConnectionError):
    """The service cannot be reached, disconnected during the call, or is shutting down."""


class DatastoreUnavailableError(ServiceUnavailableError):
    """The files of an open datastore can no longer be read, in this process or in the service that answers."""


class DeadlineError(ServiceError, TimeoutError):
    """The service did not answer before the deadline of the call."""


class OverloadedError(ServiceError):
    """The service has too many requests or streams in progress."""


class AuthenticationError(ServiceError, PermissionError):
    """The token is missing, or the service does not accept it."""


class PermissionDeniedError(ServiceError, PermissionError):
    """The service accepts the token, but not for this: it may only read, or is for other datastores."""


class UnknownDatastoreError(ServiceError, LookupError):
    """The service has no datastore of that name."""


class MessageSizeError(ServiceError, ValueError):
    """A request or an answer is larger than the service or the client accepts."""


class MessageOrderError(ServiceError, ValueError):
    """A message of a stream cannot come here, such as a second opening of a session."""


class ProtocolError(ServiceError, ValueError):
    """The answer of a service is malformed or contradicts itself."""


class ServiceInternalError(ServiceError, RuntimeError):
    """The service failed internally."""


class NativeKernelError(RestStoreError, ImportError):
    """The compiled kernel is missing; datastores and draft sessions need it."""


class SessionError(RestStoreError):
    """A draft session cannot do what it was called for."""


class SourceError(SessionError, TypeError):
    """An object is not a source of continuations, a source is given twice, or there are too many."""


class SessionClosedError(SessionError, ValueError):
    """The draft session is closed."""


class BatchError(SessionError, ValueError):
    """What was passed for a batch is no list of different sessions, or not of its length."""


class CalibrationError(RestStoreError, ValueError):
    """The file is not a calibration, is damaged, or belongs to another release."""


class RecordingError(RestStoreError, ValueError):
    """Recordings cannot be read, or are too few to fit or to report."""


class ResultsError(RestStoreError, ValueError):
    """Benchmark results cannot be read, or lack what a report needs."""


class GenerationError(RestStoreError):
    """Text cannot be generated with drafts."""


class ModelNotSupportedError(GenerationError, ValueError):
    """Draft trees cannot be verified with this model (encoder-decoder, recurrent, ALiBi...)."""


class ModeNotSupportedError(GenerationError, ValueError):
    """The generation mode is not decided token by token (beam search, guidance...)."""


class CacheNotSupportedError(GenerationError, ValueError):
    """The key-value cache cannot hold a draft tree (quantized, offloaded, recurrent...)."""


class NoTokenizerError(GenerationError, TypeError):
    """Text goes in or comes out, stop strings included, and there is no tokenizer to read or write it with."""


class RememberError(GenerationError, TypeError):
    """`remember` is neither a live datastore, a client of one, nor another object that takes documents."""


class PromptError(GenerationError, ValueError):
    """The prompt is neither text, nor messages that the chat template takes, nor token ids in rows of equal length."""


class DraftingWarning(RuntimeWarning):
    """A session or source stopped, nothing was drafted, or an output was not remembered; the text is as without."""


class PromptWarning(UserWarning):
    """A prompt was probably meant otherwise, such as a question to a chat model that was continued as text."""


class ModelLoadError(GenerationError, OSError):
    """A model cannot be loaded from this name or path."""


class MissingExtraError(RestStoreError, ImportError):
    """A name of rest-store needs an optional package that is not installed; the message names the extra."""


class EngineSettingsError(RestStoreError, ValueError):
    """A setting of a drafter inside a serving engine is unknown, or has the wrong type."""


class BuildError(RestStoreError):
    """A datastore cannot be built."""


class CorpusError(BuildError, ValueError):
    """A corpus cannot be read."""


class CorpusNotFoundError(CorpusError, FileNotFoundError):
    """The file, directory or data set does not exist."""


class CorpusFormatError(CorpusError):
    """The content of a corpus does not have the expected format."""


class DocumentSizeError(CorpusError):
    """A document or record is larger than what a build holds in memory at once."""


class EmptyCorpusError(CorpusError):
    """The corpora have no documents, or only empty ones."""


class OutputError(BuildError, OSError):
    """The datastore cannot be written: no space, no permission, or the directory holds something else."""


class MemoryBudgetError(BuildError, ValueError):
    """The memory budget is too small for what must be in memory at once."""


class WorkerError(BuildError, ChildProcessError):
    """A process that works for a build ended unexpectedly, again and again."""


class ClusterError(BuildError, ConnectionError):
    """A Ray cluster cannot be reached, or its nodes differ from this one or cannot see the files of the build."""


class ResumeError(BuildError, ValueError):
    """There is no unfinished build to resume, or it has other inputs or options, or is damaged."""


def describe(where: object, what: str, found: object, expected: object) -> str:
    """Return the message of a validation error: ``{where}: {what} is {found}, expected {expected}``."""
    return f"{where}: {what} is {found}, expected {expected}"


def error_text(error: BaseException) -> str:
    """Return the type and the words of `error`, also where its `str()` fails."""
    return "".join(format_exception_only(error)).strip()


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class if it has none."""
    lines = [line.strip() for line in (str(error).strip() or type(error).__name__).splitlines()]
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])
