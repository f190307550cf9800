// A card's experts on the host: the loops of CpuBackend::moe, over weights that are read where they were mapped.

#include "backend/cost.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/loaded_weight.h"
#include "backend/cpu/moe.h"
#include "base/buffer.h"
#include "base/error.h"
#include "base/thread_pool.h"

#include <algorithm>
#include <array>

namespace nibble::backend {
namespace {

// Some 300 µs: longer than a card needs from one layer's experts to the next one's. Not measured.
constexpr int kSpinsBetweenLayers = 10 * kSpins;

class CpuExperts final : public HostExperts {
 public:
  CpuExperts(const BackendConfig& config, const RunConfig& run, const WatchedHost& watched)
      : config_(config),
        modes_(describe_cpu(run)),
        kernels_(cpu::kernels_for(run.isa, run.activations)),
        pool_(run.threads, kSpinsBetweenLayers),
        linear_(kernels_, run.activations, pool_,
                {.cols = std::max(config.dims.hidden, config.dims.inter),
                 .inputs = config.max_tokens * config.dims.topk,
                 .groups = config.dims.experts}),
        moe_(config_, kernels_, linear_, watched),
        hidden_(static_cast<size_t>(config.max_tokens * config.dims.topk * config.dims.inter)),
        layers_(static_cast<size_t>(config.dims.layers)) {}

  [[nodiscard]] std::string modes() const override { return modes_; }

  void upload(const HostWeight& weight) override {
    layers_.at(static_cast<size_t>(weight.layer))[index_of(weight.role)] = cpu::loaded(
        {.whole = weight, .part = cpu::part_of(weight, pool_), .as = config_.dense.of(weight.role)}, kernels_, pool_);
  }

  void run(const Work& work) override {
    const Layer& layer = layers_[static_cast<size_t>(work.layer)];
    const auto pairs = static_cast<size_t>(work.tokens * config_.dims.topk);
    linear_.as_alone(work.tokens <= kFewTokens);  // a step with guesses draws what one without would
    moe_.route({work.ids, pairs}, {work.weights, pairs});
    std::fill_n(work.delta, work.tokens * config_.dims.hidden, 0.0f);
    const auto of = [&](WeightRole role) -> const cpu::LoadedWeight& { return layer[index_of(role)]; };
    using enum WeightRole;
    check(of(kGateUp).matrix && of(kDown).matrix, "a layer's experts were uploaded");
    moe_.run(cpu::weights_of({of(kGateUp), of(kGateUpBias), of(kDown), of(kDownBias)}), work.x, hidden_.data(),
             work.delta);
  }

 private:
  using Layer = std::array<cpu::LoadedWeight, 4>;
  static size_t index_of(WeightRole role) {
    check(has_experts(role), "a weight of experts");
    return static_cast<size_t>(role) - static_cast<size_t>(WeightRole::kGateUp);
  }

  const BackendConfig config_;
  const std::string modes_;
  const cpu::Kernels kernels_;
  ThreadPool pool_;
  cpu::Linear linear_;
  cpu::Moe moe_;
  AlignedVector<float> hidden_;
  std::vector<Layer> layers_;
};

}  // namespace

double expert_flops_per_s(const RunConfig& run) {
  const RunConfig own = resolved_cpu(run);
  const bool codes = own.activations == Activations::kInt8;
  // A thread's, of a Xeon with 16 of them: int8 on AMX 2026-12-01, the others from its prompts. Arm's are a guess.
  const double thread = own.isa == CpuIsa::kAmx      ? (codes ? 200e9 : 70e9)
                        : own.isa == CpuIsa::kAvx512 ? (codes ? 180e9 : 70e9)
                        : own.isa == CpuIsa::kAvx2   ? (codes ? 90e9 : 40e9)
                                                     : (codes ? 60e9 : 20e9);
  return thread * own.threads;
}

std::unique_ptr<HostExperts> make_cpu_experts(const BackendConfig& config, const RunConfig& run,
                                              const WatchedHost& watched) {
  return std::make_unique<CpuExperts>(config, resolved_cpu(run), watched);
}

}  // namespace nibble::backend
