// Times the decode kernels of src/backend/cuda/kernels/any against the card's measured read bandwidth.
//   kernel_bench <json file> [part of a name: those kernels alone]
// Each time is the mean of one kernel in a chain over many layers' weights (2 GB and more: nothing stays in L2),
// launched as a CUDA graph, with programmatic dependent launch ("chain") and without ("graph"); median of the
// repetitions.

#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/experts/experts.h"
#include "backend/cuda/experts/route.h"
#include "backend/cuda/testing/costs.h"
#include "base/random.h"
#include "graph_timer.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::backend::cuda {
namespace {

constexpr int kHidden = 2880, kInter = 2880, kTopk = 4, kExperts = 128, kVocab = 201088;
constexpr int64_t kPoolBytes = int64_t{5} << 30;
constexpr int kRepetitions = 9;

void cuda_check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::printf("%s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

template <class T>
T* device_array(int64_t count) {  // lives as long as the program
  T* p = nullptr;
  cuda_check(cudaMalloc(&p, static_cast<size_t>(count) * sizeof(T)), "cudaMalloc");
  cuda_check(cudaMemset(p, 0, static_cast<size_t>(count) * sizeof(T)), "cudaMemset");
  return p;
}

// Random bits where `random` has ones, those of `fixed` besides.
struct Fill {
  uint32_t random, fixed;
};
constexpr Fill kWeightFill = {0x0f0f0f0fu, 0x70707070u};  // codes and scales both: scale bytes in 112..127
constexpr Fill kF16Fill = {0x8fff8fffu, 0x30003000u};     // 0.125 to 2 in size

__global__ void fill_random(uint32_t* words, int64_t count, Fill fill) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    uint32_t v = static_cast<uint32_t>(i) * 2654435761u + static_cast<uint32_t>(i >> 32);
    v ^= v >> 15;
    v *= 2246822519u;
    v ^= v >> 13;
    words[i] = (v & fill.random) | fill.fixed;
  }
}

template <int kLoads>
__global__ void __launch_bounds__(1024) read_all(const uint4* data, int64_t count, uint32_t* sink) {
  uint32_t sum = 0;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + (kLoads - 1) * stride < count; i += kLoads * stride) {
    uint4 v[kLoads];
    for (int n = 0; n < kLoads; ++n) v[n] = __ldcs(data + i + n * stride);
    for (int n = 0; n < kLoads; ++n) sum ^= v[n].x ^ v[n].y ^ v[n].z ^ v[n].w;
  }
  for (; i < count; i += stride) sum ^= data[i].x;
  if (sum == 0x12345678u) *sink = sum;
}

struct Peak {
  double gb_per_s = 0;
  std::string configuration;
};

Peak measure_read(const uint8_t* pool, int sms, cudaStream_t stream, uint32_t* sink) {
  Peak best;
  const auto* data = reinterpret_cast<const uint4*>(pool);
  const int64_t count = kPoolBytes / 16;
  for (const int blocks : {2, 4, 8})
    for (const int threads : {256, 512, 1024})
      for (const int loads : {4, 8}) {
        if (blocks * threads > 2048) continue;
        const auto grid = static_cast<unsigned>(blocks * sms);
        const double us = median_us(stream, 5, [&] {
          if (loads == 4) read_all<4><<<grid, static_cast<unsigned>(threads), 0, stream>>>(data, count, sink);
          if (loads == 8) read_all<8><<<grid, static_cast<unsigned>(threads), 0, stream>>>(data, count, sink);
        });
        const double rate = static_cast<double>(kPoolBytes) / us / 1e3;
        if (rate > best.gb_per_s)
          best = {rate, std::to_string(blocks) + " blocks/SM x " + std::to_string(threads) + " threads x " +
                            std::to_string(loads) + " loads"};
      }
  return best;
}

// How a chain's kernels are launched.
struct Link {
  PlanDevice device;
  bool chained = false;
  int stages = 0;  // of gemv's ring; 0: the plan decides
  cudaStream_t stream = nullptr;
  [[nodiscard]] Launch on() const { return {.stream = stream, .chained = chained}; }
  template <class Kernel>
  [[nodiscard]] GemvPlan gemv(const typename Kernel::Args& args) const {
    return plan_gemv(Kernel::shape_of(args), device, stages);
  }
};

// A kernel to time: link(i) enqueues the i-th of a chain, over weights of its own.
struct Subject {
  std::string name;
  int tokens;
  KernelCost cost;
  int links;
  std::function<void(int, const Link&)> link;
};

struct Result {
  std::string name;
  int tokens, stages;
  double chain_us, graph_us;
  KernelCost cost;
};

double time_links(const Subject& subject, Link launch, cudaStream_t stream) {
  launch.stream = stream;
  return median_link_us({stream, subject.links, kRepetitions}, [&](int i) { subject.link(i, launch); });
}

struct Buffers {
  uint8_t* pool;
  float* x;     // [8, 4096]
  F16* half_x;  // [8, hidden]
  F16* u;       // [32, inter]
  Bf16* bias;   // [experts, 2 * inter]: shared by all layers
  Bf16* norm;   // [hidden]
  float* y;     // [8, vocab]
};

constexpr const char* kPackings[] = {"bf16", "mxfp8", "mxfp4", "q8_0"};

// qkv, o and lm_head as a step has them: norm in front of the first and the last.
Subject dense_subject(const std::string& name, const Buffers& b, GemvDense::Args args) {
  const int64_t bytes = layout::packed_bytes(args.packing, args.rows, args.cols);
  args.in.x = b.x;
  if (name != "o") args.in.norm = b.norm;
  args.in.eps = 1e-5f;
  args.y = b.y;
  args.bias = args.rows == kVocab ? nullptr : b.bias;
  const int links = static_cast<int>(std::max<int64_t>(1, kPoolBytes / 2 / bytes));
  return {name + " " + kPackings[static_cast<size_t>(args.packing)], args.tokens, cost(args), links,
          [=](int i, const Link& launch) {
            GemvDense::Args own = args;
            own.weights = b.pool + i * bytes;
            GemvDense::launch(own, launch.gemv<GemvDense>(own), launch.on());
          }};
}

Subject router_subject(const Buffers& b, int tokens) {
  const Router::Args args{.x = b.x,
                          .delta = b.x,
                          .sum = b.y + int64_t{16} * kHidden,
                          .norm = b.norm,
                          .bias = b.bias,
                          .normed = b.u,
                          .logits = b.y + int64_t{8} * kHidden,
                          .hidden = kHidden,
                          .experts = 128,
                          .tokens = tokens,
                          .eps = 1e-5f};
  const int64_t bytes = int64_t{2} * args.experts * kHidden;
  return {"router bf16", tokens, cost(args), 1000, [=](int i, const Link& launch) {
            Router::Args own = args;
            own.weight = reinterpret_cast<const Bf16*>(b.pool + i * bytes);
            Router::launch(own, launch.on());
          }};
}

// Router logits of one layer, of which the topk are drawn; every layer draws its own.
std::vector<float> draw_logits(int tokens, int layer, uint32_t experts, int* distinct) {
  std::vector<float> logits(static_cast<size_t>(tokens * kExperts), -1);
  std::vector<bool> seen(kExperts);
  for (int t = 0; t < tokens; ++t)
    for (uint64_t n = 0, k = 0; k < kTopk; ++n) {
      const uint32_t e = philox(static_cast<uint64_t>(layer * 8 + t), n)[0] % experts;
      float& logit = logits[static_cast<size_t>(t) * kExperts + e];
      if (logit > 0) continue;
      logit = 1 + static_cast<float>(k);
      seen[e] = true;
      ++k;
    }
  *distinct += static_cast<int>(std::count(seen.begin(), seen.end(), true));
  return logits;
}

enum class Moe { kUp, kUpInL2, kDown, kPair };

// up, down in the form that a step of so many tokens has, or both in turn as a layer has them. kUpInL2: one layer's
// first four experts again and again, 35 MB: how fast tiles are consumed when DRAM is not the limit; its % of read
// bandwidth may pass 100.
Subject moe_subject(const std::string& name, Moe which, int tokens, const Buffers& b, int inter = kInter) {
  const auto width = static_cast<int>(layout::block_pair_width(inter));  // of u
  const int64_t up_bytes = kExperts * layout::packed_bytes(2 * inter, kHidden);
  const int64_t down_bytes = kExperts * layout::packed_bytes(kHidden, width);
  const int64_t layer_bytes = which == Moe::kUp || which == Moe::kUpInL2 ? up_bytes
                              : which == Moe::kDown                      ? down_bytes
                                                                         : up_bytes + down_bytes;
  const int layers = which == Moe::kUpInL2 ? 1 : static_cast<int>(kPoolBytes / layer_bytes);
  const int rounds = which == Moe::kUpInL2 ? 60 : 16;
  auto* logits = device_array<float>(int64_t{layers} * rounds * tokens * kExperts);
  int distinct = 0;
  for (int i = 0; i < layers * rounds; ++i) {
    const std::vector<float> own = draw_logits(tokens, i, which == Moe::kUpInL2 ? kTopk : kExperts, &distinct);
    cuda_check(cudaMemcpy(logits + i * tokens * kExperts, own.data(), own.size() * 4, cudaMemcpyHostToDevice), "ids");
  }
  constexpr int kRowTiles = kHidden / layout::kTileRows;
  auto* finished = device_array<int>(kRowTiles);
  cuda_check(cudaMemset(finished, 0, kRowTiles * sizeof(int)), "zeros");
  const ExpertChoice choice{.experts = kExperts, .topk = kTopk};
  const MoeUp::Args up{
      .bias = b.bias, .x = b.half_x, .choice = choice, .u = b.u, .hidden = kHidden, .inter = inter, .tokens = tokens};
  const MoeDown::Args down{.bias = b.bias,
                           .u = b.u,
                           .choice = choice,
                           .y = b.y,
                           .sums = device_array<float>(int64_t{kGemvRoutes} * kHidden),
                           .finished = finished,
                           .hidden = kHidden,
                           .inter = width,
                           .tokens = tokens};
  const GemvMoeDown::Args few{.bias = b.bias,
                              .u = b.u,
                              .choice = choice,
                              .y = {b.y, b.y + int64_t{8} * kHidden},
                              .hidden = kHidden,
                              .inter = width,
                              .tokens = tokens,
                              .parts = 2};
  const bool has_up = which != Moe::kDown, has_down = which == Moe::kDown || which == Moe::kPair;
  const bool few_pairs = tokens * kTopk <= kGemvTokens;
  const auto placed = [=](auto args, int i, const uint8_t* weights) {
    args.choice.logits = logits + i * tokens * kExperts;
    args.weights = weights;
    return args;
  };
  const auto link = [=](int i, const Link& launch) {
    const uint8_t* weights = b.pool + i % layers * layer_bytes;
    const uint8_t* down_weights = has_up ? weights + up_bytes : weights;
    if (has_up)
      MoeUp::launch(placed(up, i, weights), plan_row_warps(kHidden, MoeUp::kWish, launch.device), launch.on());
    if (has_down && few_pairs)
      GemvMoeDown::launch(placed(few, i, down_weights), launch.gemv<GemvMoeDown>(few), launch.on());
    if (has_down && !few_pairs)
      MoeDown::launch(placed(down, i, down_weights), plan_row_warps(width, MoeDown::kWish, launch.device), launch.on());
  };
  // The mean over the layers: their numbers of distinct experts differ.
  const int links = layers * rounds;
  const auto mean = [&](const auto& args) {
    KernelCost base = cost(args, 0);
    base.bytes += (cost(args, 1).bytes - base.bytes) * distinct / links;
    return base;
  };
  KernelCost total;
  if (has_up) total = mean(up);
  if (has_down) {
    const KernelCost own = few_pairs ? mean(few) : mean(down);
    total = {total.bytes + own.bytes, total.flops + own.flops};
  }
  return {name, tokens, total, links, link};
}

// A step's experts, of 128, as the device groups them; as many layers as the pool holds take turns.
struct Grouped {
  static constexpr int kAll = 128;
  int distinct = 0;
  MoeGroups groups;

  Grouped(int tokens, int tile_tokens) {
    std::vector<int32_t> ids;
    for (int t = 0; t < tokens; ++t)
      for (uint64_t n = 0; static_cast<int>(ids.size()) < (t + 1) * kTopk; ++n) {
        const auto e = static_cast<int32_t>(philox(static_cast<uint64_t>(t), n)[0] % kAll);
        if (std::find(ids.begin() + t * kTopk, ids.end(), e) == ids.end()) ids.push_back(e);
      }
    distinct = static_cast<int>(std::set<int32_t>(ids.begin(), ids.end()).size());
    GroupTiles::Args args{.expert_ids = device_array<int32_t>(std::ssize(ids)),
                          .pairs = device_array<int32_t>(max_places(std::ssize(ids), kAll)),
                          .tiles = device_array<ExpertTile>(max_expert_tiles(std::ssize(ids), kAll, 8)),
                          .tile_counts = device_array<int32_t>(kTileCounts),
                          .tokens = tokens,
                          .topk = kTopk,
                          .experts = kAll,
                          .tile_tokens = tile_tokens};
    cuda_check(cudaMemcpy(const_cast<int32_t*>(args.expert_ids), ids.data(), ids.size() * 4, cudaMemcpyHostToDevice),
               "ids");
    GroupTiles::launch(args, {});
    cuda_check(cudaDeviceSynchronize(), "groups");
    groups = {args.pairs, args.tiles, args.tile_counts, kTopk};
  }
};

F16* random_f16(int64_t count) {
  auto* values = device_array<F16>(count);
  fill_random<<<1024, 256>>>(reinterpret_cast<uint32_t*>(values), count / 2, kF16Fill);
  return values;
}

std::vector<Subject> grouped_subjects(const Buffers& b, int tokens, const PlanDevice& device) {
  const Grouped step(tokens, grouped_tokens(kHidden, kInter, device));
  const int64_t up_expert = layout::packed_bytes(2 * kInter, kHidden),
                down_expert = layout::packed_bytes(kHidden, kInter);
  const auto pairs = int64_t{tokens} * kTopk;
  const GroupedUp::Args up{.bias = b.bias,
                           .x = random_f16(int64_t{tokens} * kHidden),
                           .groups = step.groups,
                           .u = device_array<F16>(pairs * kInter),
                           .hidden = kHidden,
                           .inter = kInter};
  const GroupedDown::Args down{.bias = b.bias,
                               .u = random_f16(pairs * kInter),
                               .groups = step.groups,
                               .y = device_array<float>(pairs * kHidden),
                               .hidden = kHidden,
                               .inter = kInter};
  const auto layers = [](int64_t expert_bytes) {
    return static_cast<int>(kPoolBytes / (Grouped::kAll * expert_bytes));
  };
  const auto cost_of = [&](int64_t expert_bytes, int64_t in, int64_t out, int64_t rows) {
    return KernelCost{step.distinct * expert_bytes + in + out, 2 * pairs * rows * kHidden};
  };
  return {{"grouped gate_up", tokens, cost_of(up_expert, tokens * 2 * kHidden, pairs * 2 * kInter, 2 * kInter),
           4 * layers(up_expert),
           [=](int i, const Link& launch) {
             GroupedUp::Args own = up;
             own.weights = b.pool + i % layers(up_expert) * Grouped::kAll * up_expert;
             GroupedUp::launch(own, plan_row_warps(kHidden, kGrouped, launch.device), launch.on());
           }},
          {"grouped down", tokens, cost_of(down_expert, pairs * 2 * kInter, pairs * 4 * kHidden, kHidden),
           4 * layers(down_expert), [=](int i, const Link& launch) {
             GroupedDown::Args own = down;
             own.weights = b.pool + i % layers(down_expert) * Grouped::kAll * down_expert;
             GroupedDown::launch(own, plan_row_warps(kInter, kGrouped, launch.device), launch.on());
           }}};
}

std::vector<Subject> subjects(const Buffers& b, int tokens) {
  std::vector<Subject> all;
  using enum layout::Packing;
  for (const layout::Packing packing : {kBf16, kMxfp8, kMxfp4, kQ8}) {
    all.push_back(
        dense_subject("qkv", b, {.packing = packing, .in = {}, .rows = 5120, .cols = kHidden, .tokens = tokens}));
    all.push_back(
        dense_subject("o", b, {.packing = packing, .in = {}, .rows = kHidden, .cols = 4096, .tokens = tokens}));
    all.push_back(
        dense_subject("lm_head", b, {.packing = packing, .in = {}, .rows = kVocab, .cols = kHidden, .tokens = tokens}));
  }
  all.push_back(router_subject(b, tokens));
  all.push_back(moe_subject("gate_up x4", Moe::kUp, tokens, b));
  all.push_back(moe_subject("gate_up x4 from L2", Moe::kUpInL2, tokens, b));
  all.push_back(moe_subject("down x4", Moe::kDown, tokens, b));
  all.push_back(moe_subject("gate_up + down", Moe::kPair, tokens, b));
  all.push_back(moe_subject("a rank of two's gate_up", Moe::kUp, tokens, b, kInter / 2));
  all.push_back(moe_subject("a rank of two's down", Moe::kDown, tokens, b, kInter / 2));
  all.push_back(moe_subject("a rank of two's experts", Moe::kPair, tokens, b, kInter / 2));
  return all;
}

void write_json(const char* path, const char* device, const Peak& peak, const std::vector<Result>& results) {
  std::FILE* f = std::fopen(path, "w");
  if (f == nullptr) {
    std::printf("cannot write %s\n", path);
    std::exit(1);
  }
  std::fprintf(f, "{\"device\": \"%s\", \"read_gb_per_s\": %.1f, \"read_configuration\": \"%s\", \"kernels\": [\n",
               device, peak.gb_per_s, peak.configuration.c_str());
  for (size_t i = 0; i < results.size(); ++i) {
    const Result& r = results[i];
    const double rate = static_cast<double>(r.cost.bytes) / r.chain_us / 1e3;
    std::fprintf(f,
                 "  {\"kernel\": \"%s\", \"tokens\": %d, \"stages\": %d, \"bytes\": %lld, \"flops\": %lld, "
                 "\"chain_us\": %.3f, \"graph_us\": %.3f, \"gb_per_s\": %.1f, \"of_read\": %.4f}%s\n",
                 r.name.c_str(), r.tokens, r.stages, static_cast<long long>(r.cost.bytes),
                 static_cast<long long>(r.cost.flops), r.chain_us, r.graph_us, rate, rate / peak.gb_per_s,
                 i + 1 < results.size() ? "," : "");
  }
  std::fprintf(f, "]}\n");
  std::fclose(f);
}

void print_table(const char* device, const Peak& peak, const std::vector<Result>& results) {
  std::printf("%s: read %.0f GB/s (%s)\n%-26s %6s %6s %9s %9s %8s %6s\n", device, peak.gb_per_s,
              peak.configuration.c_str(), "kernel", "tokens", "stages", "chain us", "graph us", "GB/s", "read");
  for (const Result& r : results) {
    const double rate = static_cast<double>(r.cost.bytes) / r.chain_us / 1e3;
    std::printf("%-26s %6d %6d %9.2f %9.2f %8.0f %5.1f%%\n", r.name.c_str(), r.tokens, r.stages, r.chain_us, r.graph_us,
                rate, 100 * rate / peak.gb_per_s);
  }
}

int run(const char* path, std::string_view only) {
  cudaDeviceProp prop{};
  cuda_check(cudaGetDeviceProperties(&prop, 0), "device");
  const PlanDevice device{prop.multiProcessorCount, static_cast<int64_t>(prop.sharedMemPerBlockOptin),
                          static_cast<int64_t>(prop.sharedMemPerMultiprocessor)};
  cudaStream_t stream = nullptr;
  cuda_check(cudaStreamCreate(&stream), "stream");
  const Buffers b{device_array<uint8_t>(kPoolBytes),
                  device_array<float>(8 * 4096),
                  device_array<F16>(8 * kHidden),
                  device_array<F16>(int64_t{kGemvRoutes} * kInter),
                  device_array<Bf16>(Grouped::kAll * 2 * kInter),
                  device_array<Bf16>(kHidden),
                  device_array<float>(int64_t{8} * kVocab)};
  cuda_check(cudaMemset(b.x, 0x3c, 8 * 4096 * sizeof(float)), "x");      // 0.0115 each
  cuda_check(cudaMemset(b.norm, 0x3c, kHidden * sizeof(Bf16)), "norm");  // 0.0115 each
  fill_random<<<4096, 256>>>(reinterpret_cast<uint32_t*>(b.pool), kPoolBytes / 4, kWeightFill);
  cuda_check(cudaDeviceSynchronize(), "fill");
  const Peak peak = measure_read(b.pool, device.sms, stream, device_array<uint32_t>(1));
  std::vector<Result> results;
  const auto measure = [&](const Subject& subject, int stages, int shown_stages) {
    if (subject.name.find(only) == std::string::npos) return;
    results.push_back({subject.name, subject.tokens, shown_stages,
                       time_links(subject, {.device = device, .chained = true, .stages = stages}, stream),
                       time_links(subject, {.device = device, .stages = stages}, stream), subject.cost});
  };
  for (const int tokens : {9, 16, 32, 64, 128, 256, 512})
    for (const Subject& subject : grouped_subjects(b, tokens, device)) measure(subject, 0, 0);
  for (const int tokens : {1, 2, 4, 8})
    for (const Subject& subject : subjects(b, tokens)) measure(subject, 0, 0);
  for (const Subject& subject : subjects(b, 1))
    for (const int stages : {2, 3, 6}) measure(subject, stages, stages);
  write_json(path, prop.name, peak, results);
  print_table(prop.name, peak, results);
  return 0;
}

}  // namespace
}  // namespace nibble::backend::cuda

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    std::printf("usage: kernel_bench <json file> [part of a name]\n");
    return 2;
  }
  try {
    return nibble::backend::cuda::run(argv[1], argc == 3 ? argv[2] : "");
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
