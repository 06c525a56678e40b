// The reader of a datastore's evidence as Python holds it.
#pragma once

#include <memory>

#include "python/bindings.hpp"
#include "session/evidence.hpp"

namespace rest_store {

// A datastore's reader, and the arrays that keep its mappings open.
struct NativeEvidenceReader {
  NativeEvidenceReader(const nanobind::list& shards, std::uint32_t vocabulary, bool live,
                       std::shared_ptr<SuffixCache> cache)
      : keep(shards),
        reader(std::make_unique<EvidenceReader>(shard_views(shards), vocabulary, live, std::move(cache))) {}

  nanobind::list keep;
  std::unique_ptr<EvidenceReader> reader;
};

}  // namespace rest_store
