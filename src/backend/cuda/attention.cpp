#include "backend/cuda/attention.h"

#include "backend/cuda/arena.h"
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

KvPages::Type page_type(CudaOptions::Kv kv) {
  switch (kv) {
    case CudaOptions::Kv::kBf16: return KvPages::Type::kBf16;
    case CudaOptions::Kv::kF32: return KvPages::Type::kF32;
    case CudaOptions::Kv::kE4m3: return KvPages::Type::kE4m3;
  }
  return KvPages::Type::kBf16;
}

int kv_bytes(KvPages::Type type) { return type == KvPages::Type::kE4m3 ? 1 : 2; }

AttendDevice attend_device(KvPages::Type type) {
  int device = 0, sms = 0, smem = 0, major = 0;
  cuda_check(cudaGetDevice(&device));
  cuda_check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
  cuda_check(cudaDeviceGetAttribute(&smem, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device));
  cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  return {.sms = sms, .sm_smem_bytes = smem, .wgmma = major == 9 && sm90_attend_serves(type)};
}

}  // namespace

Attention::Attention(const BackendConfig& config, const CudaOptions& options, cudaStream_t stream)
    : device_(attend_device(page_type(options.kv))) {
  using Choice = CudaOptions::Attention;
  const Dims& d = config.dims;
  const KvPages::Type type = page_type(options.kv);
  const bool served = flash_serves(d.heads, d.kv_heads, d.head_dim, type);
  if (options.attention == Choice::kFlash && !served) {
    throw Error(Code::kUnsupported,
                "[cuda] attention backend flash: want head_dim 64, up to 8 query heads per kv head and a KV cache in "
                "bf16 or fp8, found head_dim {}, {} heads, {} kv heads{}",
                d.head_dim, d.heads, d.kv_heads, type == KvPages::Type::kF32 ? ", f32" : "");
  }
  if (type == KvPages::Type::kE4m3 && (!served || options.attention == Choice::kReference))
    throw Error(Code::kUnsupported, "[cuda] an fp8 KV cache is read by attention backend flash only, for head_dim 64");
  if (options.attention != Choice::kFlash && type != KvPages::Type::kE4m3) return;
  const int target = plan_decode({1, static_cast<int>(d.kv_heads), kv_bytes(type)}, device_).target;
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

int64_t Attention::staging_bytes(int64_t tokens) {
  constexpr int64_t kAlignments = 64;
  return tokens * 4 + max_attend_tiles(tokens) * static_cast<int64_t>(sizeof(AttendTile)) + kAlignments;
}

void Attention::attend(std::span<const Row> rows, const AttendLaunch& launch, Staging& staging, const Launch& on) {
  check(flash(), "attend is asked of the kernels that serve");
  share_tokens(rows, shares_, tile_tokens(device_));
  FlashArgs args{.q = launch.q,
                 .out = launch.out,
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
    device_.wgmma ? sm90_attend_prefill(args, launch.kv.type, on) : any_attend_prefill(args, launch.kv.type, on);
  }
}

}  // namespace nibble::backend::cuda
