// Python's view of the kernel: conversions and the release of the GIL, no algorithm.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <structmember.h>

#include <atomic>

#include "python/context_bindings.hpp"
#include "python/session_bindings.hpp"
#include "search/page_guard.hpp"
#include "trees/kernel.hpp"
#include "trees/packed_tree.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace rest_store;

namespace {

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Makes instances of rest_store.datastore.tree.TokenTree: sets the slots that say in which bytes a tree lies, and
// where.
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
// a query. If one of these has it, it will soon be asking the next question, so wait a moment before going to sleep: of
// those who ask for batches, the longer that reading and showing one takes.
class GilReleased {
 public:
  explicit GilReleased(std::size_t contexts = 1) : turns_(contexts > 1 ? 4 * kTurns : kTurns) {
    taken_.store(false, std::memory_order_relaxed);
    state_ = PyEval_SaveThread();
  }

  ~GilReleased() {
    for (int turn = 0; turn < turns_ && taken_.load(std::memory_order_relaxed); ++turn) pause();
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
  int turns_;
  PyThreadState* state_;
};

// A kernel and the arrays that keep its mappings open.
class Opened {
 public:
  Opened(const nb::list& shards, std::uint32_t vocabulary, nb::object tree_type, nb::object prepared)
      : keep_(shards),
        keep_prepared_(prepared),
        kernel_(views(shards), vocabulary, prepared_view(prepared)),
        reader_(vocabulary, kernel_.width()),
        make_(std::move(tree_type)) {}

  nb::tuple longest_suffix_match(nb::handle context, std::size_t max_suffix) {
    const std::vector<Suffix> contexts{reader_.last(context, max_suffix)};
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
    const Suffix suffix = reader_.last(context, max_suffix);
    Answer answer;
    Trees& trees = answer.trees;
    fill(trees, std::span(&suffix, 1), {max_nodes, max_suffix, max_depth});
    if (trees.places[0].kept) return kept(*trees.places[0].kept);
    return make_(nb::bytes(trees.block.data(), trees.block.size()), 0);
  }

  // `batch` is a list of contexts, or 2-D integers.
  nb::list draft_batch(nb::handle batch, std::uint32_t max_nodes, std::uint32_t max_suffix, std::uint32_t max_depth) {
    const std::vector<Suffix> contexts = reader_.batch(batch, max_suffix);
    Answer answer;
    Trees& trees = answer.trees;
    fill(trees, contexts, {max_nodes, max_suffix, max_depth});
    nb::list out = nb::steal<nb::list>(PyList_New(static_cast<Py_ssize_t>(contexts.size())));
    std::size_t start = 0, place = 0;
    for (const std::size_t end : trees.ends) {
      const nb::bytes block(trees.block.data() + start, end - start);
      for (const std::size_t last = std::min(place + Trees::kTogether, contexts.size()); place < last; ++place) {
        const Trees::Place& tree = trees.places[place];
        if (place + kAsked < contexts.size() && trees.places[place + kAsked].kept)
          prefetch(trees.places[place + kAsked].kept->shown.get());
        nb::object shown = tree.kept ? kept(*tree.kept) : make_(block, tree.start - start);
        PyList_SET_ITEM(out.ptr(), static_cast<Py_ssize_t>(place), shown.release().ptr());
      }
      start = end;
    }
    return out;
  }

  std::uint64_t count(nb::handle tokens) {
    const Suffix sequence = reader_.whole(tokens);
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

  static constexpr std::size_t kAsked = 4;  // trees that are on their way while one is shown

  // Takes a thread's spare Trees, whose memory is used again and again, and gives them back empty. Not the thread's own
  // while Python objects are made: that may run Python code, and so another question.
  struct Answer {
    Answer() { std::swap(trees, spare()); }
    ~Answer() {
      trees.clear();  // under the GIL: what callers were shown of trees that are no longer kept is freed here
      if (trees.block.capacity() <= kSpared) std::swap(trees, spare());
    }

    Answer(const Answer&) = delete;
    Answer& operator=(const Answer&) = delete;

    static constexpr std::size_t kSpared = std::size_t{1} << 22;  // bytes that a thread keeps, at most

    [[gnu::noinline]] static Trees& spare() {
      thread_local Trees own;
      return own;
    }

    Trees trees;
  };

  void fill(Trees& trees, std::span<const Suffix> contexts, const Limits& limits) {
    const auto within = [](std::uint32_t limit, std::size_t most) { return limit > 0 && limit <= most; };
    if (!within(limits.max_nodes, kMaxNodes) || !within(limits.max_depth, kMaxDepth))
      throw nb::value_error("limit out of range");
    const GilReleased released(contexts.size());
    kernel_.draft(contexts, limits, trees);
  }

  // The one instance that all callers get of a tree that is kept.
  nb::object kept(KeptTree& tree) const {
    if (!tree.shown) {
      nb::object made = make_(nb::bytes(tree.block.data(), tree.block.size()), 0);
      if (!tree.shown) {  // as it may be by now, if making it ran other code
        tree.shown = {made.release().ptr(), [](void* shown) { Py_DECREF(static_cast<PyObject*>(shown)); }};
        tree.block = Block();
      }
    }
    return nb::borrow(static_cast<PyObject*>(tree.shown.get()));
  }

  nb::list keep_;
  nb::object keep_prepared_;
  Kernel kernel_;
  ContextReader reader_;
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
  module.doc() = "The native query kernel; rest_store.datastore.kernel chooses between it and the numpy reference.";
  module.def("tree_fault", [](const nb::bytes& packed, std::uint32_t vocabulary, std::int32_t max_depth) {
    if (packed.size() % kNodeSize != 0) throw nb::value_error("not a whole number of nodes");
    return static_cast<int>(tree_fault(packed.c_str(), packed.size() / kNodeSize, vocabulary, max_depth));
  });
  bind_sessions(module);
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
