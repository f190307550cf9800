#include "backend/cuda/launch/launch.h"

#include "backend/cuda/norm_rope/embed_norm_rope.h"
#include "base/error.h"

#include <algorithm>
#include <iterator>

namespace nibble::backend::cuda {

void note_launch(Kernel kernel, const Launch& on, RunsOn runs_on) {
  if (on.counts != nullptr) ++(*on.counts)[kernel.name];
  if (on.trace != nullptr) on.trace->push_back({on.stage, kernel, runs_on});
}

LaunchTrace kernels_of(const LaunchTrace& trace) {
  LaunchTrace kernels;
  std::ranges::copy_if(trace, std::back_inserter(kernels),
                       [](const LaunchRecord& launch) { return launch.runs_on == RunsOn::kCard; });
  return kernels;
}

void require_shape(bool holds, Kernel kernel, std::string_view want, int64_t found) {
  if (!holds) [[unlikely]]
    throw Error(Code::kUnsupported, "cuda: {}: want {}, found {}", kernel.name, want, found);
}

namespace {

double us(uint64_t from_ns, uint64_t to_ns) { return to_ns > from_ns ? static_cast<double>(to_ns - from_ns) / 1e3 : 0; }

KernelTime& entry_of(KernelProfile& profile, const LaunchRecord& launch) {
  const std::string_view kernel = launch.kernel.name;
  for (KernelTime& time : profile.kernels)
    if (time.stage == launch.stage && time.kernel == kernel) return time;
  return profile.kernels.emplace_back(KernelTime{.stage = launch.stage, .kernel = kernel});
}

}  // namespace

KernelProfile account(std::span<const LaunchRecord> launches, std::vector<KernelSpan> spans, size_t skipped) {
  if (launches.size() != spans.size()) {
    throw Error(Code::kDevice, "--profile: want times of all {} launches, found {}: CUPTI lost some, or gave others",
                launches.size(), spans.size());
  }
  std::stable_sort(spans.begin(), spans.end(),
                   [](const KernelSpan& a, const KernelSpan& b) { return a.start_ns < b.start_ns; });
  KernelProfile profile;
  uint64_t busy_until = skipped < spans.size() ? spans[skipped].start_ns : 0;
  for (size_t i = skipped; i < spans.size(); ++i) {
    const KernelSpan& span = spans[i];
    const bool opens_step = launches[i].kernel == Embed::kName;
    (opens_step ? profile.between_steps_us : profile.between_kernels_us) += us(busy_until, span.start_ns);
    profile.steps += opens_step ? 1 : 0;
    KernelTime& time = entry_of(profile, launches[i]);
    ++time.launches;
    time.us += us(span.start_ns, span.end_ns);
    time.own_us += us(std::max(busy_until, span.start_ns), span.end_ns);
    busy_until = std::max(busy_until, span.end_ns);
  }
  return profile;
}

}  // namespace nibble::backend::cuda
