#include "engine/pages.h"

#include "base/error.h"

namespace nibble::engine {

PagePool::PagePool(const std::array<int32_t, backend::kLayerKinds>& pages) {
  for (const LayerKind kind : kKinds) {
    const int32_t count = pages[static_cast<size_t>(kind)];
    taken_[kind].assign(static_cast<size_t>(count), false);
    free_[kind].reserve(static_cast<size_t>(count));
    for (int32_t page = count - 1; page >= 0; --page) free_[kind].push_back(page);  // the low ones go first
  }
}

int32_t PagePool::take(LayerKind kind) {
  if (free_[kind].empty()) return -1;
  const int32_t page = free_[kind].back();
  free_[kind].pop_back();
  taken_[kind][static_cast<size_t>(page)] = true;
  return page;
}

void PagePool::give_back(LayerKind kind, int32_t page) {
  check(page >= 0 && page < total(kind) && taken_[kind][static_cast<size_t>(page)], "a page is given back once");
  taken_[kind][static_cast<size_t>(page)] = false;
  free_[kind].push_back(page);
}

}  // namespace nibble::engine
