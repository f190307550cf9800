#pragma once
// The CPU: weights read where they were mapped, work shared by rows of weights over a thread pool.
//
// All activations but kInt8 are multiplied as floats (those in MX blocks once they are rounded): every sum's order is
// fixed by shapes and instruction set, so neither threads nor batch neighbours change a bit. kInt8: threads change
// nothing, but a token's bits depend on whether its step has few tokens or many (per expert), which sum in different
// orders.

#include "backend/backend.h"
#include "backend/cost.h"
#include "backend/cpu/host_watch.h"
#include "backend/dims.h"
#include "backend/host_experts.h"
#include "backend/plan.h"
#include "backend/run_config.h"

#include <memory>
#include <string>
#include <vector>

namespace nibble::backend {

// With what was left open decided: the best instruction set there is, activations in int8 where it has kernels for
// them. Throws Error(kUnsupported) where this CPU lacks what is asked for.
[[nodiscard]] RunConfig resolved_cpu(const RunConfig& run);

// Bytes of the copy that screens logits (backend/screen.h) of an unembedding that is held so; 0: there is none. Throws
// what resolved_cpu() throws.
[[nodiscard]] int64_t cpu_screened_bytes(const Dims& dims, WeightFormat format, const RunConfig& run);

// Sets what CostModel knows of such a copy. The formats are those that the backend holds.
void set_cpu_screen(CostModel& cost, const RunConfig& run);

// Throws what resolved_cpu() throws.
std::unique_ptr<Backend> make_cpu_backend(const BackendConfig& config, const RunConfig& run,
                                          const WatchedHost& watched = {});

// Flops a second of experts of many tokens, for a guess of what a step takes; `run` as make_cpu_experts'.
[[nodiscard]] double expert_flops_per_s(const RunConfig& run);
// The experts that a card leaves to this machine's CPU; `run` as make_cpu_backend's. Throws what resolved_cpu() throws.
std::unique_ptr<HostExperts> make_cpu_experts(const BackendConfig& config, const RunConfig& run,
                                              const WatchedHost& watched = {});

// For people: "avx512 vnni, int8 activations (prompts: amx bf16), 2 threads".
[[nodiscard]] std::string describe_cpu(const RunConfig& run);

// The loops of a step on the CPU, of the first of its ranks. Says what CpuBackend's verbs run; a verb that runs
// something else changes its rows.
struct CpuPlanArgs {
  const Dims& dims;
  const StoredFormats& formats;
  StepShape step;
  RunConfig run;
  std::vector<int64_t> layer_experts{};  // experts_of
};

// Norms, the choice of experts, SwiGLU and the draw have no row: they read no weights to speak of.
// Throws Error(kUnsupported) where this CPU lacks the instruction set that the options ask for.
[[nodiscard]] std::vector<PlannedKernel> cpu_plan(const CpuPlanArgs& args);

}  // namespace nibble::backend
