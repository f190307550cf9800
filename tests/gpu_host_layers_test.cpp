// Experts on the host beside a card that is there: any split of the layers says what the card alone says, with graphs
// and without, at real widths, and an error of the host is the step's.

#include "base/error.h"
#include "gpu_testing.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <memory>
#include <variant>

namespace nibble {
namespace {

using backend::RunConfig;

// copies: of steps of at least so many tokens; 0: of none.
double of_split(const Source& source, const RunConfig& run, int layers, int chunk, int copies = 0) {
  const std::vector<int32_t> tokens = some_tokens(160, source.config.dims.vocab);
  const test::OneSequence limits{.max_context = 160, .chunk_tokens = chunk, .max_logit_rows = chunk};
  Loaded whole(source, limits, Which::kCuda, run);
  RunConfig with = run;
  with.cpu_moe_layers = layers;
  with.expert_copy_tokens = copies;
  Loaded split(source, limits, Which::kCuda, with);
  const std::vector<float> want = all_logits(whole, tokens), got = all_logits(split, tokens);
  return median_distance(got, want, static_cast<size_t>(source.config.dims.vocab));
}

TEST_F(Gpu, experts_on_the_host_give_the_cards_logits) {
  const Source tiny(kTiny);
  for (const int layers : {1, 4, 8})
    for (const int chunk : {1, 2, 5, 9, 64, 160}) {
      EXPECT_LE(of_split(tiny, {.kv = Kv::kF32, .family = KernelFamily::kReference}, layers, chunk), 1e-4)
          << "plain, " << layers << " layers, chunks of " << chunk;
      for (const KernelFamily family : {KernelFamily::kStreaming, KernelFamily::kGemm, KernelFamily::kAuto})
        EXPECT_LE(of_split(tiny, {.family = family}, layers, chunk), 5e-2)
            << backend::name_of(family) << ", " << layers << " layers, chunks of " << chunk;
    }
}

model::ModelConfig three_layers() {
  model::ModelConfig config = model::truncated(model::gpt_oss_120b(), 3);
  config.dims.vocab = 4096;
  config.bos_id = config.pad_id = 0;
  config.eos_ids = {1};
  return config;
}

TEST_F(Gpu, experts_on_the_host_give_the_cards_logits_at_real_widths) {
  const Source source(three_layers(), 7);
  for (const int layers : {1, 2, 3})
    for (const int chunk : {1, 4, 32, 160})
      EXPECT_LE(of_split(source, {}, layers, chunk), 2e-2) << layers << " layers, chunks of " << chunk;
}

// Experts come in parts, and the GEMM is one that takes any scale.
TEST_F(Gpu, experts_of_the_host_that_are_copied_give_the_cards_logits) {
  const Source tiny(kTiny), wide(three_layers(), 7);
  for (const int chunk : {9, 64, 160})
    for (const int layers : {1, 4, 8})
      for (const KernelFamily family : {KernelFamily::kGemm, KernelFamily::kAuto})
        EXPECT_LE(of_split(tiny, {.family = family}, layers, chunk, 9), 1e-2)
            << backend::name_of(family) << ", " << layers << " layers, chunks of " << chunk;
  for (const int layers : {1, 3}) EXPECT_LE(of_split(wide, {}, layers, 160, 64), 5e-3) << layers << " layers";
}

// Texts of several sequences, and replays.
std::pair<std::map<int64_t, std::vector<int32_t>>, int64_t> texts(const Source& source, const RunConfig& run) {
  const engine::EngineLimits limits{.max_context = 256,
                                    .max_sequences = 3,
                                    .max_batched_tokens = 64,
                                    .target_itl_seconds = std::numeric_limits<double>::infinity(),
                                    .async_scheduling = true};
  const auto be = backend::make_cuda_backend(
      model::backend_config(source.config, engine::step_limits(limits, source.config.dims)), run, with_host_experts());
  const model::GptOss gpt = model::load(*be, source.config, source.weights);
  engine::Loop loop(*be, gpt, limits);
  std::map<int64_t, std::vector<int32_t>> all;
  for (const int32_t id : {30, 70, 110})
    loop.add(id,
             {.prompt = some_tokens(static_cast<size_t>(id), source.config.dims.vocab),
              .max_tokens = 40,
              .sampling = {.temperature = 0}},
             [&all, id](const engine::Event& event) {
               if (const auto* token = std::get_if<engine::TokenEvent>(&event)) all[id].push_back(token->token);
             });
  while (!loop.idle()) loop.step();
  return {all, be->graph_replays()};
}

TEST_F(Gpu, experts_on_the_host_say_the_same_in_graphs) {
  const Source tiny(kTiny);
  const RunConfig plain{.kv = Kv::kBf16, .attention = Attention::kReference, .family = KernelFamily::kReference};
  for (const int layers : {0, 1, 4, 8}) {
    RunConfig exact = plain, eager{.eager = true, .cpu_moe_layers = layers}, graphs{.cpu_moe_layers = layers};
    exact.cpu_moe_layers = layers;
    EXPECT_EQ(texts(tiny, exact).first, texts(tiny, plain).first) << layers;
    const auto [text, replays] = texts(tiny, graphs);
    EXPECT_EQ(text, texts(tiny, eager).first) << layers;
    EXPECT_EQ(text, texts(tiny, graphs).first) << "again, " << layers;
    EXPECT_GT(replays, 10) << layers;
  }
}

class FailingExperts final : public backend::HostExperts {
 public:
  [[nodiscard]] std::string modes() const override { return "none"; }
  void upload(const backend::HostWeight& /*weight*/) override {}
  void run(const Work& work) override {
    if (work.layer == 2) throw Error(Code::kIo, "the weights are gone");
  }
};

TEST_F(Gpu, experts_on_the_host_that_fail_end_the_step_with_their_error) {
  const Source tiny(kTiny);
  const test::OneSequence limits{.max_context = 64, .chunk_tokens = 64};
  const auto be = backend::make_cuda_backend(
      model::backend_config(tiny.config, test::step_limits(limits)), {.cpu_moe_layers = 3},
      {.host_experts = [](const backend::BackendConfig&) { return std::make_unique<FailingExperts>(); }});
  const model::GptOss gpt = model::load(*be, tiny.config, tiny.weights);
  const backend::SamplingParams greedy{.temperature = 0};
  model::Step step = engine::step_alone(some_tokens(3, tiny.config.dims.vocab));
  step.logit_tokens = {2};
  step.sample_rows = {{.params = &greedy}};
  const auto ticket = model::forward(*be, gpt, step);
  ASSERT_TRUE(ticket);
  test::expect_error([&] { static_cast<void>(be->wait(*ticket)); }, Code::kIo, "the weights are gone");
}

}  // namespace
}  // namespace nibble
