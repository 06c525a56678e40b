"""Every error that rest-store raises on purpose.

    RestStoreError
    |-- DatastoreError                  a datastore on disk cannot be used as it is
    |   |-- DatastoreNotFoundError      no such directory, or no manifest in it  (FileNotFoundError)
    |   |-- ManifestError               manifest.json cannot be read as one      (ValueError)
    |   |-- MissingShardError           a file of the manifest is absent, unreadable (FileNotFoundError)
    |   |-- NotAShardError              the file does not start with our magic   (ValueError)
    |   |-- ByteOrderError              written with the other byte order        (ValueError)
    |   |-- FormatVersionError          a newer (or unknown) format version      (ValueError)
    |   |-- ShardHeaderError            header damaged or fields contradictory   (ValueError)
    |   |-- ShardSizeError              truncated, or longer than its header says (ValueError)
    |   |-- MixedBuildError             files of different builds side by side   (ValueError)
    |   |-- ChecksumError               content differs from its checksum        (ValueError)
    |   `-- SuffixOrderError            suffix array unsorted or not one entry per token (ValueError)
    |-- TokenizerError
    |   |-- TokenizerLoadError          a tokenizer cannot be loaded             (OSError)
    |   `-- TokenizerMismatchError      not the tokenizer of the datastore       (ValueError)
    |-- QueryError                      a request that cannot be answered
    |   |-- ContextTypeError            context is not 1-D integers              (TypeError)
    |   |-- EmptyContextError           context holds no token                   (ValueError)
    |   |-- TokenRangeError             an id outside the vocabulary             (ValueError)
    |   `-- LimitError                  a limit such as max_nodes out of range   (ValueError)
    |-- TreeError                       arrays that are not a draft tree         (ValueError)
    |-- SessionError                    a draft session cannot do what is asked
    |   |-- NativeKernelError           it needs the compiled kernel             (RuntimeError)
    |   |-- SourceError                 an object that is no source, or too many (TypeError)
    |   `-- SessionClosedError          the session was closed                   (ValueError)
    |-- CalibrationError                a file that is no calibration of this release (ValueError)
    |-- RecordingError                  recordings that cannot be read or replayed (ValueError)
    |-- ResultsError                    results of benchmarks that cannot be read or reported (ValueError)
    |-- ServiceError                    a service cannot be run, or did not answer as asked
    |   |-- ServeError                  it cannot start as asked                 (OSError)
    |   |-- TargetError                 an address, name or certificate that is none (ValueError)
    |   |-- ServiceUnavailableError     not reachable, went away, shutting down  (ConnectionError)
    |   |   |-- CircuitOpenError        not asked: it has just failed too often
    |   |   `-- DatastoreUnavailableError its datastore cannot be read any more
    |   |-- DeadlineError               no answer in time                        (TimeoutError)
    |   |-- OverloadedError             it has too much work in flight
    |   |-- AuthenticationError         token missing or wrong                   (PermissionError)
    |   |-- UnknownDatastoreError       it serves no datastore of that name      (LookupError)
    |   |-- MessageSizeError            a message above the size limit           (ValueError)
    |   |-- ProtocolError               an answer that is none of ours           (ValueError)
    |   `-- ServiceInternalError        a defect of the service                  (RuntimeError)
    |-- GenerationError                 text cannot be generated with drafts as asked
    |   |-- ModelNotSupportedError      a model that cannot verify trees         (ValueError)
    |   |-- ModeNotSupportedError       not greedy search or sampling            (ValueError)
    |   |-- CacheNotSupportedError      a key-value cache that cannot hold trees (ValueError)
    |   |-- DrafterError                neither sources nor what makes a session (TypeError)
    |   `-- ModelLoadError              a model cannot be loaded                 (OSError)
    `-- BuildError                      a datastore cannot be built
        |-- CorpusError                 a corpus cannot be read as asked         (ValueError)
        |   |-- CorpusNotFoundError     no such file, directory or data set      (FileNotFoundError)
        |   |-- CorpusFormatError       content does not have the expected schema
        |   `-- EmptyCorpusError        no document, or only empty ones
        |-- OutputError                 the datastore cannot be written          (OSError)
        |-- MemoryBudgetError           too small a memory budget                (ValueError)
        `-- ResumeError                 nothing to resume, or of other inputs    (ValueError)

Each also subclasses the builtin that a caller would expect, named at the right. Messages read
``{where}: {what} is {found}, expected {expected}``; `describe` writes them.
"""

from __future__ import annotations


class RestStoreError(Exception):
    """Base of every error that rest-store raises on purpose."""


class DatastoreError(RestStoreError):
    """A datastore on disk cannot be used as it is."""


class DatastoreNotFoundError(DatastoreError, FileNotFoundError):
    """There is no datastore at the path: no directory, or no manifest in it."""


class ManifestError(DatastoreError, ValueError):
    """`manifest.json` is not valid JSON, or a field is absent or of the wrong type."""


class MissingShardError(DatastoreError, FileNotFoundError):
    """The manifest names a file that is not there, or that cannot be read."""


class NotAShardError(DatastoreError, ValueError):
    """The file does not start with the magic bytes of such a file."""


class ByteOrderError(DatastoreError, ValueError):
    """The file was written with the opposite byte order."""


class FormatVersionError(DatastoreError, ValueError):
    """The file or manifest has a format version that this release cannot read."""


class ShardHeaderError(DatastoreError, ValueError):
    """The header of a shard file is damaged, or its fields contradict each other."""


class ShardSizeError(DatastoreError, ValueError):
    """A shard file is shorter or longer than its header says."""


class MixedBuildError(DatastoreError, ValueError):
    """Files of different builds lie side by side: intact, but not made together."""


class ChecksumError(DatastoreError, ValueError):
    """The content of a shard file differs from its recorded checksum."""


class SuffixOrderError(DatastoreError, ValueError):
    """A suffix array is not sorted, or does not hold each token's position once."""


class TokenizerError(RestStoreError):
    """Something is wrong with a tokenizer."""


class TokenizerLoadError(TokenizerError, OSError):
    """A tokenizer cannot be loaded from the given name or path."""


class TokenizerMismatchError(TokenizerError, ValueError):
    """The tokenizer is not the one the datastore was built with."""


class QueryError(RestStoreError):
    """A request to a datastore that cannot be answered as asked."""


class ContextTypeError(QueryError, TypeError):
    """The context is not a one-dimensional sequence of integers."""


class EmptyContextError(QueryError, ValueError):
    """The context holds no token."""


class TokenRangeError(QueryError, ValueError):
    """A token id lies outside the vocabulary of the datastore."""


class LimitError(QueryError, ValueError):
    """A limit (`max_nodes`, `max_suffix`, `max_depth`) is out of range."""


class TreeError(RestStoreError, ValueError):
    """The arrays given do not form a draft tree."""


class ServiceError(RestStoreError):
    """A datastore service cannot be run, or did not answer as asked."""


class ServeError(ServiceError, OSError):
    """The service cannot start as asked: its address, certificates, token or options."""


class TargetError(ServiceError, ValueError):
    """An address, token, certificate or list of datastores with which no service can be asked."""


class ServiceUnavailableError(ServiceError, ConnectionError):
    """The service cannot be reached, went away during the call, or is shutting down."""


class CircuitOpenError(ServiceUnavailableError):
    """The service was not asked, because it has just failed too often."""


class DatastoreUnavailableError(ServiceUnavailableError):
    """The service answers, but cannot read the datastore's files any more."""


class DeadlineError(ServiceError, TimeoutError):
    """The service did not answer before the deadline of the call."""


class OverloadedError(ServiceError):
    """The service refuses more work, or more streams, than it has in flight."""


class AuthenticationError(ServiceError, PermissionError):
    """The service does not accept the client's token, or lacks one."""


class UnknownDatastoreError(ServiceError, LookupError):
    """The service has no datastore of the name asked for."""


class MessageSizeError(ServiceError, ValueError):
    """A request or response is larger than the service or the client takes."""


class ProtocolError(ServiceError, ValueError):
    """The answer of a service is not one of a datastore service, or contradicts itself."""


class ServiceInternalError(ServiceError, RuntimeError):
    """A defect of the service."""


class SessionError(RestStoreError):
    """A draft session cannot do what is asked of it."""


class NativeKernelError(SessionError, RuntimeError):
    """Draft sessions and calibrations run in the compiled kernel, which was not built."""


class SourceError(SessionError, TypeError):
    """An object that is no source of continuations, one given twice, or more sources than a session takes."""


class SessionClosedError(SessionError, ValueError):
    """The draft session was closed."""


class CalibrationError(RestStoreError, ValueError):
    """The file is no calibration, is damaged, or belongs to another release."""


class RecordingError(RestStoreError, ValueError):
    """Recordings cannot be read, or hold too little to fit or to report."""


class ResultsError(RestStoreError, ValueError):
    """Results of benchmarks cannot be read, or do not hold what is to be reported."""


class GenerationError(RestStoreError):
    """Text cannot be generated with drafts as asked."""


class ModelNotSupportedError(GenerationError, ValueError):
    """Draft trees cannot be verified with this model: encoder-decoder, recurrent, ALiBi..."""


class ModeNotSupportedError(GenerationError, ValueError):
    """The generation is not decided token by token: beam search, guidance, another speculative method..."""


class CacheNotSupportedError(GenerationError, ValueError):
    """The key-value cache cannot hold a tree: quantized, offloaded, recurrent..."""


class DrafterError(GenerationError, TypeError):
    """The drafter is neither a list of sources nor a callable that makes a session."""


class ModelLoadError(GenerationError, OSError):
    """A model cannot be loaded from the given name or path."""


class BuildError(RestStoreError):
    """A datastore cannot be built."""


class CorpusError(BuildError, ValueError):
    """A corpus cannot be read as asked."""


class CorpusNotFoundError(CorpusError, FileNotFoundError):
    """There is no such file, directory or data set."""


class CorpusFormatError(CorpusError):
    """The content of a corpus does not have the expected schema."""


class EmptyCorpusError(CorpusError):
    """The corpora hold no document, or only empty ones."""


class OutputError(BuildError, OSError):
    """The datastore cannot be written: no space, no permission, or the place is taken."""


class MemoryBudgetError(BuildError, ValueError):
    """The memory budget is too small for what must be held at once."""


class ResumeError(BuildError, ValueError):
    """There is no unfinished build to resume, or it is of other inputs or options."""


def describe(where: object, what: str, found: object, expected: object) -> str:
    """Return the one wording of our errors: ``{where}: {what} is {found}, expected {expected}``."""
    return f"{where}: {what} is {found}, expected {expected}"
