// Times attention and the kernels for many tokens (src/backend/cuda/kernels: attend_decode, attend_prefill, gemm and
// what goes with them; of few tokens the split GEMMs and the router) at gpt-oss-120b's shapes, and its experts at
// 20b's, against the card's measured read bandwidth and matrix peak.
//   prefill_bench <json file> [part of a name: those kernels alone]
// Each time is the mean of a kernel in a CUDA graph of launches over different layers' data (more than L2 holds in
// all); median of the repetitions. "ideal" is the longer of bytes over read bandwidth and flops over the peak.

#include "backend/cuda/card/device.h"
#include "backend/cuda/norm_rope/around_gemm.h"
#include "backend/cuda/testing/costs.h"
#include "backend/cuda/attention/attend_plan.h"
#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/dense/linear.h"
#include "backend/cuda/experts/route.h"
#include "backend/cuda/norm_rope/embed_norm_rope.h"
#include "backend/cuda/arch/sm90/kernels.h"
#include "backend/cuda/card/measure.h"
#include "base/random.h"
#include "graph_timer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <exception>
#include <functional>
#include <iterator>
#include <numbers>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace nibble::backend::cuda {
namespace {

constexpr int kHidden = 2880, kInter = 2880, kTopk = 4, kExperts = 128, kHeads = 64, kKvHeads = 8;
constexpr int kMaxTokens = 8192, kRepetitions = 9;
constexpr int64_t kPoolBytes = int64_t{4} << 30;

template <class T>
T* device_array(int64_t count) {  // lives as long as the program
  std::byte* bytes = allocate_device(count * static_cast<int64_t>(sizeof(T)), "bench").release();
  cuda_check(cudaMemset(bytes, 0, static_cast<size_t>(count) * sizeof(T)));
  return reinterpret_cast<T*>(bytes);
}

template <class T>
T* device_copy(const std::vector<T>& values) {
  T* to = device_array<T>(std::ssize(values));
  cuda_check(cudaMemcpy(to, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return to;
}

// Codes, 16-bit numbers and scale bytes in one: every byte 0x70 to 0x7f would be, as a scale, 2^-29 to 2^-14; as bf16
// or f16 pairs the numbers are finite. Half of the bytes have the low nibble alone.
std::vector<uint32_t> noise(int64_t words) {
  std::vector<uint32_t> v(static_cast<size_t>(words));
  for (size_t i = 0; i < v.size(); ++i) v[i] = (philox(1, i)[0] & 0x8f0f8f0fu) | 0x30703070u;
  return v;
}

void fill(uint8_t* to, int64_t bytes, const std::vector<uint32_t>& block) {
  const auto step = static_cast<int64_t>(block.size() * 4);
  for (int64_t at = 0; at < bytes; at += step)
    cuda_check(
        cudaMemcpy(to + at, block.data(), static_cast<size_t>(std::min(bytes - at, step)), cudaMemcpyHostToDevice));
}

// Packed experts whose slices have six blocks: random codes, scales of 2^-9 and 2^-8. What the bits are decides what
// power the card takes, and so its clock.
std::vector<uint32_t> packed_experts() {
  constexpr size_t kSlice = layout::slice_bytes(6) / 4, kCodes = 6 * layout::kBlockPairBytes / 2 / 4;
  std::vector<uint32_t> v(kSlice * 4096);
  for (size_t i = 0; i < v.size(); ++i) {
    v[i] = philox(2, i)[0];
    if (i % kSlice >= kCodes) v[i] = (118 + layout::kScaleBias) * 0x01010101u + (v[i] & 0x01010101u);
  }
  return v;
}

// A step's tokens, whose experts have weights exp(sigma * normal).
struct Routing {
  int experts = kExperts, tokens = 0;
  double sigma = 0;
};

// The same on the device: pairs of token and expert, grouped, and how many of the experts have any.
struct MoeStep {
  int experts, tokens, distinct;
  std::string name;
  const int32_t* ids = nullptr;
  int32_t *pair_of = nullptr, *place_of = nullptr;
  ExpertTile* tiles = nullptr;
  int32_t* tile_counts = nullptr;
  [[nodiscard]] int pairs() const { return tokens * kTopk; }
};

struct Row {
  std::string name;
  int tokens;
  double us;
  double bytes, flops;
};

class Bench {
 public:
  explicit Bench(std::string only)
      : only_(std::move(only)),
        peaks_(measure_cuda(0)),
        stream_(make_stream()),
        pool_(device_array<uint8_t>(kPoolBytes)) {
    cuda_check(cudaDeviceGetAttribute(&sms_, cudaDevAttrMultiProcessorCount, 0));
    int smem = 0;
    cuda_check(cudaDeviceGetAttribute(&smem, cudaDevAttrMaxSharedMemoryPerMultiprocessor, 0));
    device_ = {.sms = sms_, .sm_smem_bytes = smem};
    on_ = {stream_.get(), &counts_};
    fill(pool_, kPoolBytes, noise(int64_t{1} << 22));
    fill(experts_, kPoolBytes, packed_experts());
    std::vector<uint32_t> normal(int64_t{1} << 22);
    for (size_t i = 0; i < normal.size(); ++i) {
      const auto& words = philox(3, i);
      float sum = -6;
      for (int n = 0; n < 12; ++n) sum += uniform_float(words[static_cast<size_t>(n % 4)] * (2 * n + 1u));
      normal[i] = std::bit_cast<uint32_t>(sum);
    }
    fill(reinterpret_cast<uint8_t*>(x_), int64_t{kMaxTokens} * 4096 * 4, normal);
  }

  void decode(int keys, int tokens, KvDtype type, int window);
  void prefill(int tokens, int window);
  void dense(const char* name, int rows, int cols, int tokens);
  void rope(int tokens);
  void few(int tokens);
  void route(int tokens);
  void moe(const Routing& r);
  void write(const char* path) const;

 private:
  void experts_gemms(const MoeStep& step, bool wgmma);
  // One kernel: link(i) enqueues the i-th launch of `links`.
  void add(Row row, int links, const std::function<void(int)>& link) {
    if (row.name.find(only_) == std::string::npos) return;
    row.us = median_link_us({stream_.get(), links, kRepetitions}, link);
    rows_.push_back(row);
    std::printf("%-34s %6d %10.2f us %8.0f GB/s %8.1f TFLOP/s %6.1f%%\n", row.name.c_str(), row.tokens, row.us,
                row.bytes / row.us / 1e3, row.flops / row.us / 1e6, 100 * ideal(row));
    std::fflush(stdout);
  }
  [[nodiscard]] double ideal(const Row& row) const {
    return 1e6 * peaks_.ideal_seconds(Cost{.bytes = row.bytes, .flops = row.flops}) / row.us;
  }
  AttentionArgs attention(const std::vector<backend::Row>& rows, int context, int window);
  [[nodiscard]] static SplitSums::Order sums_order() {  // of a dense GEMM
    return sm90_is_built() ? SplitSums::Order::kTiles : SplitSums::Order::kRows;
  }

  std::string only_;
  DevicePeaks peaks_;
  Stream stream_;
  int sms_ = 0;
  PlanDevice device_;
  LaunchCounts counts_{};
  Launch on_;
  std::vector<Row> rows_;
  uint8_t* pool_;
  uint8_t* experts_ = device_array<uint8_t>(kPoolBytes);
  float* x_ = device_array<float>(int64_t{kMaxTokens} * 4096);
  uint16_t* x16_ = device_array<uint16_t>(max_places(int64_t{kMaxTokens} * kTopk, kExperts) * kInter);
  uint16_t* u_ = device_array<uint16_t>(max_places(int64_t{kMaxTokens} * kTopk, kExperts) * kInter);
  float* y_ = device_array<float>(int64_t{kMaxTokens} * kTopk * kHidden);
  Bf16* bias_ = device_array<Bf16>(int64_t{kExperts} * 2 * kInter);
};

// Sequences of `context` keys each, pages one after the other.
AttentionArgs Bench::attention(const std::vector<backend::Row>& rows, int context, int window) {
  std::vector<int32_t> token_row, positions, pages;
  const int per_row = (context + kPageTokens - 1) / kPageTokens;
  for (size_t r = 0; r < rows.size(); ++r) {
    for (int i = 0; i < rows[r].tokens; ++i) {
      token_row.push_back(static_cast<int32_t>(r));
      positions.push_back(rows[r].context - rows[r].tokens + i);
    }
    for (int p = 0; p < per_row; ++p) pages.push_back(static_cast<int32_t>(r) * per_row + p);
  }
  return {.q = x_,
          .out = y_,
          .sinks = bias_,
          .token_row = device_copy(token_row),
          .positions = device_copy(positions),
          .pages = device_copy(pages),
          .pages_per_row = per_row,
          .heads = kHeads,
          .kv_heads = kKvHeads,
          .window = window};
}

void Bench::decode(int keys, int tokens, KvDtype type, int window) {
  const auto row_bytes = static_cast<int>(page_row_bytes(type, kHeadDim));
  std::vector<backend::Row> rows;
  for (int i = 0; i < tokens; ++i) rows.push_back({i, 1, keys});
  AttentionArgs args = attention(rows, keys, window);
  const DecodePlan plan = plan_decode({tokens, kKvHeads, row_bytes, window}, device_);
  const DecodeScratch scratch = decode_scratch(plan.target, kKvHeads);
  args.decode_count = tokens;
  args.target = plan.target;
  args.partials = device_array<float>(scratch.floats);
  args.finished = device_array<int>(scratch.counters);
  AttendShares shares;
  share_tokens(rows, shares);
  const std::vector<int32_t> positions(static_cast<size_t>(tokens), keys - 1);
  const KernelCost c = cost(shares, positions, window, {kHeads, kKvHeads, row_bytes});
  const int64_t half = int64_t{tokens} * args.pages_per_row * kPageTokens * kKvHeads * row_bytes;
  const int layers = static_cast<int>(std::clamp<int64_t>(kPoolBytes / (2 * half), 1, 64));
  add({"attend_decode " + std::string(backend::name_of(type)) + ", keys " + std::to_string(keys) +
           (window > 0 ? " window" : ""),
       tokens, 0, static_cast<double>(c.bytes), static_cast<double>(c.flops)},
      layers, [&](int i) {
        args.kv = {pool_ + i * 2 * half, pool_ + (i * 2 + 1) * half, type};
        AttendDecode::launch(args, plan, on_);
      });
}

// Kernels for prompts by what they take and multiply.
void Bench::prefill(int tokens, int window) {
  struct Way {
    std::string_view name;
    KvDtype type = KvDtype::kBf16;
    bool fp8 = false;
    int tile_tokens = kPrefillTokens;
    void (*launch)(const AttentionArgs&, const Launch&) = AttendPrefill::launch;
    bool rounds = false;  // into what o's GEMM multiplies, as in steps
  };
  std::vector<Way> ways = {{"any_attend_prefill bf16"},
                           {"any_attend_prefill e4m3", KvDtype::kE4m3},
                           {"any_attend_prefill_fp8", KvDtype::kE4m3, true}};
  if (sm90_is_built())
    for (const bool rounds : {false, true})
      ways.push_back({rounds ? "sm90_attend_prefill bf16, rounds" : "sm90_attend_prefill bf16", KvDtype::kBf16, false,
                      kSm90PrefillTokens, Sm90AttendPrefill::launch, rounds});
  const std::vector<backend::Row> rows = {{0, tokens, tokens}};
  AttentionArgs args = attention(rows, tokens, window);
  for (const Way& way : ways) {
    AttendShares shares;
    share_tokens(rows, shares, way.tile_tokens);
    args.fp8 = way.fp8;
    args.rounded = way.rounds ? GemmInput{u_, InputType::kBf16, tokens} : GemmInput{};
    args.tiles = device_copy(shares.prefill);
    args.tile_count = static_cast<int>(shares.prefill.size());
    args.ctas = std::min(args.tile_count * kKvHeads, sms_);
    const auto row_bytes = static_cast<int>(page_row_bytes(way.type, kHeadDim));
    const KernelCost c = cost(shares, {}, window, {kHeads, kKvHeads, row_bytes});
    const int64_t half = int64_t{args.pages_per_row} * kPageTokens * kKvHeads * row_bytes;
    // What has to move is each key and value, query and result once: cost() counts what tiles read, mostly from L2.
    const double rows_bytes = 1.0 * tokens * kHeads * kHeadDim * (way.rounds ? 6 : 8);
    add({std::string(way.name) + (window > 0 ? ", window" : ""), tokens, 0,
         2.0 * static_cast<double>(half) + rows_bytes, static_cast<double>(c.flops)},
        4, [&](int i) {
          args.kv = {pool_ + i * 2 * half, pool_ + (i * 2 + 1) * half, way.type};
          way.launch(args, on_);
        });
  }
}

void Bench::dense(const char* name, int rows, int cols, int tokens) {
  const int64_t bytes = layout::packed_bytes(layout::Packing::kBf16, rows, cols);
  for (const bool wgmma : {false, true}) {
    if (wgmma && !sm90_is_built()) continue;
    GemmArgs args{
        .packing = layout::Packing::kBf16, .bias = bias_, .x = x16_, .rows = rows, .cols = cols, .tokens = tokens};
    args.x_rows = wgmma ? tokens : 0;
    if (wgmma) {  // as steps have it
      args.bias = nullptr;
      args.sums = reinterpret_cast<uint16_t*>(y_);
    } else {
      args.parts[0] = {y_, 0, rows};
    }
    const GemmShape shape{rows, cols, tokens, 1, layout::Packing::kBf16};
    const GemmPlan plan = wgmma ? plan_sm90_gemm(shape, sms_) : plan_gemm(shape, device_);
    const KernelCost c = cost(args, 1);
    add({std::string(wgmma ? "sm90_gemm bf16 " : "any_gemm bf16 ") + name, tokens, 0, static_cast<double>(c.bytes),
         static_cast<double>(c.flops)},
        16, [&](int i) {
          args.weights = pool_ + i * bytes;
          wgmma ? Sm90Gemm::launch(args, plan, on_) : AnyGemm::launch(args, plan, on_);
        });
  }
  add({"round", tokens, 0, 6.0 * tokens * cols, 0}, 4, [&](int) {
    Round::launch({.from = x_, .to = {x16_, InputType::kBf16, tokens}, .tokens = tokens, .cols = cols}, on_);
  });
}

// qkv's sums to q and to pages.
void Bench::rope(int tokens) {
  std::vector<int32_t> slots(static_cast<size_t>(tokens));
  std::iota(slots.begin(), slots.end(), 0);
  auto* const table = device_array<float>(int64_t{tokens} * kHeadDim / 2);
  const RopeSums::Args args{.sums = {pool_, 1, sums_order()},
                            .bias = bias_,
                            .q = y_ + int64_t{kMaxTokens} * kTopk * kHidden / 2,  // what nobody reads here
                            .cosine = table,
                            .sine = table,
                            .kv_slots = device_copy(slots),
                            .kv = {pool_ + kPoolBytes / 2, pool_ + kPoolBytes / 4 * 3, KvDtype::kBf16},
                            .tokens = tokens,
                            .heads = kHeads,
                            .kv_heads = kKvHeads};
  const KernelCost c = cost(args);
  add({"rope_sums", tokens, 0, static_cast<double>(c.bytes), static_cast<double>(c.flops)}, 4,
      [&](int) { RopeSums::launch(args, on_); });
}

// Of a decode step of 9 to 256 tokens: the dense products, and what routes.
void Bench::few(int tokens) {
  if (!sm90_is_built()) return;
  const auto rows16 = static_cast<int>((tokens + 7) / 8 * 8);
  const auto split = [&](const char* name, int rows, int cols) {
    const SplitGemmPlan plan = plan_split_gemm({rows, cols, tokens}, sms_);
    SplitGemmArgs args{.x = x16_,
                       .sums = reinterpret_cast<uint16_t*>(y_),
                       .rows = rows,
                       .cols = cols,
                       .tokens = tokens,
                       .x_rows = rows16};
    const int64_t bytes = layout::packed_bytes(layout::Packing::kBf16, rows, cols);
    const KernelCost c = cost(args, plan);
    add({std::string("split_gemm ") + name, tokens, 0, static_cast<double>(c.bytes), static_cast<double>(c.flops)}, 16,
        [&](int i) {
          args.weights = pool_ + i * bytes;
          Sm90SplitGemm::launch(args, plan, on_);
        });
    return SplitSums{y_, plan.cut.splits, SplitSums::Order::kTiles};
  };
  split("qkv", 5120, kHidden);
  const SplitSums o = split("o", kHidden, 4096);
  const NormSums::Args norm{.x = device_array<float>(int64_t{tokens} * kHidden),
                            .sums = o,
                            .bias = bias_,
                            .norm = bias_,
                            .normed = x_,
                            .rounded = {u_, InputType::kF16},
                            .tokens = tokens,
                            .hidden = kHidden,
                            .eps = 1e-5f};
  add({"norm_sums", tokens, 0, static_cast<double>(cost(norm).bytes), 0}, 16,
      [&](int) { NormSums::launch(norm, on_); });
  if (!norm_route_serves({tokens, kHidden, kExperts})) return;
  NormRouteArgs both{.norm = norm,
                     .bias = bias_,
                     .logits = device_array<float>(int64_t{tokens} * kExperts),
                     .ids = device_array<int32_t>(int64_t{tokens} * kTopk),
                     .weights = device_array<float>(int64_t{tokens} * kTopk),
                     .experts = kExperts,
                     .topk = kTopk};
  add({"norm_route", tokens, 0, static_cast<double>(cost(both).bytes), static_cast<double>(cost(both).flops)}, 16,
      [&](int i) {
        both.weight = reinterpret_cast<const Bf16*>(pool_) + int64_t{i} * kExperts * kHidden;
        Sm90NormRoute::launch(both, plan_norm_route({tokens, kHidden, kExperts}), on_);
      });
}

// What routes many tokens: the norm, the logits, the choice.
void Bench::route(int tokens) {
  auto* const logits = device_array<float>(int64_t{tokens} * kExperts);
  auto* const ids = device_array<int32_t>(int64_t{tokens} * kTopk);
  const double width = 1.0 * tokens * kHidden;
  add({"rmsnorm", tokens, 0, 8 * width, 0}, 4, [&](int) {
    Rmsnorm::launch({.x = x_, .scale = bias_, .out = y_, .rows = tokens, .hidden = kHidden, .eps = 1e-5f}, on_);
  });
  const RouteSums::Args router{.x = x_,
                               .sums = {y_, 1, sums_order()},
                               .bias = bias_,
                               .norm = bias_,
                               .weight = reinterpret_cast<const Bf16*>(pool_),
                               .router_bias = bias_,
                               .inverse = device_array<float>(tokens),
                               .logits = logits,
                               .ids = ids,
                               .weights = device_array<float>(int64_t{tokens} * kTopk),
                               .tokens = tokens,
                               .hidden = kHidden,
                               .experts = kExperts,
                               .topk = kTopk,
                               .eps = 1e-5f};
  const KernelCost route_cost = cost(router);
  add({"route_sums", tokens, 0, static_cast<double>(route_cost.bytes), static_cast<double>(route_cost.flops)}, 4,
      [&](int) { RouteSums::launch(router, on_); });
  const Linear::Args plain{.weight = router.weight,
                           .bias = bias_,
                           .x = x_,
                           .out = logits,
                           .tokens = tokens,
                           .rows = kExperts,
                           .cols = kHidden};
  add({"any_linear router", tokens, 0, 4 * width, 2 * width * kExperts}, 1, [&](int) { Linear::launch(plain, on_); });
  add({"top_experts", tokens, 0, 4.0 * tokens * kExperts, 0}, 4, [&](int) {
    TopExperts::launch(
        {.logits = logits, .ids = ids, .weights = y_, .tokens = tokens, .experts = kExperts, .topk = kTopk}, on_);
  });
}

// Which experts tokens choose: those with the largest log(uniform) / weight, weights log-normal.
std::vector<int32_t> skewed_routing(const Routing& r) {
  std::vector<double> weights;
  for (uint64_t e = 0; e < static_cast<uint64_t>(r.experts); ++e) {
    const double radius = std::sqrt(-2 * std::log(1 - double{uniform_float(philox(4, e)[0])}));
    weights.push_back(std::exp(r.sigma * radius * std::cos(2 * std::numbers::pi * uniform_float(philox(4, e)[1]))));
  }
  std::vector<int32_t> ids;
  for (int t = 0; t < r.tokens; ++t) {
    std::vector<std::pair<double, int32_t>> keys;
    for (int32_t e = 0; e < r.experts; ++e) {
      const float draw = uniform_float(philox(static_cast<uint64_t>(t) + 5, static_cast<uint64_t>(e))[0]);
      keys.emplace_back(std::log(1 - double{draw}) / weights[static_cast<size_t>(e)], e);
    }
    std::partial_sort(keys.begin(), keys.begin() + kTopk, keys.end(), std::greater());
    for (int i = 0; i < kTopk; ++i) ids.push_back(keys[static_cast<size_t>(i)].second);
  }
  return ids;
}

void Bench::moe(const Routing& r) {
  const auto& [experts, tokens, sigma] = r;
  const std::vector<int32_t> ids = skewed_routing(r);
  std::vector<bool> seen(experts);
  for (const int32_t e : ids) seen[static_cast<size_t>(e)] = true;
  MoeStep step{.experts = experts,
               .tokens = tokens,
               .distinct = static_cast<int>(std::count(seen.begin(), seen.end(), true)),
               .name = ", " + std::to_string(experts) + " experts, sigma " + std::to_string(sigma).substr(0, 3)};
  const auto places = static_cast<int>(max_places(step.pairs(), experts));
  step.ids = device_copy(ids);
  step.pair_of = device_array<int32_t>(places);
  step.place_of = device_array<int32_t>(step.pairs());
  step.tiles = device_array<ExpertTile>(max_expert_tiles(step.pairs(), experts, 32));
  step.tile_counts = device_array<int32_t>(kTileCounts);
  for (const bool wgmma : {false, true})
    if (!wgmma || sm90_is_built()) experts_gemms(step, wgmma);
  const NormSums::Args norm{.x = x_,
                            .sums = {y_, kTopk, SplitSums::Order::kExpertsBf16, y_},
                            .norm = bias_,
                            .rounded = {x16_, InputType::kBf16, tokens},
                            .tokens = tokens,
                            .hidden = kHidden};
  add({"norm_sums of experts", tokens, 0, static_cast<double>(cost(norm).bytes), 0}, 4,
      [&](int) { NormSums::launch(norm, on_); });
}

void Bench::experts_gemms(const MoeStep& s, bool wgmma) {
  const int pairs = s.pairs();
  const auto places = static_cast<int>(max_places(pairs, s.experts));
  const GemmShape up{2 * kInter, kHidden, pairs, s.experts};
  const GemmPlan plan = wgmma ? plan_sm90_gemm(up, sms_) : plan_gemm(up, device_);
  const auto group = [&] {
    GroupTiles::launch({s.ids, s.pair_of, s.place_of, s.tiles, s.tile_counts, s.tokens, kTopk, s.experts, plan.tokens},
                       on_);
  };
  group();  // for what follows, whatever is timed
  add({"moe_group, tiles of " + std::to_string(plan.tokens), s.tokens, 0, 12.0 * pairs, 0}, 4, [&](int) { group(); });
  if (wgmma) {
    const float* const inverse = device_copy(std::vector<float>(static_cast<size_t>(s.tokens), 1.0f));
    const Bf16* const norm = device_copy(std::vector<Bf16>(kHidden, Bf16::from_float(1)));
    add({"round for experts", s.tokens, 0, s.tokens * kHidden * (4.0 + 2 * kTopk), 0}, 4, [&](int) {
      Round::launch({.from = x_,
                     .to = {x16_, InputType::kF16, places},
                     .tokens = s.tokens,
                     .cols = kHidden,
                     .inverse = inverse,
                     .norm = norm,
                     .places = s.place_of,
                     .copies = kTopk},
                    on_);
    });
  }
  GemmArgs args{.packing = layout::Packing::kMxfp4,
                .order = layout::RowOrder::kGateUp,
                .bias = bias_,
                .x = x16_,
                .rows = 2 * kInter,
                .cols = kHidden,
                .tokens = pairs,
                .tiles = s.tiles,
                .tile_count = s.tile_counts,
                .pairs = s.pair_of,
                .x_share = wgmma ? 1 : kTopk,
                .experts = s.experts,
                .x_rows = wgmma ? places : 0,
                .u = u_};
  // gate_up, down, or both at once, whose list serves one launch.
  const auto time = [&](const char* name) {
    const GemmShape shape{args.rows, args.cols, pairs, s.experts};
    const GemmPlan own =
        wgmma ? plan_sm90_gemm(shape, sms_, plan.tokens) : plan_gemm_tile(shape, {plan.rows, plan.tokens});
    const int64_t bytes = s.experts * layout::packed_bytes(args.packing, args.rows, args.cols),
                  more = s.experts * layout::packed_bytes(args.packing, args.cols, args.rows / 2);
    const bool both = args.down.weights != nullptr;
    const KernelCost c = cost(args, s.distinct);
    add({(wgmma ? "sm90_gemm mxfp4 " : "any_gemm mxfp4 ") + (name + s.name), s.tokens, 0, static_cast<double>(c.bytes),
         static_cast<double>(c.flops)},
        static_cast<int>(kPoolBytes / (both ? bytes + more : bytes)), [&](int i) {
          args.weights = experts_ + i * (both ? bytes + more : bytes);
          if (both) args.down.weights = args.weights + bytes;
          if (both) group();
          wgmma ? Sm90Gemm::launch(args, own, on_) : AnyGemm::launch(args, own, on_);
        });
  };
  time("gate_up");
  args.down = {experts_, bias_, reinterpret_cast<uint16_t*>(y_)};
  if (wgmma) time("moe_group and both");
  args = down_alone(args);
  time("down");
}

void Bench::write(const char* path) const {
  std::FILE* f = std::fopen(path, "w");
  if (f == nullptr) throw Error(Code::kIo, "[bench] cannot write {}", path);
  std::fprintf(f, "{\"device\": \"%s\", \"read_gb_per_s\": %.1f, \"tflop_per_s\": %.1f, \"kernels\": [\n",
               peaks_.device.c_str(), peaks_.read_bytes_per_s / 1e9, peaks_.exact_peak()->flops_per_s / 1e12);
  for (size_t i = 0; i < rows_.size(); ++i) {
    const Row& r = rows_[i];
    std::fprintf(f,
                 "  {\"kernel\": \"%s\", \"tokens\": %d, \"us\": %.3f, \"bytes\": %.0f, \"flops\": %.0f, "
                 "\"gb_per_s\": %.1f, \"tflop_per_s\": %.1f, \"of_ideal\": %.4f}%s\n",
                 r.name.c_str(), r.tokens, r.us, r.bytes, r.flops, r.bytes / r.us / 1e3, r.flops / r.us / 1e6, ideal(r),
                 i + 1 < rows_.size() ? "," : "");
  }
  std::fprintf(f, "]}\n");
  std::fclose(f);
}

void run(const char* path, const char* only) {
  static_cast<void>(open_device(0));
  Bench bench(only);
  for (const auto type : {KvDtype::kBf16, KvDtype::kE4m3})
    for (const int keys : {128, 2048, 8192, 32768, 131072}) bench.decode(keys, 1, type, 0);
  bench.decode(32768, 1, KvDtype::kBf16, 128);
  for (const int tokens : {8, 64}) bench.decode(2048, tokens, KvDtype::kBf16, 0);
  for (const int tokens : {16, 32, 64, 128, 256}) bench.few(tokens);
  for (const int tokens : {512, 2048, 8192}) {
    for (const int window : {0, 128}) bench.prefill(tokens, window);
    bench.dense("qkv", 5120, kHidden, tokens);
    bench.dense("o", kHidden, 4096, tokens);
    bench.rope(tokens);
    bench.route(tokens);
    for (const double sigma : {0.0, 1.5}) bench.moe({.tokens = tokens, .sigma = sigma});  // 1.5: as in the dummy model
  }
  for (const int tokens : {128, 256})  // 20b's decode steps
    for (const double sigma : {0.0, 1.5}) bench.moe({.experts = 32, .tokens = tokens, .sigma = sigma});
  bench.write(path);
}

}  // namespace
}  // namespace nibble::backend::cuda

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    std::printf("usage: prefill_bench <json file> [part of a name]\n");
    return 2;
  }
  try {
    nibble::backend::cuda::run(argv[1], argc == 3 ? argv[2] : "");
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
  return 0;
}
