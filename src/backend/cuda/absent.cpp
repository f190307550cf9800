// Built instead of the backend where CMake found no CUDA or was told not to use it.

#include "backend/cuda/arch/arch.h"
#include "backend/cuda/attention/attend_plan.h"
#include "backend/cuda/dense/linear.h"
#include "backend/cuda/eagle3/kernels.h"
#include "backend/cuda/experts/experts.h"
#include "backend/cuda/experts/route.h"
#include "backend/cuda/norm_rope/around_gemm.h"
#include "backend/cuda/norm_rope/embed_norm_rope.h"
#include "backend/cuda/quantise/round_blocks.h"
#include "backend/cuda/sampling/screen.h"
#include "backend/cuda/card_group.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/card/measure.h"
#include "backend/cuda/program/program.h"
#include "base/error.h"

#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

namespace nibble::backend {
namespace {

constexpr std::string_view kCard = "nvidia";
constexpr std::string_view kAbsent =
    "this program is built without CUDA; the package nibble-cuda has it, from source `make cuda` builds it "
    "(docs/install.md)";

// NVIDIA's driver makes /dev/nvidia0 and so on.
bool has_card() {
  std::error_code ignored;
  for (const auto& node : std::filesystem::directory_iterator("/dev", ignored)) {
    const std::string name = node.path().filename();
    if (name.size() > kCard.size() && name.starts_with(kCard) && name[kCard.size()] >= '0' && name[kCard.size()] <= '9')
      return true;
  }
  return false;
}

}  // namespace

CudaAvailable cuda_available(int /*device*/) {
  return {.yes = false, .expected = has_card(), .reason = std::string(kAbsent)};
}

int cuda_cards() { return 0; }
void require_cards(int /*cards*/, std::string_view /*what*/) { throw Error(Code::kUnsupported, std::string(kAbsent)); }

std::unique_ptr<Backend> make_cuda_backend(const BackendConfig& /*config*/, const RunConfig& /*run*/,
                                           CudaSetup /*setup*/) {
  throw Error(Code::kUnsupported, std::string(kAbsent));
}
std::unique_ptr<Member> make_cuda_member(const BackendConfig& /*whole*/, const RunConfig& /*run*/,
                                         const cuda::Comm& /*comm*/, CudaSetup /*setup*/) {
  throw Error(Code::kUnsupported, std::string(kAbsent));
}

CudaMemory cuda_memory(int /*device*/) { throw Error(Code::kUnsupported, std::string(kAbsent)); }

MemoryNeeds cuda_memory_needs(const BackendConfig& /*config*/, const RunConfig& /*run*/, RanksIn /*in*/) {
  throw Error(Code::kUnsupported, std::string(kAbsent));
}

std::optional<cuda::DeviceFacts> cuda_plan_device() { return std::nullopt; }

double measure_link(int /*device*/) { throw Error(Code::kUnsupported, std::string(kAbsent)); }

DevicePeaks measure_cuda(int /*device*/) { throw Error(Code::kUnsupported, std::string(kAbsent)); }

ReadClock cuda_clock(int /*device*/) { return {}; }

namespace cuda {

struct CardGroup::Impl {};

std::string nccl_version() { throw Error(Code::kUnsupported, std::string(kAbsent)); }
std::string kind_of_card() { throw Error(Code::kUnsupported, std::string(kAbsent)); }
std::string id_of_card() { throw Error(Code::kUnsupported, std::string(kAbsent)); }
CardGroup::CardGroup() = default;
CardGroup::~CardGroup() = default;
void CardGroup::meet(ProcessGroup& /*group*/, const std::string& /*card*/) {
  throw Error(Code::kUnsupported, std::string(kAbsent));
}
const Comm& CardGroup::comm() const { throw Error(Code::kUnsupported, std::string(kAbsent)); }
void CardGroup::give_up() {}

namespace {

// Programs are made for `inspect --plan`, and never executed.
void absent() { check(false, "a build without CUDA executes no program"); }

}  // namespace

void AnyGemm::launch(const GemmArgs&, const GemmPlan&, const Launch&) { absent(); }
void Attend::launch(const AttentionArgs&, const Launch&) { absent(); }
void AttendDecode::launch(const AttentionArgs&, const DecodePlan&, const Launch&) { absent(); }
void AttendPrefill::launch(const AttentionArgs&, const Launch&) { absent(); }
void Combine::launch(const Args&, const Launch&) { absent(); }
void Eagle3Enter::launch(const Args&, const Launch&) { absent(); }
void Eagle3Linear::launch(const Args&, const Eagle3LinearPlan&, const Launch&) { absent(); }
void Eagle3Norm::launch(const Args&, const Launch&) { absent(); }
void Embed::launch(const Args&, const Launch&) { absent(); }
void GemvDense::launch(const Args&, const GemvPlan&, const Launch&) { absent(); }
void GemvMoeDown::launch(const Args&, const GemvPlan&, const Launch&) { absent(); }
void GemvQkv::launch(const Args&, const GemvPlan&, const Launch&) { absent(); }
void GroupRound::launch(const Args&, const Launch&) { absent(); }
void GroupTiles::launch(const Args&, const Launch&) { absent(); }
void GroupedDown::launch(const Args&, const RowWarpsPlan&, const Launch&) { absent(); }
void GroupedUp::launch(const Args&, const RowWarpsPlan&, const Launch&) { absent(); }
void HostRows::launch(const Args&, const Launch&) { absent(); }
void HostTurn::launch(const Args&, const Launch&) { absent(); }
void Linear::launch(const Args&, const Launch&) { absent(); }
void MoeDown::launch(const Args&, const RowWarpsPlan&, const Launch&) { absent(); }
void MoeUp::launch(const Args&, const RowWarpsPlan&, const Launch&) { absent(); }
void NormSums::launch(const Args&, const Launch&) { absent(); }
void PlainCombine::launch(const Args&, const Launch&) { absent(); }
void PlainDown::launch(const Args&, const Launch&) { absent(); }
void PlainGateUp::launch(const Args&, const Launch&) { absent(); }
void Rmsnorm::launch(const Args&, const Launch&) { absent(); }
void RopeKv::launch(const Args&, const Launch&) { absent(); }
void RopeSums::launch(const Args&, const Launch&) { absent(); }
void RopeTable::launch(const Args&, const Launch&) { absent(); }
void Round::launch(const Args&, const Launch&) { absent(); }
void RoundBlocks::launch(const Args&, const Launch&) { absent(); }
void RoundRows::launch(const Args&, const Launch&) { absent(); }
void RouteSums::launch(const Args&, const Launch&) { absent(); }
void Router::launch(const Args&, const Launch&) { absent(); }
void Screen::launch(const Args&, const Plan&, const Launch&) { absent(); }
void ScreenPick::launch(const Args&, const Launch&) { absent(); }
void Tap::launch(const Args&, const Launch&) { absent(); }
void TopExperts::launch(const Args&, const Launch&) { absent(); }
double any_peak_mma(const PeakLaunch&, CUstream_st*) { return 0; }

}  // namespace cuda

}  // namespace nibble::backend
