#include "backend/cuda/card/device.h"

#include "backend/cuda/memory/arena.h"
#include "backend/cuda/card/device_facts.h"
#include "backend/cuda/memory/device_weights.h"
#include "backend/cuda/norm_rope/embed_norm_rope.h"
#include "backend/cuda/program/program.h"
#include "backend/cuda/program/step_graph.h"
#include "backend/cuda/card_member.h"
#include "base/error.h"

#include <algorithm>
#include <optional>

namespace nibble::backend {
namespace cuda {

void require_kernels(const DeviceFacts& facts) {
  const auto status = static_cast<cudaError_t>(any_kernels_code().status);
  if (status == cudaSuccess && card_mask() && card_mask()->code() != facts.code)
    throw Error(Code::kUnsupported, why_no_masked_kernels(facts, *card_mask()));
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction)
    throw Error(Code::kUnsupported, why_no_kernels(facts, NIBBLE_CUDA_ARCHS));
  cuda_check(status);
}

}  // namespace cuda

using namespace cuda;  // NOLINT: this file is the room's own

CudaAvailable cuda_available(int device) {
  const CurrentDevice before;
  try {
    require_kernels(open_device(device));
    return {.yes = true, .reason = {}};
  } catch (const Error& error) {
    return {.yes = false, .reason = error.what()};
  }
}

std::optional<DeviceFacts> cuda_plan_device() {
  if (!cuda_available().yes) return std::nullopt;
  return open_device(0);
}

CudaMemory cuda_memory(int device) {
  const CurrentDevice before;
  require_kernels(open_device(device));
  return device_memory();
}

int cuda_cards() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

void require_cards(int cards, std::string_view what) {
  static_cast<void>(open_device(0));  // says why there is none
  if (cards > cuda_cards())
    throw Error(Code::kUnsupported, "cuda: {}: want {} cards, found {}", what, cards, cuda_cards());
}

namespace {

// Matrices in bf16; vectors are next to nothing.
int64_t head_weight_bytes(const BackendConfig& config) {
  const Dims& d = config.dims;
  const HeadConfig& head = *config.head;
  const int64_t fc = head.fc ? head.taps * head.target_hidden : 0, qkv = d.q_width() + 2 * d.kv_width();
  const int64_t cols = fc + head.target_vocab + d.vocab + qkv + d.layers * (qkv + d.q_width() + 3 * d.inter);
  return 2 * d.hidden * cols;
}

}  // namespace

MemoryNeeds cuda_memory_needs(const BackendConfig& whole, const RunConfig& run, RanksIn in) {
  const bool several = run.ranks.count > 1;
  const BackendConfig config = cuda_config(whole, run.ranks);
  Carver measure(nullptr);
  const Card card(open_device(0));
  const ArenaNeeds needs = arena_needs(config, run, card);
  static_cast<void>(carve(needs, measure));
  const int64_t kv = kv_bytes(config, row_bytes(type_of(run.kv_type()), config.dims.head_dim));
  const bool graphs = has_graphs(config, needs) && !run.eager;
  const int64_t few = std::min(config.max_rows, config.max_tokens);
  const int64_t graph = StepGraphs::memory_bytes(few, config.dims.layers) * (several ? 5 : 4) / 4;  // with the sums
  const int64_t gathered = several ? gathered_bytes(config, whole.dims) : 0;
  const int64_t shared = !several                     ? 0
                         : in == RanksIn::kOneProcess ? comm_bytes(run.ranks.count) + gathered
                                                      : kNcclCardBytes + 2 * gathered;
  // Biases of experts that are copied stay on the card.
  const int64_t biases = needs.expert_slots ? host_layers(run, config.dims.layers) * config.dims.experts *
                                                  (2 * config.dims.inter + config.dims.hidden) * int64_t{sizeof(Bf16)}
                                            : 0;
  return {.weights = config.head ? head_weight_bytes(config) : screened_bytes(config, run, card.facts),
          .kv = kv,
          .activations = measure.bytes() - kv + shared + biases,
          .graphs = graphs ? graph : 0,
          .upload = upload_bytes(with_defaults(run).threads)};
}

}  // namespace nibble::backend
