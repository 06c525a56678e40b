// The public layout of a draft tree, as Python's TokenTree holds it and messages carry it: counts
// int64[N], tokens int32[N], parents int32[N] and depths int32[N], one column after the other.
#pragma once

#include <cstddef>

namespace rest_store {

inline constexpr std::size_t kNodeBytes = 20;

// Where a column of N nodes begins, in bytes for each node.
inline constexpr std::size_t kCountsAt = 0;
inline constexpr std::size_t kTokensAt = 8;
inline constexpr std::size_t kParentsAt = 12;
inline constexpr std::size_t kDepthsAt = 16;

}  // namespace rest_store
