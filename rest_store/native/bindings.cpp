// Python's view of the kernel: conversions and the release of the GIL, no algorithm.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <structmember.h>

#include <atomic>

#include "kernel.hpp"
#include "message_bindings.hpp"
#include "packed_tree.hpp"
#include "page_guard.hpp"
#include "session_bindings.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace rest_store;

namespace {

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// One token of a context. Anything but an integer of the vocabulary is a ValueError or TypeError that the caller
// explains.
Token to_token(PyObject* item, std::uint32_t vocabulary) {
#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000
  if (PyLong_CheckExact(item) && Py_SIZE(item) == 1) {  // most are
    const digit value = reinterpret_cast<const PyLongObject*>(item)->ob_digit[0];
    if (value < vocabulary) return value;
  }
#elif PY_VERSION_HEX >= 0x030C0000
  if (PyLong_CheckExact(item) && PyUnstable_Long_IsCompact(reinterpret_cast<const PyLongObject*>(item))) {
    const Py_ssize_t value = PyUnstable_Long_CompactValue(reinterpret_cast<const PyLongObject*>(item));
    if (value >= 0 && value < static_cast<Py_ssize_t>(vocabulary)) return static_cast<Token>(value);
  }
#endif
  long long value = -1;
  if (PyLong_CheckExact(item)) {  // no Python code runs, so the item stays without a reference of ours
    int overflow = 0;
    value = PyLong_AsLongLongAndOverflow(item, &overflow);
  } else {
    const nb::object kept = nb::borrow(item), number = nb::steal(PyNumber_Index(item));
    if (!number.is_valid()) throw nb::python_error();
    int overflow = 0;
    value = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  }
  if (value < 0 || value >= static_cast<long long>(vocabulary)) throw nb::value_error("token outside the vocabulary");
  return static_cast<Token>(value);
}

template <class Integer>
void copy_tokens(const void* from, std::size_t skip, std::size_t count, std::ptrdiff_t stride, std::uint32_t vocabulary,
                 Token* to) {
  const Integer* data = static_cast<const Integer*>(from);
  for (std::size_t i = 0; i < count; ++i) {
    const auto value = static_cast<std::int64_t>(data[static_cast<std::ptrdiff_t>(skip + i) * stride]);
    if (value < 0 || value >= static_cast<std::int64_t>(vocabulary))
      throw nb::value_error("token outside the vocabulary");
    to[i] = static_cast<Token>(value);
  }
}

// The last tokens of `context`, a list, a tuple or a 1-D integer array.
Suffix to_suffix(const Kernel& kernel, nb::handle context, std::size_t max_suffix, bool whole = false) {
  Token tokens[kMaxSuffix];
  std::size_t count = 0;
  const auto keep = [&](std::size_t size) {
    if (size == 0 || (whole && size > max_suffix)) throw nb::value_error("context of unusable length");
    count = std::min({size, max_suffix, kMaxSuffix});
    return size - count;
  };
  if (PyList_CheckExact(context.ptr()) || PyTuple_CheckExact(context.ptr())) {
    const std::size_t skip = keep(static_cast<std::size_t>(PySequence_Fast_GET_SIZE(context.ptr())));
    for (std::size_t i = 0; i < count; ++i) {
      // Taking an item as an index may run Python code, which may shorten the list.
      if (skip + i >= static_cast<std::size_t>(PySequence_Fast_GET_SIZE(context.ptr())))
        throw nb::value_error("context that changes while it is read");
      PyObject* item = PySequence_Fast_GET_ITEM(context.ptr(), static_cast<Py_ssize_t>(skip + i));
      tokens[i] = to_token(item, kernel.vocabulary());
    }
  } else {
    const auto array = nb::cast<nb::ndarray<nb::ndim<1>, nb::ro, nb::device::cpu>>(context);
    const std::size_t skip = keep(array.shape(0));
    const auto copy = [&]<class Integer>(Integer) {
      copy_tokens<Integer>(array.data(), skip, count, array.stride(0), kernel.vocabulary(), tokens);
    };
    if (array.dtype() == nb::dtype<std::int64_t>()) copy(std::int64_t{});
    else if (array.dtype() == nb::dtype<std::int32_t>()) copy(std::int32_t{});
    else if (array.dtype() == nb::dtype<std::uint16_t>()) copy(std::uint16_t{});
    else if (array.dtype() == nb::dtype<std::uint32_t>()) copy(std::uint32_t{});
    else throw nb::type_error("context of an unexpected type");
  }
  return Suffix(tokens, count, kernel.width());
}

// Ask memory for the last items of `context`, if it is a list: each is an object somewhere.
void ask_for_items(nb::handle context, std::size_t max_suffix) {
  if (!PyList_CheckExact(context.ptr())) return;
  const auto size = static_cast<std::size_t>(PyList_GET_SIZE(context.ptr()));
  for (std::size_t i = size - std::min(size, max_suffix); i < size; ++i)
    prefetch(PyList_GET_ITEM(context.ptr(), static_cast<Py_ssize_t>(i)));
}

// Makes instances of rest_store.tree.TokenTree: sets the slots that say in which bytes a tree lies, and where.
class TreeMaker {
 public:
  explicit TreeMaker(nb::object type)
      : keep_(std::move(type)),
        type_(reinterpret_cast<PyTypeObject*>(keep_.ptr())),
        block_(slot("_block")),
        start_(slot("_start")),
        extras_(slot("_extras")) {}

  nb::object operator()(nb::handle block, std::size_t start) const {
    nb::object tree = nb::steal(type_->tp_alloc(type_, 0));
    if (!tree.is_valid()) throw nb::python_error();
    set(tree, block_, nb::borrow(block));
    set(tree, start_, nb::steal(PyLong_FromSize_t(start)));
    set(tree, extras_, nb::none());
    return tree;
  }

 private:
  // Where an instance holds what is in a slot.
  Py_ssize_t slot(const char* name) const {
    const nb::object descriptor = keep_.attr(name);
    if (!Py_IS_TYPE(descriptor.ptr(), &PyMemberDescr_Type)) throw nb::type_error("not a class with slots");
    return reinterpret_cast<PyMemberDescrObject*>(descriptor.ptr())->d_member->offset;
  }

  static void set(nb::handle tree, Py_ssize_t offset, nb::object value) {
    if (!value.is_valid()) throw nb::python_error();
    *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(tree.ptr()) + offset) = value.release().ptr();
  }

  nb::object keep_;
  PyTypeObject* type_;
  Py_ssize_t block_, start_, extras_;
};

// Gives the GIL to other threads as long as it lives.
//
// Who finds the GIL taken is put to sleep by Python, and woken long after it is free again: several times the length of
// a query. If one of these has it, it will soon be asking the next question, so wait a moment before going to sleep.
class GilReleased {
 public:
  GilReleased() {
    taken_.store(false, std::memory_order_relaxed);
    state_ = PyEval_SaveThread();
  }

  ~GilReleased() {
    for (int turn = 0; turn < kTurns && taken_.load(std::memory_order_relaxed); ++turn) pause();
    PyEval_RestoreThread(state_);
    taken_.store(true, std::memory_order_relaxed);
  }

  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  static constexpr int kTurns = 64;  // a few microseconds

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb");
#endif
  }

  static inline std::atomic<bool> taken_ = false;  // by a thread that was here, as far as is known
  PyThreadState* state_;
};

// A kernel and the arrays that keep its mappings open.
class Opened {
 public:
  Opened(const nb::list& shards, std::uint32_t vocabulary, nb::object tree_type, nb::object prepared)
      : keep_(shards),
        keep_prepared_(prepared),
        kernel_(views(shards), vocabulary, prepared_view(prepared)),
        make_(std::move(tree_type)) {}

  nb::tuple longest_suffix_match(nb::handle context, std::size_t max_suffix) {
    const std::vector<Suffix> contexts{to_suffix(kernel_, context, max_suffix)};
    std::uint32_t length = 0;
    std::uint64_t count = 0;
    {
      const GilReleased released;
      const Match& match = kernel_.match(contexts)[0];
      length = match.length;
      count = match.count;
    }
    return nb::make_tuple(length, count);
  }

  nb::object draft(nb::handle context, std::uint32_t max_nodes, std::uint32_t max_suffix, std::uint32_t max_depth) {
    const Suffix suffix = to_suffix(kernel_, context, max_suffix);
    const Trees& trees = answer(std::span(&suffix, 1), {max_nodes, max_suffix, max_depth});
    return make_(nb::bytes(trees.block.data(), trees.block.size()), 0);
  }

  nb::list draft_batch(const nb::list& batch, std::uint32_t max_nodes, std::uint32_t max_suffix,
                       std::uint32_t max_depth) {
    std::vector<Suffix> contexts;
    contexts.reserve(batch.size());
    for (std::size_t i = 0; i < std::min(kAsked, batch.size()); ++i) ask_for_items(batch[i], max_suffix);
    for (std::size_t i = 0; i < batch.size(); ++i) {
      if (i + kAsked < batch.size()) ask_for_items(batch[i + kAsked], max_suffix);
      contexts.push_back(to_suffix(kernel_, batch[i], max_suffix));
    }
    const Trees& trees = answer(contexts, {max_nodes, max_suffix, max_depth});
    nb::list out = nb::steal<nb::list>(PyList_New(static_cast<Py_ssize_t>(contexts.size())));
    for (std::size_t first = 0; first < contexts.size(); first += kSharing) {
      const std::size_t last = std::min(first + kSharing, contexts.size()), start = trees.starts[first];
      const std::size_t end = last < contexts.size() ? trees.starts[last] : trees.block.size();
      const nb::bytes block(trees.block.data() + start, end - start);
      for (std::size_t i = first; i < last; ++i)
        PyList_SET_ITEM(out.ptr(), static_cast<Py_ssize_t>(i), make_(block, trees.starts[i] - start).release().ptr());
    }
    return out;
  }

  std::uint64_t count(nb::handle tokens) {
    const Suffix sequence = to_suffix(kernel_, tokens, kMaxSuffix, true);
    const GilReleased released;
    return kernel_.count(sequence);
  }

 private:
  static std::vector<ShardView> views(const nb::list& shards) {
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

  // None: nothing is prepared.
  static PreparedView prepared_view(nb::handle prepared) {
    if (prepared.is_none()) return {};
    const nb::object header = prepared.attr("header");
    const auto field = [&](const char* name) { return nb::cast<std::uint64_t>(header.attr(name)); };
    const auto small = [&](const char* name) { return static_cast<std::uint32_t>(field(name)); };
    return {nb::cast<Bytes>(prepared.attr("payload_and_tail")).data(),
            field("payload_size"),
            field("draft_count"),
            small("bucket_bits"),
            small("max_nodes"),
            small("max_depth"),
            small("width"),
            small("vocabulary_size")};
  }

  static constexpr std::size_t kSharing = 64;  // trees that lie in the same bytes, at most
  static constexpr std::size_t kAsked = 4;     // contexts whose items are on their way while one is read

  const Trees& answer(std::span<const Suffix> contexts, const Limits& limits) {
    if (limits.max_nodes > kMaxNodes || limits.max_depth > kMaxDepth) throw nb::value_error("limit out of range");
    const GilReleased released;
    return kernel_.draft(contexts, limits);
  }

  nb::list keep_;
  nb::object keep_prepared_;
  Kernel kernel_;
  TreeMaker make_;
};

// A guard and the arrays whose pages it watches.
class Guarded {
 public:
  explicit Guarded(const nb::list& arrays) : keep_(arrays) {
    for (nb::handle array : arrays) {
      const auto bytes = nb::cast<Bytes>(array);
      guard_.watch(bytes.data(), bytes.size());
    }
  }

  bool lost() const { return guard_.lost(); }

 private:
  nb::list keep_;  // freed after the guard that watches them
  PageGuard guard_;
};

}  // namespace

NB_MODULE(_kernel, module) {
  nb::set_leak_warnings(false);  // a process may well end with a datastore open, whatever still refers to it
  module.doc() = "The native query kernel; rest_store.kernel chooses between it and the numpy reference.";
  module.def("tree_fault", [](const nb::bytes& packed, std::uint32_t vocabulary, std::int32_t max_depth) {
    if (packed.size() % kNodeSize != 0) throw nb::value_error("not a whole number of nodes");
    return static_cast<int>(tree_fault(packed.c_str(), packed.size() / kNodeSize, vocabulary, max_depth));
  });
  bind_sessions(module);
  bind_messages(module);
  nb::class_<Opened>(module, "NativeKernel")
      .def(nb::init<const nb::list&, std::uint32_t, nb::object, nb::object>(), "shards"_a, "vocabulary_size"_a,
           "tree_type"_a, "prepared"_a = nb::none())
      .def("longest_suffix_match", &Opened::longest_suffix_match)
      .def("draft", &Opened::draft)
      .def("draft_batch", &Opened::draft_batch)
      .def("count", &Opened::count);
  nb::class_<Guarded>(module, "PageGuard")
      .def(nb::init<const nb::list&>(), "arrays"_a)
      .def_prop_ro("lost", &Guarded::lost);
}
