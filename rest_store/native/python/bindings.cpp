// The Python module `_kernel`: converts arguments and results and releases the GIL; holds no
// algorithm.

#include "python/bindings.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "search/file_mapping.hpp"
#include "sort/remaining_suffixes.hpp"
#include "sort/sort_and_pack.hpp"
#include "trees/kernel.hpp"

using namespace rest_store;
using namespace nb::literals;

using Bytes = Array<std::uint8_t>;

std::vector<ShardView> shard_views(const nb::list& shards) {
  std::vector<ShardView> out;
  for (nb::handle shard : shards) {
    const auto symbols = nb::cast<Bytes>(shard.attr("symbols")),
               keys = nb::cast<Bytes>(shard.attr("keys")),
               entries = nb::cast<Bytes>(shard.attr("entries"));
    const auto field = [&](const char* name) { return nb::cast<std::uint64_t>(shard.attr(name)); };
    out.push_back({symbols.data(), reinterpret_cast<const std::uint64_t*>(keys.data()),
                   entries.data(), field("position_count"), field("entry_count"),
                   field("key_count"), static_cast<std::uint32_t>(field("width")),
                   static_cast<std::uint32_t>(field("bits"))});
  }
  return out;
}

std::shared_ptr<const Sharing> require_sharing(const nb::list& shards,
                                               std::shared_ptr<Sharing> sharing) {
  if (sharing != nullptr && sharing->size() != shards.size())
    throw nb::value_error("groups of another number of shards");
  return sharing;
}

namespace {

// The mappings of the files that shards are in.
std::vector<const FileMapping*> mappings_of(const nb::list& shards) {
  std::vector<const FileMapping*> out;
  for (nb::handle shard : shards)
    for (nb::handle file : shard.attr("files"))
      out.push_back(nb::cast<const FileMapping*>(file.attr("mapping")));
  return out;
}

using Tokens = std::vector<Token>;

// A kernel and the shards that keep its mappings open. Answers that were read from lost pages are
// not returned.
class NativeKernel {
 public:
  NativeKernel(const nb::list& shards, std::uint32_t vocabulary, std::shared_ptr<Sharing> sharing)
      : shards_(shards),
        mappings_(mappings_of(shards)),
        kernel_(shard_views(shards), vocabulary, require_sharing(shards, std::move(sharing))) {}

  nb::tuple longest_suffix_match(const Tokens& context) {
    const Suffix suffix = suffix_of(context, kMaxSuffix);
    auto scratch = take_scratch();
    std::uint32_t length = 0;
    std::uint64_t count = 0;
    {
      const nb::gil_scoped_release released;
      const Match& match = kernel_.match(suffix, *scratch);
      length = match.length;
      count = match.count;
    }
    scratch_.push_back(std::move(scratch));
    require_readable();
    return nb::make_tuple(length, count);
  }

  nb::tuple draft(const Tokens& context, std::uint32_t max_nodes, std::uint32_t max_depth) {
    const Suffix suffix = suffix_of(context, kMaxSuffix);
    if (max_nodes < 1 || max_nodes > kMaxNodes || max_depth < 1 || max_depth > kMaxDepth)
      throw nb::value_error("limit out of range");
    auto scratch = take_scratch();
    TreeCache::Tree tree;
    {
      const nb::gil_scoped_release released;
      tree = kernel_.draft(suffix, {max_nodes, max_depth}, *scratch);
    }
    scratch_.push_back(std::move(scratch));
    require_readable();
    return nb::make_tuple(nb::bytes(tree->columns.data(), tree->columns.size()),
                          nb::make_tuple(tree->match_length, tree->match_count));
  }

  std::uint64_t count(const Tokens& tokens) {
    const Suffix sequence = suffix_of(tokens, kMaxSequence);
    std::uint64_t count = 0;
    {
      const nb::gil_scoped_release released;
      count = kernel_.count(sequence);
    }
    require_readable();
    return count;
  }

  // Raise the error of a shard with a page that could not be read.
  void require_readable() const {
    if (std::none_of(mappings_.begin(), mappings_.end(),
                     [](const FileMapping* mapping) { return mapping->lost(); }))
      return;
    for (nb::handle shard : shards_) shard.attr("require_readable")();
  }

 private:
  // Scratch for a query: that of an earlier query, or a new one. The GIL guards it.
  std::unique_ptr<Kernel::Scratch> take_scratch() {
    if (scratch_.empty()) return std::make_unique<Kernel::Scratch>();
    std::unique_ptr<Kernel::Scratch> taken = std::move(scratch_.back());
    scratch_.pop_back();
    return taken;
  }

  Suffix suffix_of(const Tokens& tokens, std::size_t most) const {
    if (tokens.empty() || tokens.size() > most)
      throw nb::value_error("number of tokens out of range");
    for (const Token token : tokens)
      if (token >= kernel_.vocabulary()) throw nb::value_error("token outside the vocabulary");
    return Suffix(tokens, kernel_.width());
  }

  nb::list shards_;
  std::vector<const FileMapping*> mappings_;  // kept open by the shards
  Kernel kernel_;
  std::vector<std::unique_ptr<Kernel::Scratch>> scratch_;
};

template <class Item>
using Room = nb::ndarray<Item, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Sort the suffixes of symbols and pack them, with the GIL released for all of it; returns the
// result of `sorter`, the address of a ByteSorter.
std::int32_t sort_suffixes(std::uintptr_t sorter, const Bytes& symbols, std::uint32_t width,
                           std::uint32_t bits, const Room<std::uint64_t>& keys,
                           const Room<std::uint8_t>& entries) {
  if (width != 2 && width != 3) throw nb::value_error("width out of range");
  const nb::gil_scoped_release released;
  return sort_and_pack(reinterpret_cast<ByteSorter>(sorter), {symbols.data(), symbols.size()},
                       width, bits, {keys.data(), keys.size()}, {entries.data(), entries.size()});
}

// The suffixes of a shard without some of its documents; returns whether they are complete. The GIL
// is released for all of it.
bool remaining_suffixes(nb::handle shard, const Array<Position>& begins,
                        const Array<Position>& ends, const Bytes& symbols,
                        std::uint64_t entry_count, std::uint32_t bits,
                        const Room<std::uint64_t>& keys, const Room<std::uint8_t>& entries) {
  nb::list one;
  one.append(shard);
  const std::vector<ShardView> views = shard_views(one);
  const nb::gil_scoped_release released;
  return pack_remaining(views[0], span_of(begins), span_of(ends), span_of(symbols), entry_count,
                        bits, {keys.data(), keys.size()}, {entries.data(), entries.size()});
}

// The groups of a shard; the GIL is released while it is read.
std::shared_ptr<ShardGroups> shard_groups(nb::handle shard, const Array<GroupKey>& keys) {
  nb::list one;
  one.append(shard);
  const std::vector<ShardView> views = shard_views(one);
  const nb::gil_scoped_release released;
  return std::make_shared<ShardGroups>(views[0], span_of(keys));
}

std::shared_ptr<Sharing> sharing(std::vector<std::shared_ptr<ShardGroups>> groups,
                                 std::size_t shared_after, const std::optional<GroupKey>& reader) {
  if (shared_after < 1 || shared_after > kMaxSharedAfter)
    throw nb::value_error("number of groups out of range");
  return std::make_shared<Sharing>(std::move(groups), shared_after, reader ? &*reader : nullptr);
}

// A mapping of an open file.
FileMapping* mapped(int descriptor, std::size_t size) {
  try {
    return new FileMapping(descriptor, size);
  } catch (const std::system_error& error) {
    errno = error.code().value();
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
  }
}

}  // namespace

NB_MODULE(_kernel, module) {
  nb::set_leak_warnings(false);  // a process may end with a datastore still open
  module.doc() = "The compiled kernel; rest_store.datastore.kernel loads it.";
  module.def("sort_suffixes", &sort_suffixes, "sorter"_a, "symbols"_a, "width"_a, "bits"_a,
             "keys"_a, "entries"_a);
  module.def("remaining_suffixes", &remaining_suffixes, "shard"_a, "begins"_a, "ends"_a,
             "symbols"_a, "entry_count"_a, "bits"_a, "keys"_a, "entries"_a);
  module.attr("MAX_SHARED_AFTER") = kMaxSharedAfter;
  nb::class_<ShardGroups>(module, "ShardGroups").def(nb::new_(&shard_groups), "shard"_a, "keys"_a);
  nb::class_<Sharing>(module, "Sharing")
      .def(nb::new_(&sharing), "groups"_a, "shared_after"_a, "reader"_a.none());
  bind_calibrations(module);
  bind_sessions(module);
  nb::class_<NativeKernel>(module, "NativeKernel", nb::is_weak_referenceable())
      .def(nb::init<const nb::list&, std::uint32_t, std::shared_ptr<Sharing>>(), "shards"_a,
           "vocabulary_size"_a, "sharing"_a = nb::none())
      .def("longest_suffix_match", &NativeKernel::longest_suffix_match)
      .def("draft", &NativeKernel::draft)
      .def("count", &NativeKernel::count)
      .def("require_readable", &NativeKernel::require_readable);
  nb::class_<FileMapping>(module, "FileMapping")
      .def(nb::new_(&mapped), "descriptor"_a, "size"_a)
      .def_prop_ro("bytes",
                   [](nb::handle_t<FileMapping> self) {
                     const auto& mapping = nb::cast<const FileMapping&>(self);
                     return nb::ndarray<nb::numpy, const std::uint8_t, nb::ndim<1>>(
                         mapping.data(), {mapping.size()}, self);
                   })
      .def_prop_ro("lost", &FileMapping::lost)
      .def("expect_scattered_reads", &FileMapping::expect_scattered_reads);
}
