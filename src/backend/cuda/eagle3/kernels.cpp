#include "backend/cuda/eagle3/kernels.h"

#include "backend/cuda/layout/packed.h"

namespace nibble::backend::cuda {

Eagle3LinearPlan Eagle3Linear::cut(const Args& a, int parts) {
  Eagle3LinearPlan plan;
  plan.parts = parts;
  while (8 * plan.token_tiles < a.tokens) plan.token_tiles *= 2;
  plan.threads = kEagle3LinearWarps * layout::kWarpLanes;
  plan.grid = (eagle3_row_tiles(a.rows) * parts + kEagle3LinearWarps - 1) / kEagle3LinearWarps;
  plan.smem_bytes = parts == 1 ? 0 : kEagle3LinearWarps * plan.token_tiles * 4 * 32 * 4;
  return plan;
}

// Few rows: more warps share one, so that all that memory can bring is asked for at once. Many tokens: warps that do
// not share rows find each other's x in L1 (bench/eagle3_bench.cpp on an H200, 2026-11-26).
Eagle3LinearPlan Eagle3Linear::plan(const Args& a, int multiprocessors) {
  constexpr int kChunk = 32, kLeastChunks = 8;
  const int warps = (a.tokens <= 16 ? 48 : a.tokens <= 32 ? 16 : 4) * multiprocessors;
  const int tiles = eagle3_row_tiles(a.rows), chunks = (a.cols + kChunk - 1) / kChunk;
  int parts = a.tokens <= 16 && chunks >= 4 * kLeastChunks ? 2 : 1;
  while (parts < kEagle3LinearWarps && tiles * parts < warps && chunks >= 2 * parts * kLeastChunks) parts *= 2;
  return cut(a, parts);
}

void check_args(const Eagle3Linear::Args& a) {
  using Then = Eagle3Linear::Args::Then;
  const Kernel name = Eagle3Linear::name(a.tokens);
  require_shape(a.tokens > 0 && a.tokens <= kEagle3MostTokens, name, "1 to 64 tokens", a.tokens);
  require_shape(a.cols > 0 && a.cols % 8 == 0, name, "cols a multiple of 8", a.cols);
  require_shape(a.rows > 0, name, "at least one row", a.rows);
  require_shape(aligned(a.weight) && aligned(a.x), name, "weight and x, 16-byte aligned", a.rows);
  switch (a.then) {
    case Then::kAdd: require_shape(a.out != nullptr, name, "somewhere to store", a.rows); break;
    case Then::kGate:
      require_shape(a.gated != nullptr && a.rows % 2 == 0, name, "gate and up, and somewhere to store", a.rows);
      break;
    case Then::kRope:
      require_shape(a.rows == (a.heads + 2 * a.kv_heads) * a.head_dim, name, "rows of all heads", a.rows);
      require_shape(a.head_dim > 0 && a.head_dim % 2 == 0, name, "an even head_dim", a.head_dim);
      require_shape(a.out != nullptr && a.cosine != nullptr && a.sine != nullptr && a.slots != nullptr &&
                        a.keys != nullptr && a.values != nullptr,
                    name, "q, a rope table, slots and pages", a.tokens);
      break;
  }
}

void check_args(const Eagle3Norm::Args& a) {
  constexpr Kernel kName = Eagle3Norm::kName;
  require_shape(a.rows > 0, kName, "at least one row", a.rows);
  require_shape(a.segments > 0 && a.segments <= 65535, kName, "1 to 65535 segments", a.segments);
  require_shape(a.width > 0 && a.width % 4 == 0 && a.width <= kEagle3MostWidth, kName,
                "a width of a multiple of 4 up to 16384", a.width);
  require_shape(aligned(a.x) && (a.scale == nullptr || aligned(a.scale)) &&
                    (a.rounded == nullptr || aligned(a.rounded)) && (a.normed == nullptr || aligned(a.normed)) &&
                    (a.plain == nullptr || aligned(a.plain)) &&
                    (a.rounded != nullptr || a.normed != nullptr || a.plain != nullptr),
                kName, "x, scale and results, 16-byte aligned", a.width);
}

void check_args(const Eagle3Enter::Args& a) {
  constexpr Kernel kName = Eagle3Enter::kName;
  require_shape(a.tokens > 0, kName, "at least one token", a.tokens);
  require_shape(a.ids != nullptr && a.sampled != nullptr, kName, "ids", a.tokens);
  require_shape(a.hidden > 0 && a.hidden % 4 == 0 && a.hidden <= kEagle3MostHidden, kName,
                "hidden a multiple of 4 up to 8192", a.hidden);
  require_shape(aligned(a.embedding) && aligned(a.input_norm) && aligned(a.hidden_norm) && aligned(a.features) &&
                    aligned(a.x) && aligned(a.residual),
                kName, "embedding, norms, features and results, 16-byte aligned", a.hidden);
}

}  // namespace nibble::backend::cuda
