// Every step of gpt-oss has a program on every card from Ampere on, none of whose launches asks for more than the card
// has.

#include "backend/testing/dims.h"
#include "backend/cuda/program/program.h"

#include "backend/cuda/card/device_facts.h"
#include "backend/cuda/card/cards.h"
#include "base/error.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::backend {
namespace {

constexpr int64_t kGib = int64_t{1} << 30;

// As cudaDeviceProp tells of them: multiprocessors from NVIDIA's architecture papers, memory as sold.
cuda::DeviceFacts card(std::string name, std::string_view arch, int multiprocessors, int64_t gib) {
  const cuda::CardArch a = cuda::card_arch(arch);
  return {.name = std::move(name),
          .major = a.major,
          .minor = a.minor,
          .multiprocessors = multiprocessors,
          .memory_bytes = gib * kGib,
          .cta_smem_bytes = a.cta_smem_bytes,
          .sm_smem_bytes = a.sm_smem_bytes};
}
// Those that have a name, and one that has none yet.
std::vector<cuda::DeviceFacts> cards() {
  std::vector<cuda::DeviceFacts> all = {card("B200", "sm_100", 148, 180)};
  for (const cuda::KnownCard& known : cuda::known_cards()) all.push_back(known.facts);
  return all;
}

Dims dims(int layers, int experts) {
  Dims own = kDims120b;
  own.layers = layers;
  own.experts = experts;
  return own;
}

// Decode steps deep in their texts, prompts from their beginning.
std::vector<std::vector<Row>> card_steps() {
  std::vector<std::vector<Row>> all;
  for (const int32_t count : {1, 2, 8, 32, 256}) {
    std::vector<Row>& rows = all.emplace_back();
    for (int32_t r = 0; r < count; ++r) rows.push_back({r, 1, 20000});
  }
  for (const int32_t tokens : {512, 2048}) all.push_back({{0, tokens, tokens}});
  all.push_back({{0, 1, 9000}, {1, 1, 40}, {2, 700, 131072}});
  return all;
}

// The launch's grid where its plan names one ("grid 48 x 576 threads", "grid 45 x 16"): what CUDA takes, and of one
// CTA per multiprocessor no more than the card has.
void expect_grid(const PlannedKernel& node, const cuda::DeviceFacts& on) {
  const size_t at = node.tile.find("grid ");
  if (at == std::string::npos) return;
  const std::string grid = node.tile.substr(at);
  long long x = 0, y = 0;
  char unit[8] = {};  // of y, where that is no grid
  ASSERT_GE(std::sscanf(grid.c_str(), "grid %lld x %lld %7[a-z]", &x, &y, unit), 2) << node.tile;
  const bool threads = std::string_view(unit) == "threads" || std::string_view(unit) == "warps";
  const bool persistent = threads && node.kernel != "any_router_f32_bf16";
  EXPECT_GE(x, 1);
  EXPECT_GE(y, 1);
  EXPECT_LE(x, persistent ? on.multiprocessors : 0x7fffffff) << node.tile;
  EXPECT_LE(y, threads ? 1024 : 65535) << node.tile;
}

TEST(every_card, has_a_program_for_every_step_within_its_shared_memory) {
  for (const cuda::DeviceFacts& on : cards())
    for (const Dims& d : {dims(24, 32), dims(36, 128)})
      for (const KvDtype kv : {KvDtype::kBf16, KvDtype::kE4m3})
        for (const KernelFamily family : {KernelFamily::kAuto, KernelFamily::kStreaming, KernelFamily::kGemm})
          for (const DenseFormats& dense :
               {DenseFormats{},
                DenseFormats{.qkv = WeightFormat::kGgmlQ8,
                             .o = WeightFormat::kGgmlQ8,
                             .lm_head = WeightFormat::kGgmlQ8,
                             .q8_copies = false},
                DenseFormats{
                    .qkv = WeightFormat::kGgmlQ8, .o = WeightFormat::kGgmlQ8, .lm_head = WeightFormat::kGgmlQ8},
                DenseFormats{.qkv = WeightFormat::kMxfp8, .o = WeightFormat::kMxfp4, .lm_head = WeightFormat::kMxfp8}})
            for (const std::vector<Row>& rows : card_steps()) {
              const BackendConfig config{.dims = d, .layer_kinds = {}, .rope_inv_freq = {}, .dense = dense};
              const RunConfig options{.kv = kv, .family = family};
              const cuda::Program program =
                  cuda::make_program({.config = config,
                                      .run = resolved_cuda(config, options),
                                      .step = {.rows = rows, .logit_rows = static_cast<int64_t>(rows.size())},
                                      .card = on});
              EXPECT_GE(program.nodes.size(), 9U);
              for (const cuda::Node& node : program.nodes) {
                SCOPED_TRACE(testing::Message() << on.name << ", " << d.experts << " experts, " << rows.size()
                                                << " rows: " << node.kernel << ", " << node.tile);
                EXPECT_LE(node.shared_bytes, on.cta_smem_bytes);
                EXPECT_TRUE(on.major == 9 || !node.kernel.starts_with("sm90"));
                expect_grid(node, on);
              }
            }
}

// What a step's ranks run has to meet: the same kernels in the same order, sums of the same length.
void expect_alike(const cuda::Program& first, const cuda::Program& last) {
  ASSERT_EQ(first.nodes.size(), last.nodes.size());
  int sums = 0;
  for (size_t i = 0; i < first.nodes.size(); ++i) {
    const cuda::Node &a = first.nodes[i], &b = last.nodes[i];
    EXPECT_EQ(a.stage, b.stage);
    EXPECT_EQ(a.kernel, b.kernel);
    if (!cuda::way_of(a.kernel)) continue;
    ++sums;
    EXPECT_EQ(a.tile, b.tile);
    EXPECT_EQ(a.launches, b.launches);
    EXPECT_TRUE(i + 1 == first.nodes.size() || first.nodes[i + 1].stage != a.stage) << "the last of its stage";
  }
  EXPECT_EQ(sums, 2);
}

TEST(every_card, has_alike_programs_for_all_ranks_of_a_step) {
  const cuda::Reduce plan{};
  for (const cuda::DeviceFacts& on : cards())
    for (const Dims& d : {dims(24, 32), dims(36, 128)})
      for (const Ranks& ranks : {Ranks{2}, Ranks{4}, Ranks{8}, Ranks{2, true}, Ranks{4, true}, Ranks{8, true}})
        for (const KernelFamily family :
             {KernelFamily::kAuto, KernelFamily::kStreaming, KernelFamily::kGemm, KernelFamily::kReference})
          for (const std::vector<Row>& rows : card_steps()) {
            const auto of_rank = [&](int rank) {
              const BackendConfig config = config_of({.dims = d, .layer_kinds = {}, .rope_inv_freq = {}, .dense = {}},
                                                     cuda_shard(shard_of(d, ranks, rank)));
              const RunConfig options{.family = family};
              return cuda::make_program({.config = config,
                                         .run = resolved_cuda(config, options),
                                         .step = {.rows = rows, .logit_rows = static_cast<int64_t>(rows.size())},
                                         .card = on,
                                         .reduce = &plan});
            };
            SCOPED_TRACE(testing::Message()
                         << on.name << ", " << d.experts << (ranks.whole_experts ? " whole" : "") << " experts, "
                         << ranks.count << " ranks, " << name_of(family) << ", " << rows.size() << " rows");
            const cuda::Program first = of_rank(0);
            expect_alike(first, of_rank(ranks.count - 1));
            EXPECT_EQ(first.family, family) << "the packing takes the shards";
            for (const cuda::Node& node : first.nodes) {
              EXPECT_LE(node.shared_bytes, on.cta_smem_bytes) << node.kernel;
              expect_grid(node, on);
            }
          }
}

TEST(every_card, with_less_shared_memory_than_any_has_is_refused_with_what_it_lacks) {
  cuda::DeviceFacts turing = card("RTX 2080", "sm_80", 46, 8);
  turing.cta_smem_bytes = 64 * 1024;
  const BackendConfig config{.dims = dims(24, 32), .layer_kinds = {}, .rope_inv_freq = {}, .dense = {}};
  const std::vector<Row> one = {{0, 1, 100}};
  try {
    static_cast<void>(cuda::make_program(
        {.config = config, .run = resolved_cuda(config, {}), .step = {.rows = one, .logit_rows = 1}, .card = turing}));
    FAIL() << "64 KB are enough";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kUnsupported);
    EXPECT_NE(std::string(e.what()).find("of shared memory per block, the card has 65536"), std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace nibble::backend
