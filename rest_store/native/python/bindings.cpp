// The Python module `_kernel`: converts arguments and results and releases the GIL; holds no algorithm.

#include "python/bindings.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include "search/page_guard.hpp"
#include "trees/kernel.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace rest_store;

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::vector<ShardView> shard_views(const nb::list& shards) {
  std::vector<ShardView> out;
  for (nb::handle shard : shards) {
    const auto symbols = nb::cast<Bytes>(shard.attr("symbols")), keys = nb::cast<Bytes>(shard.attr("keys")),
               entries = nb::cast<Bytes>(shard.attr("entries"));
    const auto field = [&](const char* name) { return nb::cast<std::uint64_t>(shard.attr(name)); };
    out.push_back({symbols.data(), reinterpret_cast<const std::uint64_t*>(keys.data()), entries.data(),
                   field("position_count"), field("entry_count"), field("key_count"),
                   static_cast<std::uint32_t>(field("width")), static_cast<std::uint32_t>(field("bits"))});
  }
  return out;
}

namespace {

using Tokens = std::vector<Token>;
using TreePointer = std::shared_ptr<const PackedTree>;

// A kernel and the arrays that keep its mappings open.
class NativeKernel {
 public:
  NativeKernel(const nb::list& shards, std::uint32_t vocabulary)
      : arrays_(shards), kernel_(shard_views(shards), vocabulary) {}

  nb::tuple longest_suffix_match(const Tokens& context) {
    const Suffix suffix = suffix_of(context);
    std::uint32_t length = 0;
    std::uint64_t count = 0;
    {
      const nb::gil_scoped_release released;
      const Match& match = kernel_.match(suffix);
      length = match.length;
      count = match.count;
    }
    return nb::make_tuple(length, count);
  }

  nb::tuple draft(const Tokens& context, std::uint32_t max_nodes, std::uint32_t max_depth) {
    const Suffix suffix = suffix_of(context);
    const Limits limits = checked(max_nodes, max_depth);
    TreePointer tree;
    {
      const nb::gil_scoped_release released;
      tree = kernel_.draft(suffix, limits);
    }
    return as_tuple(*tree);
  }

  std::uint64_t count(const Tokens& tokens) {
    const Suffix sequence = suffix_of(tokens);
    const nb::gil_scoped_release released;
    return kernel_.count(sequence);
  }

 private:
  Suffix suffix_of(const Tokens& tokens) const {
    if (tokens.empty() || tokens.size() > kMaxSuffix) throw nb::value_error("number of tokens out of range");
    for (const Token token : tokens)
      if (token >= kernel_.vocabulary()) throw nb::value_error("token outside the vocabulary");
    return Suffix(tokens.data(), tokens.size(), kernel_.width());
  }

  static Limits checked(std::uint32_t max_nodes, std::uint32_t max_depth) {
    if (max_nodes < 1 || max_nodes > kMaxNodes || max_depth < 1 || max_depth > kMaxDepth)
      throw nb::value_error("limit out of range");
    return {max_nodes, max_depth};
  }

  static nb::tuple as_tuple(const PackedTree& tree) {
    return nb::make_tuple(nb::bytes(tree.nodes.data(), tree.nodes.size()),
                          nb::make_tuple(tree.match_length, tree.match_count));
  }

  nb::list arrays_;
  Kernel kernel_;
};

// A page guard and the arrays whose pages it watches.
class GuardedArrays {
 public:
  explicit GuardedArrays(const nb::list& arrays) : arrays_(arrays) {
    for (nb::handle array : arrays) {
      const auto bytes = nb::cast<Bytes>(array);
      guard_.watch(bytes.data(), bytes.size());
    }
  }

  bool lost() const { return guard_.lost(); }

 private:
  nb::list arrays_;  // declared first, so that it is destroyed after the guard
  PageGuard guard_;
};

}  // namespace

NB_MODULE(_kernel, module) {
  nb::set_leak_warnings(false);  // a process may end with a datastore still open
  module.doc() = "The native query kernel; rest_store.datastore.kernel chooses between it and the numpy reference.";
  module.def("tree_fault", [](const nb::bytes& packed, std::uint32_t vocabulary, std::int32_t max_depth) {
    if (packed.size() % kNodeSize != 0) throw nb::value_error("not a whole number of nodes");
    return static_cast<int>(tree_fault(packed.c_str(), packed.size() / kNodeSize, vocabulary, max_depth));
  });
  bind_sessions(module);
  nb::class_<NativeKernel>(module, "NativeKernel")
      .def(nb::init<const nb::list&, std::uint32_t>(), "shards"_a, "vocabulary_size"_a)
      .def("longest_suffix_match", &NativeKernel::longest_suffix_match)
      .def("draft", &NativeKernel::draft)
      .def("count", &NativeKernel::count);
  nb::class_<GuardedArrays>(module, "PageGuard")
      .def(nb::init<const nb::list&>(), "arrays"_a)
      .def_prop_ro("lost", &GuardedArrays::lost);
}
