// Ranks that share every step, all on one card, each with a backend of its own, against one backend that has it all.
// Between the verbs their deltas are added up on the host, so that what differs is what a rank computes.

#include "backend/cuda/program/program.h"
#include "backend/shards.h"
#include "gpu_testing.h"

#include <cuda_runtime_api.h>

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <string_view>

namespace nibble {
namespace {

using backend::Ranks;
using backend::RunConfig;
using backend::Slot;
using backend::cuda::DeltaValues;

class RanksOnOneCard final : public backend::Backend {
 public:
  RanksOnOneCard(const backend::BackendConfig& config, const Ranks& ranks, const RunConfig& run)
      : dims_(config.dims), members_(static_cast<size_t>(ranks.count)) {
    for (int rank = 0; rank < ranks.count; ++rank) {
      Member& own = members_[static_cast<size_t>(rank)];
      own.shard = shard_of(dims_, ranks, rank);
      own.reduce = {
          .ranks = ranks.count,
          .by_nccl = true,  // so that values are made before the sum
          .launch = [&own](const DeltaValues& values, const backend::cuda::Launch&) { own.left.push_back(values); }};
      own.be = make_cuda_backend(config_of(config, backend::cuda_shard(own.shard)), run, {.reduce = &own.reduce});
    }
  }

  [[nodiscard]] std::string_view name() const override { return "ranks"; }
  backend::WeightHandle upload(const backend::HostWeight& weight) override {
    backend::WeightHandle handle;
    for (Member& own : members_) {
      backend::HostWeight part = weight;
      part.slice = slice_of(weight.role, dims_, own.shard);
      handle = own.be->upload(part);
    }
    return handle;
  }
  void finish_upload() override {
    for (Member& own : members_) own.be->finish_upload();
  }
  void copy_page(const backend::PageCopy& copy) override {
    for (Member& own : members_) own.be->copy_page(copy);
  }
  void begin(const backend::StepArgs& step) override {
    for (Member& own : members_) own.be->begin(step);
  }
  void embed(const backend::EmbedArgs& args) override {
    for (Member& own : members_) own.be->embed(args);
  }
  void attn_in(const backend::AttnInArgs& args) override {
    for (Member& own : members_) own.be->attn_in(args);
  }
  void attend(const backend::AttendArgs& args) override {
    for (Member& own : members_) own.be->attend(args);
  }
  void attn_out(const backend::AttnOutArgs& args) override {
    for (Member& own : members_) own.be->attn_out(args);
    add_up();
  }
  void route(const backend::RouteArgs& args) override {
    for (Member& own : members_) own.be->route(args);
  }
  void moe(const backend::MoeArgs& args) override {
    for (Member& own : members_) own.be->moe(args);
    add_up();
  }
  void logits(const backend::LogitsArgs& args) override {
    for (Member& own : members_) own.be->logits(args);
  }
  backend::Ticket sample(const backend::SampleArgs& /*args*/) override { return 0; }
  [[nodiscard]] std::vector<backend::DrawnToken> wait(backend::Ticket /*ticket*/) override { return {}; }
  [[nodiscard]] backend::SlotData peek(Slot slot) override {
    if (slot != Slot::kLogits) return members_.front().be->peek(slot);
    backend::SlotData all;
    for (Member& own : members_) {
      const backend::SlotData part = own.be->peek(slot);
      const auto rows = static_cast<size_t>(part.shape[0]), width = static_cast<size_t>(dims_.vocab),
                 columns = static_cast<size_t>(part.shape[1]);
      all.shape = {part.shape[0], dims_.vocab};
      all.values.resize(rows * width);
      for (size_t r = 0; r < rows; ++r)
        std::copy_n(part.values.begin() + static_cast<int64_t>(r * columns), columns,
                    all.values.begin() + static_cast<int64_t>(r * width) + own.shard.vocab.first);
    }
    return all;
  }

 private:
  struct Member {
    backend::Shard shard;
    backend::cuda::Reduce reduce;
    std::vector<DeltaValues> left;  // by the verb before
    std::unique_ptr<backend::Backend> be;
  };

  static std::vector<float> read(const DeltaValues& values) {
    std::vector<float> floats(static_cast<size_t>(values.count));
    if (values.type == DeltaValues::Type::kF32) {
      EXPECT_EQ(cudaMemcpy(floats.data(), values.at, floats.size() * 4, cudaMemcpyDeviceToHost), cudaSuccess);
      return floats;
    }
    std::vector<Bf16> halves(floats.size());
    EXPECT_EQ(cudaMemcpy(halves.data(), values.at, halves.size() * 2, cudaMemcpyDeviceToHost), cudaSuccess);
    std::transform(halves.begin(), halves.end(), floats.begin(), [](Bf16 value) { return value.to_float(); });
    return floats;
  }
  static void write(const DeltaValues& values, const std::vector<float>& floats) {
    if (values.type == DeltaValues::Type::kF32) {
      EXPECT_EQ(cudaMemcpy(values.at, floats.data(), floats.size() * 4, cudaMemcpyHostToDevice), cudaSuccess);
      return;
    }
    std::vector<Bf16> halves(floats.size());
    std::transform(floats.begin(), floats.end(), halves.begin(), [](float value) { return Bf16::from_float(value); });
    EXPECT_EQ(cudaMemcpy(values.at, halves.data(), halves.size() * 2, cudaMemcpyHostToDevice), cudaSuccess);
  }
  void add_up() {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    std::vector<float> sum;
    for (const Member& own : members_) {
      ASSERT_EQ(own.left.size(), 1u) << "one sum per verb";
      EXPECT_EQ(own.left[0].count, members_.front().left[0].count);
      const std::vector<float> part = read(own.left[0]);
      if (sum.empty()) sum.resize(part.size());
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
    }
    for (Member& own : members_) write(own.left[0], sum), own.left.clear();
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  const backend::Dims dims_;
  std::vector<Member> members_;
};

struct Way {
  std::string name;
  Ranks ranks;
  RunConfig run;
};

// Of so many tokens, in steps of so many: decode kernels, then those of more and more tokens.
const std::vector<std::pair<int, int>> kReadings = {{10, 1}, {12, 3}, {16, 8}, {60, 20}, {300, 100}, {600, 600}};

// Logits of every position. Positions may be apart for whose tokens a router was of two minds; they are counted.
void compare(const Source& source, const Way& way) {
  const int most = kReadings.back().first;
  const test::OneSequence limits{.max_context = most, .chunk_tokens = most, .max_logit_rows = most};
  const backend::BackendConfig config = model::backend_config(source.config, test::step_limits(limits));
  const auto alone = make_cuda_backend(config, way.run);
  const model::GptOss on_one = model::load(*alone, source.config, source.weights);
  RanksOnOneCard ranks(config, way.ranks, way.run);
  const model::GptOss on_ranks = model::load(ranks, source.config, source.weights);
  const auto vocab = static_cast<size_t>(source.config.dims.vocab);
  for (const auto& [count, chunk] : kReadings) {
    const std::vector<int32_t> tokens = some_tokens(static_cast<size_t>(count), source.config.dims.vocab);
    const std::vector<float> want = test::all_logits(*alone, on_one, tokens, chunk);
    const std::vector<float> got = test::all_logits(ranks, on_ranks, tokens, chunk);
    ASSERT_EQ(got.size(), want.size());
    std::vector<double> far;
    for (size_t p = 0; p < tokens.size(); ++p)
      far.push_back(relative(std::span(got).subspan(p * vocab, vocab), std::span(want).subspan(p * vocab, vocab)));
    std::ranges::sort(far);
    const double median = far[far.size() / 2];
    const auto apart = std::ranges::count_if(far, [](double d) { return !(d < 0.05); });
    std::printf("%s, %d tokens in steps of %d: median %.2e, worst %.2e, %d apart\n", way.name.c_str(), count, chunk,
                median, far.back(), static_cast<int>(apart));
    EXPECT_LT(median, chunk <= 8 ? 5e-3 : 2e-2) << way.name;
    EXPECT_LE(apart, count / 20) << way.name;
  }
}

TEST_F(Gpu, ranks_of_nibble_tiny_add_up_to_one) {
  const Source source(kTiny);
  const RunConfig bf16{}, marlin{.family = KernelFamily::kStreaming}, gemm{.family = KernelFamily::kGemm},
      plain{.kv = Kv::kF32, .family = KernelFamily::kReference};
  for (const Way& way :
       {Way{"tiny, 2 ranks", {2}, bf16}, Way{"tiny, 2 ranks, marlin", {2}, marlin},
        Way{"tiny, 2 ranks, gemm", {2}, gemm}, Way{"tiny, 2 ranks, plain", {2}, plain},
        Way{"tiny, 4 ranks, plain", {4}, plain}, Way{"tiny, 2 ranks of whole experts", {2, true}, bf16},
        Way{"tiny, 2 ranks of whole experts, marlin", {2, true}, marlin},
        Way{"tiny, 2 ranks of whole experts, plain", {2, true}, plain}})
    compare(source, way);
}

// Two layers of gpt-oss-120b's widths, few words.
model::ModelConfig wide_model(int64_t experts) {
  model::ModelConfig config = model::truncated(model::preset("gpt-oss-120b"), 2);
  config.dims.experts = experts;
  config.dims.vocab = 4096;
  config.bos_id = config.pad_id = 0;
  config.eos_ids = {1};
  return config;
}

TEST_F(Gpu, ranks_of_120b_s_widths_add_up_to_one) {
  const Source source(wide_model(16), 11);
  const RunConfig automatic{}, gemm{.family = KernelFamily::kGemm};
  for (const Way& way : {Way{"120b, 2 ranks", {2}, automatic}, Way{"120b, 2 ranks, gemm", {2}, gemm},
                         Way{"120b, 4 ranks", {4}, automatic}, Way{"120b, 8 ranks", {8}, automatic},
                         Way{"120b, 2 ranks of whole experts", {2, true}, automatic},
                         Way{"120b, 4 ranks of whole experts, gemm", {4, true}, gemm}})
    compare(source, way);
}

}  // namespace
}  // namespace nibble
