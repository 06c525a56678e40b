from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Selection(_message.Message):
    __slots__ = ("datastores", "tokenizer_fingerprint", "namespace", "group")
    DATASTORES_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    datastores: _containers.RepeatedScalarFieldContainer[str]
    tokenizer_fingerprint: str
    namespace: str
    group: str
    def __init__(self, datastores: _Optional[_Iterable[str]] = ..., tokenizer_fingerprint: _Optional[str] = ..., namespace: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class TreeLimits(_message.Message):
    __slots__ = ("max_nodes", "max_suffix", "max_depth")
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    MAX_SUFFIX_FIELD_NUMBER: _ClassVar[int]
    MAX_DEPTH_FIELD_NUMBER: _ClassVar[int]
    max_nodes: int
    max_suffix: int
    max_depth: int
    def __init__(self, max_nodes: _Optional[int] = ..., max_suffix: _Optional[int] = ..., max_depth: _Optional[int] = ...) -> None: ...

class Context(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class Tree(_message.Message):
    __slots__ = ("nodes", "match_length", "match_count", "scores", "origins")
    NODES_FIELD_NUMBER: _ClassVar[int]
    MATCH_LENGTH_FIELD_NUMBER: _ClassVar[int]
    MATCH_COUNT_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    ORIGINS_FIELD_NUMBER: _ClassVar[int]
    nodes: bytes
    match_length: int
    match_count: int
    scores: bytes
    origins: bytes
    def __init__(self, nodes: _Optional[bytes] = ..., match_length: _Optional[int] = ..., match_count: _Optional[int] = ..., scores: _Optional[bytes] = ..., origins: _Optional[bytes] = ...) -> None: ...

class DraftRequest(_message.Message):
    __slots__ = ("selection", "limits", "contexts")
    SELECTION_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    CONTEXTS_FIELD_NUMBER: _ClassVar[int]
    selection: Selection
    limits: TreeLimits
    contexts: _containers.RepeatedCompositeFieldContainer[Context]
    def __init__(self, selection: _Optional[_Union[Selection, _Mapping]] = ..., limits: _Optional[_Union[TreeLimits, _Mapping]] = ..., contexts: _Optional[_Iterable[_Union[Context, _Mapping]]] = ...) -> None: ...

class DraftResponse(_message.Message):
    __slots__ = ("trees",)
    TREES_FIELD_NUMBER: _ClassVar[int]
    trees: _containers.RepeatedCompositeFieldContainer[Tree]
    def __init__(self, trees: _Optional[_Iterable[_Union[Tree, _Mapping]]] = ...) -> None: ...

class DraftSessionRequest(_message.Message):
    __slots__ = ("open", "accepted", "draft")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    open: SessionOpening
    accepted: _containers.RepeatedCompositeFieldContainer[Accepted]
    draft: DraftOptions
    def __init__(self, open: _Optional[_Union[SessionOpening, _Mapping]] = ..., accepted: _Optional[_Iterable[_Union[Accepted, _Mapping]]] = ..., draft: _Optional[_Union[DraftOptions, _Mapping]] = ...) -> None: ...

class SessionOpening(_message.Message):
    __slots__ = ("selection", "tokens", "prompt_lookup", "recycled_logits", "fixed_calibration", "references")
    SELECTION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOOKUP_FIELD_NUMBER: _ClassVar[int]
    RECYCLED_LOGITS_FIELD_NUMBER: _ClassVar[int]
    FIXED_CALIBRATION_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_FIELD_NUMBER: _ClassVar[int]
    selection: Selection
    tokens: bytes
    prompt_lookup: bool
    recycled_logits: bytes
    fixed_calibration: bool
    references: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, selection: _Optional[_Union[Selection, _Mapping]] = ..., tokens: _Optional[bytes] = ..., prompt_lookup: bool = ..., recycled_logits: _Optional[bytes] = ..., fixed_calibration: bool = ..., references: _Optional[_Iterable[bytes]] = ...) -> None: ...

class TopK(_message.Message):
    __slots__ = ("k", "tokens")
    K_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    k: int
    tokens: bytes
    def __init__(self, k: _Optional[int] = ..., tokens: _Optional[bytes] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ("tokens", "top_k", "node_top_k")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    NODE_TOP_K_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    top_k: TopK
    node_top_k: TopK
    def __init__(self, tokens: _Optional[_Iterable[int]] = ..., top_k: _Optional[_Union[TopK, _Mapping]] = ..., node_top_k: _Optional[_Union[TopK, _Mapping]] = ...) -> None: ...

class DraftOptions(_message.Message):
    __slots__ = ("max_nodes", "costs", "chain")
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    COSTS_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    max_nodes: int
    costs: _containers.RepeatedScalarFieldContainer[float]
    chain: bool
    def __init__(self, max_nodes: _Optional[int] = ..., costs: _Optional[_Iterable[float]] = ..., chain: bool = ...) -> None: ...

class DraftSessionResponse(_message.Message):
    __slots__ = ("tree",)
    TREE_FIELD_NUMBER: _ClassVar[int]
    tree: Tree
    def __init__(self, tree: _Optional[_Union[Tree, _Mapping]] = ...) -> None: ...

class CountRequest(_message.Message):
    __slots__ = ("selection", "tokens")
    SELECTION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    selection: Selection
    tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, selection: _Optional[_Union[Selection, _Mapping]] = ..., tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class CountResponse(_message.Message):
    __slots__ = ("counts",)
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, counts: _Optional[_Iterable[int]] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("version", "datastores", "limits")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DATASTORES_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    version: str
    datastores: _containers.RepeatedCompositeFieldContainer[DatastoreDescription]
    limits: ServiceLimits
    def __init__(self, version: _Optional[str] = ..., datastores: _Optional[_Iterable[_Union[DatastoreDescription, _Mapping]]] = ..., limits: _Optional[_Union[ServiceLimits, _Mapping]] = ...) -> None: ...

class DatastoreDescription(_message.Message):
    __slots__ = ("name", "tokenizer", "token_count", "document_count", "shard_count", "size", "built", "live", "partition", "shared_after")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    SHARD_COUNT_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    BUILT_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    SHARED_AFTER_FIELD_NUMBER: _ClassVar[int]
    name: str
    tokenizer: TokenizerDescription
    token_count: int
    document_count: int
    shard_count: int
    size: int
    built: int
    live: bool
    partition: PartitionDescription
    shared_after: int
    def __init__(self, name: _Optional[str] = ..., tokenizer: _Optional[_Union[TokenizerDescription, _Mapping]] = ..., token_count: _Optional[int] = ..., document_count: _Optional[int] = ..., shard_count: _Optional[int] = ..., size: _Optional[int] = ..., built: _Optional[int] = ..., live: bool = ..., partition: _Optional[_Union[PartitionDescription, _Mapping]] = ..., shared_after: _Optional[int] = ...) -> None: ...

class PartitionDescription(_message.Message):
    __slots__ = ("number", "total", "build")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    BUILD_FIELD_NUMBER: _ClassVar[int]
    number: int
    total: int
    build: str
    def __init__(self, number: _Optional[int] = ..., total: _Optional[int] = ..., build: _Optional[str] = ...) -> None: ...

class TokenizerDescription(_message.Message):
    __slots__ = ("name", "fingerprint", "vocabulary_size", "special_tokens", "added_tokens", "encoding")
    class SpecialTokensEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class AddedTokensEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ADDED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    name: str
    fingerprint: str
    vocabulary_size: int
    special_tokens: _containers.ScalarMap[str, int]
    added_tokens: _containers.ScalarMap[str, int]
    encoding: str
    def __init__(self, name: _Optional[str] = ..., fingerprint: _Optional[str] = ..., vocabulary_size: _Optional[int] = ..., special_tokens: _Optional[_Mapping[str, int]] = ..., added_tokens: _Optional[_Mapping[str, int]] = ..., encoding: _Optional[str] = ...) -> None: ...

class ServiceLimits(_message.Message):
    __slots__ = ("max_message_bytes", "max_contexts", "max_request_bytes", "max_session_tokens")
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXTS_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_SESSION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    max_message_bytes: int
    max_contexts: int
    max_request_bytes: int
    max_session_tokens: int
    def __init__(self, max_message_bytes: _Optional[int] = ..., max_contexts: _Optional[int] = ..., max_request_bytes: _Optional[int] = ..., max_session_tokens: _Optional[int] = ...) -> None: ...

class Document(_message.Message):
    __slots__ = ("tokens", "id")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    tokens: bytes
    id: str
    def __init__(self, tokens: _Optional[bytes] = ..., id: _Optional[str] = ...) -> None: ...

class AddRequest(_message.Message):
    __slots__ = ("datastore", "tokenizer_fingerprint", "documents", "namespace", "group", "epoch")
    DATASTORE_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    datastore: str
    tokenizer_fingerprint: str
    documents: _containers.RepeatedCompositeFieldContainer[Document]
    namespace: str
    group: str
    epoch: int
    def __init__(self, datastore: _Optional[str] = ..., tokenizer_fingerprint: _Optional[str] = ..., documents: _Optional[_Iterable[_Union[Document, _Mapping]]] = ..., namespace: _Optional[str] = ..., group: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class AddResponse(_message.Message):
    __slots__ = ("added", "sequence")
    ADDED_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    added: _containers.RepeatedScalarFieldContainer[str]
    sequence: int
    def __init__(self, added: _Optional[_Iterable[str]] = ..., sequence: _Optional[int] = ...) -> None: ...

class DeleteRequest(_message.Message):
    __slots__ = ("datastore", "ids", "namespace")
    DATASTORE_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    datastore: str
    ids: _containers.RepeatedScalarFieldContainer[str]
    namespace: str
    def __init__(self, datastore: _Optional[str] = ..., ids: _Optional[_Iterable[str]] = ..., namespace: _Optional[str] = ...) -> None: ...

class DeleteResponse(_message.Message):
    __slots__ = ("deleted", "sequence")
    DELETED_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    deleted: int
    sequence: int
    def __init__(self, deleted: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class FollowRequest(_message.Message):
    __slots__ = ("datastore", "tokenizer_fingerprint", "after", "datastore_id")
    DATASTORE_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    DATASTORE_ID_FIELD_NUMBER: _ClassVar[int]
    datastore: str
    tokenizer_fingerprint: str
    after: int
    datastore_id: str
    def __init__(self, datastore: _Optional[str] = ..., tokenizer_fingerprint: _Optional[str] = ..., after: _Optional[int] = ..., datastore_id: _Optional[str] = ...) -> None: ...

class FollowResponse(_message.Message):
    __slots__ = ("changes", "checksum")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    changes: bytes
    checksum: int
    def __init__(self, changes: _Optional[bytes] = ..., checksum: _Optional[int] = ...) -> None: ...

class Changes(_message.Message):
    __slots__ = ("datastore_id", "first", "last", "head", "added", "removed", "shared_after")
    DATASTORE_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    ADDED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    SHARED_AFTER_FIELD_NUMBER: _ClassVar[int]
    datastore_id: str
    first: int
    last: int
    head: int
    added: _containers.RepeatedCompositeFieldContainer[AddedDocument]
    removed: _containers.RepeatedCompositeFieldContainer[Removal]
    shared_after: int
    def __init__(self, datastore_id: _Optional[str] = ..., first: _Optional[int] = ..., last: _Optional[int] = ..., head: _Optional[int] = ..., added: _Optional[_Iterable[_Union[AddedDocument, _Mapping]]] = ..., removed: _Optional[_Iterable[_Union[Removal, _Mapping]]] = ..., shared_after: _Optional[int] = ...) -> None: ...

class AddedDocument(_message.Message):
    __slots__ = ("number", "namespace", "digest", "added", "group", "epoch", "symbols")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    ADDED_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SYMBOLS_FIELD_NUMBER: _ClassVar[int]
    number: int
    namespace: str
    digest: bytes
    added: float
    group: str
    epoch: int
    symbols: bytes
    def __init__(self, number: _Optional[int] = ..., namespace: _Optional[str] = ..., digest: _Optional[bytes] = ..., added: _Optional[float] = ..., group: _Optional[str] = ..., epoch: _Optional[int] = ..., symbols: _Optional[bytes] = ...) -> None: ...

class Removal(_message.Message):
    __slots__ = ("number", "first", "last", "deleted")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    number: int
    first: int
    last: int
    deleted: bool
    def __init__(self, number: _Optional[int] = ..., first: _Optional[int] = ..., last: _Optional[int] = ..., deleted: bool = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("datastore", "file", "offset", "build")
    DATASTORE_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    BUILD_FIELD_NUMBER: _ClassVar[int]
    datastore: str
    file: str
    offset: int
    build: str
    def __init__(self, datastore: _Optional[str] = ..., file: _Optional[str] = ..., offset: _Optional[int] = ..., build: _Optional[str] = ...) -> None: ...

class FetchResponse(_message.Message):
    __slots__ = ("data", "checksum")
    DATA_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    checksum: int
    def __init__(self, data: _Optional[bytes] = ..., checksum: _Optional[int] = ...) -> None: ...
