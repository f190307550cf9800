#include "backend/cuda/attention.h"

#include "backend/cuda/arena.h"
#include "backend/cuda/choices.h"
#include "backend/cuda/kernels/sm90/attend.h"
#include "base/error.h"

namespace nibble::backend::cuda {
namespace {

struct Memory {
  float* partials;
  int* finished;
  int32_t* decode_tokens;
  AttendTile* tiles;
};

Memory carve_attention(const BackendConfig& config, int target, Carver& carver) {
  const DecodeScratch scratch = decode_scratch(target, config.dims.kv_heads);
  return {.partials = carver.take<float>(scratch.floats),
          .finished = carver.take<int>(scratch.counters),
          .decode_tokens = carver.take<int32_t>(config.max_tokens),
          .tiles = carver.take<AttendTile>(max_attend_tiles(config.max_tokens))};
}

int kv_bytes(KvPages::Type type) { return type_of(type).value_bytes; }

}  // namespace

Attention::Attention(const BackendConfig& config, const CudaOptions& options, cudaStream_t stream)
    : device_(attend_device(open_device(options.device), kv_bytes(page_type(options.kv)))) {
  const Dims& d = config.dims;
  const KvPages::Type type = page_type(options.kv);
  if (!choose_flash(config, options)) return;
  const int target = most_target(static_cast<int>(d.kv_heads), kv_bytes(type), device_);
  Carver measure(nullptr);
  static_cast<void>(carve_attention(config, target, measure));
  memory_ = allocate_device(measure.bytes(), "attention scratch");
  Carver place(memory_.get());
  const Memory at = carve_attention(config, target, place);
  partials_ = at.partials;
  finished_ = at.finished;
  decode_tokens_.emplace(at.decode_tokens, config.max_tokens);
  tiles_.emplace(at.tiles, max_attend_tiles(config.max_tokens));
  cuda_check(cudaMemsetAsync(memory_.get(), 0xff, static_cast<size_t>(measure.bytes()), stream));
  cuda_check(cudaMemsetAsync(finished_, 0,
                             static_cast<size_t>(decode_scratch(target, d.kv_heads).counters) * sizeof(int), stream));
}

int64_t Attention::memory_bytes(const BackendConfig& config, const CudaOptions& options, const DeviceFacts& card) {
  if (!choose_flash(config, options)) return 0;
  const int bytes = kv_bytes(page_type(options.kv));
  const int target = most_target(static_cast<int>(config.dims.kv_heads), bytes, attend_device(card, bytes));
  Carver measure(nullptr);
  static_cast<void>(carve_attention(config, target, measure));
  return measure.bytes();
}

int64_t Attention::staging_bytes(int64_t tokens) {
  constexpr int64_t kAlignments = 64;
  return tokens * 4 + max_attend_tiles(tokens) * static_cast<int64_t>(sizeof(AttendTile)) + kAlignments;
}

void Attention::attend(const Step& step, const AttendLaunch& launch, Staging& staging, const Launch& on) {
  check(flash(), "attend is asked of the kernels that serve");
  share_tokens(step.rows, shares_, tile_tokens(device_));
  FlashArgs args{.q = launch.q,
                 .out = launch.out,
                 .rounded = launch.rounded,
                 .sinks = launch.sinks,
                 .token_row = launch.token_row,
                 .positions = launch.positions,
                 .pages = launch.pages,
                 .keys = launch.kv.keys,
                 .values = launch.kv.values,
                 .pages_per_row = launch.pages_per_row,
                 .heads = launch.heads,
                 .kv_heads = launch.kv_heads,
                 .window = launch.window,
                 .unturned = step.unturned,
                 .partials = partials_,
                 .finished = finished_};
  if (!shares_.decode.empty()) {
    const int count = static_cast<int>(shares_.decode.size());
    const DecodePlan plan = plan_decode({count, launch.kv_heads, kv_bytes(launch.kv.type), launch.window}, device_);
    args.decode_tokens = count == launch.tokens ? nullptr : decode_tokens_->put(shares_.decode, staging);
    args.decode_count = count;
    args.target = plan.target;
    any_attend_decode(args, launch.kv.type, plan, on);
  }
  if (!shares_.prefill.empty()) {
    args.tiles = tiles_->put(shares_.prefill, staging);
    args.tile_count = static_cast<int>(shares_.prefill.size());
    args.ctas = attend_ctas(args.tile_count, args.kv_heads, device_);
    device_.wgmma ? sm90_attend_prefill(args, launch.kv.type, on) : any_attend_prefill(args, launch.kv.type, on);
  }
}

}  // namespace nibble::backend::cuda
