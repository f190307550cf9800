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

void refuse_pages(KvPages::Type type, Kernel kernel) {
  throw Error(Code::kUnsupported, "cuda: {}: want pages of bf16, f32 or e4m3, found {}", kernel.name, name_of(type));
}

}  // namespace nibble::backend::cuda
