#include "backend/cuda/launch/kernel_table.h"

#include "backend/cuda/attention/page_types.h"
#include "base/error.h"

namespace nibble::backend::cuda {

void note_launch(Kernel kernel, const Launch& on) {
  if (on.counts != nullptr) ++(*on.counts)[kernel.name];
  if (on.trace != nullptr) on.trace->push_back({on.stage, kernel});
}

void require_shape(bool holds, Kernel kernel, std::string_view want, int64_t found) {
  if (!holds) [[unlikely]]
    throw Error(Code::kUnsupported, "cuda: {}: want {}, found {}", kernel.name, want, found);
}

const PageType& page_type(KvDtype type) {
  for (const PageType& pages : kPageTypes)
    if (pages.dtype == type) return pages;
  require_taken(type_of(type), BackendKind::kCuda);
  check(false, "kPageTypes has every type of cuda's");
  return kPageTypes[0];
}

}  // namespace nibble::backend::cuda
