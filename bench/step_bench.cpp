// Times what surrounds attention and experts in a step of 9 to 512 tokens (src/backend/cuda/kernels: split_gemm,
// norm_sums, rope_sums, route_tokens) at gpt-oss-120b's shapes, kernel by kernel and as the chains of launches that
// make a stage, against the card's measured read bandwidth and matrix peak.
//   step_bench <json file>
// Each time is the mean of a kernel or chain in a CUDA graph of launches over different layers' weights (more than L2
// holds in all); median of the repetitions. "ideal" is the longer of bytes over read bandwidth and flops over the peak.

#include "backend/cuda/arch/arch.h"
#include "backend/cuda/card/device.h"
#include "backend/cuda/norm_rope/around_gemm.h"
#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/arch/sm90/kernels.h"
#include "backend/cuda/card/measure.h"
#include "base/random.h"
#include "graph_timer.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <vector>

namespace nibble::backend::cuda {
namespace {

constexpr int kHidden = 2880, kHeads = 64, kKvHeads = 8, kExperts = 128, kTopk = 4, kWidth = kHeads * kGemvHeadDim;
constexpr int kQkv = kWidth + 2 * kKvHeads * kGemvHeadDim, kMaxTokens = 512, kRepetitions = 15, kLayers = 16;

template <class T>
T* device_array(int64_t count) {  // lives as long as the program
  std::byte* bytes = allocate_device(count * static_cast<int64_t>(sizeof(T)), "bench").release();
  cuda_check(cudaMemset(bytes, 0, static_cast<size_t>(count) * sizeof(T)));
  return reinterpret_cast<T*>(bytes);
}

// 16-bit floats of up to 2 in size, or 32-bit ones that look like these.
template <class T>
T* noise_array(int64_t count) {
  constexpr size_t kBlock = size_t{1} << 24;
  static const std::vector<uint32_t> block = [] {
    std::vector<uint32_t> words(kBlock / 4);
    for (size_t i = 0; i < words.size(); ++i) words[i] = (philox(1, i)[0] & 0x80ff80ffu) | 0x3f003f00u;
    return words;
  }();
  T* const to = device_array<T>(count);
  const auto bytes = static_cast<size_t>(count) * sizeof(T);
  for (size_t at = 0; at < bytes; at += kBlock)
    cuda_check(cudaMemcpy(reinterpret_cast<uint8_t*>(to) + at, block.data(), std::min(bytes - at, kBlock),
                          cudaMemcpyHostToDevice));
  return to;
}

struct Row {
  std::string name;
  int tokens;
  GemmCost cost;
  double us = 0;
};

// A GEMM over the weights of layer i, where it leaves its sums, and what it costs.
struct Gemm {
  std::function<void(int)> run;
  SplitSums sums;
  GemmCost cost;
};

// What a step's kernels are given; of the router, all but the weights.
struct Step {
  Gemm qkv, o;
  NormSumsArgs norm{}, settle{};
  RopeSumsArgs rope{};
  RoundArgs round{};
  RouteTokensArgs route{};
};

class Bench {
 public:
  Bench() : peaks_(measure_cuda(0)), stream_(make_stream()) {
    cuda_check(cudaDeviceGetAttribute(&sms_, cudaDevAttrMultiProcessorCount, 0));
    on_ = {stream_.get(), &counts_};
  }
  void step(int tokens);
  void write(const char* path) const;

 private:
  static int rows16(int tokens) { return (tokens + 7) / 8 * 8; }
  [[nodiscard]] Gemm gemm(const uint8_t* weights, const GemmShape& shape) const;
  [[nodiscard]] Step step_of(int tokens) const;
  // link(i) enqueues layer i's launches.
  void add(Row row, const std::function<void(int)>& link) {
    row.us = median_link_us({stream_.get(), kLayers, kRepetitions}, link);
    std::printf("%-40s %5d %9.2f us %6.0f GB/s %7.1f TFLOP/s %5.1f%%\n", row.name.c_str(), row.tokens, row.us,
                static_cast<double>(row.cost.bytes) / row.us / 1e3, static_cast<double>(row.cost.flops) / row.us / 1e6,
                100 * ideal(row));
    std::fflush(stdout);
    rows_.push_back(std::move(row));
  }
  [[nodiscard]] double ideal(const Row& row) const {
    const Cost cost{.bytes = static_cast<double>(row.cost.bytes), .flops = static_cast<double>(row.cost.flops)};
    return 1e6 * peaks_.ideal_seconds(cost) / row.us;
  }

  DevicePeaks peaks_;
  Stream stream_;
  int sms_ = 0;
  LaunchCounts counts_{};
  Launch on_;
  std::vector<Row> rows_;
  uint8_t* qkv_ = noise_array<uint8_t>(int64_t{kLayers} * kQkv * kHidden * 2);
  uint8_t* o_ = noise_array<uint8_t>(int64_t{kLayers} * kHidden * kWidth * 2);
  Bf16* router_ = noise_array<Bf16>(int64_t{kLayers} * kExperts * kHidden);
  float* residual_ = noise_array<float>(int64_t{kMaxTokens} * kHidden);
  float* normed_ = device_array<float>(int64_t{kMaxTokens} * kHidden);
  float* attn_ = noise_array<float>(int64_t{kMaxTokens} * kWidth);
  float* q_ = device_array<float>(int64_t{kMaxTokens} * kWidth);
  uint16_t* x16_ = noise_array<uint16_t>(int64_t{kMaxTokens} * kWidth);
  float* sums_ = device_array<float>(int64_t{kMaxSplits} * kMaxTokens * kQkv);
  Bf16* bias_ = device_array<Bf16>(kQkv);
  Bf16* scale_ = noise_array<Bf16>(kHidden);
  float* table_ = noise_array<float>(int64_t{kMaxTokens} * 32);
  int32_t* slots_ = device_array<int32_t>(kMaxTokens);
  Bf16* keys_ = device_array<Bf16>(int64_t{kKvHeads} * kPageTokens * kGemvHeadDim);
  Bf16* values_ = device_array<Bf16>(int64_t{kKvHeads} * kPageTokens * kGemvHeadDim);
  float* logits_ = device_array<float>(int64_t{kMaxTokens} * kExperts);
  int32_t* ids_ = device_array<int32_t>(int64_t{kMaxTokens} * kTopk);
  float* weights_ = device_array<float>(int64_t{kMaxTokens} * kTopk);
  int* finished_ = device_array<int>(route_tiles(kMaxTokens));
};

Gemm Bench::gemm(const uint8_t* weights, const GemmShape& shape) const {
  const auto rows = static_cast<int>(shape.rows), cols = static_cast<int>(shape.cols);
  const auto tokens = static_cast<int>(shape.tokens);
  const int64_t bytes = shape.rows * shape.cols * 2;
  const bool split = tokens <= kSplitMaxTokens;
  const SplitGemmPlan plan = split ? plan_split_gemm(shape, sms_) : SplitGemmPlan{.splits = 1};
  SplitGemmArgs args{.x = x16_,
                     .sums = reinterpret_cast<uint16_t*>(sums_),
                     .rows = rows,
                     .cols = cols,
                     .tokens = tokens,
                     .x_rows = rows16(tokens)};
  const GemmCost own = cost(args, plan);
  const auto run = [=, this, on = on_](int i) mutable {
    args.weights = weights + i * bytes;
    if (split) return sm90_split_gemm(args, plan, on);
    GemmArgs all{
        .weights = args.weights, .x = x16_, .rows = rows, .cols = cols, .tokens = tokens, .x_rows = args.x_rows};
    all.parts[0] = {sums_, 0, rows};
    sm90_gemm(all, plan_sm90_gemm({shape.rows, shape.cols, shape.tokens, 1, layout::Packing::kBf16}, sms_), on);
  };
  return {run, {sums_, plan.splits, plan.splits > 1 ? SplitSums::Order::kTiles : SplitSums::Order::kRows}, own};
}

Step Bench::step_of(int tokens) const {
  Step s{.qkv = gemm(qkv_, {kQkv, kHidden, tokens}), .o = gemm(o_, {kHidden, kWidth, tokens})};
  s.norm = {.x = residual_,
            .sums = {},
            .norm = scale_,
            .rounded = {x16_, InputType::kBf16, rows16(tokens)},
            .tokens = tokens,
            .hidden = kHidden,
            .eps = 1e-5f};
  s.rope = {.sums = s.qkv.sums,
            .bias = bias_,
            .q = q_,
            .cosine = table_,
            .sine = table_,
            .kv_slots = slots_,
            .kv = {keys_, values_, KvDtype::kBf16},
            .tokens = tokens,
            .heads = kHeads,
            .kv_heads = kKvHeads};
  s.round = {.from = attn_, .to = s.norm.rounded, .tokens = tokens, .cols = kWidth};
  s.settle = s.norm;
  s.settle.sums = s.o.sums;
  s.settle.bias = bias_;
  s.settle.normed = normed_;
  s.settle.rounded.type = InputType::kF16;
  s.route = {.x = normed_,
             .bias = bias_,
             .logits = logits_,
             .ids = ids_,
             .weights = weights_,
             .finished = finished_,
             .tokens = tokens,
             .hidden = kHidden,
             .experts = kExperts,
             .topk = kTopk};
  return s;
}

void Bench::step(int tokens) {
  const Step s = step_of(tokens);
  const RoutePlan plan = plan_route({tokens, kHidden, kExperts}, sms_);
  const auto route = [&](int i) {
    RouteTokensArgs args = s.route;
    args.weight = router_ + int64_t{i} * kExperts * kHidden;
    any_route_tokens(args, plan, on_);
  };
  const auto attn_in = [&](int i) {
    any_norm_sums(s.norm, on_);
    s.qkv.run(i);
    any_rope_sums(s.rope, on_);
  };
  const auto attn_out = [&](int i) {
    any_round(s.round, on_);
    s.o.run(i);
  };
  const auto settle_and_route = [&](int i) {
    any_norm_sums(s.settle, on_);
    route(i);
  };
  add({"norm_sums", tokens, cost(s.norm)}, [&](int) { any_norm_sums(s.norm, on_); });
  add({"qkv gemm", tokens, s.qkv.cost}, s.qkv.run);
  add({"rope_sums", tokens, cost(s.rope)}, [&](int) { any_rope_sums(s.rope, on_); });
  add({"round", tokens, {.bytes = int64_t{6} * tokens * kWidth}}, [&](int) { any_round(s.round, on_); });
  add({"o gemm", tokens, s.o.cost}, s.o.run);
  add({"norm_sums of o", tokens, cost(s.settle)}, [&](int) { any_norm_sums(s.settle, on_); });
  add({"route_tokens", tokens, cost(s.route)}, route);
  add({"attn_in: norm, qkv, rope", tokens, s.qkv.cost}, attn_in);
  add({"attn_out: round, o", tokens, s.o.cost}, attn_out);
  add({"route: norm, route_tokens", tokens, cost(s.route)}, settle_and_route);
  add({"all three", tokens, {.bytes = s.qkv.cost.bytes + s.o.cost.bytes, .flops = s.qkv.cost.flops + s.o.cost.flops}},
      [&](int i) {
        attn_in(i);
        attn_out(i);
        settle_and_route(i);
      });
}

void Bench::write(const char* path) const {
  std::FILE* f = std::fopen(path, "w");
  if (f == nullptr) throw Error(Code::kIo, "[bench] cannot write {}", path);
  std::fprintf(f, "{\"device\": \"%s\", \"read_gb_per_s\": %.1f, \"tflop_per_s\": %.1f, \"kernels\": [\n",
               peaks_.device.c_str(), peaks_.read_bytes_per_s / 1e9, peaks_.exact_peak()->flops_per_s / 1e12);
  for (size_t i = 0; i < rows_.size(); ++i) {
    const Row& r = rows_[i];
    std::fprintf(f, "  {\"kernel\": \"%s\", \"tokens\": %d, \"us\": %.3f, \"bytes\": %lld, \"of_ideal\": %.4f}%s\n",
                 r.name.c_str(), r.tokens, r.us, static_cast<long long>(r.cost.bytes), ideal(r),
                 i + 1 < rows_.size() ? "," : "");
  }
  std::fprintf(f, "]}\n");
  std::fclose(f);
}

void run(const char* path) {
  if (!sm90().runs_on(open_device(0)) || !sm90_gemm_serves(layout::Packing::kBf16))
    throw Error(Code::kUnsupported, "[bench] want a card and a build with wgmma");
  Bench bench;
  for (const int tokens : {9, 16, 32, 64, 128, 256, 512}) bench.step(tokens);
  bench.write(path);
}

}  // namespace
}  // namespace nibble::backend::cuda

int main(int argc, char** argv) {
  if (argc != 2) {
    std::printf("usage: step_bench <json file>\n");
    return 2;
  }
  try {
    nibble::backend::cuda::run(argv[1]);
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
  return 0;
}
