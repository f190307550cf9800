#pragma once
// What every kernel's header stands on: its name, how a launch is cut, where it is enqueued and what notes it. The form
// of a kernel: backend/cuda/README.md. Plain C++: programs are made where there is no CUDA.

#include "backend/kv_dtype.h"
#include "backend/plan.h"

#include <array>
#include <cstdint>
#include <map>
#include <source_location>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// cudaStream_t points to one.
struct CUstream_st;  // NOLINT(readability-identifier-naming): CUDA's name

namespace nibble::backend::cuda {

// A kernel as profilers show it: the name of its function, and in <> which instance where it is a template.
struct Kernel {
  std::string_view name;
  friend constexpr bool operator==(Kernel, Kernel) = default;
};

// One with an instance per type of KV pages: "name<bf16>", …
class PageKernel {
 public:
  explicit constexpr PageKernel(std::string_view name) {
    for (const KvType& type : kKvTypes) {
      Text& text = texts_[static_cast<size_t>(type.dtype)];
      for (const std::string_view part : {name, std::string_view("<"), type.name, std::string_view(">")})
        for (const char c : part) text.at[text.size++] = c;
    }
  }
  // REQUIRES that this lives as long as its answer.
  [[nodiscard]] constexpr Kernel of(KvDtype type) const {
    const Text& text = texts_[static_cast<size_t>(type)];
    return {std::string_view(text.at.data(), text.size)};
  }

 private:
  struct Text {
    std::array<char, 48> at{};
    size_t size = 0;
  };
  std::array<Text, kKvDtypes> texts_{};
};

// How one launch cuts its work; what a kernel adds stands in a type that derives from it. Made from a shape and a card.
struct Plan {
  Kernel kernel{};     // where an architecture chose it (arch/arch.h)
  std::string tile{};  // for people: what `inspect --plan` prints
  int64_t grid = 1, grid_y = 1;
  int threads = 0;         // of a CTA; 0: its instance says it
  int64_t smem_bytes = 0;  // of a CTA, dynamic
};

// What plans need to know of a card (cudaDeviceProp: multiProcessorCount, sharedMemPerBlockOptin,
// sharedMemPerMultiprocessor).
struct PlanDevice {
  int sms = 0;
  int64_t cta_smem_bytes = 0;
  int64_t sm_smem_bytes = 0;
  bool chained = true;  // a launch may begin while the one before it runs: from sm_90 on
};

using LaunchCounts = std::map<std::string_view, int64_t>;  // by name

// A card's kernels have spans in a profile; what the host computes is a pause between them.
enum class RunsOn : uint8_t { kCard, kHost };
struct LaunchRecord {
  Stage stage;  // of the verb that launched it
  Kernel kernel;
  RunsOn runs_on = RunsOn::kCard;
};
using LaunchTrace = std::vector<LaunchRecord>;  // in the order of the stream

// Where a launcher enqueues, and what notes it.
struct Launch {
  CUstream_st* stream = nullptr;
  LaunchCounts* counts = nullptr;  // may be none
  LaunchTrace* trace = nullptr;    // may be none
  Stage stage = Stage::kEmbed;
  bool chained = true;  // kernels that can may begin while the one before drains (chained_launch.cuh)
};
// Counts and traces a launch that has happened.
void note_launch(Kernel kernel, const Launch& on, RunsOn runs_on = RunsOn::kCard);

// After every launch: throws Error(kDevice) when it failed, notes it otherwise.
void launched(Kernel kernel, const Launch& on, std::source_location where = std::source_location::current());
// For launchers: throws Error(kUnsupported) "cuda: <kernel>: want <want>, found <found>" unless `holds`.
void require_shape(bool holds, Kernel kernel, std::string_view want, int64_t found);

// Those that a profile has spans of.
[[nodiscard]] LaunchTrace kernels_of(const LaunchTrace& trace);

// When a launch's kernel ran.
struct KernelSpan {
  uint64_t start_ns = 0, end_ns = 0;
};

// Launches and the times that the card gave them, as a profile. The spans by start; the launches in the order of their
// stream, which is the same. The first `skipped` do not count. Throws Error(kDevice) unless there is a span for every
// launch.
[[nodiscard]] KernelProfile account(std::span<const LaunchRecord> launches, std::vector<KernelSpan> spans,
                                    size_t skipped = 0);

}  // namespace nibble::backend::cuda
