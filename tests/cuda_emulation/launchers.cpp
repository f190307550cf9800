#include "backend/cuda/emulation/launchers.h"

#include "backend/cuda/arch/arch.h"
#include "backend/cuda/arch/sm121/kernels.h"
#include "backend/cuda/arch/sm90/kernels.h"
#include "backend/cuda/attention/attend_plan.h"
#include "backend/cuda/comm/sums.h"
#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/dense/linear.h"
#include "backend/cuda/experts/experts.h"
#include "backend/cuda/experts/host_experts.h"
#include "backend/cuda/experts/route.h"
#include "backend/cuda/norm_rope/around_gemm.h"
#include "backend/cuda/norm_rope/embed_norm_rope.h"
#include "backend/cuda/quantise/round_blocks.h"
#include "backend/cuda/sampling/screen.h"

#include <cuda_runtime_api.h>  // the emulated one

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>

namespace nibble::backend::cuda {

namespace {

// Ranks' threads launch at the same time.
std::mutex& of_ranks() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

void note_bias(const Bf16* bias) {
  const std::lock_guard lock(of_ranks());
  emulated_biases().push_back(bias);
}

void note(Kernel kernel, std::string tile) {
  const std::lock_guard lock(of_ranks());
  emulated_tiles()[std::string(kernel.name)].insert(std::move(tile));
}

std::vector<const Bf16*>& emulated_biases() {
  static std::vector<const Bf16*> biases;
  return biases;
}
EmulatedCuda& emulated_cuda() {
  static EmulatedCuda cuda;
  return cuda;
}
std::map<std::string, std::set<std::string>, std::less<>>& emulated_tiles() {
  static std::map<std::string, std::set<std::string>, std::less<>> tiles;
  return tiles;
}

KernelCode any_kernels_code() { return {emulated_cuda().kernels, emulated_cuda().code}; }

void make_screen_copy(const ScreenCopy& /*copy*/, cudaStream_t /*stream*/) {}
void Screen::launch(const Args& args, const Plan& plan, const Launch& on) { counted(kName, args, on, plan.tile); }
void ScreenPick::launch(const Args& args, const Launch& on) {
  check_args(args.of);
  counted(kName, args, on);
}

void HostTurn::launch(const Args& args, const Launch& on) {
  counted(kName, args, on);
  const uint64_t turn = ++*args.with.turns;
  std::atomic_ref(*args.with.asked).store(word(turn, args.layer), std::memory_order_release);
  while (std::atomic_ref(*args.with.answered).load(std::memory_order_acquire) != turn) std::this_thread::yield();
}
void RoundBlocks::launch(const Args& args, const Launch& on) { counted(name(args.form), args, on); }
void RoundRows::launch(const Args& args, const Launch& on) { counted(kName, args, on); }

void Sm90SplitGemm::launch(const SplitGemmArgs& args, const SplitGemmPlan& plan, const Launch& on) {
  counted(kName, args, on, plan.tile);
}
void Sm90NormRoute::launch(const NormRouteArgs& args, const Plan& plan, const Launch& on) {
  counted(kName, args, on, plan.tile);
}
void Combine::launch(const Args& args, const Launch& on) { counted(kName, args, on); }
void Tap::launch(const Args& args, const Launch& on) { counted(kName, args, on); }

void Sm90Gemm::launch(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  counted(name(args, plan), args, on, plan.tile);
}
void Sm121MxGemm::launch(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  check(args);
  counted(name(args), args, on, plan.tile);
}
void GroupRound::launch(const Args& args, const Launch& on) {
  check_args(args.group);
  launched(kName, on);
}

bool sm90_is_built() { return true; }
void Sm90AttendPrefill::launch(const AttentionArgs& /*args*/, const Launch& on) { launched(kName, on); }
void Sm121AttendPrefill::launch(const AttentionArgs& /*args*/, const Launch& on) { launched(kName, on); }
void AttendPrefill::launch(const AttentionArgs& args, const Launch& on) { launched(name(args.kv.type, args.fp8), on); }

void PushReduce::launch(const Args& args, DeltaValues::Type type, const Plan& plan, const Launch& on) {
  on_card(on.stream);
  counted(name(type), args, on, plan.tile);
}
void PushCombine::launch(const Args& args, const Plan& plan, const Launch& on) {
  on_card(on.stream);
  counted(name(args.parts.of.sums.order), args, on, plan.tile);
}
void PushGather::launch(const Args& args, const Plan& plan, const Launch& on) {
  on_card(on.stream);
  for (int64_t row = 0; row < args.rows; ++row)  // what one rank has; no test reads the others'
    std::copy_n(args.own + row * args.count[args.link.rank], args.count[args.link.rank],
                args.all + row * args.width + args.first[args.link.rank]);
  counted(kName, args, on, plan.tile);
}
void PushPick::launch(const Args& args, const Plan& plan, const Launch& on) {
  on_card(on.stream);
  std::fill_n(args.tokens, args.rows, 0);
  counted(kName, args, on, plan.tile);
}
void PushBarrier::launch(const Args& args, const Launch& on) { counted(kName, args, on); }
void load_sum_kernels() {}
void ShareReduce::launch(const Args& args, DeltaValues::Type type, const Plan& plan, const Launch& on) {
  on_card(on.stream);
  counted(name(type, args.sent), args, on, plan.tile);
}

double any_peak_mma(const PeakLaunch& /*args*/, cudaStream_t /*stream*/) { return 0; }
double sm121_peak_mx(const PeakLaunch& /*args*/, cudaStream_t /*stream*/) { return 0; }
double sm90_peak_wgmma(const PeakLaunch& /*args*/, cudaStream_t /*stream*/) { return 0; }

}  // namespace nibble::backend::cuda
