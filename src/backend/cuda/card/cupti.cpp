#include "backend/cuda/card/profiler.h"

#include "base/error.h"

#include <fmt/format.h>

#include <cstdlib>
#include <mutex>
#include <string>
#include <utility>

#include <cupti.h>
#include <dlfcn.h>

namespace nibble::backend::cuda {
namespace {

constexpr size_t kBufferBytes = 8 << 20;  // about 40,000 kernels
constexpr size_t kBufferAlign = 8;        // cupti_activity.h CUpti_BuffersCallbackRequestFunc

// The functions that are used, by their declarations in cupti.h.
struct Library {
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityDisable) disable = nullptr;
  decltype(&cuptiActivityFlushAll) flush_all = nullptr;
  decltype(&cuptiActivityGetNextRecord) next_record = nullptr;
  decltype(&cuptiGetResultString) result_string = nullptr;
};

// What callbacks on CUPTI's own thread add to.
struct Records {
  std::mutex mutex;
  std::vector<KernelSpan> spans;  // guarded by mutex, as card
  uint32_t card = 0;              // whose
  Library library;
};
Records records;  // the callbacks get no pointer of ours

void* open_library() {
  const std::string name = fmt::format("libcupti.so.{}", CUPTI_API_VERSION / 10000);
  // The loader's own places, then those of the toolkit's packages, whose folder of libraries need not be among them.
  for (const char* folder :
       {"", "/usr/local/cuda/extras/CUPTI/lib64/", "/usr/local/cuda/lib64/", "/usr/local/cuda/lib/"})
    if (void* library = dlopen((folder + name).c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  throw Error(Code::kUnsupported,
              "--profile: want {} (of the CUDA toolkit; LD_LIBRARY_PATH may name its folder), found none", name);
}

template <class Function>
void bind(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr)
    throw Error(Code::kUnsupported, "--profile: want a libcupti with {}, found one without", name);
}

void check_cupti(CUptiResult status, const char* what) {
  if (status == CUPTI_SUCCESS) return;
  const char* text = nullptr;
  records.library.result_string(status, &text);
  throw Error(Code::kDevice, "--profile: {}: {}", what, text == nullptr ? "unknown error" : text);
}

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* size, size_t* most_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(kBufferAlign, kBufferBytes));
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *most_records = 0;  // as many as fit
}

void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid_bytes) {
  const std::lock_guard lock(records.mutex);
  CUpti_Activity* record = nullptr;
  while (records.library.next_record(buffer, valid_bytes, &record) == CUPTI_SUCCESS) {
    if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
    const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
    if (kernel->deviceId == records.card) records.spans.push_back({kernel->start, kernel->end});
  }
  std::free(buffer);
}

}  // namespace

Cupti::Cupti(int card) {
  Library& use = records.library;
  if (use.enable == nullptr) {
    void* const library = open_library();
    bind(library, "cuptiGetResultString", use.result_string);
    bind(library, "cuptiActivityRegisterCallbacks", use.register_callbacks);
    bind(library, "cuptiActivityDisable", use.disable);
    bind(library, "cuptiActivityFlushAll", use.flush_all);
    bind(library, "cuptiActivityGetNextRecord", use.next_record);
    bind(library, "cuptiActivityEnable", use.enable);
    check_cupti(use.register_callbacks(give_buffer, take_buffer), "registering callbacks");
  }
  {
    const std::lock_guard lock(records.mutex);
    records.card = static_cast<uint32_t>(card);
  }
  check_cupti(use.enable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL), "recording kernels");
}

Cupti::~Cupti() {
  records.library.disable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  records.library.flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  const std::lock_guard lock(records.mutex);
  records.spans.clear();
}

std::vector<KernelSpan> Cupti::take() {
  check_cupti(records.library.flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "reading records");
  const std::lock_guard lock(records.mutex);
  return std::exchange(records.spans, {});
}

}  // namespace nibble::backend::cuda
